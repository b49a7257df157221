"""Computation: the class a user derives from to say what happens to a key.

Source: MillWheel, "Computation API" (5.1), figures 3, 7 and 8.

Guarantees: what a computation asks of the commit protocol, and may do without.

Source: MillWheel, "Exactly-Once Delivery" (6.1.1), "Strong Productions" (6.1.2), "Weak Productions
and Idempotency" (6.1.3).
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Generic, NoReturn

from millrace.model.errors import PipelineError
from millrace.model.pane import Pane
from millrace.model.record import LOW_WATERMARK, Produced, Record, TimeDomain, Timer
from millrace.model.state import StateDescriptor
from millrace.model.stream import KeyExtractor
from millrace.model.time import MIN_TIMESTAMP, Duration, Instant


class ProductionMode(enum.Enum):
    """Whether a retry sends the productions of the first attempt, or those of the retry.

    In both modes state, timers and holds change once: the commit is numbered.

    ``STRONG``: the commit contains the productions. A retry sends the bytes of the first attempt,
    even if user code reads a clock or draws random numbers.

    ``WEAK``: the commit does not contain them. A retry runs user code again over the same state,
    records, low watermarks and clock. Its changes to state are dropped, and its productions are
    sent. Choose it for code whose productions depend on nothing else.

    In real time ``WEAK`` productions leave before the commit. After a failure user code runs again
    over the records since the last mark, perhaps in another order, and over the state of that mark:
    productions should depend on the record alone. A computation whose consumers could not recognise
    repeated records is ``STRONG`` all the same: see docs/realtime.md.
    """

    STRONG = "STRONG"
    WEAK = "WEAK"

    def __repr__(self) -> str:
        return self.value


class DeliveryMode(enum.Enum):
    """Whether duplicates in a source are removed by their ids.

    ``EXACTLY_ONCE``: they are removed if the injector declares ids, ``p.inject(...,
    id="event_id")``. ``AT_LEAST_ONCE``: they are processed again; no ids are kept. Millrace's own
    retries deliver no record twice in either mode, with one exception: in real time, repeated
    productions of a weak computation under ``AT_LEAST_ONCE``.
    """

    EXACTLY_ONCE = "EXACTLY_ONCE"
    AT_LEAST_ONCE = "AT_LEAST_ONCE"

    def __repr__(self) -> str:
        return self.value


STRONG = ProductionMode.STRONG
WEAK = ProductionMode.WEAK
EXACTLY_ONCE = DeliveryMode.EXACTLY_ONCE
AT_LEAST_ONCE = DeliveryMode.AT_LEAST_ONCE


@dataclass(frozen=True)
class Guarantees:
    """A computation's two choices.

    >>> Guarantees.of("Filter", WEAK, EXACTLY_ONCE)
    Guarantees(productions=WEAK, delivery=EXACTLY_ONCE)
    """

    productions: ProductionMode = STRONG
    delivery: DeliveryMode = EXACTLY_ONCE

    @classmethod
    def of(cls, computation: str, productions: Any, delivery: Any) -> Guarantees:
        """Return the checked choices of a computation.

        Raises:
            PipelineError: One is something else.
        """
        if not isinstance(productions, ProductionMode):
            raise PipelineError(
                f"computation {computation!r} has productions = {productions!r}. Expected "
                "mr.STRONG or mr.WEAK."
            )
        if not isinstance(delivery, DeliveryMode):
            raise PipelineError(
                f"computation {computation!r} has delivery = {delivery!r}. Expected "
                "mr.EXACTLY_ONCE or mr.AT_LEAST_ONCE."
            )
        return cls(productions, delivery)


class Computation(Generic[Produced]):
    """Application logic, run in the context of one key at a time.

    A subclass declares what it reads and writes, its state, and the two hooks::

        class WindowCounter(mr.Computation):
            inputs = {"searches": mr.by("query")}
            outputs = {"counts": Count}
            buckets = mr.MapState(int)

            def process_record(self, record): ...
            def process_timer(self, timer): ...

    The runtime makes one instance for each worker process and switches it from key to key. So keep
    data of a key in state cells, never in an attribute. Parameters set in ``__init__``
    (``p.add(SpikeDetector(threshold=3))``) are the same for every key.

    For a type checker, ``class WindowCounter(mr.Computation[Count])`` may produce a Count and
    nothing else, ``mr.Computation[Count | Alert]`` either, and a plain ``mr.Computation`` anything.
    A type checker cannot know which type goes to which stream, as ``outputs`` names streams by
    text: that is checked when the value is produced.

    Attributes:
        inputs: Stream name -> key extractor, chosen by this consumer (:func:`millrace.by`).
        outputs: Stream name -> record format, a type or a Coder.
        may_produce_late: How far behind its output watermark this computation may produce: a
            duration such as ``"10 min"``, or ``mr.UNBOUNDED_PAST``. Such records reach consumers
            late, and are counted there. By default it is an error.
        productions: ``STRONG`` (checkpointed with the commit) or ``WEAK`` (a retry runs user code
            again; see :class:`~millrace.model.computation.ProductionMode`).
        delivery: ``EXACTLY_ONCE``, or ``AT_LEAST_ONCE``: without removal of duplicates in sources
            (see :class:`~millrace.model.computation.DeliveryMode`).
        percentiles: Percentile low watermarks that timers of this computation wait for, whole
            numbers from 1 to 99. Each one declared costs the whole pipeline its bookkeeping.
        key: The current key.
        low_watermark: Low watermark of this computation's input in microseconds: no record that
            arrives from now on should be older. ``MAX_TIMESTAMP`` once the input has ended.
        percentile_low_watermarks: Percentile -> low watermark of that share of the input, for those
            that the pipeline declares; never below ``low_watermark``.
        wall_time: Wall-clock time of the epoch in microseconds; the same on every retry.
    """

    inputs: ClassVar[Mapping[str, KeyExtractor]] = {}
    outputs: ClassVar[Mapping[str, Any]] = {}
    may_produce_late: Duration = 0
    percentiles: ClassVar[Collection[int]] = ()
    productions: ClassVar[ProductionMode] = STRONG
    delivery: ClassVar[DeliveryMode] = EXACTLY_ONCE

    key: Any = None
    low_watermark: int = MIN_TIMESTAMP
    percentile_low_watermarks: Mapping[int, int] = MappingProxyType({})
    wall_time: int = 0

    def process_record(self, record: Record) -> None:
        """React to one record of the current key.

        Called once for every record, in order of arrival within a key, serially for a key. Late
        records come here too, with ``record.late`` set. An exception fails the epoch, or, where the
        pipeline declares a dead-letter stream, sends the record there.
        """
        raise NotImplementedError(f"{type(self).__name__} has inputs but no process_record")

    def process_start(self) -> None:
        """Begin a key that the computation was given: ``p.add(Heartbeat, keys=[...])``.

        Called exactly once for each key, and in a computation without inputs before all other hooks
        of that key. Usually it sets the first timers. The default timestamp of its productions is
        the time of the wall clock.

        Source: MillWheel, "Streams" (4.3): computations without inputs are fed by timers alone.
        """
        raise NotImplementedError(f"{type(self).__name__} was given keys but has no process_start")

    def process_timer(self, timer: Timer) -> None:
        """React to one due timer of the current key.

        Called exactly once for a timer, after the records of the bundle, in increasing order of
        ``timer.at`` for a key. At the end of the input ``self.low_watermark`` is ``MAX_TIMESTAMP``:
        code that sets the next timer of a chain from here must stop then.
        """
        raise NotImplementedError(f"{type(self).__name__} sets timers but has no process_timer")

    def produce(
        self,
        stream: str,
        value: Produced,
        timestamp: Instant | None = None,
        key: Any = None,
        *,
        pane: Pane | None = None,
        retraction: bool | None = None,
    ) -> None:
        """Send a value to one of this computation's output streams.

        Args:
            stream: A key of ``outputs``.
            value: Of that stream's record format.
            timestamp: Event time, in microseconds or as a datetime; by default that of the record
                at hand. That of a timer is its ``hold`` if it has one, else its ``at``; of a timer
                before 1970 or after 2262, the nearest time that a record may have.
            key: The record's key as sinks and ``by_key()`` consumers see it; by default the current
                key. Other consumers extract their own.
            pane: The pane of the value; by default that of the record at hand, so a result of a
                retraction is a retraction. In ``process_timer`` there is none.
            retraction: Whether the value retracts an equal one that was produced before with the
                same key; by default, whether the pane is a retraction. True without a pane makes a
                retraction in the global window.

        Only outputs that may have retractions carry panes: those of a computation with such an
        input, and those whose format is ``mr.coders.Paned(Count, retracts=True)``. On other outputs
        the pane of the record at hand is dropped, and ``pane=`` and ``retraction=True`` are
        refused.

        Raises:
            LateProduction: The timestamp is before the output watermark of this computation, before
                the record or timer at hand, and before every late record of the key in this bundle.
                ``may_produce_late`` allows it.

        Source: MillWheel 4.5: "it is up to the user to pick a timestamp no smaller than any of the
        source records". Dataflow patent, incremental mode: "all non-GroupByKey operations on an
        anti-datum produce more anti-data (similar to timestamp propagation)".
        """
        _outside(self, "produce")

    def set_timer(
        self,
        tag: Any,
        at: Instant | None = None,
        domain: TimeDomain = LOW_WATERMARK,
        *,
        after: Duration | None = None,
        hold: Instant | None = None,
        percentile: int = 100,
    ) -> None:
        """Have ``process_timer`` called when the domain's clock reaches ``at``.

        The tag names the timer within key and domain: setting it again replaces it, time and hold.
        A timer in the past fires in this same bundle, after the records, still in order of time.

        Args:
            tag: Anything that can be a key: text, a number, bytes, a tuple of them.
            at: When, in microseconds since 1970, as a datetime or as text,
                ``"2026-11-22T10:00:00Z"``. The clock may have passed it.
            domain: ``mr.LOW_WATERMARK`` or ``mr.WALL_TIME``.
            after: Instead of ``at``: so long after the timestamp of the record or timer at hand,
                ``"10 s"``; with ``mr.WALL_TIME``, so long after ``self.wall_time``.
            hold: As long as the timer is pending, the low watermark that consumers see is held
                here, so that ``process_timer`` may produce with this timestamp. A
                pending low-watermark timer holds it at its own ``at`` anyway; and so does one of
                the wall clock in a computation without inputs, whose low watermark nothing else
                holds.
            percentile: Fire when the low watermark of this share of the work is at ``at``, without
                waiting for the stragglers; one of ``percentiles``, or 100.
        """
        _outside(self, "set_timer")

    def delete_timer(self, tag: Any, domain: TimeDomain = LOW_WATERMARK) -> None:
        """Cancel a pending timer; nothing happens if there is none."""
        _outside(self, "delete_timer")

    def hold(self, at: Instant | None) -> None:
        """Hold this computation's low watermark at ``at`` for the current key; None lets go.

        The key's state counts as pending work from then on, like a record with that timestamp.
        Source: MillWheel 5.2, "persistent state can also be assigned a timestamp".
        """
        _outside(self, "hold")

    def increment(self, counter: str, n: int = 1) -> None:
        """Add to a counter of this computation's own, shown in its counters and in the status.

        It counts exactly once: counts of a failed attempt are dropped.
        """
        _outside(self, "increment")


def _outside(computation: Computation, call: str) -> NoReturn:
    raise PipelineError(
        f"{type(computation).__name__}.{call} was called outside of process_record and "
        "process_timer. Only there a key is current."
    )


def lacks_hook(computation: Computation, hook: str) -> bool:
    """Return whether a computation leaves a hook, such as ``process_record``, undefined.

    >>> lacks_hook(Computation(), "process_timer")
    True
    """
    # Of the instance: a hook may be set in __init__.
    return getattr(getattr(computation, hook), "__func__", None) is getattr(Computation, hook)


def state_cells(computation: Computation) -> dict[str, StateDescriptor[Any]]:
    """Return a computation's declared state cells by name, base classes' first.

    A cell whose format depends on the computation's parameters is made in ``__init__``.

    >>> from millrace.model.state import ValueState
    >>> class C(Computation):
    ...     count = ValueState(int)
    >>> state_cells(C())
    {'count': ValueState(MsgpackCoder(int))}
    """
    cells: dict[str, StateDescriptor[Any]] = {}
    for base in reversed(type(computation).__mro__):
        for name, value in vars(base).items():
            if isinstance(value, StateDescriptor):
                cells[name] = value
            else:
                cells.pop(name, None)
    for name, value in vars(computation).items():
        if isinstance(value, StateDescriptor):
            value.name, value.owner = name, type(computation).__name__
            cells[name] = value
    return cells
