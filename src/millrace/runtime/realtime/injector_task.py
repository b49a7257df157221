"""The injector task: reads some processes of injectors on and on, and sends what it reads.

Offsets are Millrace's own: a mark says how far each process was read when it was made, and after a
failure everything is read again from the last complete mark. Receivers drop what they have. For
each of its streams a task has a follower.

Source: MillWheel 5.2; docs/design/2026-11-22-the-real-time-plane.md.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from msgspec.structs import replace

from millrace.epochlog.entries import ahead_of, decode_manifest
from millrace.injectors.advance import along, is_within
from millrace.injectors.follower import FetchedBatch, Follower
from millrace.injectors.injector import Injector
from millrace.injectors.offsets import SourceOffset
from millrace.injectors.rate_limit import EVERYONE
from millrace.kernel.channels import Number, Sender
from millrace.kernel.record_ids import FIRST_INJECTED
from millrace.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP
from millrace.runtime.packets import NO_MARK, Pipes
from millrace.runtime.realtime.incarnation_start import Decided, decode_decided, encode_note
from millrace.runtime.realtime.messages import (
    FromTask,
    Hold,
    Mark,
    MarkPassed,
    SlowestSource,
    SourcePause,
    SourceProgress,
    StartTask,
    Take,
    ToTask,
)
from millrace.runtime.realtime.source_progress import IngressTimes, Promising
from millrace.runtime.realtime.task import Sent, TaskStats, silent
from millrace.runtime.reports import MarkReport, TaskReport
from millrace.runtime.row_encoder import LiveRows, number_at
from millrace.runtime.rows import Rows
from millrace.runtime.worker_process import Task, WorkerProcess, turns_manifest
from millrace.store import GrownSegment
from millrace.watermark.report import ProcessState


class Following:
    """The followers of one injector task.

    Attributes:
        at: The stream that it is reading; "" if it reads none.
    """

    def __init__(self) -> None:
        self._followers: dict[str, Follower] = {}
        self._held: dict[str, frozenset[str]] = {}
        self.at = ""

    @property
    def streams(self) -> list[str]:
        """Whose rows it takes."""
        return list(self._followers)

    def open(self, stream: str, follower: Follower) -> None:
        """Take rows of a stream from now on."""
        self._followers[stream], self._held[stream] = follower, frozenset()

    def limit(self, rows: int) -> None:
        """Take no more rows of a stream at once."""
        for follower in self._followers.values():
            follower.limit(rows)

    def hold(self, stream: str, processes: frozenset[str]) -> None:
        """Take nothing of these processes of a stream, and of all others again."""
        if processes != self._held[stream]:
            self._held[stream] = processes
            self._followers[stream].hold(processes)

    def take(self, wait_s: float, stats: TaskStats) -> list[tuple[str, FetchedBatch]]:
        """Return what there is of each stream; wait for the first if there is nothing.

        Args:
            wait_s: How long to wait at the most.
            stats: Has its time counted there.
        """
        batches: list[tuple[str, FetchedBatch]] = []
        for stream, follower in self._followers.items():
            self.at = stream
            batches += [(stream, batch) for batch in follower.take(0)]
        if not batches:
            began, cpu = time.perf_counter(), time.thread_time()
            batches = self._wait(wait_s)
            stats.waited_s += time.perf_counter() - began
            stats.waited_cpu_s += time.thread_time() - cpu
        self.at = ""
        return batches

    def _wait(self, wait_s: float) -> list[tuple[str, FetchedBatch]]:
        """Take of the first stream that has something."""
        if not self._followers:
            time.sleep(wait_s)  # or a task would spin where there are fewer processes than tasks
        for stream, follower in self._followers.items():
            self.at = stream
            if batches := [
                (stream, batch) for batch in follower.take(wait_s / len(self._followers))
            ]:
                return batches
        return []

    def close(self) -> None:
        """Give back what they hold."""
        followers, self._followers = self._followers, {}
        for follower in followers.values():
            follower.close()


@dataclass
class _Reading:
    """How far one process was read, and up to where it was maybe read before."""

    place: SourceOffset
    again_to: int


class InjectorTask:
    """One task of level 0; see :class:`~millrace.runtime.realtime.task.LiveTask`.

    Args:
        runtime: Of the process.
        number: Of the task.
        elapsed_us: Returns microseconds since any instant, for how often it says how far it has
            come; by default the wall clock's.
    """

    level = 0

    def __init__(
        self, runtime: WorkerProcess, number: int, *, elapsed_us: Callable[[], int] | None = None
    ) -> None:
        self.number = number
        self._elapsed_us = elapsed_us
        self.outgoing: list[FromTask] = []
        self.wake_us = MAX_TIMESTAMP
        self.ring = silent
        self.calls_pending = 0
        self._runtime = runtime
        self._topology = runtime.topology
        self._sources = {source.stream: source for source in runtime.sources}
        self._ingress = runtime.topology.by_ingress()
        self._following = Following()
        self._segment: GrownSegment | None = None

    def start(self, start: StartTask, wall_us: int) -> Iterator[Sent]:
        """Open what is to be read, where the last complete mark stood."""
        self._incarnation = start.incarnation
        self._manifest = manifest = decode_manifest(start.manifest)
        self._epoch = manifest.epoch
        self._wall_us = max(wall_us, manifest.wall_time_us)
        self._pipes = Pipes(start.incarnation, self.number, self._runtime.tasks)
        self._incarnations = self._runtime.execution.state.incarnations
        noted = decode_decided(start.note) if start.note else Decided({})
        self._decided, moved = noted.since(self._epoch)
        again = {(stream, part): count for stream, part, count in start.consumed}
        self._reading: dict[str, dict[str, _Reading]] = {}
        for stream, places in start.input.items():
            spec = self._topology.streams[stream]
            assert spec.injection is not None, "only injected streams are read"
            injector = spec.injection.source
            assert isinstance(injector, Injector), "nothing else is read on this plane"
            # Also if a mark comes before anything is read, it must not forget what was decided.
            places = {
                name: replace(place, offset=self._offset(stream, name, place))
                for name, place in places.items()
            }
            offsets = {
                name: source_offset.offset
                for name, source_offset in places.items()
                if source_offset.number >= 0
            }
            self._reading[stream] = {
                name: _Reading(place, again.get((spec.number, place.number), -1))
                for name, place in places.items()
            }
            if offsets:
                self._following.open(stream, injector.follow(offsets))
        self._times = IngressTimes(noted.stamps, self._counts())
        self._numbers = start.numbers
        self._runtime.origins.numbers = start.numbers
        if moved or start.is_new:
            # What came after a mark is before another now. No record is read without a number.
            self._note_decided()
        self._promising = Promising(self._topology, start, manifest.before, self._wall_us)
        self._report = MarkReport()
        self._rows = LiveRows(self._runtime)
        self._mark: Mark | None = None
        self._passing: Mark | None = None
        self._ended = False
        self.stats = TaskStats(0, self.number)
        return iter(())

    def _offset(self, stream: str, process: str, place: SourceOffset) -> Any:
        """Return where to go on, with what was decided after the mark."""
        decided = self._decided[self._epoch].get(stream, {})
        return along(place.offset, decided.get(process, []))

    def _counts(self) -> dict[str, dict[str, int]]:
        """Return the numbers of the next records, of streams with time by ingress."""
        return {
            stream: {name: reading.place.count for name, reading in readings.items()}
            for stream, readings in self._reading.items()
            if stream in self._ingress
        }

    def at_hand(self) -> str:
        """Return what it is in the middle of, in words; "" if it waits for others."""
        return f"stream {at!r}, which it reads" if (at := self._following.at) else ""

    def is_outside(self) -> bool:
        """Return whether that is up to a source."""
        return bool(self._following.at)

    def tell(self, message: ToTask) -> None:
        """Take a message of the coordinator."""
        if isinstance(message, Mark):
            self._mark = message
        elif isinstance(message, SlowestSource):
            self._promising.pacing.take(message.low_watermarks)
        elif isinstance(message, Hold):
            self._promising.hold(message)
        elif isinstance(message, SourcePause):
            self._promising.throttle.wait(message.streams)
        elif isinstance(message, Take):
            self._following.limit(message.rows)

    def receive(self, packets: Iterable[bytes]) -> None:
        """Take nothing: an injector task is fed from outside."""

    def close(self) -> None:
        """Give files and connections back."""
        self._following.close()
        if self._segment is not None:
            self._segment.close()
            self._segment = None

    # -- a turn ------------------------------------------------------------------------------------

    def turn(self, wall_us: int, wait_s: float) -> Iterator[Sent]:
        """Read what there is; yield it, keyed, encoded and combined."""
        if self._ended:
            return  # a promise after the last mark would come to those only that wait for it
        self._wall_us = max(self._wall_us, wall_us)
        self._promising.throttle.read({}, self._wall_us)
        mark = self._mark
        if mark is None or not mark.last:
            self._hold_back()
        elif self._unfinished():
            mark = None
        wait_s = max(0.0, min(wait_s, (self.wake_us - self._wall_us) / 1e6))
        taken = [] if mark is not None else self._following.take(wait_s, self.stats)
        began = time.perf_counter()
        self._write_down(taken)
        leaving, combined = list[Rows](), set[int]()
        through: dict[Sender, Number] = {}
        promising = self._promising
        manifest = turns_manifest(
            self._topology,
            self._manifest,
            epoch=self._epoch,
            wall_us=self._wall_us,
            output_watermark_us=promising.output_watermark_us,
            published=promising.read(),
        )
        task, report = Task(self._runtime, manifest, self.number), TaskReport()
        for stream, batch in taken:
            for rows, again in self._read(task, stream, batch, through, report):
                if again:
                    leaving.append(rows)
                    continue
                for part in self._rows.lifted(task, rows):
                    combined |= part.combined_edges()
                    leaving.append(part)
        self._report.report.add(report)
        read = {stream: stats.records for stream, stats in report.sources.items()}
        promising.throttle.read(read, self._wall_us)
        promising.count(ahead_of(report.sources))
        clock_us = min(self._wall_us, self._times.pending_us(self._counts()))
        promising.publish(clock_us, draining=mark is not None and mark.draining)
        yield from self._pipes.send(
            leaving,
            through=dict.fromkeys(combined, through),
            message=promising.message(self._wall_us, everyone=mark is not None),
            wall_us=self._wall_us,
            mark=NO_MARK if mark is None else mark.number,
            draining=mark is not None and mark.draining,
            last=mark is not None and mark.last,
        )
        spent = time.perf_counter() - began
        self._report.report.seconds += spent
        self.stats.busy_s += spent
        self._passing = mark

    def after_turn(self) -> Iterator[Sent]:
        """Say what a mark that was sent stands for, and tell of what was done."""
        if self._ended:
            return
        promising, mark = self._promising, self._passing
        wakes = promising.wake_us, self._pipes.wake_us, promising.throttle.changes_us()
        self.wake_us = min(wakes)
        if mark is not None:
            self._pass_mark(mark)
        now_us = self._wall_us if self._elapsed_us is None else self._elapsed_us()
        reached = promising.word(now_us)
        if reached is not None:
            self.outgoing.append(SourceProgress(0, self.number, self._incarnation, reached))
        if self.stats.due(self._wall_us):
            self.outgoing.append(self.stats.status(self._wall_us, promising.published))
        yield from ()

    def _hold_back(self) -> None:
        """Take nothing of processes that are too far ahead: their rows wait where they are."""
        for stream in self._following.streams:
            waiting = self._promising.waiting(stream)
            if waiting is EVERYONE:
                waiting = frozenset(self._reading[stream])
            self._following.hold(stream, waiting)

    def _unfinished(self) -> bool:
        """Return whether something has to be read before the last mark; take nothing besides.

        After it, tasks that end may go on. They know offsets of injectors only: so an advance is
        read to its end, and what was consumed before a failure is read again, all of it, as they
        would not know that it was.
        """
        left = False
        for stream in self._following.streams:
            reading = self._reading[stream]
            within = {
                name
                for name, reading_of in reading.items()
                if is_within(reading_of.place.offset)
                or reading_of.place.count <= reading_of.again_to
            }
            self._following.hold(stream, frozenset(reading.keys() - within))
            left |= bool(within)
        return left

    def _write_down(self, taken: Iterable[tuple[str, FetchedBatch]]) -> None:
        """Make durable what was decided before it is read, and the times of records by ingress."""
        news, counts = False, self._counts()
        for stream, batch in taken:
            if batch.decided is not None:
                decided = self._decided.setdefault(self._epoch, {}).setdefault(stream, {})
                decided.setdefault(batch.process, []).append(batch.decided)
                news = True
            if stream in counts and batch.rows.num_rows:
                last = int(batch.places(counts[stream][batch.process])[-1])
                counts[stream][batch.process] = last + 1
                published_us = self._promising.published[stream]
                news |= self._times.stamp(stream, batch.process, last, self._wall_us, published_us)
        if news:
            self._note_decided()

    def _note_decided(self) -> None:
        if self._segment is None:
            self._segment = self._incarnations.grow(self._incarnation, 0, self.number, self._epoch)
        noted = Decided(self._decided, self._times.stamps, self._numbers)
        self._segment.append([], encode_note(noted))

    def _read(
        self,
        task: Task,
        stream: str,
        batch: FetchedBatch,
        through: dict[Sender, Number],
        report: TaskReport,
    ) -> Iterator[tuple[Rows, bool]]:
        """Yield rows on edges, and whether they were maybe sent before; move the process on."""
        reading, source = self._reading[stream][batch.process], self._sources[stream]
        place, rows, newest_us = reading.place, batch.rows, MIN_TIMESTAMP
        process_watermark_us = (
            place.process_watermark_us if batch.low_watermark is None else batch.low_watermark
        )
        numbers = batch.places(place.count)
        if len(numbers):
            spec = self._topology.streams[stream]
            through[FIRST_INJECTED + spec.number, place.number] = number_at(int(numbers[-1]))
            again = int(np.searchsorted(numbers, reading.again_to, side="right"))
            for first, end in ((0, again), (again, len(numbers))):
                if first == end:
                    continue
                part, which = rows.slice(first, end - first), numbers[first:end]
                at_us = (
                    self._times.of(stream, batch.process, which)
                    if stream in self._ingress
                    else None
                )
                for edge_rows in self._rows.on_edges(
                    task, source, part, which, place.number, report, at_us=at_us
                ):
                    yield edge_rows, first < again
                newest_us = max(newest_us, self._rows.newest_us)
            self.stats.records += len(numbers)
        count = int(numbers[-1]) + 1 if len(numbers) else place.count
        reading.place = SourceOffset(place.number, batch.offset, count, process_watermark_us)
        self._hear(stream, batch, newest_us, process_watermark_us)

    def _hear(
        self, stream: str, batch: FetchedBatch, newest_us: int, process_watermark_us: int | None
    ) -> None:
        """Take what was heard of a process."""
        if batch.low_watermark is None and not batch.rows.num_rows:
            return
        heard = ProcessState(
            newest_us, MIN_TIMESTAMP if process_watermark_us is None else process_watermark_us
        )
        self._report.report.source(stream).hear(batch.process, heard)
        self._promising.hear(stream, batch.process, heard)

    # -- marks -------------------------------------------------------------------------------------

    def _pass_mark(self, mark: Mark) -> None:
        segment = ""
        if self._segment is not None:
            segment = str(self._segment.name)
            self._segment.finish()
            self._segment = None
        self._epoch = mark.number + 1
        counts = self._counts()
        self._times.passed(counts)
        if self._times.pending_us(counts) != MAX_TIMESTAMP:
            # The segment that has their times may be gone once the mark is complete.
            self._note_decided()
        self.outgoing.append(
            MarkPassed(
                mark.number,
                0,
                self.number,
                self._report.take(),
                {100: self._promising.reported()},
                {
                    stream: {
                        name: reading.place
                        for name, reading in readings.items()
                        if reading.place.number >= 0
                    }
                    for stream, readings in self._reading.items()
                },
                segment=segment,
            )
        )
        # What was decided before the mark is needed until the mark is complete.
        self._decided = {e: decisions for e, decisions in self._decided.items() if e >= mark.number}
        self._mark, self._ended = None, mark.last
