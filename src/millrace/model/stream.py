"""Streams: how a consumer chooses keys, and the stateless steps between streams.

Source: MillWheel, "Keys" (4.2), "Streams" (4.3), figure 5: different consumers extract different
keys from one stream.

Element: what a step may see of a record beside its value, and how a function asks for it.

Source: Dataflow, the 4-tuples (key, value, event time, window) of its model; patent, "Processing
Context API".
"""

from __future__ import annotations

import datetime as dt
import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from millrace.model.coroutines import refuse_parameters, truth
from millrace.model.errors import PipelineError
from millrace.model.expression import Expression, Result, alone, is_expression
from millrace.model.keys import hash_key
from millrace.model.time import (
    DAY,
    EARLIEST_RECORD,
    LATEST_RECORD,
    TimeUnit,
    datetime_of,
    in_microseconds,
    likelier_unit,
    timestamp_us,
)

#: Field of an element -> where it is. Those by which a retraction differs from the pane that it
#: takes back are none: it would get another key.
_FIELDS: Final[dict[str, Callable[[Any], Any]]] = {
    "_window_start": lambda pane: pane.window.start,
    "_window_end": lambda pane: pane.window.end,
    "_pane_index": lambda pane: pane.index,
    "_pane_timing": lambda pane: str(pane.timing),
    "_is_first": lambda pane: pane.is_first,
    "_is_last": lambda pane: pane.is_last,
}

#: The fields of a pane by which ``key_by`` can choose a key, beside those of the value.
OF_A_PANE: Final = tuple(_FIELDS)

#: The field that the key itself is.
KEY: Final = "_key"


class Element(msgspec.Struct, frozen=True):
    """A record, as a step's function sees it that is given to :func:`of_record`.

    Attributes:
        value: Its value.
        key: Its key; None if it has none yet.
        timestamp: Event time in microseconds since the Unix epoch, UTC.
        pane: The :class:`~millrace.model.pane.Pane` that it is, if it came out of a grouping; else
            None. A retraction must become what the pane became that it takes back: do not go by
            ``retraction``, ``production_time`` and ``trigger``, in which the two differ.
    """

    value: Any
    key: Any
    timestamp: int
    pane: Any = None

    @property
    def window(self) -> Any:
        """The :class:`~millrace.model.pane.Window` that it is a result of; None without a pane."""
        return None if self.pane is None else self.pane.window

    @property
    def time(self) -> dt.datetime:
        """Event time as a datetime, UTC."""
        return datetime_of(self.timestamp)


@dataclass(frozen=True, repr=False)
class OfRecord:
    """A function of an :class:`Element`, in the place of one of a value."""

    function: Callable[[Element], Any]

    def __call__(self, element: Element) -> Any:
        """Return what the function returns."""
        return self.function(element)

    def __repr__(self) -> str:
        return f"of_record({getattr(self.function, '__qualname__', self.function)})"


def of_record(function: Callable[[Element], Any]) -> Any:
    """Return a function for a step that sees key, time and pane of a record, beside its value.

    ``map``, ``flat_map``, ``filter``, ``key_by`` and ``with_timestamps`` take it wherever they take
    a function of the value.

    Args:
        function: Of an :class:`Element`: ``lambda r: (r.key, r.window.end, r.value)``.

    Raises:
        PipelineError: It cannot be called.

    >>> import millrace as mr
    >>> p = mr.Pipeline("goals")
    >>> goals = p.inject("goals", format=str).key_by(str.lower).window(mr.FixedWindows(10)).count()
    >>> told = goals.map(mr.of_record(lambda r: f"{r.value} by {r.key} until {r.window.end}"))
    >>> told.to("told")
    WindowedStream('told')
    >>> with mr.testing.Harness(p) as h:
    ...     h.inject("goals", [("Red", 3), ("Red", 4)])
    ...     h.advance_watermark("goals", 10)
    ...     [output.value for output in h.outputs("told")]
    ['2 by red until 10']
    """
    if not callable(function):
        raise PipelineError(f"of_record({function!r}): it cannot be called with a record.")
    refuse_parameters(function, "of_record(", "record")
    return OfRecord(function)


def field_of(pane: Any, key: Any, name: str) -> Any:
    """Return a field of an element by its name.

    Raises:
        KeyError: It has none of that name, or is no pane.
    """
    if name == KEY:
        return key
    if pane is None and name in _FIELDS:
        raise KeyError(f"no field {name!r}: the record came out of no grouping")
    return _FIELDS[name](pane)


class KeyExtractor:
    """Assigns a key to a record, on behalf of one consumer of a stream."""

    #: Whether it goes by more than value and key.
    sees: bool = False

    def of(self, element: Element) -> Any:
        """Return the consumer's key for a record."""
        return self(element.value, element.key)

    def __call__(self, value: Any, key: Any) -> Any:
        """Return the consumer's key for a record with this value and producer's key."""
        raise NotImplementedError


@dataclass(frozen=True)
class ByFields(KeyExtractor):
    """The key is a field of the value, or a tuple of several."""

    fields: tuple[str, ...]

    @functools.cached_property
    def sees(self) -> bool:  # type: ignore[override]  # by its fields
        """Whether one of them may be the key's or the pane's."""
        return any(field == KEY or field in OF_A_PANE for field in self.fields)

    def of(self, element: Element) -> Any:
        """Return the field, or the tuple of fields, of the value or else of key and pane."""
        found = [_field(element.value, field, element) for field in self.fields]
        return found[0] if len(found) == 1 else tuple(found)

    def __call__(self, value: Any, key: Any) -> Any:
        """Return the field, or the tuple of fields."""
        if self.sees:
            return self.of(Element(value, key, 0))
        if len(self.fields) == 1:
            return _field(value, self.fields[0])
        return tuple(_field(value, field) for field in self.fields)

    def __repr__(self) -> str:
        return f"by({', '.join(map(repr, self.fields))})"


@dataclass(frozen=True)
class ByRecord(KeyExtractor):
    """The key is what a function makes of the record: value, key, time and pane."""

    function: OfRecord
    sees = True

    def of(self, element: Element) -> Any:
        """Return what the function makes of it."""
        return self.function(element)

    def __call__(self, value: Any, key: Any) -> Any:
        """Refuse: a consumer's key goes by the value."""
        raise PipelineError(
            f"{self!r} goes by the record, and only a step can: .key_by({self.function!r}), and "
            "mr.by_key() where it is consumed."
        )

    def __repr__(self) -> str:
        return f"by({self.function!r})"


@dataclass(frozen=True)
class ByFunction(KeyExtractor):
    """The key is what a function makes of the value."""

    function: Callable[[Any], Any]

    def __call__(self, value: Any, key: Any) -> Any:
        """Return ``function(value)``."""
        return self.function(value)

    def __repr__(self) -> str:
        return f"by({getattr(self.function, '__qualname__', self.function)})"


@dataclass(frozen=True)
class ByKey(KeyExtractor):
    """The key stays what the producer's was."""

    def __call__(self, value: Any, key: Any) -> Any:
        """Return the producer's key."""
        return key

    def __repr__(self) -> str:
        return "by_key()"


@dataclass(frozen=True)
class Spread(KeyExtractor):
    """Splits each key of another extractor into parts: a hot key's records go to several places.

    The part depends on the record alone, its bytes and its time, so a record that is sent again
    goes where it went before.

    Attributes:
        plain: The other extractor.
        parts: How many parts a key has.
    """

    plain: KeyExtractor
    parts: int

    def part_of(self, encoded: bytes, timestamp_us: int) -> int:
        """Return the part that a record goes to."""
        return hash_key(encoded + timestamp_us.to_bytes(8, "big", signed=True)) % self.parts

    def __call__(self, value: Any, key: Any) -> Any:
        """Return the key that is split."""
        return self.plain(value, key)

    def __repr__(self) -> str:
        return f"{self.plain!r} in {self.parts} parts"


def by(*chosen: str | Callable[[Any], Any]) -> KeyExtractor:
    """Return a key extractor: a field name, several, a function of the value, or an expression.

    A field of the source's DataFrame is extracted, encoded and hashed by Spark itself; a function
    or an expression, ``mr.col("origin").str.to_lowercase()``, needs a Python stage.

    >>> by("origin", "dest")({"origin": "JFK", "dest": "LAX"}, None)
    ('JFK', 'LAX')
    >>> by(str.upper)("jfk", None)
    'JFK'
    """
    if len(chosen) == 1 and isinstance(chosen[0], OfRecord):
        return ByRecord(chosen[0])
    if len(chosen) == 1 and is_expression(chosen[0]):
        return ByFunction(Result((alone(chosen[0]),)))
    if len(chosen) == 1 and callable(chosen[0]):
        refuse_parameters(chosen[0], "by(", "value")
        return ByFunction(chosen[0])
    if not chosen or not all(isinstance(field, str) and field for field in chosen):
        raise PipelineError(
            f"by{chosen!r} chooses no key. Expected field names, by('origin', 'dest'), "
            "or one function of the value, by(lambda value: value.origin)."
        )
    return ByFields(chosen)  # type: ignore[arg-type]  # just checked: every one is a str


def by_key() -> KeyExtractor:
    """Return the extractor that keeps the key of the computation that produced the record."""
    return ByKey()


def _field(value: Any, field: str, element: Element | None = None) -> Any:
    """Return a field of a value; one that it does not have, of the element that it belongs to."""
    own = field in value if isinstance(value, Mapping) else hasattr(value, field)
    if not own and element is not None and (field == KEY or field in OF_A_PANE):
        return field_of(element.pane, element.key, field)
    if isinstance(value, Mapping):
        if not own:
            raise KeyError(f"no field {field!r} in {sorted(value)!r}")
        return value[field]
    return getattr(value, field)


@dataclass(frozen=True)
class TimeSetter:
    """Takes a time from a value, and an integer for one of a unit."""

    choose: KeyExtractor
    unit: TimeUnit | None

    @property
    def sees(self) -> bool:
        """Whether it goes by more than value and key."""
        return self.choose.sees

    def of(self, element: Element) -> Any:
        """Return the time; an integer in microseconds."""
        at = self.choose.of(element)
        return in_microseconds(at, self.unit) if type(at) is int else at

    def __call__(self, value: Any, key: Any) -> Any:
        """Return the time; an integer in microseconds."""
        at = self.choose(value, key)
        return in_microseconds(at, self.unit) if type(at) is int else at

    def __repr__(self) -> str:
        return f"{repr(self.choose)[:-1]}, unit={self.unit!r})"


def _unit_hint(at_us: int, from_us: int) -> str:
    """Return a question to put to whoever has moved a record to January 1970."""
    unit = likelier_unit(at_us, from_us + DAY)
    if unit is None:
        return ""
    return f' Or is it no count of microseconds? with_timestamps(..., unit="{unit}").'


#: Kinds of steps that give records keys.
KEYS: Final = ("key_by", "key_by_record")


@dataclass(frozen=True)
class Step:
    """A stateless step from one stream to another: it joins the stage before it (fusion).

    Attributes:
        source: Stream that it reads.
        target: Stream that it feeds.
        kind: ``map``, ``flat_map``, ``filter``, ``key_by``, ``key_by_record``, which goes by more
            than the value, so that a consumer cannot do it in its place, ``with_timestamps``,
            ``assign``, which makes an element one for each of its windows, or ``to``, which only
            names a stream.
        function: Of the value, or :class:`~millrace.model.stream.OfRecord`; for ``key_by`` and
            ``with_timestamps`` of value and key, if it does not ask to see more; for ``assign`` of
            value, key and timestamp.
        backwards_us: For ``with_timestamps``, how far back it may move a timestamp; else None.
    """

    source: str
    target: str
    kind: str
    function: Callable[..., Any]
    backwards_us: int | None = None

    @property
    def keeps_values(self) -> bool:
        """Whether the output has the format of the input."""
        return self.kind in ("filter", *KEYS, "to", "with_timestamps")

    @property
    def may_change(self) -> bool:
        """Whether its function is the user's and is handed the value, which it may change."""
        return self.kind in ("map", "flat_map", "filter") and not isinstance(
            self.function, Expression
        )

    @property
    def expression(self) -> Expression | None:
        """The expression that it runs over columns; None if it goes record by record."""
        function: Any = self.function
        if self.kind == "key_by" and isinstance(function, ByFunction):
            function = function.function
        return function if isinstance(function, Expression) else None

    @property
    def only_names(self) -> bool:
        """Whether records pass it as they are, but for a key that is in their fields."""
        return self.kind == "to" or (self.kind == "key_by" and isinstance(self.function, ByFields))

    def apply(
        self, value: Any, key: Any, at_us: int, pane: Any = None
    ) -> Iterable[tuple[Any, Any]]:
        """Return the (value, key) pairs that this step makes of one record at a time."""
        if self.kind in ("to", "with_timestamps"):
            return ((value, key),)
        if self.kind in KEYS:
            return ((value, self._chosen(value, key, at_us, pane)),)
        if self.kind == "assign":
            return ((made, key) for made in self.function(value, key, at_us))
        seen = value
        if type(self.function) is OfRecord:
            seen = Element(value, key, at_us, pane)
        if self.kind == "map":
            return ((self.function(seen), key),)
        if self.kind == "filter":
            kept = self.function(seen)
            if kept is not True and kept is not False:
                kept = truth(kept, f"filter on stream {self.source!r}: its function")
            return ((value, key),) if kept else ()
        return ((made, key) for made in self.function(seen))

    def _chosen(self, value: Any, key: Any, at_us: int, pane: Any) -> Any:
        """Return the key or the time that a step gives a record."""
        choose: Any = self.function
        if choose.sees:
            return choose.of(Element(value, key, at_us, pane))
        return choose(value, key)

    def moved(self, value: Any, key: Any, from_us: int, pane: Any = None) -> int:
        """Return the timestamp that ``with_timestamps`` gives a record.

        Raises:
            PipelineError: It is further back than the step said, or out of range.
        """
        at_us = timestamp_us(self._chosen(value, key, from_us, pane))
        if not EARLIEST_RECORD <= at_us <= LATEST_RECORD:
            raise PipelineError(
                f"with_timestamps on stream {self.source!r}: timestamp {at_us} us is before 1970 "
                "or after 2262."
            )
        if self.backwards_us is None or at_us < from_us - self.backwards_us:
            raise PipelineError(
                f"with_timestamps on stream {self.source!r} moved a timestamp back by "
                f"{from_us - at_us} us, from {from_us} to {at_us}; it was declared to move them "
                f"back by {self.backwards_us} us at most. Consumers may have seen a later low "
                'watermark: allow for more, with_timestamps(..., backwards="1 h").'
                + _unit_hint(at_us, from_us)
            )
        return at_us
