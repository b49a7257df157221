"""Pipeline: what a user builds, before anything runs.

Source: docs/guide.md; MillWheel, "Core concepts" (4).
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from millrace.model.computation import Computation
from millrace.model.errors import PipelineError
from millrace.model.guarantees import DeliveryMode, Guarantees, ProductionMode
from millrace.model.record import DeadLetter, LateRecord
from millrace.model.stream import Step, Stream
from millrace.model.time import DAY, HOUR, Duration, TimeUnit, duration_us, time_unit

if TYPE_CHECKING:
    from millrace.compile.explanation import Explanation
    from millrace.compile.topology import Topology


#: Slack where none is given: "typically on the order of a few hours" (MillWheel, 6.1.1).
_SLACK_US = 2 * HOUR


@dataclass(frozen=True)
class Injection:
    """How one stream is fed from outside.

    Attributes:
        stream: Name of the stream.
        source: A Spark DataFrame, streaming or bounded, an Injector, or None: fed by a Harness.
        timestamp: Column that holds the event time.
        low_watermark: Policy that publishes the injector's low watermark.
        format: Record format of the values: a type or a Coder.
        ahead_us: How far past the wall clock a timestamp may lie, in microseconds.
        process: Column that names the process of the injector that a record came by.
        expected: Names of the processes that must be heard of.
        idle_us: How long a process may be silent before it is left out; None: forever.
        skew_us: How far ahead of the low watermark a process may be read; None: any distance.
        id: Column with ids that tell a record from one that is delivered again; None without.
        slack_us: For how long past a record's timestamp its id is kept, in microseconds.
        unit: What an integer in the column with the event time counts; None if nobody said.
    """

    stream: str
    source: Any
    timestamp: str | None
    low_watermark: Any
    format: Any
    ahead_us: int
    process: str | None = None
    expected: tuple[str, ...] = ()
    idle_us: int | None = None
    skew_us: int | None = None
    id: str | None = None
    slack_us: int = 0
    unit: TimeUnit | None = None


@dataclass(frozen=True)
class SinkDeclaration:
    """Where a stream's records go."""

    stream: str
    sink: Any


class Pipeline:
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

    def __init__(self, name: str) -> None:
        if not isinstance(name, str) or not name.strip():
            raise PipelineError(f"{name!r} cannot name a pipeline. Expected a non-empty str.")
        self.name = name
        self.injections: dict[str, Injection] = {}
        self.computations: dict[str, Computation] = {}
        self.guarantees: dict[str, Guarantees] = {}
        self.steps: list[Step] = []
        self.formats: dict[str, Any] = {}
        self.sinks: list[SinkDeclaration] = []
        self.dead_letters: str | None = None
        self.late: str | None = None

    def __repr__(self) -> str:
        return f"Pipeline({self.name!r})"

    def inject(
        self,
        stream: str,
        source: Any = None,
        *,
        timestamp: str | None = None,
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
    ) -> Stream:
        """Feed a stream from outside.

        Args:
            stream: Name of the stream.
            source: A Spark DataFrame, streaming or bounded, or an :class:`~millrace.Injector`;
                None lets a Harness feed the stream.
            timestamp: The column with the event time: a Spark timestamp, or an integer.
            unit: What an integer there counts since 1970 (UTC): ``"s"``, ``"ms"``, ``"us"`` or
                ``"ns"``. By default microseconds; then a number that would be a time between 2001
                and now in seconds or milliseconds is refused, as it is hardly one of January 1970.
            low_watermark: What each process publishes, such as ``mr.BoundedDelay("5 s")``; an
                Injector may leave it out if it promises something itself.
            id: Column that names a record: text, bytes, or an integer. Where the source delivers a
                record again, under the same id and for the same key, it is dropped and counted
                (``duplicates_filtered``) instead of being processed again.
            slack: For how long an id is kept: until the low watermark has passed the record's
                timestamp by so much. What is delivered again after that comes late, if it comes to
                the same computation, and is processed as a late record. By default two hours.
            format: Record format. A Struct or dataclass takes the columns of its fields' names;
                a builtin type takes the only column besides the timestamp; without a format the
                value is a dict of all columns but the timestamp.
            ahead: How far past the wall clock a timestamp may lie before its record is refused. A
                single timestamp far in the future would otherwise carry the low watermark with it
                and make everything after it late.
            process: Column that names the process, or source partition, that a record came by. The
                injector's low watermark is the minimum over its processes. They are remembered, so
                there must not be more than 10,000.
            expected: Names of processes that must be heard of before the injector publishes
                anything. Others join when they are first heard of.
            idle: How long a process may be silent, by the wall clock, before it no longer holds the
                low watermark; what it sends after that may be late. By default it holds it forever.
            skew: How far ahead of the low watermark a process may be read. One that is further
                waits until the low watermark advances, so what is buffered for it stays bounded.
                Only for an Injector: what Spark's own sources read is Spark's to say.

        Raises:
            PipelineError: The stream is injected already, or an argument is missing.
        """
        _check_name(stream, "stream")
        if stream in self.injections:
            raise PipelineError(
                f"stream {stream!r} is injected twice in {self!r}. Inject a second source under "
                "another name, and let consumers subscribe to both."
            )
        if id is not None and not (isinstance(id, str) and id):
            raise PipelineError(
                f"inject({stream!r}, id={id!r}): expected the name of the column with the ids."
            )
        if id is None and slack is not None:
            raise PipelineError(
                f"inject({stream!r}, slack={slack!r}) has no ids that could be kept so long. Name "
                'their column: id="event_id".'
            )
        if source is not None and timestamp is None:
            raise PipelineError(
                f"inject({stream!r}) has a source but no event time. "
                'Name the column that holds it: timestamp="time".'
            )
        if unit is not None and timestamp is None:
            raise PipelineError(
                f"inject({stream!r}, unit={unit!r}) has no column of which that is the unit. Name "
                'it: timestamp="time".'
            )
        expected = (expected,) if isinstance(expected, str) else tuple(expected)
        if expected and process is None and not hasattr(source, "processes"):
            raise PipelineError(
                f"inject({stream!r}, expected={expected!r}) expects processes, but no column says "
                'which one a record came by. Name it: process="partition".'
            )
        self.injections[stream] = Injection(
            stream,
            source,
            timestamp,
            low_watermark,
            format,
            duration_us(ahead, "inject(ahead)"),
            process,
            tuple(str(name) for name in expected),
            None if idle is None else duration_us(idle, "inject(idle)"),
            None if skew is None else duration_us(skew, "inject(skew)"),
            id,
            _SLACK_US if slack is None else duration_us(slack, "inject(slack)"),
            time_unit(unit, f"inject({stream!r}, unit)"),
        )
        return Stream(self, stream)

    def add(
        self,
        computation: type[Computation] | Computation,
        *,
        name: str | None = None,
        productions: ProductionMode | None = None,
        delivery: DeliveryMode | None = None,
    ) -> None:
        """Add a computation: a class, or an instance with parameters of its own.

        Args:
            computation: A subclass of Computation, or an instance of one.
            name: Its name in this pipeline and its checkpoint; by default the class's name.
            productions: ``mr.STRONG`` or ``mr.WEAK``; by default what the class says.
            delivery: ``mr.EXACTLY_ONCE`` or ``mr.AT_LEAST_ONCE``; by default what the class says.

        Raises:
            PipelineError: It is no computation, its name is taken, or an option is not one.
        """
        instance = computation
        if inspect.isclass(computation) and issubclass(computation, Computation):
            try:
                instance = computation()
            except TypeError as missing:
                raise PipelineError(
                    f"{computation.__name__} cannot be made without arguments ({missing}). "
                    f"Add an instance: p.add({computation.__name__}(...))."
                ) from None
        if not isinstance(instance, Computation):
            raise PipelineError(
                f"p.add({computation!r}): expected a subclass of mr.Computation, or an instance "
                "of one."
            )
        name = type(instance).__name__ if name is None else name
        _check_name(name, "computation")
        if name in self.computations:
            raise PipelineError(
                f"two computations are named {name!r} in {self!r}. State is kept under the name, "
                f'so it must be unique: p.add({type(instance).__name__}, name="...").'
            )
        guarantees = Guarantees.of(
            name,
            instance.productions if productions is None else productions,
            instance.delivery if delivery is None else delivery,
        )
        self.computations[name] = instance
        self.guarantees[name] = guarantees

    def stream(self, name: str) -> Stream:
        """Return a stream by name, to add stateless steps to it. It may be declared later."""
        _check_name(name, "stream")
        return Stream(self, name)

    def sink(self, stream: str, sink: Any) -> None:
        """Send a stream's records out of the pipeline.

        Args:
            stream: Name of the stream.
            sink: ``mr.Parquet(...)``, ``mr.Memory()``, ``mr.Console()``, or any callable
                ``(DataFrame, epoch)``.
        """
        _check_name(stream, "stream")
        if not callable(sink):
            raise PipelineError(
                f"p.sink({stream!r}, {sink!r}): expected mr.Parquet(...), mr.Memory(), "
                "mr.Console(), or a callable (DataFrame, epoch) -> None."
            )
        self.sinks.append(SinkDeclaration(stream, sink))

    def dead_letter(self, stream: str) -> Stream:
        """Declare the stream that takes records and timers which cannot be processed.

        Its format is :class:`~millrace.DeadLetter`. Without one, such a record stops the run with
        an error that names it.
        """
        _check_name(stream, "stream")
        if self.dead_letters is not None:
            raise PipelineError(f"{self!r} has a dead-letter stream: {self.dead_letters!r}.")
        self.dead_letters = stream
        self.formats[stream] = DeadLetter
        return Stream(self, stream)

    def late_records(self, stream: str) -> Stream:
        """Declare a stream that is told of every late record, in whatever computation.

        Its format is :class:`~millrace.LateRecord`. The record itself is delivered as ever, with
        ``record.late`` set; with or without this stream it is counted. Records that the stream
        receives are as old as the late records are.
        """
        _check_name(stream, "stream")
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
        topology: Topology = _compiler("build").build(self)
        return topology

    def explain(self) -> Explanation:
        """Return how it runs: stages, what is fused into them, edges and keys, windows. Print it.

        Needs no Spark session, and starts nothing. Sources that are DataFrames are asked for their
        columns.

        Raises:
            PipelineError: The pipeline, or a source, cannot run.
        """
        topology = self.build()
        bound = any(injection.source is not None for injection in self.injections.values())
        reasons = _spark().python_reasons(topology) if bound else {}
        explanation: Explanation = _compiler("explanation").Explanation(topology, reasons)
        return explanation

    def start(self, spark: Any, *, checkpoint: str, **options: Any) -> Any:
        """Run on Spark until stopped; see :func:`millrace.spark.start` for options and errors.

        Returns:
            The run's handle: ``wait``, ``status``, ``process_available``, ``drain``, ``stop``.
        """
        return _spark().start(self, spark, checkpoint=checkpoint, **options)

    def run_batch(self, spark: Any, *, tasks: int | None = None) -> Any:
        """Run over bounded sources, to their end, as one Spark job without a checkpoint.

        A key's records come in order of timestamp, then both clocks go to the end of time and its
        timers fire. A sink gets everything as epoch 0.

        Args:
            spark: A session.
            tasks: Tasks a level; by default as many as the session can run at once, as for
                :meth:`start`. A key's records are in one task, and a task's go through it sorted,
                so its input may be larger than memory.

        Returns:
            What was done, as ``run.status()`` says it: records, refusals, counters.

        Raises:
            PipelineError: The pipeline, or a source, cannot run: an unbounded source, say. Nothing
                was written.
            RunFailed: User code or Spark failed; the cause is attached.

        Source: VLDB 2015 Dataflow paper: batch is the case in which the low watermark goes from the
        beginning to the end of time once.
        """
        return _spark().run_batch(self, spark, tasks=tasks)

    def _rename(self, old: str, new: str, computation: Computation) -> None:
        """Put a computation in the place of one whose name was made up."""
        del self.computations[old]
        guarantees = self.guarantees.pop(old)
        self.add(computation, name=new)
        self.guarantees[new] = guarantees

    def _flatten(self, streams: list[Stream]) -> Stream:
        target = f"{streams[0].name}.flatten-{sum('.flatten-' in s.target for s in self.steps) + 1}"
        for stream in streams:
            self.steps.append(Step(stream.name, target, "to", _same))
        return Stream(self, target)

    def _add_step(
        self,
        stream: Stream,
        kind: str,
        function: Callable[..., Any],
        backwards_us: int | None = None,
    ) -> Stream:
        target = f"{stream.name}.{kind}-{sum(s.source == stream.name for s in self.steps) + 1}"
        self.steps.append(Step(stream.name, target, kind, function, backwards_us))
        return Stream(self, target)

    def _name_stream(self, stream: Stream, name: str, format: Any) -> Stream:
        _check_name(name, "stream")
        self.steps.append(Step(stream.name, name, "to", _same))
        if format is not Any:
            if name in self.formats and self.formats[name] != format:
                raise PipelineError(
                    f"stream {name!r} is declared with two formats: {self.formats[name]!r} and "
                    f"{format!r}."
                )
            self.formats[name] = format
        return Stream(self, name)


def _same(value: Any) -> Any:
    return value


def _compiler(module: str) -> Any:
    # Up the layers, by name and only when called: the compiler is made of the model.
    return importlib.import_module(f"millrace.compile.{module}")


def _spark() -> Any:
    # Up the layers, too: a pipeline must be startable from itself, and importing it must not
    # import PySpark.
    return importlib.import_module("millrace.spark")


def _check_name(name: Any, what: str) -> None:
    if not isinstance(name, str) or not name or not name.isprintable():
        raise PipelineError(f"{name!r} cannot name a {what}. Expected a printable, non-empty str.")
