"""Element: what a step may see of a record beside its value, and how a function asks for it.

Source: Dataflow, the 4-tuples (key, value, event time, window) of its model; patent, "Processing
Context API".
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from millrace.model.errors import PipelineError
from millrace.model.time import datetime_of

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
