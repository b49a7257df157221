"""Harness: a whole pipeline in process, driven by hand.

The Harness runs the same stages, store protocol and epoch log as Spark; only the store is memory,
the exchange is a list, and time is what the test says. Every call is one epoch.

All that a crash takes away is its process, which is made of what lasts.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from millrace.balance import transfer
from millrace.balance.load import RunLoads
from millrace.compile.topology import Topology, injector_name
from millrace.dataflow.operators import operator_of
from millrace.dataflow.triggers.signal import called
from millrace.dataflow.windowing import Windowing
from millrace.epochlog.entries import Manifest, processes_of
from millrace.epochlog.history import WatermarkHistory
from millrace.epochlog.run_log import RunLog
from millrace.injectors.dead_letters import LetterLog, bind_letters
from millrace.injectors.injector import Injector
from millrace.injectors.key_injector import Keys
from millrace.injectors.offsets import Offsets
from millrace.injectors.watermark_publisher import WatermarkPublisher
from millrace.inspect import Checkpoint, WatermarkExplanation, explain_watermark
from millrace.inspect.dead_letters import Sending, send
from millrace.inspect.overview import dead_letters_of
from millrace.kernel.execution import Execution
from millrace.kernel.results import Counters
from millrace.model.declarations import Declarations
from millrace.model.errors import (
    CheckpointMismatch,
    PipelineError,
    WatermarkRegression,
    brief,
)
from millrace.model.record import LateRecord
from millrace.model.stream import KeyExtractor
from millrace.model.time import MAX_TIMESTAMP, Duration, Instant, duration_us, timestamp_us
from millrace.runtime.calls import CallPools
from millrace.runtime.epoch.driver import EpochDriver
from millrace.runtime.exchange import LocalExchange, through_levels
from millrace.runtime.reports import TaskReport, reports_in
from millrace.runtime.sink_contract import bind_sinks, task_writers
from millrace.runtime.sink_writer import write_to_sinks
from millrace.runtime.virtual_loop import VirtualTimeLoop
from millrace.runtime.worker_process import Task, WorkerProcess
from millrace.store import (
    Collector,
    Mailbox,
    MemoryBlobs,
    MemoryCaches,
    MemoryHardState,
    SnapshotPolicy,
    write_if_due,
)
from millrace.testing.faults import Crash, CrashingState
from millrace.testing.feed import Feed, injection_of, poll, reads
from millrace.testing.invariants import check_interval, check_low_watermarks
from millrace.testing.output import Output, Outputs, tapped, with_taps
from millrace.watermark.map_change import Remap
from millrace.watermark.propagation import LowWatermarks
from millrace.watermark.report import ONLY, ProcessState

#: A snapshot every three commits or so, that a test of a few epochs crosses snapshots and
#: collections as a run of weeks does.
_POLICY = SnapshotPolicy(fixed_bytes=160 << 10)


class HarnessProcess:
    """Driver and one task, over a checkpoint.

    Args:
        topology: The pipeline.
        durable: The checkpoint.
        intervals: Key intervals a computation.
        publish: Whether injectors publish by their policies.
        lift: Whether senders combine values.
        scripted: Percentile -> injected stream -> what it published by hand, 100 the low watermark.
        call_pools: Make the calls of its task.

    Attributes:
        topology: The pipeline, under the numbers of the checkpoint.
        state: The checkpoint, which a crash can cut off.
        run_log: Of the run.
        loads: What its key intervals cost.
        caches: Of the task.
        driver: What the driver does in an epoch.
    """

    def __init__(
        self,
        topology: Topology,
        durable: MemoryHardState,
        *,
        intervals: int,
        publish: bool,
        lift: bool,
        scripted: Mapping[int, Mapping[str, int]],
        call_pools: CallPools,
    ) -> None:
        self.state = CrashingState(durable)
        self.caches = MemoryCaches()
        self.run_log = RunLog(topology, self.state, intervals=intervals)
        self.loads = RunLoads(self.run_log)
        self.topology = self.run_log.topology
        publisher = WatermarkPublisher.of(self.topology) if publish else WatermarkPublisher({})
        self.driver = EpochDriver(
            self.topology, self.run_log, publisher, scripted, estimates=publish
        )
        self._runtime = WorkerProcess(
            self.topology,
            tasks=1,
            execution=Execution(self.topology, self.state, self.caches),
            lift=lift,
            writers=task_writers(self.topology),
            call_pools=call_pools,
        )
        self._collector = Collector(self.state)

    def attempt(
        self, feed: Feed | None, wall_time_us: int
    ) -> tuple[Manifest, list[pa.RecordBatch]]:
        """Run the epoch that is open, or the next one; return its manifest, and what leaves."""
        run_log, leaving = self.run_log, list[pa.RecordBatch]()

        def stages(manifest: Manifest) -> tuple[TaskReport, float]:
            source = Task(self._runtime, manifest, 0)
            sent: list[pa.RecordBatch] = [] if feed is None else list(feed.rows(source))
            exchange = LocalExchange(self._runtime, manifest)
            left = through_levels(exchange, sent, self.topology.depth)
            write_to_sinks(self._runtime, manifest.epoch, left)
            leaving.extend(left)
            return TaskReport.together(reports_in(left)), 0.0

        turn = self.driver.run(
            run_log.open.epoch if run_log.open is not None else run_log.completed + 1,
            stages,
            wall_time_us=wall_time_us,
        )
        assert turn is not None, "the epoch after the last completed one is not completed"
        return turn.manifest, leaving

    def settled(self, manifest: Manifest, wall_time_us: int) -> bool:
        """Return whether another epoch now would move no low watermark."""
        driver = self.driver
        return (
            driver.settled(manifest, driver.published(wall_time_us))
            and driver.publisher.changes_us() > wall_time_us
        )

    def housekeep(self) -> None:
        """Write the snapshots that are due and collect, as threads beside the tasks do on Spark."""
        for name, intervals in self.run_log.positions.maps.items():
            for entry in intervals.intervals:
                cache = self.caches.open(name, entry.id)
                write_if_due(cache, self.state.snapshots, name, entry.id, _POLICY)
        self._collector.collect(self.run_log.collectable())


_ALL_INTERVALS = 4


class Harness:
    """Runs a pipeline step by step, and checks the kernel's invariants when it closes.

    Args:
        pipeline: Any pipeline; its Spark sources and its sinks are left alone, but for
            :class:`~millrace.sinks.Function`, whose function is called.
        intervals: Key intervals a computation, a power of two.
        publish: Whether injectors publish low watermarks by their policies, as on Spark, besides
            what :meth:`advance_watermark` says.
        lift: Whether senders combine values for groupings, as on Spark. By default they do not: it
            changes no pane, unless ``window(lift=True)`` allows it to.
        epoch_time: How long an epoch with records takes: the wall clock is so much later after it.

    Attributes:
        history: Where the low watermarks stood after each epoch, for ``mr.plot.watermarks(h)``.

    Keys that computations were given (``p.add(..., keys=)``) begin when it is made, at 0 of the
    wall clock. Every stream's records can be read with :meth:`outputs`, whether it has a sink or
    not. Use it as a context manager, or call :meth:`close`, to have the invariants checked at the
    end; ``crash`` checks them too.

    >>> import millrace as mr
    >>> class Late(mr.Computation):
    ...     inputs = {"events": mr.by(lambda value: value)}
    ...     outputs = {"lateness": bool}
    ...
    ...     def process_record(self, record):
    ...         self.produce("lateness", record.late)
    >>> p = mr.Pipeline("late")
    >>> p.inject("events", format=int)
    Stream('events')
    >>> p.add(Late)
    >>> with mr.testing.Harness(p) as h:
    ...     h.inject("events", [(7, 100)])
    ...     h.advance_watermark("events", 101)
    ...     h.inject("events", [(7, 100)])
    ...     [output.value for output in h.outputs("lateness")]
    [False, True]
    """

    def __init__(
        self,
        pipeline: Declarations,
        *,
        intervals: int = _ALL_INTERVALS,
        publish: bool = False,
        lift: bool = False,
        epoch_time: Duration = 0,
    ) -> None:
        self._topology = _bound(pipeline)
        if type(intervals) is not int or intervals < 1 or intervals & (intervals - 1):
            raise PipelineError(
                f"Harness(intervals={intervals!r}): expected a power of two, such as 4."
            )
        self._mailbox = Mailbox(MemoryBlobs())
        self._intervals = intervals
        self._publish = publish
        self._lift = lift
        self._epoch_time_us = duration_us(epoch_time, "Harness(epoch_time)")
        self._durable = MemoryHardState()
        self._wall_time_us = 0
        self._scripted: Mapping[int, Mapping[str, int]] = {}
        self.history = WatermarkHistory()
        self._outputs: dict[str, list[Output]] = {name: [] for name in self._topology.streams}
        self._last_manifest: Manifest | None = None
        self._call_pools = CallPools(VirtualTimeLoop)
        self._recover()
        for spec in self._topology.injected():
            if spec.injection is not None and isinstance(spec.injection.source, Keys):
                published = {**self._scripted.get(100, {}), spec.name: MAX_TIMESTAMP}
                self._script({**self._scripted, 100: published})
                self.poll(spec.name)

    # -- driving -----------------------------------------------------------------------------------

    def inject(
        self,
        stream: str,
        records: Iterable[tuple[Any, Instant | None] | tuple[Any, Instant | None, Any]],
        *,
        process: str = ONLY,
        low_watermark: Instant | None = None,
    ) -> None:
        """Deliver records to an injected stream, in order, as one epoch.

        Args:
            stream: An injected stream.
            records: (value, timestamp) pairs; the timestamp in microseconds or as a datetime. Where
                the stream was injected with ``id=``, the field of the value that it names is the
                id, or a third item: (value, timestamp, id). Where it was injected with
                ``timestamp=mr.INGRESS``, None in place of the timestamp: the time is the clock's.
            process: The process of the injector that they came by.
            low_watermark: What the process reports; see :class:`~millrace.WatermarkColumn`.

        Raises:
            RecordRejected: A value or timestamp is refused, and there is no dead-letter stream.
        """
        injection = injection_of(self._topology, stream)
        has_processes = injection.process is not None or isinstance(injection.source, Injector)
        if not isinstance(process, str) or (process != ONLY and not has_processes):
            raise PipelineError(
                f"inject({stream!r}, ..., process={process!r}): expected the name of a process, of "
                'a stream that has some: p.inject(..., process="partition").'
            )
        told = {}
        if low_watermark is not None:
            told[process] = ProcessState(
                process_watermark_us=min(timestamp_us(low_watermark), MAX_TIMESTAMP)
            )
        given = []
        for record in records if isinstance(records, Iterable) else (records,):
            if not isinstance(record, tuple | list) or len(record) not in (2, 3):
                raise PipelineError(
                    f"inject({stream!r}): {brief(record)} is no record. Expected "
                    "[(value, timestamp), ...]; with an id, (value, timestamp, id)."
                )
            value, at, *id = record
            given.append((value, at, process, *id))
        # What is given by hand is not read: the injector's process stands where it stood.
        read = isinstance(injection.source, Injector)
        stands = tuple(self._offsets(stream).get(process, (None, None)))
        self._epoch(Feed(stream, reads(injection, given), told, {process: stands} if read else {}))

    def poll(self, stream: str) -> int:
        """Let a stream's injector deliver one epoch; return how many records.

        What it promises counts if the Harness was made with ``publish=True``.
        """
        injection_of(self._topology, stream)
        driver = self._process.driver
        waiting = driver.publisher.waiting(
            stream, processes_of(self._run_log.sources), driver.published(self._wall_time_us)
        )
        spec = self._topology.streams[stream]
        delivery = poll(spec, self._offsets(stream), waiting)
        reached = {name: (offset, us) for name, (offset, us) in delivery.offsets.items()}
        self._epoch(Feed(stream, delivery.records, delivery.processes, reached))
        return len(delivery.records)

    def advance_watermark(self, stream: str, to: Instant, *, percentile: int = 100) -> None:
        """Publish an injected stream's low watermark, and fire the timers that it makes due.

        Args:
            stream: An injected stream.
            to: Microseconds or a datetime; ``mr.MAX_TIMESTAMP`` ends the input.
            percentile: Publish the low watermark of this share of the records only. It is never
                below that of a greater share, whatever was published.

        Raises:
            WatermarkRegression: ``to`` is below what the stream published before.
            PipelineError: No computation waits for the percentile.
        """
        injection_of(self._topology, stream)
        to_us = timestamp_us(to)
        current_us = self._known(percentile).outputs[injector_name(stream)]
        if to_us < current_us:
            raise WatermarkRegression(
                f"injector {stream!r} reported {to_us} us after {current_us} us; low watermarks "
                "never move back. Report the minimum over unread input, or deliver the record as "
                "late."
            )
        before = dict(self._scripted)
        of_percentile = dict(before.get(percentile, {})) | {stream: min(to_us, MAX_TIMESTAMP)}
        self._script(before | {percentile: of_percentile})
        try:
            self._epoch()
        except Exception:
            self._script(before)
            raise

    def fire(self, name: str, *keys: Any) -> None:
        """Have the triggers ``mr.OnCall(name)`` fire, as ``run.fire`` does."""
        stream, said = called(name, keys, self._topology.streams)
        self.inject(stream, [(key, 0) for key in said])

    def send_dead_letters(self, *, reason: str | None = None, limit: int | None = None) -> Sending:
        """Send the dead letters of before again, as ``millrace dead-letters --send`` does.

        The pipeline, which :meth:`update` may have changed since, declares
        ``p.dead_letter(..., again=True)``.

        Args:
            reason: Those of this reason, or with this text in it; by default all.
            limit: So many, at the most.

        Returns:
            How many were sent, were sent before, and cannot be sent.

        Raises:
            PipelineError: The pipeline does not declare that.

        >>> import millrace as mr
        >>> class Half(mr.Computation):
        ...     inputs = {"numbers": mr.by(str)}
        ...     outputs = {"halves": int}
        ...
        ...     def process_record(self, record):
        ...         self.produce("halves", record.value // self.two)
        >>> def pipeline(two):
        ...     half = type("Half", (Half,), {"two": two})
        ...     p = mr.Pipeline("halves")
        ...     _ = p.inject("numbers", format=int), p.dead_letter("no", again=True)
        ...     p.add(half)
        ...     return p
        >>> with mr.testing.Harness(pipeline(0)) as h:
        ...     h.inject("numbers", [(6, 0), (8, 1)])
        ...     h.update(pipeline(2))
        ...     h.send_dead_letters(limit=1).sent, h.send_dead_letters().sent
        ...     [output.value for output in h.outputs("halves")]
        (1, 1)
        [3, 4]
        """
        stream = str(self._topology.dead_letters)
        if self._topology.again is None:
            raise PipelineError(
                "send_dead_letters(): nothing in this pipeline reads them. Declare "
                "p.dead_letter(..., again=True)."
            )
        letters = ((output.id, output.value) for output in self.outputs(stream))
        done = send(LetterLog(self._mailbox), letters, reason=reason, limit=limit)
        while self.poll(self._topology.again):
            pass
        return done

    def advance_clock(self, to: Instant) -> None:
        """Set the wall clock, and fire the timers that it makes due. It starts at 0."""
        to_us = timestamp_us(to)
        if to_us < self._wall_time_us:
            raise PipelineError(
                f"advance_clock({to_us}): the Harness's clock is at {self._wall_time_us} us and "
                "does not run backwards."
            )
        earlier_us, self._wall_time_us = self._wall_time_us, to_us
        try:
            self._epoch()
        except Exception:
            self._wall_time_us = earlier_us
            raise

    def crash(self) -> None:
        """Forget all soft state, and recover from the store, as a new process would."""
        self.check()
        self._recover()

    def crash_in_next_epoch(self, after_writes: int) -> None:
        """Let the process die during the next epoch, right after so many durable writes.

        The Harness then recovers and runs the epoch again, as Spark does. An epoch writes its
        manifest, one commit for each interval that changes, level by level, and its completion.
        Then come the snapshots that are due, and one write for each thing that is collected.
        """
        self._process.state.writes = after_writes

    def update(self, pipeline: Declarations) -> None:
        """Go on with a changed pipeline, from the same checkpoint, as a start of it on Spark would.

        What was put out before stays in :meth:`outputs`; streams that are gone have nothing more.

        Raises:
            CheckpointMismatch: It cannot go on there. The Harness goes on with the pipeline it had.
        """
        before, after = self._topology, _bound(pipeline)
        if after.name != before.name:
            raise CheckpointMismatch(
                f"update({pipeline!r}): the checkpoint belongs to pipeline {before.name!r}, this "
                f"pipeline is {after.name!r}. Each needs its own, and keeps its name."
            )
        self._topology = after
        try:
            self._recover()
        except Exception:
            self._topology = before
            self._recover()
            raise
        self._outputs = {name: [] for name in self._topology.streams} | self._outputs

    def remap(self, computation: str, remaps: Iterable[Remap]) -> None:
        """Split and merge key intervals of a computation, as ``run.remap`` does."""
        name, asked = self._name_of(computation), list(remaps)
        before = self._run_log.positions.maps[name]
        while self._run_log.positions.maps[name] == before:
            try:
                transfer.remap(self._run_log, {name: asked})
                break
            except Crash:
                self._recover()
        self._process.state.writes = None

    # -- looking -----------------------------------------------------------------------------------

    def outputs(self, stream: str) -> list[Output]:
        """Return every record of a stream so far, in order of emission; a notebook's table."""
        if stream not in self._outputs:
            raise PipelineError(
                f"no stream {stream!r} in this pipeline; it has {sorted(self._outputs)}."
            )
        return Outputs(self._outputs[stream])

    def windowing(self, grouping: str) -> Windowing | None:
        """Return how a computation that groups by windows does so; None if it does not."""
        spec = next((s for s in self._topology.computations if s.title == grouping), None)
        return None if spec is None else operator_of(spec.instance).windowing

    def key_of(self, computation: str, stream: str) -> KeyExtractor | None:
        """Return how a computation takes its key from a stream; None if it does not read it."""
        spec = next((s for s in self._topology.computations if s.title == computation), None)
        return None if spec is None else spec.inputs.get(stream)

    def low_watermark(self, computation: str, *, percentile: int = 100) -> int:
        """Return the input low watermark of a computation, in microseconds."""
        return self._known(percentile).inputs[self._name_of(computation)]

    def output_low_watermark(self, computation: str, *, percentile: int = 100) -> int:
        """Return the low watermark that a computation shows its consumers, in microseconds."""
        return self._known(percentile).outputs[self._name_of(computation)]

    def _known(self, percentile: int) -> LowWatermarks:
        if percentile not in (100, *self._topology.percentiles):
            raise PipelineError(
                f"percentile={percentile!r}: no computation of this pipeline waits for it; they "
                f"declare {list(self._topology.percentiles)}."
            )
        known = self._run_log.authority.low_watermarks
        return known if percentile == 100 else known.percentiles[percentile]

    def _name_of(self, computation: str) -> str:
        """Return the name by which the checkpoint knows a computation of the pipeline."""
        titles = [spec.title for spec in self._topology.computations]
        if computation not in titles:
            known = ", ".join(titles) or "none"
            raise PipelineError(f"no computation {computation!r}; there are {known}.")
        return self._topology.name_of(computation)

    def explain_watermark(self, computation: str | None = None) -> WatermarkExplanation:
        """Return why a low watermark is where it is, by default the lowest; see ``Run``."""
        return explain_watermark(self._durable, computation)

    def checkpoint(self) -> Checkpoint:
        """Return the checkpoint as of now, to look into: the state of keys, timers, holds."""
        return Checkpoint(self._durable)

    def late_records(self) -> list[LateRecord]:
        """Return every late record so far; none if the pipeline declares no stream of them."""
        stream = self._topology.late_records
        return [] if stream is None else [output.value for output in self.outputs(stream)]

    def counters(self, computation: str) -> Counters:
        """Return what a computation did since the beginning."""
        return self._run_log.counters[self._name_of(computation)]

    def dead_letters(self, where: str | None = None) -> int:
        """Return how many dead letters there are.

        Args:
            where: The computation that failed, or the injected stream that refused records,
                ``stream NAME`` if a computation has its name; by default all together.
        """
        found = dead_letters_of(self.checkpoint().overview)
        return sum(found.values()) if where is None else found.get(where, 0)

    def check(self) -> None:
        """Check the kernel's invariants.

        Raises:
            InvariantViolation: One does not hold: a bug in Millrace.
        """
        authority = self._run_log.authority
        for spec in self._topology.computations:
            intervals = self._run_log.positions.maps[spec.name].intervals
            for entry in intervals if self._last_manifest else ():
                report = authority.report(spec.name, entry.id)
                low_us = authority.low_watermarks.inputs[spec.name]
                check_interval(self._durable, self._caches, spec, entry.id, report, low_us)

    def close(self) -> None:
        """End the test: check the invariants."""
        self._call_pools.close()
        self.check()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        else:
            self._call_pools.close()

    # -- one epoch ---------------------------------------------------------------------------------

    def _epoch(self, feed: Feed | None = None) -> None:
        """Run an epoch, and those by which low watermarks move: on Spark, the alarm rings at once.

        If one fails, the test goes on as if the call had not been: nothing of it is half-applied.
        """
        durable, wall_time_us = self._durable.copy(), self._wall_time_us
        last_manifest, moments = self._last_manifest, list(self.history.moments)
        lengths = {stream: len(outputs) for stream, outputs in self._outputs.items()}
        try:
            manifest = self._complete(feed)
            while self._publish and not self._process.settled(manifest, self._wall_time_us):
                manifest = self._complete(None)
        except Exception:
            self._durable, self._wall_time_us = durable, wall_time_us
            self._last_manifest, self.history.moments = last_manifest, moments
            for stream, length in lengths.items():
                del self._outputs[stream][length:]
            self._recover()
            raise

    def _complete(self, feed: Feed | None) -> Manifest:
        """Run one epoch, again and again where the process dies; return its manifest."""
        before = copy.deepcopy(self._run_log.authority.low_watermarks)
        while True:
            try:
                manifest, leaving = self._attempt(feed)
                break
            except Crash:
                self._recover()
        try:
            self._process.housekeep()
        except Crash:
            self._recover()
        self._process.state.writes = None
        if feed is not None:
            self._wall_time_us += self._epoch_time_us
        check_low_watermarks(before, self._run_log.authority.low_watermarks)
        for stream, output in leaving:
            self._outputs[stream].append(output)
        return manifest

    def _attempt(self, feed: Feed | None) -> tuple[Manifest, list[tuple[str, Output]]]:
        """Run the epoch that is open, or the next one; return what leaves for the taps, too."""
        manifest, rows = self._process.attempt(feed, self._wall_time_us)
        self._last_manifest = manifest
        leaving = [
            (stream, output)
            for batch in rows
            for stream, output in tapped(self._topology, batch, manifest.wall_time_us)
        ]
        return manifest, leaving

    def _recover(self) -> None:
        self._call_pools.close()
        self._process = HarnessProcess(
            self._topology,
            self._durable,
            intervals=self._intervals,
            publish=self._publish,
            lift=self._lift,
            scripted=self._scripted,
            call_pools=self._call_pools,
        )
        self._caches, self._run_log = self._process.caches, self._process.run_log
        self._topology = self._process.topology
        bind_letters(self._topology, self._mailbox)
        self._run_log.history = self.history

    def _offsets(self, stream: str) -> Offsets:
        """Return where the processes of a stream's injector stand."""
        known = self._run_log.source_offsets.get(stream, {})
        return {name: [place.offset, place.process_watermark_us] for name, place in known.items()}

    def _script(self, scripted: Mapping[int, Mapping[str, int]]) -> None:
        self._scripted = self._process.driver.scripted = scripted


def _bound(pipeline: Declarations) -> Topology:
    """Return the topology of a pipeline, with a tap on every stream."""
    if not isinstance(pipeline, Declarations):
        raise PipelineError(f"Harness({pipeline!r}): expected an mr.Pipeline, as p.")
    return bind_sinks(with_taps(pipeline), "harness")
