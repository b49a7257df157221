"""What a pipeline declares: a plain value, which the compiler takes.

The class that users meet is :class:`~millrace.pipeline.Pipeline`, which can also be built and run.

Source: docs/guide.md; MillWheel, "Core concepts" (4).

DerivedFormat: the format of a stream that depends on that of others.

What a grouping gives depends on what it is given: the maximum of a stream of floats is a float. A
stream's format is known only when the pipeline is built, so such a stream says how to derive it.

Backfill: a stream whose past is read from somewhere else, parted from it at an instant.

The instant lies in the future when both start, so each record is read from one of the two: records
before the instant from the past, however late they are, and all others from the stream.

Source: docs/changing.md; docs/design/2026-11-23-parted-at-an-instant.md.

Evolution: what a program says of the state that an earlier version of a computation left.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Final

from millrace.model.computation import Computation, DeliveryMode, Guarantees, ProductionMode
from millrace.model.errors import PipelineError
from millrace.model.record import DeadLetterLimit
from millrace.model.stream import Element, Step
from millrace.model.time import TimeUnit, format_timestamp

#: Makes a cell's value of what it was.
Migration = Callable[[Any], Any]


def names(given: str | Iterable[str], where: str) -> tuple[str, ...]:
    """Return names, of which one or several are given.

    Args:
        given: As the user wrote it.
        where: The call up to the argument, for the message.

    Raises:
        PipelineError: It is neither.

    >>> names("Counts", "p.add(Counts, was"), names(["Counts", "Tallies"], "p.add(Counts, was")
    (('Counts',), ('Counts', 'Tallies'))
    """
    is_single = isinstance(given, str) or not isinstance(given, Iterable)
    checked: tuple[Any, ...] = (given,) if is_single else tuple(given)
    if not all(isinstance(name, str) for name in checked):
        raise PipelineError(f"{where}={given!r}): expected a name, or several in a list.")
    return checked


@dataclass(frozen=True)
class Evolution:
    """How state of an earlier version of a computation is taken over.

    Attributes:
        was: Earlier names of the computation.
        dropped: Cells whose rows are deleted.
        migrations: Cell -> function from a value of the earlier version to one of this version.
    """

    was: tuple[str, ...] = ()
    dropped: frozenset[str] = frozenset()
    migrations: Mapping[str, Migration] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        name: str,
        was: str | Iterable[str],
        dropped: Iterable[str],
        migrations: Mapping[str, Migration] | None,
    ) -> Evolution:
        """Return what ``p.add(was=, dropped=, migrate=)`` say.

        Raises:
            PipelineError: A migration is no function with a name, by which a checkpoint knows that
                it has run; or there are no names where some are wanted.
        """
        if migrations is not None and not isinstance(migrations, Mapping):
            raise PipelineError(
                f"p.add({name}, migrate={migrations!r}): expected functions by cell, "
                'migrate={"total": to_cents}.'
            )
        for cell, function in (migrations or {}).items():
            known = getattr(function, "__name__", "<lambda>")
            if not callable(function) or known == "<lambda>":
                raise PipelineError(
                    f"p.add({name}, migrate={{{cell!r}: {function!r}}}): expected a function with "
                    "a name of its own, def to_cents(old): ...; by the name a checkpoint knows "
                    "that it has run."
                )
        return cls(
            names(was, f"p.add({name}, was"),
            frozenset(names(dropped, f"p.add({name}, dropped")),
            dict(migrations or {}),
        )


class Ingress(Enum):
    """In place of a column: a record's event time is the clock's when it is read.

    Source: Dataflow patent and VLDB 2015 paper, "Processing-time windows": arrival time as event
    time at ingress, and windows by event time.
    """

    INGRESS = "ingress"

    def __repr__(self) -> str:
        return "mr.INGRESS"


#: As ``inject(timestamp=)``: event time by ingress.
INGRESS: Final = Ingress.INGRESS

#: The injected stream of the dead letters that are sent again. It does not go by the name of the
#: dead-letter stream: under another one, all would be read from the beginning.
AGAIN: Final = "dead-letters.again"


@dataclass(frozen=True)
class Injection:
    """How one stream is fed from outside.

    Attributes:
        stream: Name of the stream.
        source: A Spark DataFrame, streaming or bounded, an Injector, or None: fed by a Harness.
        timestamp: Column that holds the event time; None if nothing does, or by ingress.
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
        ingress: Whether a record's event time is the clock's when it is read.
        was: Names that the stream had before.
        columns: Column of the source -> type, of those whose values are text, numbers or bytes.
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
    ingress: bool = False
    was: tuple[str, ...] = ()
    columns: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class SinkDeclaration:
    """Where a stream's records go."""

    stream: str
    sink: Any


class Declarations:
    """The streams, steps, computations and sinks of a pipeline, as far as they are declared.

    Attributes:
        name: Of the pipeline.
        injections: Injected stream -> how it is fed.
        computations: Name -> computation, as it was added.
        guarantees: Name of a computation -> its choices.
        evolutions: Name of a computation -> what becomes of state that earlier versions left.
        steps: Stateless steps.
        formats: Stream -> record format, of streams that are no output of a computation.
        sinks: In the order in which they were declared.
        dead_letters: The stream of dead letters; None without.
        dead_letter_limit: How many of them there may be; None: any number.
        late: The stream of late records; None without.
        dropped: Computations whose state a checkpoint is to forget.
        drained: Computations that get no more records.
        starts: Computation that was given keys -> the stream that brings them.
    """

    def __init__(self, name: str) -> None:
        if not isinstance(name, str) or not name.strip():
            raise PipelineError(f"{name!r} cannot name a pipeline. Expected a non-empty str.")
        self.name = name
        self.injections: dict[str, Injection] = {}
        self.computations: dict[str, Computation] = {}
        self.guarantees: dict[str, Guarantees] = {}
        self.evolutions: dict[str, Evolution] = {}
        self.steps: list[Step] = []
        self.formats: dict[str, Any] = {}
        self.sinks: list[SinkDeclaration] = []
        self.dead_letters: str | None = None
        self.dead_letter_limit: DeadLetterLimit | None = None
        self.late: str | None = None
        self.dropped: set[str] = set()
        self.drained: set[str] = set()
        self.starts: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"Pipeline({self.name!r})"

    def add(
        self,
        computation: type[Computation] | Computation,
        *,
        name: str | None = None,
        productions: ProductionMode | None = None,
        delivery: DeliveryMode | None = None,
        was: str | Iterable[str] = (),
        dropped: Iterable[str] = (),
        migrate: Mapping[str, Migration] | None = None,
    ) -> None:
        """Add a computation; see :meth:`millrace.Pipeline.add`."""
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
        check_name(name, "computation")
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
        self.evolutions[name] = Evolution.of(name, was, dropped, migrate)
        self.computations[name] = instance
        self.guarantees[name] = guarantees

    def remove(self, name: str) -> None:
        """Drop a computation that earlier versions had: its state and timers go at the next start.

        Nothing is dropped from a checkpoint that is not named so; a start is refused instead. The
        name is used up in that checkpoint: what is added under it again would find what may be
        left. The line may stay in the program; a checkpoint that does not know the name passes it
        over.

        Args:
            name: Of the computation, or of a grouping or join: what ``to("...")`` named.

        Raises:
            PipelineError: It cannot name a computation.

        >>> import millrace as mr
        >>> p = mr.Pipeline("shop")
        >>> p.remove("Totals")

        Source: MillWheel, "Streams" (4.3).
        """
        check_name(name, "computation")
        self.dropped.add(name)

    def drain(self, name: str) -> None:
        """Let a computation go on without records: its timers still fire, at their times.

        It stays in the pipeline until what it has begun has come to its end: windows close, as the
        low watermark goes on with its senders'; timers fire and produce. When nothing is left that
        waits, ``p.plan`` says so, and :meth:`remove` drops the rest. Side inputs and signals still
        reach it. One that always sets a timer again never comes to an end; remove it at once.

        Args:
            name: Of a computation of this pipeline, or of a grouping or join: what ``to("...")``
                named.

        Raises:
            PipelineError: It cannot name a computation; or, when the pipeline is built, none has
                that name.

        >>> import millrace as mr
        >>> p = mr.Pipeline("shop")
        >>> bids = p.inject("bids", format=dict).key_by("item").window(mr.FixedWindows("1 h"))
        >>> bids.count().to("counts")
        WindowedStream('counts')
        >>> p.drain("counts")

        Source: MillWheel, "Streams" (4.3); docs/changing.md.
        """
        check_name(name, "computation")
        self.drained.add(name)

    def rename(
        self, old: str, new: str, computation: Computation, *, was: str | Iterable[str] = ()
    ) -> None:
        """Put a computation in the place of one whose name was made up."""
        del self.computations[old]
        guarantees, evolution = self.guarantees.pop(old), self.evolutions.pop(old)
        self.add(computation, name=new)
        evolution = replace(evolution, was=names(was, f"to({new!r}, was"))
        self.guarantees[new], self.evolutions[new] = guarantees, evolution

    def call(self, old: str, new: str) -> None:
        """Give a computation, whose name was made up, another; its outputs stay what they are."""
        was = self.evolutions[old].was
        self.rename(old, new, self.computations[old], was=was)

    def is_read(self, stream: str) -> bool:
        """Return whether a step, a computation or a sink reads a stream, as far as is declared."""
        return (
            any(step.source == stream for step in self.steps)
            or any(stream in each.inputs for each in self.computations.values())
            or any(sink.stream == stream for sink in self.sinks)
        )

    def flatten(self, streams: Iterable[str]) -> str:
        """Make one stream of several; return its name."""
        first, *others = streams
        target = f"{first}.flatten-{sum('.flatten-' in s.target for s in self.steps) + 1}"
        for stream in (first, *others):
            self.steps.append(Step(stream, target, "to", _same))
        return target

    def add_step(
        self,
        stream: str,
        kind: str,
        function: Callable[..., Any],
        backwards_us: int | None = None,
    ) -> str:
        """Add a stateless step after a stream; return the name of the stream that it makes."""
        target = f"{stream}.{kind}-{sum(s.source == stream for s in self.steps) + 1}"
        self.steps.append(Step(stream, target, kind, function, backwards_us))
        return target

    def name_stream(self, stream: str, name: str, format: Any = Any) -> None:
        """Give a stream a name, and a record format unless that is Any."""
        check_name(name, "stream")
        self.steps.append(Step(stream, name, "to", _same))
        if format is not Any:
            if name in self.formats and self.formats[name] != format:
                raise PipelineError(
                    f"stream {name!r} is declared with two formats: {self.formats[name]!r} and "
                    f"{format!r}."
                )
            self.formats[name] = format


def _same(value: Any) -> Any:
    return value


def check_name(name: Any, what: str) -> None:
    """Refuse what cannot name a stream or a computation."""
    if not isinstance(name, str) or not name or not name.isprintable():
        raise PipelineError(f"{name!r} cannot name a {what}. Expected a printable, non-empty str.")


@dataclass(frozen=True)
class DerivedFormat:
    """Stands in a computation's ``outputs`` for a format found when the pipeline is built.

    Attributes:
        streams: Those that it depends on.
        derive: From their formats to its own; called whenever the pipeline is built.
    """

    streams: tuple[str, ...]
    derive: Callable[..., Any]


@dataclass(frozen=True)
class Before:
    """Whether a record is of the past.

    Attributes:
        at_us: The instant, in microseconds since 1970, UTC.
    """

    at_us: int

    def __call__(self, record: Element) -> bool:
        """Return whether its time is before the instant."""
        return record.timestamp < self.at_us

    def __repr__(self) -> str:
        return f"before {format_timestamp(self.at_us)}"


@dataclass(frozen=True)
class Since:
    """Whether a record is not of the past.

    Attributes:
        at_us: The instant, in microseconds since 1970, UTC.
        past: The stream that has what is before.
    """

    at_us: int
    past: str

    def __call__(self, record: Element) -> bool:
        """Return whether its time is the instant or later."""
        return record.timestamp >= self.at_us

    def __repr__(self) -> str:
        return f"since {format_timestamp(self.at_us)}"
