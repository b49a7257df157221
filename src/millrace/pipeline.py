"""Pipeline: what a user builds, explains and runs.

It stands above all that it calls: compiler, Dataflow layer and Spark's shell. Importing it imports
no PySpark, which :mod:`millrace.spark` does when a pipeline is started.

Source: docs/guide.md; MillWheel, "Core concepts" (4).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from millrace import spark as on_spark
from millrace.compile.build import build
from millrace.compile.callables import never_runs
from millrace.compile.change.plan import ChangePlan
from millrace.compile.explanation import PipelineExplanation
from millrace.compile.graph import graph_svg
from millrace.compile.topology import Topology
from millrace.dataflow.stream import Stream
from millrace.dataflow.value import positive_us
from millrace.injectors.columns import arrow_schema, plain_types
from millrace.injectors.dead_letters import Letters
from millrace.injectors.key_injector import Keys
from millrace.injectors.signal_injector import SignalInjector, streams_called
from millrace.injectors.watermark_policy import LowWatermarkPolicy
from millrace.inspect.checkpoint import plan_of
from millrace.model.computation import Computation, DeliveryMode, ProductionMode
from millrace.model.coroutines import parameters_refusing
from millrace.model.declarations import (
    AGAIN,
    INGRESS,
    Declarations,
    Ingress,
    Injection,
    Migration,
    SinkDeclaration,
    check_name,
    names,
)
from millrace.model.errors import PipelineError
from millrace.model.record import DeadLetter, DeadLetterLimit, LateRecord
from millrace.model.time import DAY, HOUR, LATEST_RECORD, Duration, TimeUnit, duration_us, time_unit
from millrace.options import BatchOptions, EpochOptions, RealtimeOptions, RunOptions
from millrace.runtime.realtime.weak import refused_weak

if TYPE_CHECKING:
    from millrace.spark.handle import Handle
    from millrace.spark.status import Status

#: Slack where none is given: "typically on the order of a few hours" (MillWheel, 6.1.1).
_SLACK_US = 2 * HOUR


class Pipeline(Declarations):
    """A graph of streams and computations, with injectors at its start and sinks at its end.

    >>> import millrace as mr
    >>> class Echo(mr.Computation):
    ...     inputs = {"words": mr.by(str)}
    ...     outputs = {"echoes": str}
    ...
    ...     def process_record(self, record):
    ...         self.produce("echoes", record.value * 2)
    >>> p = mr.Pipeline("echo")
    >>> p.inject("words", format=str)
    Stream('words')
    >>> p.add(Echo)
    >>> h = mr.testing.Harness(p)
    >>> h.inject("words", [("ha", 0)])
    >>> [output.value for output in h.outputs("echoes")]
    ['haha']
    """

    def inject(
        self,
        stream: str,
        source: Any = None,
        *,
        timestamp: str | Ingress | None = None,
        unit: TimeUnit | None = None,
        low_watermark: Any = None,
        id: str | None = None,
        slack: Duration | None = None,
        format: Any = Any,
        ahead: Duration = DAY,
        process: str | None = None,
        expected: Iterable[str] = (),
        idle: Duration | None = None,
        skew: Duration | None = None,
        was: str | Iterable[str] = (),
    ) -> Stream:
        """Feed a stream from outside.

        Args:
            stream: Name of the stream.
            source: A Spark DataFrame, streaming or bounded, or an
                :class:`~millrace.sources.Injector`; None lets a Harness feed the stream.
            timestamp: The column with the event time: a Spark timestamp, or an integer. Or
                ``mr.INGRESS``: the wall-clock time of the read. It is the same for all records of
                an epoch, and stored with the epoch, so a retry does not change it. In real time its
                resolution is a tenth of a second, and it is stored before the record leaves.
            unit: Unit of an integer timestamp, since 1970 (UTC): ``"s"``, ``"ms"``, ``"us"`` or
                ``"ns"``. By default microseconds; then a number is refused that would be a time
                between 2001 and now in seconds or milliseconds, as it hardly means January 1970.
            low_watermark: Policy of each process, such as ``mr.BoundedDelay("5 s")``. It may be
                left out for an Injector that publishes low watermarks itself, and with
                ``mr.INGRESS``: then it is ``mr.ArrivalTime(0)``, which follows the clock.
            id: Column that identifies a record: text, bytes, or an integer. If the source delivers
                a record again, with the same id and key, it is dropped and counted
                (``duplicates_filtered``).
            slack: How long an id is kept: until the low watermark is this far past the record's
                timestamp. A duplicate that is delivered later is processed as a late record. By
                default two hours.
            format: Record format. A Struct or dataclass takes the columns of its fields' names. A
                builtin type takes the only column besides the timestamp; without a format the value
                is a dict of all columns but the timestamp.
            ahead: How far past the wall clock a timestamp may lie before its record is refused. A
                single timestamp far in the future would otherwise carry the low watermark with it
                and make everything after it late.
            process: Column that names a record's process, or source partition. The injector's low
                watermark is the minimum over its processes. They are stored, so there must not be
                more than 10,000.
            expected: Names of processes that must have delivered something before the injector
                publishes a low watermark. Other processes join with their first record.
            idle: How long a process may be silent, by the wall clock, before it no longer holds the
                low watermark; its later records may be late. By default it holds it forever.
            skew: How far ahead of the low watermark a process may be read. One that is further
                ahead waits until the low watermark advances, so buffers stay bounded. Only for an
                Injector: Spark decides what its own sources read.
            was: The stream's name in earlier versions, or several: reading continues at the offsets
                stored under that name. Not for Spark's own sources. See docs/changing.md.

        Raises:
            PipelineError: The stream is injected already, or an argument is missing.
        """
        check_name(stream, "stream")
        if stream in self.injections:
            raise PipelineError(
                f"stream {stream!r} is injected twice in {self!r}. Inject a second source under "
                "another name, and let consumers subscribe to both."
            )
        several = isinstance(expected, Iterable) and not isinstance(expected, str)
        names_expected = names(
            map(str, expected) if several else expected, f"inject({stream!r}, expected"
        )
        _check_injection(stream, source, timestamp, unit, id, slack, process, names_expected)
        # A class has the methods of a policy, too.
        if low_watermark is not None and (
            isinstance(low_watermark, type) or not isinstance(low_watermark, LowWatermarkPolicy)
        ):
            raise PipelineError(
                f"inject({stream!r}, low_watermark={low_watermark!r}): expected a policy, which "
                'says how late records may come, such as mr.BoundedDelay("5 s").'
            )
        column = timestamp if isinstance(timestamp, str) else None
        self.injections[stream] = Injection(
            stream,
            source,
            column,
            low_watermark,
            format,
            duration_us(ahead, "inject(ahead)"),
            process,
            names_expected,
            None if idle is None else positive_us(idle, "inject(idle)"),
            None if skew is None else duration_us(skew, "inject(skew)"),
            id,
            _SLACK_US if slack is None else duration_us(slack, "inject(slack)"),
            time_unit(unit, f"inject({stream!r}, unit)"),
            timestamp is INGRESS,
            names(was, f"inject({stream!r}, was"),
            plain_types(source),
        )
        return Stream(self, stream)

    def add(
        self,
        computation: type[Computation] | Computation,
        *,
        name: str | None = None,
        keys: Iterable[Any] | None = None,
        productions: ProductionMode | None = None,
        delivery: DeliveryMode | None = None,
        was: str | Iterable[str] = (),
        dropped: Iterable[str] = (),
        migrate: Mapping[str, Migration] | None = None,
    ) -> None:
        """Add a computation: a class, or an instance with parameters of its own.

        Args:
            computation: A subclass of Computation, or an instance of one.
            name: Its name in this pipeline and its checkpoint; by default the class's name.
            keys: Keys that begin by themselves, 1,000 at the most: ``process_start`` is called once
                for each, and sets its first timers. A computation that has them needs no inputs.
                Keys that are added later begin then; those that are left out go on.
            productions: ``mr.STRONG`` or ``mr.WEAK``; by default what the class says.
            delivery: ``mr.EXACTLY_ONCE`` or ``mr.AT_LEAST_ONCE``; by default what the class says.
            was: Its name in earlier versions, or several: it takes over the state that a checkpoint
                has under that name. The argument may stay in the program.
            dropped: Cells of earlier versions whose state is deleted.
            migrate: Cell -> function from a stored value to a new one, or to None to delete it. It
                is called with a cell's value, each value of a map, or each item of a bag. Unless
                the format is the same, it gets plain data: a dict of the fields where there was an
                object. A checkpoint is migrated once by a function of one name; a value for which
                it raises becomes a dead letter. See docs/changing.md.

        Raises:
            PipelineError: It is no computation, its name is taken, or an option is not one.

        Source: MillWheel, "Streams" (4.3), of computations without inputs: fed by timers alone.

        >>> import millrace as mr
        >>> class Heartbeat(mr.Computation):
        ...     outputs = {"beats": str}
        ...
        ...     def process_start(self):
        ...         self.set_timer("beat", at=self.wall_time + mr.SECOND, domain=mr.WALL_TIME)
        ...
        ...     def process_timer(self, timer):
        ...         self.produce("beats", f"{self.key} is alive")
        ...         self.set_timer("beat", at=timer.at + mr.SECOND, domain=mr.WALL_TIME)
        >>> p = mr.Pipeline("alive")
        >>> p.add(Heartbeat, keys=["here", "there"])
        >>> h = mr.testing.Harness(p)
        >>> h.advance_clock(2 * mr.SECOND)
        >>> sorted((out.value, out.timestamp) for out in h.outputs("beats"))[:2]
        [('here is alive', 1000000), ('here is alive', 2000000)]
        """
        was = names(was, f"p.add({name or computation!r}, was")
        super().add(
            computation,
            name=name,
            productions=productions,
            delivery=delivery,
            was=was,
            dropped=dropped,
            migrate=migrate,
        )
        for stream in streams_called(computation):
            if stream not in self.injections:
                self.inject(stream, SignalInjector(stream), timestamp="at", unit="us", format=bytes)
        if keys is None:
            return
        added = list(self.computations)[-1]
        stream = f"{added}.keys"
        try:
            earlier = [f"{name}.keys" for name in was]
            self.inject(
                stream, Keys(added, keys), timestamp="at", unit="us", format=bytes, was=earlier
            )
        except PipelineError:
            del self.computations[added], self.guarantees[added], self.evolutions[added]
            raise
        self.starts[added] = stream

    def stream(self, name: str) -> Stream:
        """Return a stream by name, to add stateless steps to it. It may be declared later."""
        check_name(name, "stream")
        return Stream(self, name)

    def sink(self, stream: str, sink: Any) -> None:
        """Send a stream's records out of the pipeline.

        Args:
            stream: Name of the stream. Give what steps make a name, with ``to``: one like
                ``bids.map-1`` changes with the steps, and with it ``_id``, where the source has
                ``id=``.
            sink: ``mr.sinks.Parquet(...)``, ``mr.sinks.Delta(...)``, ``mr.sinks.Iceberg(...)``,
                ``mr.sinks.PostgreSQL(...)``, ``mr.sinks.Kafka(...)``, ``mr.sinks.Function(...)``,
                ``mr.sinks.Memory()``, ``mr.sinks.Console()``, or any callable ``(DataFrame,
                epoch)``.
        """
        check_name(stream, "stream")
        _check_sink(stream, sink)
        self.sinks.append(SinkDeclaration(stream, sink))

    def dead_letter(
        self, stream: str, *, at_most: str | int | None = None, again: bool = False
    ) -> Stream:
        """Declare the stream that takes records and timers which cannot be processed.

        Its format is :class:`~millrace.DeadLetter`. Without one, such a record stops the run with
        an error that names it. The first of each computation and stream is logged with its reason;
        ``millrace dead-letters CHECKPOINT`` counts them by reason.

        Args:
            stream: Its name.
            at_most: A limit: ``"5 %"`` of the records, or a number, since the run started. A share
                is taken over the last five minutes of epochs (in real time: marks), once they have
                a hundred records. Beyond it the run stops with DeadLettersExceeded, which names the
                most frequent reason. The epoch has completed by then, so nothing is lost, and the
                next start counts from zero.
            again: Whether the run processes dead letters again that ``millrace dead-letters
                CHECKPOINT --send`` puts into the checkpoint: each goes once to the computation that
                failed. It adds an injected stream, ``dead-letters.again``, which holds no low
                watermark.

        Raises:
            PipelineError: There is such a stream already, or ``at_most`` is no limit.

        >>> import millrace as mr
        >>> mr.Pipeline("shop").dead_letter("rejects", at_most="5 %")
        Stream('rejects')
        """
        check_name(stream, "stream")
        if self.dead_letters is not None:
            raise PipelineError(f"{self!r} has a dead-letter stream: {self.dead_letters!r}.")
        self.dead_letters = stream
        self.dead_letter_limit = None if at_most is None else DeadLetterLimit.of(at_most)
        self.formats[stream] = DeadLetter
        if again:
            # Its time was accepted when its record was read first.
            self.inject(
                AGAIN, Letters(), timestamp="at", unit="us", format=bytes, ahead=LATEST_RECORD
            )
        return Stream(self, stream)

    def late_records(self, stream: str) -> Stream:
        """Declare a stream that gets a note of every late record of any computation.

        Its format is :class:`~millrace.LateRecord`. The late record itself is still delivered, with
        ``record.late`` set, and counted; this stream does not change that. A note has the timestamp
        of its late record.
        """
        check_name(stream, "stream")
        if self.late is not None:
            raise PipelineError(f"{self!r} has a stream of late records: {self.late!r}.")
        self.late = stream
        self.formats[stream] = LateRecord
        return Stream(self, stream)

    def build(self) -> Topology:
        """Return the checked graph.

        Raises:
            PipelineError: Unknown stream, cycle, formats that disagree, missing key extractor.
        """
        return build(self)

    def plan(self, checkpoint: str | os.PathLike[str]) -> ChangePlan:
        """Return what a start of this changed pipeline would do with a checkpoint.

        It starts and writes nothing, needs no Spark, and may be called beside a run.

        Args:
            checkpoint: As for :meth:`start`: a path or a URL.

        Returns:
            Part by part what is refused, dropped, migrated, added, changed or kept, and why, after
            the last epoch that has completed. Print it; ``plan.refused`` is empty if a start would
            go on, ``plan.waiting`` names the things it has to wait for while an epoch is under way.
            A start that is refused says the same. What only Spark knows, such as whether a source
            can be read, is not in it.

        Raises:
            CheckpointMismatch: There is no checkpoint, or one of a newer format.
            PipelineError: The pipeline cannot run.

        Source: docs/changing.md.
        """
        return plan_of(self.build(), checkpoint)

    def explain(self) -> PipelineExplanation:
        """Return how it runs: stages, what is fused into them, edges and keys, windows. Print it.

        Needs no Spark session, and starts nothing. Sources that are DataFrames are asked for their
        columns.

        Raises:
            PipelineError: The pipeline, or a source, cannot run.
        """
        topology = self.build()
        bound = any(injection.source is not None for injection in self.injections.values())
        reasons = on_spark.python_reasons(topology) if bound else {}
        return PipelineExplanation(topology, reasons, refused_weak(topology, tasks=1))

    def _repr_html_(self) -> str:
        """Return the graph of the pipeline, for a notebook; or what is wrong with it."""
        try:
            return graph_svg(self.build())
        except PipelineError as error:
            return f"<p>{escape(repr(self))}</p><pre>{escape(str(error))}</pre>"

    @overload
    def start(
        self,
        spark: Any,
        *,
        checkpoint: str,
        realtime: Literal[False] = False,
        **options: Unpack[EpochOptions],
    ) -> Handle: ...

    @overload
    def start(
        self,
        spark: Any,
        *,
        checkpoint: str,
        realtime: Literal[True],
        **options: Unpack[RealtimeOptions],
    ) -> Handle: ...

    @overload
    def start(
        self, spark: Any, *, checkpoint: str, realtime: bool, **options: Unpack[RunOptions]
    ) -> Handle: ...

    def start(
        self, spark: Any, *, checkpoint: str, realtime: bool = False, **options: Any
    ) -> Handle:
        """Run on Spark until stopped, from where the checkpoint stands.

        Args:
            spark: A session; for real time of an application with
                :func:`~millrace.spark.realtime_settings`.
            checkpoint: Directory for hard state and for Spark's own offsets, or ``s3://``,
                ``gs://`` or ``az://`` and a bucket and prefix. It must be durable and reachable
                from the driver and every worker. Either plane goes on where the other ended.
            realtime: Whether on tasks that do not end, record by record, in place of epochs.
            options: :class:`~millrace.options.EpochOptions`, or with ``realtime=True``
                :class:`~millrace.options.RealtimeOptions`.

        Returns:
            The run's handle: ``wait``, ``status``, ``process_available``, ``drain``, ``stop``.

        Raises:
            PipelineError: The pipeline, a source, a sink, an option or the application cannot do
                it. Nothing was written.
            CheckpointMismatch: The checkpoint is of another pipeline or topology, or was drained.
            CheckpointUnwritable: The checkpoint cannot be written.
        """
        from millrace.spark.start import start

        return start(self, spark, checkpoint=checkpoint, realtime=realtime, **options)

    def run_batch(self, spark: Any, **options: Unpack[BatchOptions]) -> Status:
        """Run over bounded sources, to their end, as one Spark job without a checkpoint.

        A key's records come in order of timestamp. Then both clocks go to the end of time and its
        timers fire in order; ``self.wall_time`` stays the time at which the batch began. No record
        is late. A sink gets everything as epoch 0; a Parquet directory that has output is refused.

        Args:
            spark: A session.
            options: :class:`~millrace.options.BatchOptions`.

        Returns:
            What was done, as ``run.status()`` says it: records, refusals, counters; ``left`` has
            the pieces that were not read.

        Raises:
            PipelineError: The pipeline, a source or an option cannot do it: an injector without an
                end, say. Nothing was written.
            InputLost: Some input of an injector is gone.
            RunFailed: User code or Spark failed; the cause is attached, and a log named.

        Source: VLDB 2015 Dataflow paper: batch is the case in which the low watermark goes from the
        beginning to the end of time once.
        """
        from millrace.spark.batch import run_batch

        return run_batch(self, spark, **options)


def _check_sink(stream: str, sink: Any) -> None:
    """Refuse what is no sink, or is a function that cannot be called as one."""
    given = f"p.sink({stream!r}, {sink!r})"
    if isinstance(sink, type):
        name = sink.__name__
        raise PipelineError(f"{given} is the class {name}. Make a sink of it: {name}(...).")
    if hasattr(sink, "for_tasks"):
        return  # those that tasks write are not called
    if not callable(sink):
        raise PipelineError(
            f"{given}: expected mr.sinks.Parquet(...), mr.sinks.Delta(...), "
            "mr.sinks.Iceberg(...), mr.sinks.PostgreSQL(...), mr.sinks.Kafka(...), "
            "mr.sinks.Function(...), "
            "mr.sinks.Memory(), mr.sinks.Console(), or a callable (DataFrame, epoch) -> None."
        )
    # One that would run nothing is refused for that when the pipeline is built.
    if not never_runs(sink) and (parameters := parameters_refusing(sink, 2)) is not None:
        name = getattr(sink, "__name__", "function")
        raise PipelineError(
            f"{given} would be called with (DataFrame, epoch), and has the parameters "
            f"{parameters}. For a function of Arrow batches write mr.sinks.Function({name})."
        )


def _check_injection(
    stream: str,
    source: Any,
    timestamp: str | Ingress | None,
    unit: TimeUnit | None,
    id: str | None,
    slack: Duration | None,
    process: str | None,
    expected: Sequence[str],
) -> None:
    """Refuse arguments of ``inject`` that are wrong by themselves, or contradict one another."""
    if id is not None and not (isinstance(id, str) and id):
        raise PipelineError(
            f"inject({stream!r}, id={id!r}): expected the name of the column with the ids."
        )
    if id is None and slack is not None:
        raise PipelineError(
            f"inject({stream!r}, slack={slack!r}) is the time for which ids are kept, and there "
            'are none. Name their column: id="event_id".'
        )
    if isinstance(source, type):
        name = source.__name__
        raise PipelineError(
            f"inject({stream!r}): its source is the class {name}. Make one: {name}(...)."
        )
    if source is not None and timestamp is None:
        raise PipelineError(
            f"inject({stream!r}) has a source but no event time. "
            'Name the column that holds it: timestamp="time". Or take the time at which a '
            "record is read: timestamp=mr.INGRESS."
        )
    column = timestamp if isinstance(timestamp, str) else None
    if timestamp not in (column, INGRESS):
        raise PipelineError(
            f"inject({stream!r}, timestamp={timestamp!r}): expected the name of a column, or "
            "mr.INGRESS."
        )
    if unit is not None and column is None:
        raise PipelineError(
            f"inject({stream!r}, unit={unit!r}) gives the unit of a column of timestamps, and "
            'names none. Name it: timestamp="time".'
        )
    schema = getattr(source, "schema", None)
    if isinstance(schema, str):  # of an Injector
        try:
            arrow_schema(schema)
        except PipelineError as refused:
            raise PipelineError(f"inject({stream!r}): {refused}") from None
    if expected and process is None and not hasattr(source, "processes"):
        raise PipelineError(
            f"inject({stream!r}, expected={expected!r}) expects processes, but no column says "
            'which one a record came by. Name it: process="partition".'
        )
