"""The level task: computations of one level, for the intervals that one task owns, without end.

It does what a task of the epoch plane does, turn by turn: what arrived since the last turn is a
bundle for each interval that has something to do, all of them are one group of the journal, and
what they produce leaves when that is durable.

Source: MillWheel 6.1 and 4.5; docs/design/2026-11-22-the-real-time-plane.md.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.compile.topology import ComputationSpec
from millrace.model.errors import InvariantViolation
from millrace.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP
from millrace.plane import wire
from millrace.plane.inbox import Inbox
from millrace.plane.lifting import Lifter
from millrace.plane.outbox import Outbox
from millrace.plane.realtime import note as notes
from millrace.plane.realtime.messages import FromTask, Passed, Start, Told, ToTask
from millrace.plane.realtime.outlet import LiveOutlet, Outlet
from millrace.plane.realtime.packet import NO_MARK, Packet, Pipes, Received, batches_of
from millrace.plane.realtime.report import MarkReport
from millrace.plane.realtime.rows import injected_count
from millrace.plane.realtime.task import Sent
from millrace.plane.runtime import Runtime
from millrace.plane.task import Task
from millrace.store import Commit, Journal
from millrace.watermark.heard import Heard
from millrace.watermark.shown import LowWatermarks, Message, Pending
from millrace.windmill.arrivals import NO_RECORDS
from millrace.windmill.bundle import Attempt, Bundle
from millrace.windmill.channels import Channels, Number, Sender, number_of, sender_of
from millrace.windmill.live_worker import LiveWorker, SessionFence
from millrace.windmill.manifest import Changes, Manifest, decode_manifest
from millrace.windmill.positions import Followed
from millrace.windmill.record_ids import FIRST_INJECTED, LAST_ROW, ROW_BITS, production_ids
from millrace.windmill.replay import Result, footing_of
from millrace.windmill.routing import Productions

#: Low watermarks alone are told to all tasks of the next level at most so often.
_TELL_US = 5_000
#: The coordinator is told how things are so often.
_STATUS_US = 500_000


class LevelTask:
    """One task of one level; see :class:`~millrace.plane.realtime.task.LiveTask`.

    Args:
        runtime: Of the process.
        level: From 1.
        number: Of the task.
        tell_us: Low watermarks alone are told to all tasks of the next level at most so often.
        outlet: Makes what writes the sinks, in a task of the last level, for one session.
    """

    def __init__(
        self,
        runtime: Runtime,
        level: int,
        number: int,
        *,
        tell_us: int = _TELL_US,
        outlet: Callable[[Runtime, int, int, int], Outlet] = LiveOutlet,
    ) -> None:
        self._tell_us = tell_us
        self._make_outlet = outlet
        self.level = level
        self.number = number
        self.said: list[FromTask] = []
        #: When the task wants a turn, though nothing may have arrived.
        self.wake_us = MAX_TIMESTAMP
        self._runtime = runtime
        self._topology = runtime.topology
        self._specs = [s for s in self._topology.computations if s.level == level]
        self._here = self._topology.edge_mask({spec.name for spec in self._specs})
        self._to_sinks = np.zeros(len(self._here), dtype=np.bool_)
        for edge in self._topology.edges:
            self._to_sinks[edge.number] = edge.computation is None
        self._last = level == self._topology.depth
        self._raw: list[bytes] = []
        self._journal: Journal | None = None
        self._outlet: Outlet | None = None

    # -- the session -------------------------------------------------------------------------------

    def start(self, start: Start, wall_us: int) -> Iterator[Sent]:
        """Take up where the last session left; send the productions of commits since its mark."""
        runtime, tasks = self._runtime, self._runtime.tasks
        self._session = start.session
        self._manifest = manifest = decode_manifest(start.manifest)
        self._epoch = manifest.epoch
        self._received = Received(start.session, self._where, tasks)
        self._pipes = Pipes(start.session, self.number, 0 if self._last else tasks)
        state = runtime.worker.state
        self._journals = state.journals
        self._part = 1
        fence = SessionFence(state.journals, start.session)
        self._worker = LiveWorker(runtime.worker.execution, fence)
        self._channels = {spec.name: Channels() for spec in self._specs}
        self._positions = Followed(self._topology, state.epochs).at(manifest)
        self._owned = {
            spec.name: manifest.interval_map(spec.name).owned(self.number, tasks)
            for spec in self._specs
        }
        self._maps = {spec.name: manifest.interval_map(spec.name) for spec in self._specs}
        self._heard = Heard(self._topology, manifest.before, tasks)
        self._wall_us = max(wall_us, manifest.wall_time_us)
        self._consumed: dict[tuple[int, int], int] = {}
        if start.note:
            note = notes.decode(start.note)
            self._heard.raise_inputs(note.inputs)
            self._wall_us = max(self._wall_us, note.wall_time_us)
            self._consumed = {(stream, part): count for stream, part, count in note.consumed}
        self._shown = {spec.name: manifest.before.outputs[spec.name] for spec in self._specs}
        self._marked = dict.fromkeys(range(tasks), manifest.epoch - 1)
        self._held: list[pa.RecordBatch] = []
        self._ending = self._draining = False
        self._report = MarkReport(self.level, self.number)
        self._told_us = self._status_us = MIN_TIMESTAMP
        self._message: Message | None = None
        self._untold = False
        self._records = self._groups = 0
        self._busy_s = 0.0
        if self._last:
            generation = manifest.generation
            self._outlet = self._make_outlet(runtime, start.session, generation, self.number)
        yield from self._again()

    def _again(self) -> Iterator[Sent]:
        """Send what the commits since the last mark produced; take their positions."""
        outbox = Outbox(self._task(self._manifest))
        for name in self._journals.names():
            if name.level != self.level or name.task != self.number:
                continue
            for group in self._journals.groups(name):
                for commit in group.commits:
                    self._take_up(commit, outbox)
        yield from self._leave(outbox.batches(), {})

    def _take_up(self, commit: Commit, outbox: Outbox) -> None:
        name, interval = commit.computation, commit.interval
        known = self._positions.numbers.get(name)
        if known is None or commit.number <= known.get(interval, 0):
            return
        if commit.number != known.get(interval, 0) + 1:
            raise InvariantViolation(
                f"{self._where}: commit {commit.number} of interval {interval} of {name!r} is in "
                f"the journal where {known.get(interval, 0) + 1} was expected."
            )
        report, counters = footing_of(commit)
        productions = Productions.unpack(commit.productions)
        result = Result(
            name, interval, commit.number, report, counters, productions, chain=commit.chain
        )
        self._settle([result])
        spec = self._topology.computation(name)
        ids = production_ids(spec.number, commit.number, interval, len(productions))
        outbox.add(productions, *ids)

    def tell(self, message: ToTask) -> None:
        """Take a message of the coordinator; a level task gets no other than Start and Halt."""

    def receive(self, packets: Iterable[bytes]) -> None:
        """Take packets that arrived."""
        self._raw += packets

    def close(self) -> None:
        """Give files and connections back."""
        if self._journal is not None:
            self._journal.close()
            self._journal = None
        if self._outlet is not None:
            self._outlet.close()
            self._outlet = None

    # -- a turn ------------------------------------------------------------------------------------

    def turn(self, wall_us: int, wait_s: float) -> Iterator[Sent]:
        """Run what arrived and what is due; yield what leaves."""
        began = time.perf_counter()
        raw, self._raw = self._raw, []
        packets = list(self._received.take(raw))
        self._wall_us = max(self._wall_us, wall_us)
        before = self._heard.low_watermarks.copy(self._topology.percentiles)
        self._heard.hear((p.sender, p.message) for p in packets if p.message is not None)
        manifest = self._turns_manifest(before)
        outbox = Outbox(self._task(manifest))
        arrived, passing = self._sorted(packets)
        through = self._through(packets)
        results: list[Result] = []
        commits: list[Commit] = []
        produced: dict[Sender, Number] = {}
        scratch = wire.TaskReport(self.level, self.number, [], {}, {}, {}, 0.0)
        inbox = Inbox(self._task(manifest), self.level, outbox, scratch)
        if self.level == 1:
            inbox.refuse_unread(arrived, arrived.column("edge").to_numpy())
        for spec in self._specs:
            for result, commit in self._run(spec, manifest, before, arrived, through, inbox):
                results.append(result)
                commits.append(commit)
        self._note_refused(scratch.refused)
        if commits:
            self._append(commits)
            self._worker.settle(commits)
            self._settle(results)
        for result in results:
            number = self._topology.computation(result.computation).number
            count = len(result.productions)
            ids = production_ids(number, result.number, result.interval, count)
            outbox.add(result.productions, *ids)
            if count:
                produced[number, result.interval] = (result.number, LAST_ROW)
        lifter = Lifter(self._task(manifest))
        leaving = [one for batch in outbox.batches() for one in lifter.lifted(batch)]
        yield from self._leave([*passing, *leaving], produced)
        for packet in packets:
            if packet.mark != NO_MARK:
                self._marked[packet.sender] = packet.mark
                self._draining |= packet.draining
                self._ending |= packet.last
        if all(mark >= self._epoch for mark in self._marked.values()):
            yield from self._pass_mark()
        spent = time.perf_counter() - began
        self._report.spend(spent)
        self._busy_s += spent
        self._plan_wake()
        self._say_status()

    def _sorted(self, packets: list[Packet]) -> tuple[pa.Table, list[pa.RecordBatch]]:
        """Return the rows for this level, and those that pass; rows for sinks may be held back.

        What comes to a sink that is written by mark after a mark of its sender must not overtake
        that mark on its way to the last level.
        """
        here: list[pa.RecordBatch] = []
        passing: list[pa.RecordBatch] = []
        marked = {sender for sender, mark in self._marked.items() if mark >= self._epoch}
        for packet in packets:
            ahead = packet.sender in marked
            if packet.mark != NO_MARK:
                marked.add(packet.sender)  # it comes after the packet's own rows
            for batch in batches_of(packet):
                edges = wire.plain(batch.column("edge").to_numpy())
                known = np.maximum(edges, 0)
                mine = (edges < 0) | self._here[known]
                if mine.all():
                    here.append(batch)
                    continue
                if mine.any():
                    here.append(wire.where(batch, mine))
                others = wire.where(batch, ~mine).select(wire.COLUMNS)
                sinks = self._to_sinks[known[~mine]]
                if not ahead or not sinks.any():
                    passing.append(others)
                    continue
                self._held.append(wire.where(others, sinks))
                if not sinks.all():
                    passing.append(wire.where(others, ~sinks))
        return wire.together(here) if here else _EMPTY, passing

    def _through(self, packets: list[Packet]) -> dict[int, dict[Sender, Number]]:
        found: dict[int, dict[Sender, Number]] = {}
        for packet in packets:
            for edge, senders in packet.through.items():
                known = found.setdefault(edge, {})
                for who, part, origin, sequence in senders:
                    number = max(known.get((who, part), (-1, -1)), (origin, sequence))
                    known[who, part] = number
        return found

    def _run(
        self,
        spec: ComputationSpec,
        manifest: Manifest,
        before: LowWatermarks,
        table: pa.Table,
        through: Mapping[int, Mapping[Sender, Number]],
        inbox: Inbox,
    ) -> Iterator[tuple[Result, Commit]]:
        """Run one computation's bundles."""
        name, intervals = spec.name, self._maps[spec.name]
        clocks = self._heard.inputs(spec)
        records = {}
        if table.num_rows:
            table = self._unseen(spec, table, through)
            arrivals = inbox.arrivals(table, table.column("edge").to_numpy(), spec)
            records = {
                interval.id: keyed
                for interval, keyed in arrivals.by_interval(intervals)
                if len(keyed.cuts) > 1
            }
            self._records += len(arrivals)
        due = self._positions.bulletin(name).due(self._owned[name], clocks, self._wall_us)
        places = sorted(intervals.places[interval] for interval in {*records, *due})
        positions = self._positions
        bundles = [
            Bundle(one, positions.of(name, one.id), records.get(one.id, NO_RECORDS))
            for one in map(intervals.intervals.__getitem__, places)
        ]
        if not bundles:
            return
        for bundle in bundles:
            self._load(spec, bundle)
        delivered = {p: known.inputs[name] for p, known in before.percentiles.items()}
        attempt = Attempt(
            self._epoch,
            manifest.generation,
            self._wall_us,
            before.inputs[name],
            clocks,
            self._shown[name],
            delivered,
            before.inputs[name],
            len(intervals),
        )
        yield from self._worker.run(spec, bundles, attempt, self._channels[name].take())

    def _unseen(
        self,
        spec: ComputationSpec,
        table: pa.Table,
        through: Mapping[int, Mapping[Sender, Number]],
    ) -> pa.Table:
        """Return a computation's rows without those that its intervals have consumed."""
        edges = table.column("edge").to_numpy()
        to_it = self._topology.edge_mask({spec.name})
        lifted = edges != wire.plain(edges)
        mine = (edges >= 0) & to_it[np.maximum(wire.plain(edges), 0)]
        if not mine.all():
            table = wire.where(table, mine)
            edges, lifted = edges[mine], lifted[mine]
        if not table.num_rows:
            return table
        intervals, channels = self._maps[spec.name], self._channels[spec.name]
        hashes = table.column("hash").to_numpy().view(np.uint64)
        ids = np.array([one.id for one in intervals.intervals], np.int64)
        owners = ids[intervals.locate(hashes)]
        for interval in np.unique(owners).tolist():
            if not channels.knows(interval):
                place = intervals.places[interval]
                position = self._positions.of(spec.name, interval)
                self._load(spec, Bundle(intervals.intervals[place], position))
        plain = ~lifted
        if plain.any():
            origins = table.column("origin").to_numpy()
            sequences = table.column("sequence").to_numpy()
            self._note_input(origins[plain], sequences[plain])
            fresh = channels.fresh(owners[plain], origins[plain], sequences[plain])
            if fresh is not None:
                kept = lifted.copy()
                kept[np.flatnonzero(plain)] = fresh
                table = wire.where(table, kept)
                edges, lifted, owners = edges[kept], lifted[kept], owners[kept]
        for edge in np.unique(wire.plain(edges[lifted])).tolist():
            far = through.get(edge, {})
            for (who, part), number in far.items():
                self._note_consumed(who, part, number)
            for interval in np.unique(owners[lifted & (wire.plain(edges) == edge)]).tolist():
                channels.advance(interval, far)
        return table

    def _load(self, spec: ComputationSpec, bundle: Bundle) -> None:
        """Read an interval's channels, unless they are known."""
        channels = self._channels[spec.name]
        if not channels.knows(bundle.interval.id):
            found, _ = self._worker.channels(spec, bundle)
            channels.load(bundle.interval.id, found)

    def _note_refused(self, refused: Mapping[str, int]) -> None:
        for stream, count in refused.items():
            self._report.refused[stream] = self._report.refused.get(stream, 0) + count

    def _note_input(self, origins: npt.NDArray[np.int64], sequences: npt.NDArray[np.int64]) -> None:
        injected = (origins >> 48) >= FIRST_INJECTED
        if not injected.any():
            return
        origins, sequences = origins[injected], sequences[injected]
        parts = (origins >> 48 << 31) | (sequences >> ROW_BITS)
        for part in np.unique(parts).tolist():
            chosen = parts == part
            n = int(np.flatnonzero(chosen)[np.lexsort((sequences[chosen], origins[chosen]))[-1]])
            origin, sequence = int(origins[n]), int(sequences[n])
            self._note_consumed(*sender_of(origin, sequence), number_of(origin, sequence))

    def _note_consumed(self, who: int, part: int, number: Number) -> None:
        if who >= FIRST_INJECTED:
            at, count = (who - FIRST_INJECTED, part), injected_count(number)
            self._consumed[at] = max(self._consumed.get(at, -1), count)

    # -- after the bundles -------------------------------------------------------------------------

    def _append(self, commits: list[Commit]) -> None:
        if self._journal is None:
            self._journal = self._journals.create(
                self._session, self.level, self.number, self._part
            )
        self._journal.append(commits, self._note())
        self._groups += 1

    def _note(self) -> bytes:
        """Return what this task knows now."""
        inputs = self._heard.low_watermarks.inputs
        return notes.encode(
            notes.Note(
                self._wall_us,
                {spec.name: inputs[spec.name] for spec in self._specs},
                [(*at, number) for at, number in self._consumed.items()],
            )
        )

    def _settle(self, results: list[Result]) -> None:
        """Take where intervals stand now."""
        changed = Changes(0)
        for result in results:
            name, interval = result.computation, result.interval
            changed.numbers.setdefault(name, {})[interval] = result.number
            changed.chains.setdefault(name, {})[interval] = result.chain
            changed.reports.setdefault(name, {})[interval] = result.report
            self._report.add(result)
        self._positions.add(changed, self._positions.entry)
        for name, reports in changed.reports.items():
            self._positions.bulletin(name).restore(reports)

    def _leave(
        self,
        batches: Iterable[pa.RecordBatch],
        produced: Mapping[Sender, Number],
        *,
        mark: int = NO_MARK,
    ) -> Iterator[Sent]:
        """Send rows on, with low watermarks if those moved; the last level writes its sinks."""
        message = self._next_message(told=mark != NO_MARK)
        if self._outlet is not None:
            for batch in batches:
                self._outlet.write(batch, self._epoch)
            self._outlet.flush()
            return
        rows = list(batches)
        lifted = {
            int(number)
            for batch in rows
            for number in np.unique(batch.column("edge").to_numpy()).tolist()
            if number >= 0 and number != wire.plain(number)
        }
        yield from self._pipes.send(
            rows,
            through={wire.plain(edge): produced for edge in lifted},
            message=message,
            mark=mark,
            draining=self._draining and mark != NO_MARK,
            last=self._ending and mark != NO_MARK,
        )

    def _next_message(self, *, told: bool) -> Message | None:
        """Return what the next level is to be told now; None if nothing, or not yet."""
        spread = bool(self._topology.percentiles)
        pending = {
            spec.name: self._positions.bulletin(spec.name).pending(
                spread, within=self._owned[spec.name]
            )
            for spec in self._specs
        }
        self._show(pending)
        if self._last:
            return None
        message = self._heard.message(pending)
        self._untold = message != self._message
        if not told and (not self._untold or self._wall_us < self._told_us + self._tell_us):
            return None
        self._told_us, self._message, self._untold = self._wall_us, message, False
        return message

    def _show(self, pending: Mapping[str, Pending]) -> None:
        """Take how far this task's own intervals show their low watermarks now."""
        inputs = self._heard.low_watermarks.inputs
        for spec in self._specs:
            shown_us = min(inputs[spec.name], pending[spec.name].oldest_us)
            self._shown[spec.name] = max(self._shown[spec.name], shown_us)

    def _pass_mark(self) -> Iterator[Sent]:
        mark = self._epoch
        yield from self._leave((), {}, mark=mark)
        receipts = {} if self._outlet is None else self._outlet.pass_mark(mark)
        journal = ""
        if self._journal is not None:
            journal = str(self._journal.name)
            self._journal.close()
            self._journal, self._part = None, self._part + 1
        covered, self._report.covered = self._report.covered, {}
        snapshots = self._runtime.snapshots
        for name, intervals in self._report.touched().items():
            snapshots.offer(name, intervals)
        self.said.append(
            Passed(
                mark,
                self.level,
                self.number,
                self._report.take(written=snapshots.take()),
                receipts=receipts,
                journal=journal,
                covered=covered,
                note=self._note(),
            )
        )
        self._epoch += 1
        held, self._held = self._held, []
        yield from self._leave(held, {})

    def _plan_wake(self) -> None:
        """Say when something is due that no packet brings."""
        wall_us = min(
            (self._positions.bulletin(s.name).next_wall_timer_us for s in self._specs),
            default=MAX_TIMESTAMP,
        )
        self.wake_us = min(wall_us, self._told_us + self._tell_us) if self._untold else wall_us

    def _say_status(self) -> None:
        if self._wall_us < self._status_us + _STATUS_US:
            return
        self._status_us = self._wall_us
        inputs = self._heard.low_watermarks.inputs
        self.said.append(
            Told(
                self.level,
                self.number,
                self._records,
                {spec.name: inputs[spec.name] for spec in self._specs},
                self._groups,
                self._busy_s,
            )
        )

    # -- what a turn is like -----------------------------------------------------------------------

    @property
    def _where(self) -> str:
        return f"level {self.level}, task {self.number}"

    def _task(self, manifest: Manifest) -> Task:
        return Task(self._runtime, manifest, self.number)

    def _turns_manifest(self, before: LowWatermarks) -> Manifest:
        """Return a manifest that says what holds in this turn.

        Who lifts asks it which records are late for the receiver: at the latest those behind what
        this task itself has shown, whatever else the receiver has heard.
        """
        begun = self._manifest
        shown_us = max(self._shown.values(), default=MIN_TIMESTAMP)
        outputs = dict.fromkeys(before.outputs, shown_us)
        return Manifest(
            epoch=self._epoch,
            generation=begun.generation,
            wall_time_us=self._wall_us,
            injectors={spec.name: shown_us for spec in self._topology.injected()},
            draining=False,
            before=LowWatermarks(dict.fromkeys(before.inputs, MIN_TIMESTAMP), outputs),
            intervals=begun.intervals,
            entry=begun.entry,
            edges=begun.edges,
        )


_EMPTY = wire.SCHEMA.empty_table()
