"""Transcripts on the real-time plane, in this process: live tasks, fed by hand.

A step is fed to one injector task, and all tasks have turns until nothing moves. A look at the
panes makes a mark, as sinks that are written by mark show nothing before; a crash takes all tasks
away, with what was on its way, and begins another incarnation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from millrace.compile.build import build
from millrace.compile.topology import Topology, injector_name
from millrace.epochlog.entries import decode_manifest
from millrace.epochlog.run_log import RunLog
from millrace.injectors.offsets import SourceOffset
from millrace.kernel.execution import Execution
from millrace.kernel.record_ids import FIRST_INJECTED
from millrace.model.errors import PipelineError
from millrace.model.time import LATEST_RECORD, MAX_TIMESTAMP, MIN_TIMESTAMP
from millrace.runtime.packets import NO_MARK, Pipes
from millrace.runtime.realtime.coordinator import Coordinator
from millrace.runtime.realtime.host import IncarnationHost
from millrace.runtime.realtime.messages import FromTask, Mark, MarkPassed, StartTask, ToTask
from millrace.runtime.realtime.task import LiveTask, Sent, TaskStats, silent
from millrace.runtime.refusal import EventTimes
from millrace.runtime.reports import TaskReport
from millrace.runtime.row_encoder import LiveRows, RowEncoder, number_at, row_ids
from millrace.runtime.rows import Outbox, Rows
from millrace.runtime.worker_process import Task, WorkerProcess, turns_manifest
from millrace.store import MemoryCaches, MemoryHardState
from millrace.testing.output import Output, tapped
from millrace.testing.transcript import Transcript, TranscriptElement
from millrace.watermark.propagation import Message
from tests.kit.local_plane import LocalPlane

_STREAM = "elements"
_PROCESS = "script"
_TASKS = 2


class OnRealTime:
    """Runs a transcript on live tasks; an executor for :func:`~millrace.testing.play`.

    Args:
        transcript: To be run.
        lift: Whether values are combined before they are sent.
    """

    def __init__(self, transcript: Transcript, *, lift: bool = False) -> None:
        pipeline = transcript.pipeline()
        if pipeline.starts:
            raise PipelineError(
                f"transcript {transcript.name!r}: its grouping was given keys that begin by "
                "themselves, and here is one injector only, of the transcript's records. Play it "
                "in the Harness, or on Spark."
            )
        pipeline.sink("panes", _nowhere)
        self._lift = lift
        self._clock_us = 0
        self._script: list[_Entry] = []
        self._state = MemoryHardState()
        self._run_log = RunLog(build(pipeline), self._state, intervals=4)
        topology = self._topology = self._run_log.topology
        self._kept: dict[tuple[int, int], list[Output]] = {}
        self._coordinator = Coordinator(
            self._run_log, tasks=_TASKS, sources=self, sinks={}, mark_every_us=MAX_TIMESTAMP
        )
        self._plane = LocalPlane(
            self._coordinator, topology.depth, _TASKS, reader=self._reader, level=self._level
        )
        self._plane.boot(0)

    def processes(self) -> dict[str, list[str]]:
        """Return the one process of the one stream."""
        return {_STREAM: [_PROCESS]}

    def records(self, elements: tuple[TranscriptElement, ...]) -> None:
        """Inject them at once."""
        self._feed(elements)

    def watermark(self, to_us: int) -> None:
        """Publish it."""
        self._feed((100, to_us))

    def percentile(self, percentile_to_us: tuple[int, int]) -> None:
        """Publish it."""
        self._feed(percentile_to_us)

    def clock(self, to_us: int) -> None:
        """Set it."""
        self._clock_us = to_us
        self._plane.settle(to_us)

    def crash(self) -> None:
        """Take all tasks away, and begin another incarnation."""
        self._plane.boot(self._clock_us)
        self._plane.settle(self._clock_us)

    def panes(self) -> list[Output]:
        """Return all panes so far, in order for each key."""
        self._plane.settle(self._clock_us)
        self._plane.mark(self._clock_us)
        return [output for at in sorted(self._kept) for output in self._kept[at]]

    def _feed(self, entry: _Entry) -> None:
        self._script.append(entry)
        self._plane.settle(self._clock_us)

    def _runtime(self) -> WorkerProcess:
        execution = Execution(self._topology, self._state, MemoryCaches())
        return WorkerProcess(
            self._topology, tasks=_TASKS, execution=execution, lift=self._lift, live=True
        )

    def _reader(self, number: int) -> LiveTask:
        return _Script(self._runtime(), number, self._script)

    def _level(self, level: int, number: int) -> LiveTask:
        outlet = _Panes(self._topology, number, self._kept)
        return IncarnationHost(self._runtime(), level, number, tell_us=0, outlet=lambda *_: outlet)


def _nowhere(*_: object) -> None:
    """Stand for a sink; the outlet keeps the records itself."""


#: Records, or a percentile and the low watermark that is published for it.
_Entry = tuple[TranscriptElement, ...] | tuple[int, int]


class _Script:
    """The injector task of a transcript: what it reads is what the test has fed so far."""

    level = 0
    wake_us = MAX_TIMESTAMP

    def __init__(self, runtime: WorkerProcess, number: int, script: list[_Entry]) -> None:
        self.number = number
        self.outgoing: list[FromTask] = []
        self.ring, self.calls_pending = silent, 0
        self.stats = TaskStats(0, number)
        self._runtime = runtime
        self._topology = runtime.topology
        self._script = script

    def start(self, start: StartTask, wall_us: int) -> Iterator[Sent]:
        """Go on from the last mark."""
        manifest = decode_manifest(start.manifest)
        self._manifest, self._wall_us = manifest, wall_us
        self._pipes = Pipes(start.incarnation, self.number, self._runtime.tasks, tell_us=0)
        self._place = start.input.get(_STREAM, {}).get(_PROCESS)
        self._rows = LiveRows(self._runtime)
        self._again_to = max((count for _, _, count in start.consumed), default=-1)
        before, name = manifest.before, injector_name(_STREAM)
        self._said = {100: before.outputs[name]} | {
            p: known.outputs[name] for p, known in before.percentiles.items()
        }
        self._mark: Mark | None = None
        return iter(())

    def tell(self, message: ToTask) -> None:
        """Take a mark."""
        if isinstance(message, Mark):
            self._mark = message

    def receive(self, packets: Iterable[bytes]) -> None:
        """Take nothing."""

    def at_hand(self) -> str:
        """Return that it waits: it is never in the middle of anything that lasts."""
        return ""

    def is_outside(self) -> bool:
        """Return that it waits for nothing outside."""
        return False

    def after_turn(self) -> Iterator[Sent]:
        """Do nothing: all is done before it leaves."""
        return iter(())

    def turn(self, wall_us: int, wait_s: float) -> Iterator[Sent]:
        """Read one entry of the script."""
        self._wall_us = max(self._wall_us, wall_us)
        place, leaving, through = self._place, list[Rows](), {}
        if place is not None and (at := place.offset or 0) < len(self._script):
            entry, count = self._script[at], place.count
            if entry and isinstance(entry[0], int):
                percentile, us = entry
                for p in self._said:
                    if p <= percentile:
                        self._said[p] = max(self._said[p], us)
            elif entry:
                leaving = list(self._injected(entry, count))
                count += len(entry)
                through = {(FIRST_INJECTED + self._number, place.number): number_at(count - 1)}
            self._place = SourceOffset(place.number, at + 1, count)
        mark, self._mark = self._mark, None
        said = (
            dict(self._said)
            if self._place is not None
            else dict.fromkeys(self._said, MAX_TIMESTAMP)
        )
        of = {p: {injector_name(_STREAM): us} for p, us in said.items()}
        message = Message(of[100], {p: us for p, us in of.items() if p != 100}, {})
        yield from self._pipes.send(
            leaving,
            through={edge: through for rows in leaving for edge in rows.combined_edges()},
            message=message,
            wall_us=self._wall_us,
            mark=NO_MARK if mark is None else mark.number,
        )
        if mark is not None:
            self._pass(mark, said)

    def close(self) -> None:
        """Do nothing."""

    @property
    def _number(self) -> int:
        return self._topology.streams[_STREAM].number

    def _injected(self, elements: tuple[Any, ...], count: int) -> Iterator[Rows]:
        """Yield records as rows on edges, combined if they were never sent before."""
        assert self._place is not None, "who reads has a place"
        manifest = turns_manifest(
            self._topology,
            self._manifest,
            epoch=self._manifest.epoch,
            wall_us=self._wall_us,
            output_watermark_us=max(MIN_TIMESTAMP, self._said[100]),
        )
        task = Task(self._runtime, manifest, self.number)
        outbox, report = Outbox(task), TaskReport()
        sending = RowEncoder(task, _STREAM, 0, outbox, report, EventTimes(LATEST_RECORD))
        numbers = np.arange(count, count + len(elements), dtype=np.int64)
        sending.send(
            [(e.key, e.value) for e in elements],
            [e.timestamp_us for e in elements],
            ids=row_ids(self._number, self._place.number, numbers),
        )
        for batch in outbox.batches():
            rows = Rows(batch)  # few, and yet combined, as many are
            if count + len(elements) - 1 <= self._again_to or count <= self._again_to:
                yield rows
            else:
                yield from self._rows.lifted(task, rows)

    def _pass(self, mark: Mark, said: dict[int, int]) -> None:
        self.outgoing.append(
            MarkPassed(
                mark.number,
                0,
                self.number,
                TaskReport(),
                {p: {_STREAM: us} for p, us in said.items()},
                {} if self._place is None else {_STREAM: {_PROCESS: self._place}},
            )
        )


class _Panes:
    """The outlet of a task of the last level: it keeps outputs by mark and task.

    What was written before a mark that was never complete is written again, under the same mark.
    """

    def __init__(self, topology: Topology, task: int, kept: dict[tuple[int, int], list[Output]]):
        self._topology = topology
        self._task = task
        self._kept = kept
        self._open: dict[int, list[Output]] = {}

    def write(self, rows: pa.RecordBatch, epoch: int) -> None:
        """Take rows on edges to sinks."""
        outputs = self._open.setdefault(epoch, [])
        outputs += [
            output for stream, output in tapped(self._topology, rows, 0) if stream == "panes"
        ]

    def pass_mark(self, epoch: int) -> dict[int, bytes]:
        """Show what came before a mark."""
        self._kept[epoch, self._task] = self._open.pop(epoch, [])
        return {}

    def close(self) -> None:
        """Forget what no mark has shown."""
        self._open.clear()
