"""Joining: what brings a stream together with another, or with a table, without windows."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import Any, Generic, Self, TypeVar

from millrace.dataflow.durations import positive_us
from millrace.dataflow.enrich import EnrichByKey
from millrace.dataflow.keyed import keyed, sides
from millrace.dataflow.lookup import Lookup, pair_with_row, rows_of
from millrace.dataflow.nearness import Offset, nearness
from millrace.dataflow.time_join import JoinByKeyAndTime
from millrace.model.derived import DerivedFormat
from millrace.model.guarantees import DeliveryMode, ProductionMode
from millrace.model.plain_stream import PlainStream
from millrace.model.time import Duration, duration_us

#: What comes of a join.
Made = TypeVar("Made")


class Joining(PlainStream, Generic[Made]):
    """A stream that can be joined with others, and with tables."""

    @abstractmethod
    def _named(self, name: str) -> Made:
        """Return a stream of the pipeline that has no windows."""

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
        made = name or self._free_name("join")
        near = nearness(within, expires, allowed_lateness, "join")
        computation = JoinByKeyAndTime(both, near, how, made)
        self.pipeline.add(
            computation, name=made, was=was, productions=productions, delivery=delivery
        )
        return self._named(made)

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
        """Pair each value with the row of its key in a table that changes.

        Args:
            table: A stream of rows, with its key: a row stands from its timestamp until the next of
                its key. For one that does not change see :meth:`lookup`.
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
        made = name or self._free_name("enrich")
        both = sides(self, table, "enrich")
        computation = EnrichByKey(
            both,
            how,
            made,
            waits=waits,
            expires_us=None if expires is None else positive_us(expires, "enrich(expires)"),
            lateness_us=duration_us(allowed_lateness, "enrich(allowed_lateness)"),
        )
        self.pipeline.add(
            computation, name=made, was=was, productions=productions, delivery=delivery
        )
        return self._named(made)

    def lookup(self, table: Any, how: str = "left", *, key: str | None = None) -> Self:
        """Pair each value with the row of its key in a table that does not change.

        The table goes to all workers, and the lookup is a stateless step: no shuffle, no state.

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
        >>> p.sink("named", mr.Memory())
        >>> with mr.testing.Harness(p) as h:
        ...     h.inject("sales", [({"item": 1}, 15), ({"item": 2}, 16)])
        ...     [output.value for output in h.outputs("named")]
        [({'item': 1}, 'tea'), ({'item': 2}, None)]
        """
        made = self._step("flat_map", Lookup(rows_of(table, key), keyed(self)[1], how))
        self.pipeline.formats[made.name] = DerivedFormat((self.name,), pair_with_row)
        return made

    def _free_name(self, kind: str) -> str:
        taken = self.pipeline.computations
        names = (f"{self.name}.{kind}-{n}" for n in range(1, len(taken) + 2))
        return next(free for free in names if free not in taken)
