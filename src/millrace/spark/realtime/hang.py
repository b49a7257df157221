"""A hang: a task did nothing for too long, though it waited for nobody. Its process is ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from millrace.model.errors import MillraceError
from millrace.model.time import SECOND, format_duration
from millrace.plane.realtime.coordinator import Where
from millrace.plane.realtime.messages import TaskReady
from millrace.spark.realtime.liveness import Liveness
from millrace.spark.realtime.process_id import ProcessId
from millrace.spark.realtime.stalled_mark import name_of

#: So many names of what a task has are said.
_NAMED: Final = 8


class TaskHung(MillraceError):
    """A task did nothing for as long as ``hang_limit=`` allows.

    Attributes:
        processes: Those of all tasks that hang.
        outside: Whether that is up to a disk, a sink or a source, which may answer again, and not
            to user code.
    """

    def __init__(
        self, message: str, processes: Sequence[ProcessId] = (), *, outside: bool = False
    ) -> None:
        super().__init__(message)
        self.processes = tuple(processes)
        self.outside = outside


def task_hung(
    hung: Sequence[Where],
    hosts: Mapping[Where, TaskReady],
    liveness: Liveness,
    has: Mapping[str, Sequence[object]],
) -> TaskHung:
    """Return the error that says which tasks hang, and at what.

    Args:
        hung: Those tasks, at least one.
        hosts: Task -> where it runs.
        liveness: Knows what they do.
        has: What the first of them works on: computation -> its key intervals, or injected stream
            -> its processes.
    """
    first, *others = hung
    said, outside = liveness.said_of(first)
    level = first[0]
    what = "; ".join(
        f"{'key intervals' if level else 'processes'} {_listed(names)} of {of!r}"
        for of, names in has.items()
        if names
    )
    more = f" {len(others)} other tasks hang, too." if others else ""
    limit = format_duration(int(liveness.limit_s * SECOND))
    known = (ProcessId.read(hosts[one].process) for one in hung if one in hosts)
    return TaskHung(
        f"{name_of(first, hosts.get(first))} did nothing for {limit}, which is hang_limit=: it "
        f"{said}.{f' It has {what}.' if what else ''}{more} The process is ended. If it "
        "may take so long, give start() a longer hang_limit=.",
        [one for one in known if one is not None],
        outside=outside,
    )


def _listed(names: Sequence[object]) -> str:
    """Return names in words.

    >>> _listed([1, 3]), _listed(range(20))
    ('1, 3', '0, 1, 2, 3, 4, 5, 6, 7 and 12 more')
    """
    listed = ", ".join(map(repr, names[:_NAMED]))
    return f"{listed} and {len(names) - _NAMED} more" if len(names) > _NAMED else listed
