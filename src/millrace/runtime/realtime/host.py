"""The host of a level task in an incarnation: packets in, packets out, turn after turn.

What arrived since the last turn is what a level task is given; what it returns leaves. That is
durable then, or productions are weak. The host knows what time it is, which marks have come, and
what the coordinator is to know.

Source: MillWheel 6.1 and 4.5; docs/design/2026-11-22-the-real-time-plane.md.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterable, Iterator, Mapping

from millrace.compile.topology import ComputationSpec
from millrace.epochlog.entries import decode_manifest
from millrace.epochlog.fence import IncarnationFence
from millrace.epochlog.positions import Followed
from millrace.kernel import families
from millrace.kernel.bundle import Attempt
from millrace.kernel.channels import Number, Sender
from millrace.kernel.record_ids import LAST_ROW
from millrace.kernel.results import IntervalResult, Produced
from millrace.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP
from millrace.runtime.admission import Arrived, ChannelAdmission, Demultiplexer, Through
from millrace.runtime.calls import NO_CALLS, TaskCalls
from millrace.runtime.commit_writer import WEAK_TURNS, GrownWriter
from millrace.runtime.inbox import Inbox
from millrace.runtime.level_task import LevelTask
from millrace.runtime.packets import ALONE_US, NO_MARK, Packet, Pipes, Received
from millrace.runtime.partials_stage import Lifter
from millrace.runtime.realtime.incarnation_start import TaskNote, decode_note, encode_note
from millrace.runtime.realtime.messages import Backpressure, FromTask, MarkPassed, StartTask, ToTask
from millrace.runtime.realtime.task import Sent, TaskStats, silent
from millrace.runtime.realtime.weak import weak_computations
from millrace.runtime.reports import MarkReport
from millrace.runtime.rows import Outbox, Rows
from millrace.runtime.sink_writer import LiveSinkWriter
from millrace.runtime.task_watermarks import TaskWatermarks
from millrace.runtime.worker_process import Task, WorkerProcess, turns_manifest
from millrace.store import KEPT_TURNS


class Marks:
    """The marks of the tasks before one, each of which sends every mark.

    Args:
        senders: How many there are.
        epoch: The open one; the mark that ends it has its number.

    Attributes:
        draining: Whether the mark that has come last ends the input.
        last: Whether nothing but this mark's work follows in the incarnation.
    """

    def __init__(self, senders: int, epoch: int) -> None:
        self._come = dict.fromkeys(range(senders), epoch - 1)
        self.draining = self.last = False

    def come(self, mark: int) -> set[int]:
        """Return the senders whose mark has come."""
        return {sender for sender, come in self._come.items() if come >= mark}

    def complete(self, mark: int) -> bool:
        """Return whether a mark has come from all senders."""
        return min(self._come.values(), default=mark) >= mark

    def hear(self, packets: Iterable[Packet]) -> None:
        """Take what packets say."""
        for packet in packets:
            if packet.mark != NO_MARK:
                self._come[packet.sender] = packet.mark
                self.draining |= packet.draining
                self.last |= packet.last


class IncarnationHost:
    """Hosts one task of one level; see :class:`~millrace.runtime.realtime.task.LiveTask`.

    Args:
        runtime: Of the process.
        level: From 1.
        number: Of the task.
        tell_us: How long a task of the next level that gets no rows waits for low watermarks.
        outlet: Makes what writes the sinks, in a task of the last level, for one incarnation.
        kept_turns: How many turns commits stay in memory before caches have them.
        weak_turns: How many turns what weak computations did waits before it is durable.
    """

    def __init__(
        self,
        runtime: WorkerProcess,
        level: int,
        number: int,
        *,
        tell_us: int = ALONE_US,
        outlet: Callable[[WorkerProcess, int, int, int], LiveSinkWriter] = LiveSinkWriter,
        kept_turns: int = KEPT_TURNS,
        weak_turns: int = WEAK_TURNS,
    ) -> None:
        self._turns, self._weak_turns = kept_turns, weak_turns
        self._tell_us, self._make_outlet = tell_us, outlet
        self.level, self.number = level, number
        self.outgoing: list[FromTask] = []
        #: Called in another thread when the task wants a turn.
        self.ring: Callable[[], None] = silent
        #: When the task wants a turn, though nothing may have arrived.
        self.wake_us = MAX_TIMESTAMP
        self._runtime = runtime
        self._topology = runtime.topology
        self._specs = [s for s in self._topology.computations if s.level == level]
        self._combines = any(edge.lift is not None for edge in self._topology.edges)
        self._last = level == self._topology.depth
        self._raw: list[bytes] = []
        self._writer: GrownWriter | None = None
        self._outlet: LiveSinkWriter | None = None
        self._at = ""
        self._calls: Mapping[str, TaskCalls] = NO_CALLS
        #: Computations for which sources are to wait; None: nothing was said yet.
        self._full: set[str] | None = None
        self._execution = runtime.execution

    # -- the incarnation ---------------------------------------------------------------------------

    def start(self, start: StartTask, wall_us: int) -> Iterator[Sent]:
        """Take up where the last incarnation left; send productions of commits since its mark."""
        runtime, tasks = self._runtime, self._runtime.tasks
        if start.writers:
            # Of the driver of this very run, which has proved it.
            runtime.write_with(*pickle.loads(start.writers))
        self._incarnation = start.incarnation
        self._manifest = manifest = decode_manifest(start.manifest)
        self._epoch = manifest.epoch
        self._received = Received(
            start.incarnation, f"level {self.level}, task {self.number}", tasks
        )
        runtime.origins.numbers = start.numbers
        receivers = 0 if self._last else tasks
        self._pipes = Pipes(start.incarnation, self.number, receivers, tell_us=self._tell_us)
        state = runtime.execution.state
        weak_names = weak_computations(
            self._topology, tasks=tasks, live=runtime.live_writers.keys()
        )
        weak = {spec.name: weak_names[spec.name] for spec in self._specs if spec.name in weak_names}
        writer = self._writer = GrownWriter(
            runtime.execution,
            IncarnationFence(state.incarnations, start.incarnation),
            self.level,
            self.number,
            manifest.epoch,
            note=self._note,
            weak=weak,
            turns=self._weak_turns,
            kept_turns=self._turns,
        )
        self._execution = writer.execution
        self._positions = Followed(self._topology, state.epochs).at(manifest)
        note = decode_note(start.note) if start.note else TaskNote(0, {}, [])
        self._consumed = {(stream, part): count for stream, part, count in note.consumed}
        self._parts = {stream: frozenset(parts) for stream, parts in start.parts.items()}
        self._task = LevelTask(
            self.number,
            tasks,
            self._positions,
            writer,
            [self._admission(spec) for spec in self._specs],
            self._attempt,
        )
        self._demultiplexer = Demultiplexer(self._topology, {spec.name for spec in self._specs})
        self._outbox = Outbox(Task(runtime, manifest, self.number))
        self._wall_us = max(wall_us, manifest.wall_time_us, note.wall_time_us)
        self._watermarks = TaskWatermarks(
            self._topology,
            self._specs,
            self._task.owned,
            self._positions,
            before=manifest.before,
            floor=note.floor(weak),
            senders=tasks,
        )
        self._marks = Marks(tasks, manifest.epoch)
        self._over, self._held = False, list[Rows]()
        self._report, self._done = MarkReport(), list[IntervalResult]()
        self.stats = TaskStats(self.level, self.number)
        if self._last:
            generation = manifest.generation
            self._outlet = self._make_outlet(runtime, start.incarnation, generation, self.number)
        for result, productions in writer.earlier(self._positions):
            self._move([result])
            self._outbox.add_result(result, productions)
        self._begin_calls()
        yield from self._leave(self._outbox.rows())

    def _begin_calls(self) -> None:
        self._full = None
        self._task.begin_calls(self._runtime.call_pools)
        self._calls = self._task.calls
        for calls in self._calls.values():
            calls.pool.wake(self.ring)
        if any(calls.asks_again for calls in self._calls.values()):
            self.wake_us = MIN_TIMESTAMP

    @property
    def calls_pending(self) -> int:
        """How many calls have no outcome, or may be made again."""
        return sum(c.pending + c.asks_again for c in self._calls.values())

    def _admission(self, spec: ComputationSpec) -> ChannelAdmission:
        """Return what takes the records of a computation."""
        positions = self._positions

        def load(interval: int) -> list[families.ChannelRow]:
            position = positions.of(spec.name, interval)
            rows, repair = self._live_writer.channels(spec, interval, position)
            self._report.repaired(spec.name, interval, repair)
            return rows

        return ChannelAdmission(
            self._topology, spec, positions.maps, load, self._consumed, self._parts
        )

    def at_hand(self) -> str:
        """Return what it is in the middle of, in words; "" if it waits for others."""
        writing = "" if self._writer is None else self._writer.at
        return self._execution.at_hand() or writing or self._at

    def is_outside(self) -> bool:
        """Return whether that is up to a disk or a sink, and not to user code."""
        return bool(self.at_hand()) and not self._execution.in_user_code

    def tell(self, message: ToTask) -> None:
        """Take a message of the coordinator; a level task gets none but StartTask and StopTask."""

    def receive(self, packets: Iterable[bytes]) -> None:
        """Take packets that arrived."""
        self._raw += packets

    def close(self) -> None:
        """Give files and connections back."""
        if self._writer is not None:
            for calls in self._writer.calls.values():
                calls.cancel()
            self._writer.close()
        if self._outlet is not None:
            self._outlet.close()
            self._outlet = None

    @property
    def _live_writer(self) -> GrownWriter:
        assert self._writer is not None, "an incarnation has begun"
        return self._writer

    # -- a turn ------------------------------------------------------------------------------------

    def turn(self, wall_us: int, wait_s: float) -> Iterator[Sent]:
        """Run what arrived and what is due; yield what leaves."""
        if self._over:
            return
        began = time.perf_counter()
        raw, self._raw = self._raw, []
        packets = list(self._received.take(raw))
        self._wall_us = max(self._wall_us, wall_us)
        self._watermarks.hear(packets)
        arrived = self._demultiplexer.sorted(packets, self._marks.come(self._epoch))
        self._held += arrived.held
        produced = self._work(arrived)
        yield from self._leave_all(arrived, produced)
        self._marks.hear(packets)
        self._spend(began)

    def after_turn(self) -> Iterator[Sent]:
        """Make durable what has left before, pass a mark, and tell of what was done."""
        if self._over:
            return
        began = time.perf_counter()
        self._live_writer.after_turn()
        done, self._done = self._done, []
        for result in done:
            self._report.add(result)
        self._press_back()
        if self._marks.complete(self._epoch) and not self._waits_for_calls():
            yield from self._pass_mark()
        self.wake_us = min(self._watermarks.wake_us, self._pipes.wake_us)
        self.stats.groups = self._live_writer.groups
        if self.stats.due(self._wall_us):
            self.outgoing.append(self.stats.status(self._wall_us, self._watermarks.input_us()))
        self._spend(began)

    def _waits_for_calls(self) -> bool:
        """Whether the mark that has come ends the input, and calls are pending."""
        return self._marks.draining and self.calls_pending > 0

    def _press_back(self) -> None:
        """Say for which computations the sources are to wait, if that is news."""
        before = self._full or ()
        full = {name for name, calls in self._calls.items() if calls.is_full(name in before)}
        if self._calls and full != self._full:
            self._full = full
            backpressure = Backpressure(self.level, self.number, self._incarnation, sorted(full))
            self.outgoing.append(backpressure)

    def _spend(self, began: float) -> None:
        spent = time.perf_counter() - began
        self._report.report.seconds += spent
        self.stats.busy_s += spent

    def _work(self, arrived: Arrived) -> list[Produced]:
        """Run what there is to do; return what may leave: durable, but where it is weak."""
        here, report = arrived.here, self._report.report
        inbox = None
        if here.few is None:
            inbox = Inbox(self._turns_task(), self.level, self._outbox, report)
            if self.level == 1:
                table = here.table()
                inbox.refuse_unread(table, table.column("edge").to_numpy())
        produced = self._task.turn(here, arrived.through, inbox, report.received_bytes)
        self.stats.records, self.stats.keys = self._task.records, self._task.keys
        self._move([result for result, _ in produced])
        return produced

    def _attempt(self, spec: ComputationSpec) -> Attempt:
        """Return at what a computation's bundles are run in this turn."""
        watermarks, name = self._watermarks, spec.name
        arrival = watermarks.arrival
        return Attempt(
            self._epoch,
            self._manifest.generation,
            self._wall_us,
            arrival.inputs[name],
            watermarks.inputs[name],
            watermarks.outputs[name],
            {p: known.inputs[name] for p, known in arrival.percentiles.items()},
            arrival.inputs[name],
            len(self._manifest.interval_map(name)),
        )

    # -- after the bundles -------------------------------------------------------------------------

    def _note(self) -> bytes:
        """Return what this task knows now."""
        consumed = [(*at, number) for at, number in self._consumed.items()]
        return encode_note(TaskNote(self._wall_us, self._watermarks.inputs, consumed))

    def _move(self, results: list[IntervalResult]) -> None:
        """Take where intervals stand now."""
        self._done += results
        for result in results:
            if self._positions.move(
                result.computation, result.interval, result.number, result.chain, result.report
            ):
                self._watermarks.pinned()

    def _leave_all(self, arrived: Arrived, produced: list[Produced]) -> Iterator[Sent]:
        """Send on what passes, and what was produced."""
        last: dict[Sender, Number] = {}
        for result, productions in produced:
            count = self._outbox.add_result(result, productions)
            if self._combines and count and productions.ids is None:
                number = self._topology.computation(result.computation).number
                last[number, result.interval] = (result.number, LAST_ROW)
        through, leaving = self._demultiplexer.passing(arrived.through), arrived.passing
        for rows in self._outbox.rows():
            if not self._combines:
                leaving.append(rows)
                continue
            for part in Lifter(self._turns_task()).combined(rows):
                for edge in part.combined_edges():
                    through.setdefault(edge, {}).update(last)
                leaving.append(part)
        yield from self._leave(leaving, through=through)

    def _leave(
        self, leaving: Iterable[Rows], *, through: Through | None = None, mark: int = NO_MARK
    ) -> Iterator[Sent]:
        """Send rows on, with low watermarks if those moved; the last level writes its sinks."""
        message = self._watermarks.message()
        if self._outlet is not None:
            self._at = "its sinks, which it writes to"
            for part in leaving:
                self._outlet.write(part.batch(), self._epoch)
            self._at = ""
            return
        yield from self._pipes.send(
            leaving,
            through=through,
            message=message,
            wall_us=self._wall_us,
            mark=mark,
            draining=self._marks.draining and mark != NO_MARK,
            last=self._marks.last and mark != NO_MARK,
        )

    def _pass_mark(self) -> Iterator[Sent]:
        mark = self._epoch
        segment = self._live_writer.end()
        yield from self._leave((), mark=mark)
        self._at = "its sinks, which it writes to"
        receipts = {} if self._outlet is None else self._outlet.pass_mark(mark)
        self._at = ""
        for name, calls in self._calls.items():
            stats = calls.pool.take_stats()
            stats.pending = max(calls.kept, calls.pending + calls.asks_again)
            self._report.report.called(name, stats)
        report, snapshots = self._report.take(), self._runtime.snapshots
        for name, intervals in report.last_commits().items():
            snapshots.offer(name, [*intervals], mark)
        snapshots.passed(mark)
        report.written = snapshots.take()
        self.outgoing.append(
            MarkPassed(
                mark,
                self.level,
                self.number,
                report,
                self._watermarks.injected() if self.level == 1 else {},
                receipts=receipts,
                segment=segment,
                note=self._note(),
            )
        )
        self._epoch += 1
        # What is done after the last mark, no mark would ever cover.
        self._over = self._marks.last
        held, self._held = self._held, []
        yield from self._leave(held)

    # -- what a turn is like -----------------------------------------------------------------------

    def _turns_task(self) -> Task:
        """Return the task as of this turn."""
        manifest = turns_manifest(
            self._topology,
            self._manifest,
            epoch=self._epoch,
            wall_us=self._wall_us,
            output_watermark_us=max(self._watermarks.outputs.values(), default=MIN_TIMESTAMP),
        )
        return Task(self._runtime, manifest, self.number)
