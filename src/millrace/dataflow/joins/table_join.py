"""Enrichment: each value of a stream with the row of its key in a table.

A table that changes is a stream of rows: a row stands from its timestamp until the next of its key.
A value gets the row that stands at its own time, whatever comes first, if it waits until the low
watermark says that no such row is missing.

A table that does not change goes to all workers with the pipeline, and the lookup is a stateless
step: no shuffle, no state, nothing to wait for.

Source: docs/design/2026-11-22-joins-without-windows.md.
"""

from __future__ import annotations

import copy
import itertools
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from millrace.dataflow.element_types import Side, check_keys, plain_format, retracts
from millrace.dataflow.joins.join_state import Forms, KeptCoder, kept_by_time
from millrace.dataflow.operator import Operator, Refuse
from millrace.dataflow.side_stream import SideStream
from millrace.model.coder import Coder
from millrace.model.computation import Computation
from millrace.model.copies import own_copy
from millrace.model.declarations import DerivedFormat
from millrace.model.equality import equalities
from millrace.model.errors import RAISED, CoderError, PipelineError, brief
from millrace.model.keys import encode_key
from millrace.model.pane import Pane, PanedCoder, Window
from millrace.model.record import Record, Timer
from millrace.model.state import MapState, ValueState
from millrace.model.stream import ByKey, KeyExtractor
from millrace.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP, format_duration

HOW = ("left", "inner")

#: The tag of the timer by which rows expire; those by which values wait have their times as tags.
_EXPIRES = "expires"

#: So many rows of a key are walked over where one of a time is looked for.
_FEW: Final = 8

#: The times of a key's first row, of which no earlier one is kept, if that is known, and of its
#: newest. With them no row that came is looked for among all others.
_Ends = tuple[int | None, int]


class EnrichByKey(Computation):
    """Pairs each value of a stream with the row of its key.

    Counter of its own: ``dropped_late``, of values later than the allowed lateness: the row that
    stood at their time may be forgotten.

    Args:
        sides: Values and rows: stream and key extractor.
        how: ``left``: a value without a row is paired with None; ``inner``: it is left out.
        waits: Whether a value waits for the rows of its time; else it gets the newest that is here.
        expires_us: For how long a row stands; None: until the next.
        lateness_us: For how long rows are kept for late values.
        output: Output stream, of pairs.
    """

    def __init__(
        self,
        sides: tuple[Side, Side],
        how: str,
        output: str,
        *,
        waits: bool,
        expires_us: int | None,
        lateness_us: int,
    ) -> None:
        if how not in HOW:
            raise PipelineError(f"enrich(how={how!r}): expected one of {', '.join(HOW)}.")
        self.sides = dict(sides)
        # A table that nobody waits for is taken beside the input: it holds no low watermark.
        self.inputs = dict(sides if waits else sides[:1])  # type: ignore[misc]  # of this instance
        self.output = output
        self.how = how
        self.waits = waits
        self.expires_us = expires_us
        self.lateness_us = lateness_us
        self.outputs = {output: DerivedFormat(tuple(self.sides), self._derive)}  # type: ignore[misc]
        self._table = sides[1][0]
        self._panes = False
        self.refuse: Refuse
        self._forms: tuple[Forms, ...] = ()
        self.rows: MapState[list[tuple[Any]]] = MapState(list)
        self.waiting: MapState[list[tuple[Any, bool]]] = MapState(list)
        self.ends: ValueState[_Ends] = ValueState(KeptCoder(_Ends))

    def _derive(self, *formats: Any) -> Any:
        """Return the output's format for the inputs'."""
        value, row = map(plain_format, formats)
        if self.how == "left" and row is not Any:
            row = row | None
        pair: Any = types.GenericAlias(tuple, (value, row))
        return PanedCoder(pair, retracts=True) if retracts(formats[0]) else pair

    def typed(self, formats: Mapping[str, Coder]) -> EnrichByKey:
        """Return the same with state of the right types for its inputs."""
        typed = copy.copy(self)
        values, rows = (formats[stream] for stream in self.sides)
        typed.waiting, of_values = kept_by_time(values, bool)
        typed.rows, of_rows = kept_by_time(rows)
        typed._forms = of_values, of_rows
        typed._panes = retracts(values)
        typed.outputs = {self.output: self._derive(values, rows)}  # type: ignore[misc]
        return typed

    def process_record(self, record: Record) -> None:
        """Take a row note of; or answer a value, or have it wait."""
        at_us = record.timestamp
        back = record.pane is not None and record.pane.retraction
        if record.stream == self._table:
            self._take_row(record.value, at_us, back=back)
        elif not self.waits:
            self._answer(record.value, at_us, self._row_at(None), back=back)
        elif at_us >= self.low_watermark:
            pack = self._forms[0][0]
            self.waiting[at_us] = [*self.waiting.get(at_us, ()), (pack(record.value), back)]
            self.set_timer(at_us, at=at_us + 1)
        elif at_us >= self.low_watermark - self.lateness_us:
            self._answer(record.value, at_us, self._row_at(at_us), back=back)
        else:
            self.increment("dropped_late")

    def process_timer(self, timer: Timer) -> None:
        """Answer the values of times of which all rows are here; or forget rows that expired."""
        if timer.tag != _EXPIRES:
            self._answer_due()
            return
        assert self.expires_us is not None
        stop_us = self.low_watermark - self.expires_us - self.lateness_us + 1
        for at_us in list(self.rows.between(None, stop_us)):
            del self.rows[at_us]
        self.ends.clear()

    def _answer_due(self) -> None:
        """Answer all values of which the rows are here: they and the rows are walked over once."""
        unpack = self._forms[0][1]
        due = list(self.waiting.between(None, self.low_watermark))
        if not due:
            return
        rows = list(self.rows.between(self._row_at(due[0]), due[-1] + 1))
        position = 0
        for at_us in due:
            while position < len(rows) and rows[position] <= at_us:
                position += 1
            row_us = rows[position - 1] if position else None
            self.delete_timer(at_us)
            for packed, back in self.waiting.pop(at_us):
                value = unpack(packed)
                try:
                    self._answer(value, at_us, row_us, back=back)
                except RAISED as error:
                    self.refuse(error, value, at_us)

    def _take_row(self, row: Any, at_us: int, *, back: bool) -> None:
        if back:
            self._take_back(row, at_us)
            return
        rows = self.rows
        first_us, newest_us = self.ends.get((None, MIN_TIMESTAMP))
        if first_us is not None and at_us < first_us:
            return  # Another stands already where a value may still ask for this one.
        rows[at_us] = [*rows.get(at_us, ()), (self._forms[1][0](row),)]
        # Before the last one that is old enough, none is asked for any more.
        stop_us = self._asked_us() + 1 if self.waits else None
        old_enough = list(rows.between(first_us, stop_us))
        for superseded in old_enough[:-1]:
            del rows[superseded]
        if old_enough:
            first_us = old_enough[-1]
        if at_us > newest_us:
            newest_us = at_us
            if self.expires_us is not None:
                self.set_timer(_EXPIRES, at=newest_us + self.expires_us + self.lateness_us)
        self.ends.set((first_us, newest_us))

    def _asked_us(self) -> int:
        """Return the earliest time that a value may ask for: one that waits, or comes yet."""
        late_us = self.low_watermark - self.lateness_us
        # The low watermark may have passed a value whose timer is due in this very bundle.
        return min(late_us, next(self.waiting.between(None, late_us), late_us))

    def _take_back(self, row: Any, at_us: int) -> None:
        """Take a row back; if it does not stand any more, that is done already."""
        unpack = self._forms[1][1]
        for is_equal in equalities(row):
            for entry_us in self._newest_first(at_us):
                rows = list(self.rows.get(entry_us, ()))
                for place, (packed,) in enumerate(rows):
                    if is_equal(unpack(packed)):
                        del rows[place]
                        if rows:
                            self.rows[entry_us] = rows
                        else:
                            del self.rows[entry_us]
                            self._forget_end(entry_us)
                        return

    def _newest_first(self, at_us: int) -> Iterator[int]:
        """Yield a time, and the times of all rows, which are walked over only if that is asked."""
        yield at_us
        yield from reversed(list(self.rows))

    def _forget_end(self, at_us: int) -> None:
        """Take note that there are no rows of a time any more."""
        first_us, newest_us = self.ends.get((None, MIN_TIMESTAMP))
        if next(iter(self.rows), None) is None:
            self.ends.clear()
        elif at_us == first_us:  # an earlier one that comes yet may stand
            self.ends.set((None, newest_us))

    def _row_at(self, at_us: int | None) -> int | None:
        """Return the time of the row that stands at an instant, or of the newest.

        Rows are walked over forwards only. So the range in which the row is is halved, until few
        rows are left in it: a late value does not walk over all rows of its key.
        """
        first_us, _ = self.ends.get((None, MIN_TIMESTAMP))
        stop_us = MAX_TIMESTAMP if at_us is None else at_us + 1
        nearest = list(itertools.islice(self.rows.between(first_us, stop_us), _FEW))
        while len(nearest) == _FEW and nearest[-1] + 1 < stop_us:
            middle_us = (nearest[-1] + 1 + stop_us) // 2
            if nearer := list(itertools.islice(self.rows.between(middle_us, stop_us), _FEW)):
                nearest = nearer
            else:
                stop_us = middle_us
        return nearest[-1] if nearest else None

    def _answer(self, value: Any, at_us: int, row_us: int | None, *, back: bool) -> None:
        row = None
        if row_us is not None and (self.expires_us is None or at_us < row_us + self.expires_us):
            row = self._forms[1][1](self.rows[row_us][-1][0])
        elif self.how == "inner":
            return
        if self._panes:
            pane = Pane(Window(), retraction=back, production_time=self.wall_time)
            self.produce(self.output, (value, row), at_us, pane=pane)
        else:
            self.produce(self.output, (value, row), at_us)


class EnrichOperator(Operator):
    """The operator of :class:`EnrichByKey`."""

    def __init__(self, enrich: EnrichByKey) -> None:
        super().__init__(enrich)
        self._enrich = enrich

    def set_refuse(self, refuse: Refuse) -> None:
        """Have single values that waited refused."""
        self._enrich.refuse = refuse

    def side_streams(self) -> Mapping[str, SideStream]:
        """Return the table, where no value waits for its rows."""
        sides = self._enrich.sides
        return {
            stream: SideStream(extractor)
            for stream, extractor in sides.items()
            if stream not in self._enrich.inputs
        }

    def settings(self) -> dict[str, str]:
        """Return what is kept depends on."""
        return {"waits": str(self._enrich.waits)}

    def sides(self) -> tuple[str, ...]:
        """Return values and rows; values alone, if they wait for no rows."""
        return tuple(self._enrich.inputs)

    def described(self) -> list[str]:
        """Return which row a value gets."""
        enrich = self._enrich
        which = "that stands at its time" if enrich.waits else "that is the newest here"
        stands = (
            ""
            if enrich.expires_us is None
            else f", for {format_duration(enrich.expires_us)} after it began"
        )
        late = enrich.lateness_us
        lateness = f", allowed lateness {format_duration(late)}" if late else ""
        return [f"join   {enrich.how}, with the row {which}{stands}{lateness}"]

    def bound(self, formats: Mapping[str, Coder], *, unbounded: bool) -> EnrichByKey:
        """Return the computation with state of the right types for its inputs."""
        enrich = self._enrich
        values = next(iter(enrich.inputs))
        if not enrich.waits and retracts(formats[values]):
            raise PipelineError(
                f"{enrich.output!r}: {values!r} has retractions, and with waits=False a value that "
                "is taken back may get another row than it had. Let values wait: enrich(..., "
                "waits=True)."
            )
        check_keys(enrich.output, enrich.sides, formats)
        return enrich.typed(formats)


#: The most rows of a table that goes with a pipeline to every worker.
LARGEST: Final = 100_000


class Lookup:
    """A step: a value paired with the row of its key.

    Args:
        rows: Key -> row.
        extractor: How values' keys are extracted.
        how: ``left``: a value without a row is paired with None; ``inner``: it is left out.

    >>> from millrace.model.stream import by
    >>> lookup = Lookup({1: "tea"}, by("item"), "inner")
    >>> lookup({"item": 1}), lookup({"item": 2})
    ([({'item': 1}, 'tea')], [])
    """

    def __init__(self, rows: Mapping[Any, Any], extractor: KeyExtractor, how: str) -> None:
        if how not in HOW:
            raise PipelineError(f"lookup(how={how!r}): expected one of {', '.join(HOW)}.")
        if isinstance(extractor, ByKey):
            raise PipelineError(
                "lookup goes by the key that is chosen directly before: "
                'stream.key_by("field").lookup(table).'
            )
        self._rows = {_slot(key): row for key, row in rows.items()}
        self._extractor = extractor
        self._left = how == "left"
        self._kinds = {type(key) for key in rows}

    def __call__(self, value: Any) -> list[tuple[Any, Any]]:
        """Return the pair, or nothing."""
        key = self._extractor(value, None)
        row = self._rows.get(_slot(key))
        if row is None:
            if self._kinds and key is not None and type(key) not in self._kinds:
                raise PipelineError(
                    f"lookup: the key is {brief(key, 120)} ({type(key).__name__}), and the table's "
                    "keys are "
                    f"{', '.join(sorted(kind.__name__ for kind in self._kinds))}, which are never "
                    "equal to it. Make them alike: key_by(lambda value: str(value.id))."
                )
            if not self._left:
                return []
        return [(value, own_copy(row))]

    def __repr__(self) -> str:
        return f"Lookup({len(self._rows)} rows, {self._extractor!r})"


def _slot(key: Any) -> Any:
    """Return what two keys share if, and only if, they are equal as the keys of records are."""
    try:
        return encode_key(key)
    except CoderError:  # It cannot be a record's: a date, say. Then its own equality counts.
        return type(key), key


def rows_of(table: Any, key: str | None) -> Mapping[Any, Any]:
    """Return the rows of a table by key.

    Args:
        table: A mapping, or a bounded Spark DataFrame, which is read now.
        key: The column with the key, of a DataFrame.

    Raises:
        PipelineError: It is none, it is too large, or two rows have one key.
    """
    if isinstance(table, Mapping):
        if key is not None:
            raise PipelineError(f"lookup(key={key!r}): a mapping has its keys. Leave it out.")
        rows, more = dict(table), len(table) > LARGEST
    elif hasattr(table, "collect") and hasattr(table, "limit"):
        rows, more = _read(table, key)
    else:
        raise PipelineError(
            f"lookup({table!r}): expected a mapping from key to row, or a bounded DataFrame. For a "
            "stream of rows: enrich(rows.key_by(...))."
        )
    if more:
        raise PipelineError(
            f"lookup: the table has more than {LARGEST:,} rows, and would go to every worker. "
            "Inject it as a stream, whose rows are kept where their keys are: "
            "enrich(p.inject(...).key_by(...))."
        )
    return rows


def _read(table: Any, key: str | None) -> tuple[dict[Any, Any], bool]:
    """Return the rows of a DataFrame by key, and whether there are too many."""
    if getattr(table, "isStreaming", False):
        raise PipelineError(
            "lookup: the table is a streaming DataFrame. Inject it as a stream: "
            "enrich(p.inject(...).key_by(...))."
        )
    if key is None or key not in table.columns:
        raise PipelineError(
            f"lookup(key={key!r}): expected the column that is the table's key, one of "
            f"{', '.join(table.columns)}."
        )
    found: Iterable[Any] = table.limit(LARGEST + 1).collect()
    rows: dict[Any, Any] = {}
    count = 0
    for each in found:
        row = each.asDict(recursive=True)
        if row[key] in rows:
            raise PipelineError(
                f"lookup: two rows of the table have the key {row[key]!r} in {key!r}. Expected one "
                "for each key."
            )
        rows[row[key]] = row
        count += 1
    return rows, count > LARGEST


def pair_with_row(format: Any) -> Any:
    """Return the format of pairs of a stream's values and rows, of which nothing is known."""
    return types.GenericAlias(tuple, (plain_format(format), Any))
