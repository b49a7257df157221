"""What the coordinator keeps of a session, and of a mark that is being made or completed in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from millrace.model.errors import StoreError
from millrace.plane.realtime.beginning import Processes, Where
from millrace.plane.realtime.messages import Mark, Passed
from millrace.plane.realtime.note import Numbers
from millrace.plane.realtime.pacing import Pace
from millrace.plane.reports import TaskReport
from millrace.windmill.manifest import Manifest


@dataclass
class Session:
    """One life of all tasks.

    Attributes:
        number: Of the session.
        begun_us: When it began.
        processes: Of the injectors, that its tasks read.
        looked_us: When was last looked whether there are others.
        pace: How far its injector tasks have come.
        numbers: Of processes that no complete mark had when it began.
        passed: Task -> what it said when it passed the mark under way.
        over: Tasks that have ended.
        mark: The mark under way; None if none is.
    """

    number: int
    begun_us: int
    processes: Processes
    looked_us: int
    pace: Pace
    numbers: Numbers
    passed: dict[Where, Passed] = field(default_factory=dict)
    over: set[Where] = field(default_factory=set)
    mark: Mark | None = None


@dataclass(frozen=True)
class Marked:
    """A mark that is complete."""

    manifest: Manifest
    report: TaskReport


@dataclass(frozen=True)
class Finishing:
    """A mark that all tasks have passed: what is to be done when its completion is written.

    Attributes:
        mark: The mark.
        manifest: Of the epoch that it ends.
        report: Of all tasks.
        written: Edge to a sink -> receipts.
        parts: Part of a journal that it ended -> computation -> interval -> last commit.
        session: In which it was passed.
    """

    mark: Mark
    manifest: Manifest
    report: TaskReport
    written: Mapping[int, list[bytes]]
    parts: Mapping[str, dict[str, dict[int, int]]]
    session: int


def sealed_by_another(session: int) -> StoreError:
    """Return why a session ends that another run has sealed.

    What was appended since is behind that seal, so no mark can be complete. The other run may be
    the older: then this one begins another session.
    """
    return StoreError(
        f"session {session} was sealed by another run of the pipeline while it went on: two runs "
        "on one checkpoint. The last of them to start begins a new session. Nothing was lost."
    )
