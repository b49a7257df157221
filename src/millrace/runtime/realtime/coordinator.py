"""The coordinator: incarnations of live tasks, and marks that they pass. It lives in the driver.

A mark is an epoch of the same epoch log: its completion is written when every task has passed it,
and begins the next, as tasks do not wait for it. What is between two marks is, after a failure,
sent again and dropped where it is known.

It is driven by who hosts it: messages of tasks, the clock, and what was lost come in; messages for
tasks come out.

Source: MillWheel 6.2 and 7.2; docs/design/2026-11-22-the-real-time-plane.md.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol

import msgspec
from msgspec.structs import replace

from millrace.compile.topology import Topology, fed_by
from millrace.epochlog.entries import LiveMark, Manifest, encode_entry
from millrace.epochlog.run_log import RunLog
from millrace.injectors.offsets import SourceOffset, SourceOffsets
from millrace.model.errors import StoreError, ZombieWriter
from millrace.model.time import SECOND
from millrace.runtime.commit_writer import check_consumed
from millrace.runtime.realtime.incarnation_start import (
    InputOffsets,
    Numbers,
    Processes,
    consumed_by_any,
    encode_note,
    input_of,
    joined,
    known_parts,
    known_to,
    last_notes,
    lasting,
    offsets_of_gone,
    publish_again,
    readers,
    refuse_other_tasks,
    share_input,
    to_live_tasks,
)
from millrace.runtime.realtime.incarnation_start import TaskKey as TaskKey
from millrace.runtime.realtime.messages import (
    Backpressure,
    FromTask,
    Mark,
    MarkPassed,
    RenewTask,
    SlowestSource,
    SourcePause,
    SourceProgress,
    StartTask,
    StopTask,
    TaskEnded,
    TaskReady,
    TaskStatus,
    ToTask,
)
from millrace.runtime.realtime.source_progress import Pace
from millrace.runtime.reports import TaskReport
from millrace.runtime.sink_contract import Receipt, TaskSink
from millrace.store import Collectable, HardState

_decode_receipt = msgspec.msgpack.Decoder(Receipt).decode


def as_passed(
    manifest: Manifest, mark: Mark, passed: Iterable[MarkPassed], wall_us: int
) -> Manifest:
    """Return the manifest of an epoch as its mark ended it: with what injectors had published."""
    said_us = published(passed)
    return replace(
        manifest,
        injectors=said_us.get(100, manifest.injectors),
        percentiles={p: us for p, us in said_us.items() if p != 100},
        draining=mark.draining,
        wall_time_us=max(manifest.wall_time_us, wall_us),
    )


def published(passed: Iterable[MarkPassed]) -> dict[int, dict[str, int]]:
    """Return percentile -> injected stream -> the least that any task says of it."""
    found: dict[int, dict[str, int]] = {}
    for part in passed:
        for percentile, streams in part.published.items():
            known = found.setdefault(percentile, {})
            for stream, us in streams.items():
                known[stream] = min(known.get(stream, us), us)
    return found


def source_offsets(
    passed: Iterable[MarkPassed],
    numbers: Mapping[str, Mapping[str, int]],
    gone: SourceOffsets = MappingProxyType({}),
) -> dict[str, dict[str, SourceOffset]]:
    """Return injected stream -> process -> where it stood.

    Args:
        passed: What injector tasks said.
        numbers: Of processes that no mark before has. Of one that is gone it is all there is.
        gone: Offsets of processes that are gone, of which something was decided.
    """
    found = {
        stream: {name: SourceOffset(number) for name, number in of.items()}
        for stream, of in numbers.items()
    }
    for offsets in (gone, *(part.input for part in passed)):
        for stream, of in offsets.items():
            found.setdefault(stream, {}).update(of)
    return found


def receipts(passed: Iterable[MarkPassed]) -> dict[int, list[bytes]]:
    """Return edge to a sink -> what tasks say of what they wrote to it."""
    found: dict[int, list[bytes]] = {}
    for one in passed:
        for edge, receipt in one.receipts.items():
            found.setdefault(edge, []).append(_decode_receipt(receipt).of)
    return found


@dataclass
class Incarnation:
    """One life of all tasks.

    Attributes:
        number: Of the incarnation.
        processes: Of the injectors, that its tasks read.
        looked_us: When was last looked whether there are others.
        pace: How far its injector tasks have come.
        numbers: Of processes that no complete mark had when it began.
        gone: Offsets of processes that nobody reads, of which something was decided.
        passed: Task -> what it said when it passed the mark under way.
        over: Tasks that have ended.
        mark: The mark under way; None if none is.
    """

    number: int
    processes: Processes
    looked_us: int
    pace: Pace
    numbers: Numbers
    gone: InputOffsets
    passed: dict[TaskKey, MarkPassed] = field(default_factory=dict)
    over: set[TaskKey] = field(default_factory=set)
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
        segments: Segment that it ended -> computation -> interval -> last commit.
        incarnation: In which it was passed.
    """

    mark: Mark
    manifest: Manifest
    report: TaskReport
    written: Mapping[int, list[bytes]]
    segments: Mapping[str, dict[str, dict[int, int]]]
    incarnation: int


def sealed_by_another(incarnation: int) -> StoreError:
    """Return why an incarnation ends that another run has sealed.

    What was appended since is behind that seal, so no mark can be complete. The other run may be
    the older: then this one begins another incarnation.
    """
    return StoreError(
        f"incarnation {incarnation} was sealed by another run of the pipeline while it went on: "
        "two runs on one checkpoint. The last of them to start begins a new incarnation. Nothing "
        "was lost."
    )


_log = logging.getLogger("millrace")

#: How often is looked whether an injector has new processes.
_LOOK_US = 10 * SECOND
#: How often a mark is made while tasks do nothing: marks are nearly all that such a run asks its
#: store for.
_IDLE_US = 60 * SECOND
#: What a task has done in an incarnation: records, commits, and how far its low watermarks came.
Progress = tuple[int, int, Mapping[str, int]]
#: What is to be sent to whom.
Orders = list[tuple[TaskKey, ToTask]]


class Sources(Protocol):
    """What the coordinator must know of the injectors."""

    def processes(self) -> Processes:
        """Return injected stream -> names of the processes that there are now."""
        ...


class Coordinator:
    """Begins incarnations and completes marks.

    Args:
        run_log: Of the run; it holds the checkpoint.
        tasks: Tasks a level.
        sources: Of the injectors.
        sinks: Edge to a sink -> what publishes what tasks have written to it, by mark.
        mark_every_us: How often a mark is made while tasks do something.
        completed: Called with each mark that is complete.
        writers: What tasks write sinks with: see
            :class:`~millrace.runtime.realtime.messages.StartTask`.
        elapsed_us: Returns microseconds since any instant, for what happens so often: the wall
            clock may be set back, or stand still in a test. By default the wall clock's.

    Raises:
        CheckpointMismatch: Live tasks cannot take the checkpoint over.

    Attributes:
        incarnation: Number of the incarnation that runs; None between two.
        failed: Why the last incarnation ended, if not by itself.
        ended: Whether a last mark is complete: no incarnation follows, unless :meth:`go_on` says
            so.
        statuses: Task -> how it is doing.
    """

    def __init__(
        self,
        run_log: RunLog,
        *,
        tasks: int,
        sources: Sources,
        sinks: Mapping[int, TaskSink],
        mark_every_us: int,
        completed: Callable[[Marked], None] = lambda _marked: None,
        writers: bytes = b"",
        elapsed_us: Callable[[], int] | None = None,
    ) -> None:
        to_live_tasks(run_log)
        self._run_log = run_log
        self._topology: Topology = run_log.topology
        self._fed_by = fed_by(self._topology)
        # Pending calls are state: in the next incarnation they are there before a task says so.
        self._full: dict[TaskKey, list[str]] = {}
        self._state: HardState = run_log.state
        self._tasks = tasks
        self._sources = sources
        self._sinks = sinks
        self._every_us = mark_every_us
        self._completed = completed
        self._writers = writers
        self._elapsed_us = elapsed_us
        levels = range(self._topology.depth + 1)
        self._where = [(level, n) for level in levels for n in range(tasks)]
        self._hello: set[TaskKey] = set()
        self._incarnation: Incarnation | None = None
        # When a mark is made if tasks have done something since the last one, and if they have not.
        self._next_us = self._idle_us = 0
        self._progress_at_mark: dict[TaskKey, Progress] = {}
        self._soon = False
        self._ending: Mark | None = None
        self._resting = False
        # Tasks stay, and begin anew: one that is lost then would be waited for.
        self._staying = False
        # Finished segments, each with a complete mark, and the incarnation of the last one.
        self._segments: dict[str, dict[str, dict[int, int]]] = {}
        self._marked_in = 0
        self._finishing: Finishing | None = None
        self.failed: BaseException | None = None
        self.ended = run_log.drained
        if self.ended:
            publish_again(run_log, sinks)
        self.statuses: dict[TaskKey, TaskStatus] = {}

    @property
    def incarnation(self) -> int | None:
        """Number of the incarnation that runs; None between two."""
        return None if self._incarnation is None else self._incarnation.number

    @property
    def awaited(self) -> list[TaskKey]:
        """The tasks that have not passed the mark under way; none if none is."""
        incarnation = self._incarnation
        if incarnation is None or incarnation.mark is None:
            return []
        return [where for where in self._where if where not in incarnation.passed]

    def owned(self, level: int, task: int) -> dict[str, list[int]]:
        """Return computation of a level -> ids of the key intervals that a task works on."""
        maps = self._run_log.positions.maps
        return {
            spec.name: [
                maps[spec.name].intervals[place].id
                for place in maps[spec.name].owned(task, self._tasks)
            ]
            for spec in self._topology.computations
            if spec.level == level
        }

    # -- what comes in -----------------------------------------------------------------------------

    def receive(self, message: FromTask, wall_us: int) -> Orders:
        """Take a message of a task."""
        where = message.level, message.task
        if isinstance(message, TaskReady):
            self._hello.add(where)
            return self._begun(wall_us)
        if isinstance(message, TaskStatus):
            self.statuses[where] = message
            return []
        if isinstance(message, SourceProgress):
            if self.incarnation == message.incarnation and self._incarnation is not None:
                self._incarnation.pace.reached(message.task, message.low_watermarks)
            return self._paced(wall_us)
        if isinstance(message, Backpressure):
            return self._pressed(where, message)
        if isinstance(message, TaskEnded):
            error = pickle.loads(message.error) if message.error else None
            return self.lost(*where, error)
        incarnation = self._incarnation
        if (
            incarnation is None
            or incarnation.mark is None
            or message.mark != incarnation.mark.number
        ):
            return []
        incarnation.passed[where] = message
        if len(incarnation.passed) < len(self._where):
            return []
        return self._complete(incarnation, wall_us)

    def tick(self, wall_us: int) -> Orders:
        """Look at the clock."""
        return [*self._begun(wall_us), *self._paced(wall_us), *self._marked(wall_us)]

    def _paced(self, wall_us: int) -> Orders:
        """Say how far the slowest have come, if that is news."""
        slowest = (
            None
            if self._incarnation is None
            else self._incarnation.pace.news(self._now_us(wall_us))
        )
        return (
            []
            if slowest is None
            else [((0, n), SlowestSource(slowest)) for n in range(self._tasks)]
        )

    def _pressed(self, where: TaskKey, message: Backpressure) -> Orders:
        """Have the streams before full computations wait at their sources.

        Packets do not wait: there may be a mark behind them.
        """
        incarnation = self._incarnation
        if incarnation is None or incarnation.number != message.incarnation:
            return []
        self._full[where] = message.computations
        return self._pause()

    def _pause(self) -> Orders:
        full = {name for names in self._full.values() for name in names}
        pause = SourcePause(sorted({stream for name in full for stream in self._fed_by[name]}))
        return [((0, n), pause) for n in range(self._tasks)]

    def _marked(self, wall_us: int) -> Orders:
        incarnation = self._incarnation
        if incarnation is None or incarnation.mark is not None or self.ended:
            return []
        ending = self._ending
        last = self._resting or ending is not None
        if not (self._soon or last or self._due(incarnation, wall_us)):
            return []
        self._soon = False
        self._progress_at_mark = self._progress()
        draining = ending is not None and ending.draining
        incarnation.mark = Mark(self._open.epoch, last=last, draining=draining)
        incarnation.passed.clear()
        return [((0, n), incarnation.mark) for n in range(self._tasks)]

    def _due(self, incarnation: Incarnation, wall_us: int) -> bool:
        """Return whether a mark is to be made by the clock."""
        now_us = self._now_us(wall_us)
        if now_us < self._next_us:
            return False
        busy = now_us >= self._idle_us or self._progress() != self._progress_at_mark
        return busy or bool(self._joined(incarnation, now_us))

    def _progress(self) -> dict[TaskKey, Progress]:
        """Return task -> what it says that it has done."""
        return {
            where: (one.records, one.commits, one.inputs) for where, one in self.statuses.items()
        }

    def _schedule(self, wall_us: int) -> None:
        """Let the time until the next mark begin."""
        now_us = self._now_us(wall_us)
        self._next_us = now_us + self._every_us
        self._idle_us = now_us + max(self._every_us, _IDLE_US)

    def lost(self, level: int, task: int, error: BaseException | None) -> Orders:
        """Take it that a task has ended, or that nothing is known of it any more.

        Args:
            level: Its level.
            task: Its number.
            error: Why; None if its input ended.
        """
        self._hello.discard((level, task))
        incarnation = self._incarnation
        if incarnation is None and not self._staying:
            return []
        if error is not None:
            self.failed = self.failed or error
            self._leave_incarnation()
            self._staying = False
            return [(where, StopTask()) for where in self._where if where != (level, task)]
        if incarnation is None:
            return []
        incarnation.over.add((level, task))
        if len(incarnation.over) == len(self._where):
            self._leave_incarnation()
        return []

    def _now_us(self, wall_us: int) -> int:
        """Return what time it is for what happens so often."""
        return wall_us if self._elapsed_us is None else self._elapsed_us()

    def _leave_incarnation(self) -> None:
        """Let the incarnation be over; the next one makes a mark that was under way."""
        if self._incarnation is not None and self._incarnation.mark is not None:
            self._soon = True
        self._incarnation = None

    # -- what is wanted ----------------------------------------------------------------------------

    def mark_soon(self) -> None:
        """Have a mark made without waiting for its time."""
        self._soon = True

    def end(self, *, draining: bool = False) -> None:
        """Have a last mark made: after it nothing is read, and the run is over.

        Args:
            draining: Whether the input ends for good: all low watermarks go to the end of time.
        """
        self._ending = Mark(0, last=True, draining=draining)

    def rest(self) -> None:
        """Have a last mark made after which all tasks stay, and the run goes on: :meth:`go_on`."""
        self._resting = True

    def go_on(self) -> None:
        """Let another incarnation begin after a rest; an end asked for meanwhile stands."""
        assert self.ended, "all tasks have passed a last mark"
        self.ended = self._run_log.drained
        self._resting = False

    # -- incarnations ------------------------------------------------------------------------------

    @property
    def _open(self) -> Manifest:
        assert self._run_log.open is not None, "a manifest is written before its mark"
        return self._run_log.open

    def _begun(self, wall_us: int) -> Orders:
        """Begin an incarnation if all tasks are there, and one may begin."""
        if self.ended or len(self._hello) < len(self._where):
            return []
        self._hello.clear()
        self._staying = False
        return self._begin(wall_us)

    def _begin(self, wall_us: int) -> Orders:
        """Seal what the incarnation before left, and start all tasks."""
        run_log, incarnations = self._run_log, self._state.incarnations
        run_log.settle()
        if self._finishing is not None:
            # The last mark was passed, and could not be written down or published.
            self._finish(wall_us)
            if self.ended:
                return self._over()
        self._refuse_superseded()
        number = incarnations.last() + 1
        seal = incarnations.seal(number)
        if seal is None:
            raise ZombieWriter(
                f"zombie writer: incarnation {number} has been begun by another run, which goes on "
                "with this checkpoint. This one must stop. Nothing was lost."
            )
        # If a newer run has claimed the checkpoint meanwhile, this has sealed its incarnation,
        # which it notices at its next mark; and what this one knows is old.
        self._refuse_superseded()
        refuse_other_tasks(run_log.open, self._tasks)
        positions = run_log.positions
        names = {spec.number: spec.name for spec in self._topology.computations}
        check_consumed(incarnations, positions.numbers, positions.maps, names)
        # Its driver has perhaps not come to it.
        publish_again(run_log, self._sinks)
        if run_log.open is None:
            following = run_log.completed + 1
            run_log.begin(following, wall_time_us=wall_us, injectors={}, live=self._tasks)
        self.failed = None
        self._schedule(wall_us)
        self._progress_at_mark = {}
        self._segments = {}
        lasts = last_notes(seal, run_log.live)
        now = self._sources.processes()
        run_log.forget_ended(now)
        read, numbers = input_of(self._topology, run_log.source_offsets, now, lasts)
        parts = known_parts(self._topology, run_log.source_offsets, numbers)
        known = known_to(self._topology, self._tasks, lasts, run_log.live, parts)
        consumed = consumed_by_any(known.values())
        gone = offsets_of_gone(run_log.source_offsets, numbers, read, lasts, self._open.epoch)
        pace = Pace(readers(self._topology, read, self._tasks), self._open.injectors)
        looked_us = self._now_us(wall_us)
        self._incarnation = Incarnation(number, now, looked_us, pace, numbers, gone)
        manifest = encode_entry(self._open)
        orders: Orders = []
        for level, n in self._where:
            start = StartTask(number, manifest, note=lasts.get((0, n), b""), numbers=numbers)
            if level == 0:
                start.consumed = consumed
                share_input(start, read, n, self._tasks, run_log.sources)
            else:
                start.writers, start.parts = self._writers, parts
                note = known.get((level, n))
                start.note = b"" if note is None else encode_note(note)
            orders.append(((level, n), start))
        return [*orders, *(self._pause() if any(self._full.values()) else ())]

    def _refuse_superseded(self) -> None:
        superseded = self._run_log.superseded()
        if superseded is not None:
            raise superseded

    # -- marks -------------------------------------------------------------------------------------

    def _complete(self, incarnation: Incarnation, wall_us: int) -> Orders:
        """Every task has passed the mark: write the completion, and publish what sinks got.

        In this order: should the mark be tried again, it would stand elsewhere, and what sinks got
        before it would be something else.
        """
        mark, passed = incarnation.mark, incarnation.passed
        assert mark is not None, "completed once"
        if self._state.incarnations.superseded(incarnation.number):
            self._incarnation, self.failed = None, sealed_by_another(incarnation.number)
            return [(where, StopTask()) for where in self._where]
        run_log, manifest = self._run_log, self._open
        segments = {
            one.segment: one.report.last_commits() for one in passed.values() if one.segment
        }
        report = TaskReport.together(one.report for one in passed.values())
        reading = [one for (level, _), one in passed.items() if level == 0]
        said = as_passed(manifest, mark, passed.values(), wall_us)
        written = receipts(passed[where] for where in sorted(passed))
        left = LiveMark(
            tasks=self._tasks,
            notes={f"{level}-{n}": one.note for (level, n), one in passed.items() if level},
            receipts=lasting(written, self._sinks),
            incarnation=incarnation.number,
        )
        self._finishing = Finishing(mark, said, report, written, segments, incarnation.number)
        incarnation.mark = None
        incarnation.passed.clear()
        read = source_offsets(reading, incarnation.numbers, incarnation.gone)
        goes_on = not mark.last
        run_log.complete(
            said, report.results, report.sources, source_offsets=read, live=left, goes_on=goes_on
        )
        self._finish(wall_us)
        run_log.dead_letters.check()
        if self.ended:
            return self._over()
        run_log.renew_claim()
        return self._renewed(incarnation, wall_us)

    def _over(self) -> Orders:
        """End an incarnation for good, or have all tasks begin anew in another when it may."""
        self._incarnation = None
        self._staying = not self.ended or (self._resting and not self._run_log.drained)
        order = RenewTask() if self._staying else StopTask()
        return [(where, order) for where in self._where]

    def _finish(self, wall_us: int) -> None:
        """Do what follows from the completion of a mark."""
        done = self._finishing
        assert done is not None, "finished once"
        for edge, of in done.written.items():
            self._sinks[edge].publish(done.manifest.epoch, of)
        self._finishing = None
        self._segments |= done.segments
        self._marked_in = done.incarnation
        self._schedule(wall_us)
        self.ended = done.mark.last
        self._completed(Marked(done.manifest, done.report))

    def _renewed(self, incarnation: Incarnation, wall_us: int) -> Orders:
        """End an incarnation, right after a mark, if there are processes that nobody reads.

        The next one has them. It begins as after a failure, but with the tasks that there are.
        """
        new = self._joined(incarnation, self._now_us(wall_us))
        if not new:
            return []
        _log.info("processes have joined: %s; all tasks begin anew, to read them too", new)
        return self._over()

    def _joined(self, incarnation: Incarnation, now_us: int) -> str:
        """Return in words which processes nobody reads, if it is time to look again."""
        if now_us < incarnation.looked_us + _LOOK_US:
            return ""
        new = joined(incarnation.processes, self._sources.processes())
        if not new:
            incarnation.looked_us = now_us
        return new

    def collectable(self) -> Collectable:
        """Return what lies behind the last complete mark, for collection."""
        return replace(
            self._run_log.collectable(),
            incarnation=self._marked_in,
            segments=dict(self._segments),
            forget=self._forget,
        )

    def _forget(self, names: Iterable[str]) -> None:
        for name in names:
            self._segments.pop(name, None)
