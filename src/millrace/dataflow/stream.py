"""Streams as users meet them: with steps, joins and windows, ready to be aggregated."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, Self, TypedDict, TypeVar, Unpack

from millrace.dataflow.aggregations import (
    ApproximateDistinct,
    ApproximateQuantiles,
    CombineFn,
    Count,
    Distinct,
    Group,
    Max,
    Mean,
    Min,
    Quantiles,
    StdDev,
    Sum,
    Top,
    Variance,
)
from millrace.dataflow.aggregations.catalog import Aggregate, together
from millrace.dataflow.aggregations.fields import KeyFields
from millrace.dataflow.calls import PARTS, CallEach, CallSettings
from millrace.dataflow.element_types import (
    Chosen,
    as_stored,
    declared_key_types,
    key_names,
    keyed,
    keyless,
    plain_format,
    sides,
)
from millrace.dataflow.grouping import GroupByKeyAndWindow
from millrace.dataflow.joins.interval_join import JoinByKeyAndTime
from millrace.dataflow.joins.join_state import Offset, nearness
from millrace.dataflow.joins.table_join import EnrichByKey, Lookup, pair_with_row, rows_of
from millrace.dataflow.joins.window_join import JoinByKeyAndWindow, pair_format
from millrace.dataflow.partials.fanout import CombineByPart, check
from millrace.dataflow.projection import Projecting
from millrace.dataflow.triggers.trigger import Trigger
from millrace.dataflow.value import positive_us
from millrace.dataflow.windowing import (
    ACCUMULATING,
    END_OF_WINDOW,
    AccumulationMode,
    Emission,
    OutputTime,
    Windowing,
    windowing,
)
from millrace.dataflow.windows import GlobalWindow
from millrace.dataflow.windows.assignment import Assign, AssignedWindows
from millrace.dataflow.windows.window_fn import WindowFn
from millrace.model.calls import BatchPolicy, CallPolicy, takes_table
from millrace.model.computation import Computation, DeliveryMode, ProductionMode
from millrace.model.coroutines import parameters_refusing, refuse_parameters
from millrace.model.declarations import DerivedFormat, names
from millrace.model.errors import PipelineError
from millrace.model.pane import PanedCoder
from millrace.model.plain_stream import PlainStream
from millrace.model.stream import ByKey, Spread, by_key
from millrace.model.time import MILLISECOND, Duration, duration_us

#: What comes of a join.
Made = TypeVar("Made")


class Joining(Projecting, Generic[Made]):
    """A stream that can be joined with others, and with tables."""

    @abstractmethod
    def _named(self, name: str, made_up: str | None) -> Made:
        """Return a stream of the pipeline that has no windows.

        Args:
            name: Of the stream.
            made_up: Of the computation that makes it, if nobody has chosen that.
        """

    def join(
        self,
        other: PlainStream,
        how: str = "inner",
        *,
        within: tuple[Offset, Offset] | None = None,
        expires: Duration | None = None,
        allowed_lateness: Duration = 0,
        name: str | None = None,
        was: str | Iterable[str] = (),
        productions: ProductionMode | None = None,
        delivery: DeliveryMode | None = None,
    ) -> Made:
        """Pair the values with those of another stream that have the same key and are near in time.

        Args:
            other: With its key.
            how: ``inner``; ``left``, where a value of this stream without a partner is paired with
                None; or ``outer`` (or ``full``), where one of the other is, too.
            within: From when until when a value of the other meets one of this stream, counted from
                that, the end not included: ``("-5 s", "10 min")``. None in a place: without end,
                over bounded inputs. What nothing can meet any more is forgotten.
            expires: Without ``within``: values meet that are less than that apart. By default all
                of a key meet, and are kept for ever.
            allowed_lateness: For how long after that, by the low watermark, values are kept for
                late partners. A value that is later than that is dropped and counted
                (``dropped_late``): what it would meet may be forgotten.
            name: Of the computation, in counters and checkpoint.
            was: The name that it had in earlier versions, or several; see docs/changing.md.
            productions: ``mr.STRONG`` or ``mr.WEAK``, as for a computation.
            delivery: ``mr.EXACTLY_ONCE`` or ``mr.AT_LEAST_ONCE``, as for a computation.

        Returns:
            A stream of pairs (of this stream, of the other), each with the later one's timestamp.
            With ``within``, a value is paired with None as soon as it is sure that no partner comes
            in time, with the last instant at which one could; a late one takes that back. Without,
            it is at once, with its own timestamp, and a partner takes that back. Then the stream
            carries retractions.

        Raises:
            PipelineError: The choices do not go together, or nothing could meet.

        >>> import millrace as mr
        >>> p = mr.Pipeline("shop")
        >>> orders, paid = p.inject("orders", format=dict), p.inject("paid", format=dict)
        >>> by_id = orders.key_by("id")
        >>> by_id.join(paid.key_by("order"), "left", within=("-5 s", "10 min")).to("pairs")
        Stream('pairs')
        >>> with mr.testing.Harness(p) as h:
        ...     h.inject("orders", [({"id": 1}, 0), ({"id": 2}, 0)])
        ...     h.inject("paid", [({"order": 1, "by": "card"}, 7 * mr.MINUTE)])
        ...     for stream in ("orders", "paid"):
        ...         h.advance_watermark(stream, 10 * mr.MINUTE)
        ...     for output in h.outputs("pairs"):
        ...         print(output.value)
        ({'id': 1}, {'order': 1, 'by': 'card'})
        ({'id': 2}, None)
        """
        both = sides(self, other, "join")
        target = name or self._free_name("join")
        near = nearness(within, expires, allowed_lateness, "join")
        computation = JoinByKeyAndTime(both, near, how, target)
        self.pipeline.add(
            computation, name=target, was=was, productions=productions, delivery=delivery
        )
        return self._named(target, None if name else target)

    def enrich(
        self,
        table: PlainStream,
        how: str = "left",
        *,
        waits: bool = True,
        expires: Duration | None = None,
        allowed_lateness: Duration = 0,
        name: str | None = None,
        was: str | Iterable[str] = (),
        productions: ProductionMode | None = None,
        delivery: DeliveryMode | None = None,
    ) -> Made:
        """Pair each value with the row of its key in a table that changes: a lookup in a stream.

        Elsewhere it is called a join with a table: of a KStream with a KTable in Kafka Streams, a
        temporal join or a lookup join in SQL. What is a GlobalKTable there, a table that every key
        needs as a whole, is a side input here, :class:`~millrace.SideInput`; a table that does not
        change goes to all workers with :meth:`lookup`.

        Args:
            table: A stream of rows, with its key: a row stands from its timestamp until the next of
                its key. A table changes seldom: injected with ``low_watermark=mr.ArrivalTime(...)``
                it follows the clock, so that values do not wait for its next row.
            how: ``left``: a value without a row is paired with None; ``inner``: it is left out.
            waits: Whether a value waits until the low watermark says that the row which stands at
                its time is here. If not, it gets the newest that is here, at once.
            expires: For how long a row stands if no other follows; by default for ever.
            allowed_lateness: For how long rows are kept for values that come late. Later ones are
                dropped and counted (``dropped_late``), unless values do not wait.
            name: Of the computation, in counters and checkpoint.
            was: The name that it had in earlier versions, or several; see docs/changing.md.
            productions: ``mr.STRONG`` or ``mr.WEAK``, as for a computation.
            delivery: ``mr.EXACTLY_ONCE`` or ``mr.AT_LEAST_ONCE``, as for a computation.

        Returns:
            A stream of pairs (value, row), with the time of the value.

        Raises:
            PipelineError: The choices do not go together, or it is no stream of the pipeline.

        >>> import millrace as mr
        >>> p = mr.Pipeline("prices")
        >>> sales, prices = p.inject("sales", format=dict), p.inject("prices", format=dict)
        >>> sales.key_by("item").enrich(prices.key_by("item")).to("priced")
        Stream('priced')
        >>> with mr.testing.Harness(p) as h:
        ...     h.inject("sales", [({"item": "tea"}, 15)])
        ...     h.inject(
        ...         "prices", [({"item": "tea", "cents": c}, at) for c, at in ((5, 9), (7, 20))]
        ...     )
        ...     for stream in ("sales", "prices"):
        ...         h.advance_watermark(stream, 30)
        ...     [output.value for output in h.outputs("priced")]
        [({'item': 'tea'}, {'item': 'tea', 'cents': 5})]
        """
        target = name or self._free_name("enrich")
        both = sides(self, table, "enrich")
        computation = EnrichByKey(
            both,
            how,
            target,
            waits=waits,
            expires_us=None if expires is None else positive_us(expires, "enrich(expires)"),
            lateness_us=duration_us(allowed_lateness, "enrich(allowed_lateness)"),
        )
        self.pipeline.add(
            computation, name=target, was=was, productions=productions, delivery=delivery
        )
        return self._named(target, None if name else target)

    def lookup(self, table: Any, how: str = "left", *, key: str | None = None) -> Self:
        """Pair each value with the row of its key in a table that does not change.

        The table goes to all workers (a broadcast join), and the lookup is a stateless step: no
        shuffle, no state. For a table that changes see :meth:`enrich`.

        Args:
            table: A mapping from key to row, or a bounded DataFrame, which is read now and whose
                rows are dicts. It has 100,000 rows at most.
            how: ``left``: a value without a row is paired with None; ``inner``: it is left out.
            key: The column with the key, of a DataFrame.

        Returns:
            A stream of pairs (value, row), with the key, time and windows of the value.

        Raises:
            PipelineError: It is no such table, or no key is chosen directly before.

        >>> import millrace as mr
        >>> p = mr.Pipeline("names")
        >>> named = p.inject("sales", format=dict).key_by("item").lookup({1: "tea"}).to("named")
        >>> p.sink("named", mr.sinks.Memory())
        >>> with mr.testing.Harness(p) as h:
        ...     h.inject("sales", [({"item": 1}, 15), ({"item": 2}, 16)])
        ...     [output.value for output in h.outputs("named")]
        [({'item': 1}, 'tea'), ({'item': 2}, None)]
        """
        stream = self._step("flat_map", Lookup(rows_of(table, key), keyed(self)[1], how))
        self.pipeline.formats[stream.name] = DerivedFormat((self.name,), pair_with_row)
        return stream

    def _free_name(self, kind: str) -> str:
        computations = self.pipeline.computations
        taken = {*computations, *(out for each in computations.values() for out in each.outputs)}
        names = (f"{self.name}.{kind}-{n}" for n in range(1, len(taken) + 2))
        return next(free for free in names if free not in taken)


#: What comes of an aggregation.


class Settings(TypedDict, total=False):
    """What may be said of every grouping by its name: see :meth:`Aggregating.aggregate`."""

    name: str | None
    fanout: int | None
    keys: bool
    productions: ProductionMode | None
    delivery: DeliveryMode | None


class Aggregating(Generic[Made]):
    """What can be aggregated, by windows that somebody else knows."""

    @abstractmethod
    def aggregate(
        self,
        combine: CombineFn | None = None,
        value: Chosen = None,
        *,
        name: str | None = None,
        fanout: int | None = None,
        keys: bool = False,
        productions: ProductionMode | None = None,
        delivery: DeliveryMode | None = None,
        **several: Aggregate,
    ) -> Made:
        """Aggregate the values of each key and window."""

    def sum(self, value: Chosen = None, **settings: Unpack[Settings]) -> Made:
        """Add numbers up."""
        return self.aggregate(Sum(), value, **settings)

    def count(self, **settings: Unpack[Settings]) -> Made:
        """Count the elements."""
        return self.aggregate(Count(), **settings)

    def mean(self, value: Chosen = None, **settings: Unpack[Settings]) -> Made:
        """Return the arithmetic mean."""
        return self.aggregate(Mean(), value, **settings)

    def variance(
        self, value: Chosen = None, *, sample: bool = True, **settings: Unpack[Settings]
    ) -> Made:
        """Return the variance: of a sample, or of all there is; None where there are too few."""
        return self.aggregate(Variance(sample=sample), value, **settings)

    def stddev(
        self, value: Chosen = None, *, sample: bool = True, **settings: Unpack[Settings]
    ) -> Made:
        """Return the standard deviation: the square root of the variance."""
        return self.aggregate(StdDev(sample=sample), value, **settings)

    def min(self, value: Chosen = None, **settings: Unpack[Settings]) -> Made:
        """Return the smallest value."""
        return self.aggregate(Min(), value, **settings)

    def max(self, value: Chosen = None, **settings: Unpack[Settings]) -> Made:
        """Return the largest value."""
        return self.aggregate(Max(), value, **settings)

    def top(
        self, n: int, value: Chosen = None, *, key: Chosen = None, **settings: Unpack[Settings]
    ) -> Made:
        """Return the n largest values, the largest first, compared by ``key`` if given."""
        return self.aggregate(Top(n, key), value, **settings)

    def distinct(
        self, value: Chosen = None, *, approximate: bool = False, **settings: Unpack[Settings]
    ) -> Made:
        """Count the different values: exactly, keeping them, or within 2% or so in 2 kB."""
        combine = ApproximateDistinct() if approximate else Distinct()
        return self.aggregate(combine, value, **settings)

    def quantiles(
        self,
        at: Sequence[float],
        value: Chosen = None,
        *,
        approximate: bool = False,
        **settings: Unpack[Settings],
    ) -> Made:
        """Return quantiles, a list: exactly, keeping the values, or within 1% of rank in 4 kB.

        Args:
            at: Shares: 0.5 is the median, 0.99 the 99th percentile.
            value: What to aggregate of an element.
            approximate: By a t-digest.
            **settings: See :meth:`aggregate`.
        """
        combine = ApproximateQuantiles(at) if approximate else Quantiles(at)
        return self.aggregate(combine, value, **settings)

    def group(self, value: Chosen = None, **settings: Unpack[Settings]) -> Made:
        """Return the list of the values, in order of arrival."""
        return self.aggregate(Group(), value, **settings)


#: What a stream has that is aggregated by windows.
_AGGREGATES: Final = frozenset(name for name in vars(Aggregating) if not name.startswith("_"))


class Stream(Joining["Stream"]):
    """A named stream of a pipeline, to which steps and windows can be added.

    >>> import millrace as mr
    >>> p = mr.Pipeline("words")
    >>> p.inject("lines", format=str)
    Stream('lines')
    >>> p.stream("lines").flat_map(str.split).to("words", format=str)
    Stream('words')
    """

    #: The computation that makes it, if nobody has chosen the name of that.
    _made_up: str | None = None

    if not TYPE_CHECKING:  # to a type checker any name would be one of the stream's

        def __getattr__(self, name: str) -> Any:
            text = f"{type(self).__name__!r} object has no attribute {name!r}"
            if name in _AGGREGATES:
                text = (
                    f"{self!r} has no windows for {name}() to aggregate by. Choose them first: "
                    f'.window(mr.FixedWindows("1 h")).{name}(...)'
                )
            raise AttributeError(text, name=name, obj=self)

    def window(
        self,
        window_fn: WindowFn | None = None,
        trigger: Trigger | Emission | None = None,
        *,
        mode: AccumulationMode = ACCUMULATING,
        allowed_lateness: Duration = 0,
        output_time: OutputTime = END_OF_WINDOW,
        allow_data_loss: bool = False,
        lift: bool | None = None,
    ) -> WindowedStream:
        """Return a stream whose elements have windows.

        Args:
            window_fn: Where in event time; by default one window over everything.
            trigger: When results are emitted; by default ``Repeat(AtWatermark())``: when the low
                watermark reaches the end of a window, and again for late elements.
                ``mr.early("5 s")``: also every five seconds before that.
            mode: How the results of a window relate: ``DISCARDING``, ``ACCUMULATING`` or
                ``ACCUMULATING_AND_RETRACTING``.
            allowed_lateness: How long after its end, by the low watermark, a window still takes
                elements. Then its state is collected; later elements are dropped and counted.
            output_time: Event time of the results: ``END_OF_WINDOW`` (its last instant),
                ``EARLIEST`` or ``LATEST`` of its elements.
            allow_data_loss: Let the trigger be done before the window is.
            lift: Whether values are combined before they are shuffled (on Spark). By default, where
                that changes no pane; ``explain()`` tells. ``True``: also for ``AfterCount`` and
                ``AfterBytes``, which then fire once at least so much has come. ``False``: never.

        Raises:
            PipelineError: The choices do not go together.

        >>> import millrace as mr
        >>> p = mr.Pipeline("scores")
        >>> scores = p.inject("scores", format=dict)
        >>> scores.key_by("team").window(mr.FixedWindows("2 min")).sum("points").to("totals")
        WindowedStream('totals')
        >>> with mr.testing.Harness(p) as h:
        ...     for points in (5, 7):
        ...         h.inject("scores", [({"team": "red", "points": points}, 10)])
        ...     h.advance_watermark("scores", 2 * mr.MINUTE)
        ...     [(output.key, output.value) for output in h.outputs("totals")]
        [('red', 12)]
        """
        how = windowing(
            GlobalWindow() if window_fn is None else window_fn,
            trigger,
            mode,
            allowed_lateness,
            output_time,
            allow_data_loss=allow_data_loss,
            lift=lift,
        )
        return WindowedStream(self, how)

    def map_async(
        self,
        function: Callable[..., Any],
        *,
        setup: Callable[[], Any] | None = None,
        format: Any = Any,
        name: str | None = None,
        was: str | Iterable[str] = (),
        delivery: DeliveryMode | None = None,
        **policy: Unpack[CallSettings],
    ) -> Self:
        """Replace each value by what a call to a service returns for it; other keys go on.

        The record's key, time and windows stay; one without a key gets the number of one of 64
        parts. A retraction calls for the value that is taken back, so a service should answer it as
        it did before. The low watermark waits for what is in flight. After a failure a call may be
        made again, with the same id; its result counts once.

        Args:
            function: An ``async def``; a plain function is called in a thread. It is given the
                value, and a second argument if it takes one: ``call.id`` names the call to a
                service that is idempotent, the same in each attempt.
            setup: Called once in a process, such as ``httpx.AsyncClient``. What it returns is the
                first argument of each call.
            format: Record format of the results.
            name: Of the computation, in counters and checkpoint.
            was: The name that it had in earlier versions, or several; see docs/changing.md.
            delivery: ``mr.EXACTLY_ONCE`` or ``mr.AT_LEAST_ONCE``, as for a computation.
            **policy: How calls are made: ``concurrency``, ``timeout``, ``retries``, ``backoff``,
                ``max_backoff``, ``retry_on``, ``breaker``, ``order``; see
                :class:`~millrace.model.calls.CallPolicy`.

        Raises:
            PipelineError: The function cannot be called, or the policy is none.

        Source: Flink, "Asynchronous I/O for External Data Access"; docs/design/2026-11-28-calls.md.

        >>> import asyncio
        >>> import millrace as mr
        >>> async def score(payment):
        ...     await asyncio.sleep(0.02)  # a service, far away
        ...     return payment["amount"] / 100
        >>> p = mr.Pipeline("payments")
        >>> payments = p.inject("payments", format=dict).key_by("card")
        >>> payments.map_async(score, concurrency=200, timeout="2 s").to("scores", float)
        Stream('scores')
        >>> with mr.testing.Harness(p) as h:
        ...     h.inject("payments", [({"card": "c", "amount": n}, n) for n in (5, 7)])
        ...     [(output.key, output.value) for output in h.outputs("scores")]
        [('c', 0.05), ('c', 0.07)]
        """
        return self._calling("map_async", function, CallPolicy(**policy), None, setup, format,
                             name, was, delivery)  # fmt: skip

    def map_batches(
        self,
        function: Callable[..., Any],
        *,
        max_size: int = 64,
        max_wait: Duration = 20 * MILLISECOND,
        threads: int = 1,
        arrow: bool | None = None,
        setup: Callable[[], Any] | None = None,
        format: Any = Any,
        name: str | None = None,
        was: str | Iterable[str] = (),
        delivery: DeliveryMode | None = None,
        **policy: Unpack[CallSettings],
    ) -> Self:
        """Replace each value by what a model or a service returns for a batch of values.

        Batches are gathered across keys. What :meth:`map_async` says of records, low watermarks and
        failures holds here too. Of a batch that raises the values are tried in halves, until the
        value is known that the function cannot take.

        Args:
            function: Is given a list of values, and returns as many results, in their order.
            max_size: No batch has more values.
            max_wait: A smaller batch begins when its first value has waited for so long.
            threads: So many batches at once in a process.
            arrow: Whether the function is given a ``pyarrow.Table``, a column for each field. By
                default if one of its parameters is annotated as one.
            setup: Called once in a process: it loads the model, which is then the first argument.
            format: Record format of the results.
            name: Of the computation, in counters and checkpoint.
            was: The name that it had in earlier versions, or several; see docs/changing.md.
            delivery: ``mr.EXACTLY_ONCE`` or ``mr.AT_LEAST_ONCE``, as for a computation.
            **policy: As for :meth:`map_async`.

        Raises:
            PipelineError: The function cannot be called, or the policy is none.

        >>> import millrace as mr
        >>> def longest(model, texts):
        ...     return [model(text.split(), key=len) for text in texts]
        >>> p = mr.Pipeline("texts")
        >>> texts = p.inject("texts", format=str).key_by(len)
        >>> texts.map_batches(longest, setup=lambda: max).to("words", str)
        Stream('words')
        >>> with mr.testing.Harness(p) as h:
        ...     h.inject("texts", [("a cup of tea", 1), ("rum", 2)])
        ...     sorted(output.value for output in h.outputs("words"))
        ['cup', 'rum']
        """
        if arrow is None:
            arrow = takes_table(function)
        batch = BatchPolicy(max_size=max_size, max_wait=max_wait, threads=threads, arrow=arrow)
        return self._calling("map_batches", function, CallPolicy(**policy), batch, setup, format,
                             name, was, delivery)  # fmt: skip

    def _calling(
        self,
        kind: str,
        function: Callable[..., Any],
        policy: CallPolicy,
        batch: BatchPolicy | None,
        setup: Callable[[], Any] | None,
        format: Any,
        name: str | None,
        was: str | Iterable[str],
        delivery: DeliveryMode | None,
    ) -> Self:
        """Return the stream of what calls return."""
        for argument, given in (("function", function), ("setup", setup or function)):
            if not callable(given):
                raise PipelineError(f"{self!r}.{kind}({argument}={given!r}): it cannot be called.")
        arguments = ["values" if batch else "value"]
        if setup is not None:
            refuse_parameters(setup, f"{self!r}.{kind}(setup=")
            arguments.insert(0, "client")
        if batch or parameters_refusing(function, len(arguments) + 1) is not None:
            refuse_parameters(function, f"{self!r}.{kind}(", *arguments)
        target = name or self._free_name(kind)
        stream, extractor = keyed(self)
        if isinstance(extractor, ByKey) and keyless(self.pipeline, stream):
            extractor = Spread(extractor, PARTS)
        computation = CallEach(stream, extractor, function, policy, target, format, batch, setup)
        self.pipeline.add(computation, name=target, was=was, delivery=delivery)
        results = self._next(target)
        results._made_up = None if name else target
        return results

    def to(self, name: str, format: Any = Any) -> Self:
        """Name the stream, and declare its record format, so that consumers can subscribe.

        Directly after a join, ``enrich``, ``map_async`` or ``map_batches`` that has no name, name
        that too.

        Raises:
            PipelineError: It has that name, as of a join or aggregation with ``name=``.
        """
        named = super().to(name, format)
        if self._made_up is not None and name not in self.pipeline.computations:
            self.pipeline.call(self._made_up, name)
            self._made_up = None
        return named

    def _next(self, name: str) -> Self:
        following = super()._next(name)
        following._made_up = None
        return following

    def _named(self, name: str, made_up: str | None) -> Stream:
        stream = Stream(self.pipeline, name)
        stream._made_up = made_up
        return stream


class WindowedStream(Stream, Aggregating["WindowedStream"]):
    """A stream with windows: what stateless steps make of it has them too."""

    def __init__(self, stream: PlainStream, how: Windowing, grouping: str | None = None) -> None:
        super().__init__(stream.pipeline, stream.name)
        self.windowing = how
        self._grouping = grouping

    def _next(self, name: str) -> Self:
        following = super()._next(name)
        following._grouping = None
        return following

    def to(self, name: str, format: Any = Any, *, was: str | Iterable[str] = ()) -> Self:
        """Name the stream; directly after an aggregation, name the grouping too.

        Args:
            name: Name of the stream and the grouping.
            format: Record format of the stream.
            was: The grouping's name in earlier versions, or several: it takes over the state that a
                checkpoint has under that name. See docs/changing.md.

        Raises:
            PipelineError: The name is that of a join; the stream is read already; or ``was`` is
                given where no grouping is named.
        """
        computations = self.pipeline.computations
        same = computations.get(name)
        if isinstance(same, JoinByKeyAndWindow) and name in same.outputs:
            raise PipelineError(
                f"{self!r}.to({name!r}): {name!r} is the name of a join in windows, and of the "
                "stream of lists of pairs that it makes itself. Give the join, with name=, or the "
                "stream another name."
            )
        if self._grouping is None or name in computations:
            if was:
                raise PipelineError(
                    f"{self!r}.to({name!r}, was={was!r}) names no grouping; was= is for the first "
                    "to() after an aggregation. Of other streams nothing is kept, so their names "
                    "may change."
                )
            return super().to(name, format)
        # The aggregation has a name that nobody chose.
        if self.pipeline.is_read(self.name):
            raise PipelineError(
                f"{self!r}.to({name!r}): it is read already, under the name that it had until now. "
                f"Call to({name!r}) first, directly after the aggregation."
            )
        grouping = computations[self._grouping]
        assert isinstance(grouping, GroupByKeyAndWindow)
        parts = computations.get(parts_of(self._grouping))
        was = names(was, f"{self!r}.to({name!r}, was")
        if isinstance(parts, CombineByPart):
            grouping.inputs = {parts_of(name): by_key()}  # type: ignore[misc]  # of this instance
            earlier = [parts_of(name) for name in was]
            renamed = parts.renamed(parts_of(name))
            self.pipeline.rename(parts.output, parts_of(name), renamed, was=earlier)
        self.pipeline.rename(self._grouping, name, grouping.renamed(name, format), was=was)
        self.name, self._grouping = name, None
        return self

    def assign(self) -> WindowedStream:
        """Return the stream with its windows assigned here, and not where it is grouped.

        An element in several windows becomes several elements. Each has its window as data,
        ``record.pane.window``, so what ``map``, ``key_by`` and ``with_timestamps`` make of it still
        counts in the window that it had here. Windows merge where they are grouped.

        >>> import millrace as mr
        >>> p = mr.Pipeline("days")
        >>> sent = p.inject("orders", format=dict).window(mr.FixedWindows(10)).assign()
        >>> paid = sent.with_timestamps("paid")  # what was sent in a window, whenever it was paid
        >>> paid.key_by("shop").sum("amount").to("amounts")
        WindowedStream('amounts')
        >>> with mr.testing.Harness(p) as h:
        ...     h.inject("orders", [({"shop": "a", "amount": 7, "paid": 23}, 4)])
        ...     h.advance_watermark("orders", 30)
        ...     [(output.value, output.pane.window) for output in h.outputs("amounts")]
        [(7, Window(0, 10))]
        """
        window_fn = self.windowing.window_fn
        if isinstance(window_fn, AssignedWindows):
            return self
        stream = super()._step("assign", Assign(window_fn))
        self.pipeline.formats[stream.name] = DerivedFormat((self.name,), _with_windows)
        return WindowedStream(stream, self.windowing.over(AssignedWindows(window_fn)))

    def aggregate(
        self,
        combine: CombineFn | None = None,
        value: Chosen = None,
        *,
        name: str | None = None,
        fanout: int | None = None,
        keys: bool = False,
        productions: ProductionMode | None = None,
        delivery: DeliveryMode | None = None,
        **several: Aggregate,
    ) -> WindowedStream:
        """Aggregate the values of each key and window: by one aggregation, or by several at once.

        Args:
            combine: How; nothing if there are several.
            value: What to aggregate of an element: a column name or a function; by default itself.
            name: Of the grouping, in counters and checkpoint; by default that of the stream which
                ``to`` names.
            fanout: Into how many parts to split each key first, for keys that are hotter than one
                task can bear. Each part combines what a bundle brings, and one more level puts the
                parts together. ``AfterCount`` and ``AfterBytes`` then fire once at least so much
                has come. Aggregations that are lifted need it only where one key is hot in every
                source partition and still too much.
            keys: Whether a result is a row with its key and window: a dict of the fields that
                ``key_by`` names (``key`` if it was given a function), ``window_start`` and
                ``window_end`` (datetimes; none of windows without end), and the results by name, or
                ``value``. ``to(name, format)`` makes it a class with just these fields.
            productions: ``mr.STRONG``, the default, or ``mr.WEAK``, as of a computation.
            delivery: ``mr.EXACTLY_ONCE``, the default, or ``mr.AT_LEAST_ONCE``, likewise.
            **several: Aggregates by the name of their result: ``mr.agg.count()``,
                ``mr.agg.max("price")`` and so on, all computed in one pass. A result is a dict by
                these names, or what ``to(name, format)`` says.

        Returns:
            The stream of results. A further aggregation of it goes by the windows of the results,
            with the same trigger, mode and lateness, unless ``window`` says otherwise.

        Raises:
            PipelineError: What is given is no aggregation, or a name cannot be that of a result.

        >>> import millrace as mr
        >>> p = mr.Pipeline("auction")
        >>> bids = p.inject("bids", format=dict).key_by("item").window(mr.FixedWindows(10))
        >>> bids.aggregate(
        ...     n=mr.agg.count(),
        ...     high=mr.agg.max("price"),
        ...     cheap=mr.agg.count(where=lambda bid: bid["price"] < 5),
        ... ).to("prices")
        WindowedStream('prices')
        >>> with mr.testing.Harness(p) as h:
        ...     h.inject("bids", [({"item": "cup", "price": price}, 3) for price in (4, 9)])
        ...     h.advance_watermark("bids", 10)
        ...     [output.value for output in h.outputs("prices")]
        [{'n': 2, 'high': 9, 'cheap': 1}]

        With the key and the window, nothing of a pane is needed further on:

        >>> p = mr.Pipeline("rows")
        >>> bids = p.inject("bids", format=dict).key_by("item").window(mr.FixedWindows("1 s"))
        >>> bids.aggregate(n=mr.agg.count(), keys=True).to("counts")
        WindowedStream('counts')
        >>> with mr.testing.Harness(p) as h:
        ...     h.inject("bids", [({"item": "cup"}, 3), ({"item": "cup"}, 4)])
        ...     h.advance_watermark("bids", mr.SECOND)
        ...     row = h.outputs("counts")[0].value
        >>> row["item"], row["n"], row["window_start"].isoformat(), row["window_end"].second
        ('cup', 2, '1970-01-01T00:00:00+00:00', 1)
        """
        given: dict[str, Any] = {"combine": combine, "value": value, "name": name, "fanout": fanout}
        given |= {"keys": keys, "productions": productions, "delivery": delivery}
        combine, value = _combined(given, several)
        target = name or self._free_name(type(combine).__name__.lower())
        stream, extractor = keyed(self)
        key_fields = None
        if keys:
            ends = self.windowing.window_fn.ends
            types = declared_key_types(self.pipeline, stream, extractor)
            key_fields = KeyFields(key_names(extractor), tuple(several), ends, types)

        def add(computation: Computation, name: str) -> None:
            self.pipeline.add(computation, name=name, productions=productions, delivery=delivery)

        if fanout is not None:
            check(self.windowing, combine, fanout)
            spread = {stream: Spread(extractor, fanout)}
            parts = CombineByPart(spread, self.windowing, combine, value, parts_of(target))
            add(parts, parts.output)
            stream, extractor, value = parts.output, by_key(), None
        grouping = GroupByKeyAndWindow(
            {stream: extractor}, self.windowing, combine, value, target, key_fields=key_fields
        )
        add(grouping, target)
        windows = self.windowing.over(AssignedWindows(self.windowing.window_fn))
        return WindowedStream(
            Stream(self.pipeline, target), windows, None if name is not None else target
        )

    def join(
        self,
        other: PlainStream,
        how: str = "inner",
        *,
        within: tuple[Offset, Offset] | None = None,
        expires: Duration | None = None,
        allowed_lateness: Duration = 0,
        name: str | None = None,
        was: str | Iterable[str] = (),
        productions: ProductionMode | None = None,
        delivery: DeliveryMode | None = None,
    ) -> WindowedStream:
        """Pair the values with those of another stream that have the same key and window.

        Args:
            other: With its key; it gets this stream's windows, trigger and mode.
            how: ``inner``; ``left``, where a value of this stream without a partner is paired with
                None; or ``outer`` (or ``full``), where one of the other is, too.
            within: Not in windows; nor are the next two.
            expires: See ``within``.
            allowed_lateness: See ``within``; ``window`` takes it.
            name: Of the grouping.
            was: The name that it had in earlier versions, or several; see docs/changing.md.
            productions: See :meth:`aggregate`.
            delivery: Likewise.

        Returns:
            A stream of pairs (of this stream, of the other). A further pane of a window has all
            its pairs again; with ``ACCUMULATING_AND_RETRACTING`` those before are taken back.
        """
        if within is not None or expires is not None or allowed_lateness:
            raise PipelineError(
                f"{self!r}.join: in windows values meet by their windows, which say how long they "
                "are kept too. Join before window(...), with within= or expires=, or without those."
            )
        both = sides(self, other, "join")
        target = name or self._free_name("join")
        grouping = JoinByKeyAndWindow(both, self.windowing, how, target)
        self.pipeline.add(
            grouping, name=target, was=was, productions=productions, delivery=delivery
        )
        pairs = Stream(self.pipeline, target).flat_map(_each_pair)
        self.pipeline.formats[pairs.name] = DerivedFormat((target,), pair_format)
        windowing = self.windowing.over(AssignedWindows(self.windowing.window_fn))
        paired = WindowedStream(pairs, windowing)
        paired._made_up = None if name else target
        return paired


def _with_windows(format: Any) -> PanedCoder:
    """Return the format of a stream whose elements have got windows."""
    retracts = isinstance(format, PanedCoder) and format.retracts
    return PanedCoder(plain_format(format), retracts=retracts)


def parts_of(grouping: str) -> str:
    """Return the name of the computation, and the stream, that a grouping's parts come from."""
    return f"{grouping}.parts"


def _combined(given: Mapping[str, Any], several: Mapping[str, Any]) -> tuple[CombineFn, Chosen]:
    """Return how to aggregate, and what of an element, by the arguments of ``aggregate``."""
    for argument, what in given.items():
        if isinstance(what, Aggregate):
            raise PipelineError(
                f"aggregate({argument}={what!r}): {argument!r} is an argument of aggregate itself, "
                "and no name for a result. Give the result another name."
            )
    combine, value = given["combine"], given["value"]
    if several:
        if combine is not None or value is not None:
            raise PipelineError(
                f"aggregate({combine!r}, ..., {', '.join(several)}): expected one aggregation, "
                f"aggregate({combine!r}), or several by name, aggregate(n=mr.agg.count(), ...)."
            )
        return together(several)
    if isinstance(combine, type) and issubclass(combine, CombineFn):
        raise PipelineError(
            f"aggregate({combine.__name__}): give it an object, {combine.__name__}(...)."
        )
    if not isinstance(combine, CombineFn):
        raise PipelineError(
            f"aggregate({'' if combine is None else repr(combine)}): expected a mr.CombineFn, "
            "which has create, add, merge and extract, or aggregates by name, such as "
            "n=mr.agg.count()."
        )
    return combine, as_stored(value, combine.comparison)


def _each_pair(pairs: Any) -> Any:
    return pairs
