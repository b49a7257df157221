"""Persistent state as a user declares and uses it: cells of one key.

A cell is declared on the class and used on the instance, inside ``process_record`` and
``process_timer``, where it means the current key's cell::

    class WindowCounter(mr.Computation):
        buckets = mr.MapState(int)

        def process_record(self, record):
            second = record.timestamp // mr.SECOND
            self.buckets[second] = self.buckets.get(second, 0) + 1

Each cell takes a type, or a :class:`~millrace.model.coder.Coder` for an encoding of the user's own.
With ``expires="1 h"`` its content is deleted an hour after the last write: in event time, when the
low watermark has passed, or with ``domain=mr.WALL_TIME`` by the wall clock. The kernel binds the
declared cells to their contents (``kernel/cells.py``); here they only know their format, and refuse
use outside of a hook.

Source: MillWheel, "Persistent State" (4.4), figure 9.

SideInput: a small table, filled by a stream, that every key of a computation can look into.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any, Final, Generic, NamedTuple, NoReturn, TypeVar, overload

from millrace.model.coder import coder_for, is_immutable, shape_of
from millrace.model.coroutines import refuse_parameters
from millrace.model.errors import PipelineError
from millrace.model.record import LOW_WATERMARK, TimeDomain
from millrace.model.stream import KeyExtractor, by, by_key
from millrace.model.time import Duration, duration_us

T = TypeVar("T")
Default = TypeVar("Default")


class Expiry(NamedTuple):
    """For how long after its last write something is kept, in microseconds, and by which clock."""

    after_us: int
    domain: TimeDomain


class StateDescriptor(Generic[T]):
    """A declared cell: its name, owner, coder, expiry and earlier name.

    A type checker infers the type of the content from a class: ``ValueState(int)`` is a
    ``ValueState[int]``. It cannot infer it from a coder or a union: annotate the cell.
    """

    @overload
    def __init__(
        self,
        format: type[T],
        *,
        expires: Duration | None = None,
        domain: TimeDomain = LOW_WATERMARK,
        was: str | None = None,
    ) -> None: ...

    @overload
    def __init__(
        self: StateDescriptor[Any],
        format: Any,
        *,
        expires: Duration | None = None,
        domain: TimeDomain = LOW_WATERMARK,
        was: str | None = None,
    ) -> None: ...

    def __init__(
        self,
        format: Any,
        *,
        expires: Duration | None = None,
        domain: TimeDomain = LOW_WATERMARK,
        was: str | None = None,
    ) -> None:
        self.coder = coder_for(format)
        self.was = was
        self.expires = _expiry(type(self).__name__, expires, domain)
        self.immutable = is_immutable(self.coder)
        self.shape = shape_of(self.coder)
        self.name = "?"
        self.owner = "?"

    def __set_name__(self, owner: type, name: str) -> None:
        self.name, self.owner = name, owner.__name__

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.coder!r})"

    def _outside(self) -> NoReturn:
        raise PipelineError(
            f"{self.owner}.{self.name} was used outside of process_record and process_timer. "
            "State belongs to one key, and only there a key is current."
        )


class ValueState(StateDescriptor[T]):
    """One value a key. ``None`` means empty.

    A value changed in place (a list, a dict, a Struct) is noticed and persisted.

    Args:
        format: Type or coder.
        expires: For how long after it was last written the value is kept: by event time, that of
            the record or timer at hand, until the low watermark is there. By default for ever. To
            get a value that can be changed in place counts as writing it.
        domain: ``mr.WALL_TIME`` for the wall clock instead.
        was: The name that the cell had in earlier versions of the program, whose state it keeps.
    """

    @overload
    def get(self) -> T | None: ...

    @overload
    def get(self, default: T) -> T: ...

    @overload
    def get(self, default: Default) -> T | Default: ...

    def get(self, default: Any = None) -> Any:
        """Return the value, or ``default`` if there is none."""
        self._outside()

    def set(self, value: T | None) -> None:
        """Replace the value."""
        self._outside()

    def clear(self) -> None:
        """Forget the value."""
        self._outside()


class MapState(StateDescriptor[T], MutableMapping[Any, T]):
    """A map a key. An entry is read and written without touching the others.

    Entry keys are what record keys are: str, int, float, bytes, bool, or tuples of those and of
    None, and are the same by the same rule. Iteration is in their order: numbers by size, strs by
    code point, tuples item by item. Between types there is an order too, always the same. With
    ``expires=`` each entry expires alone, see :class:`ValueState`.
    """

    __hash__ = StateDescriptor.__hash__

    def __getitem__(self, entry: Any) -> T:
        self._outside()

    def __setitem__(self, entry: Any, value: T) -> None:
        self._outside()

    def __delitem__(self, entry: Any) -> None:
        self._outside()

    def __iter__(self) -> Iterator[Any]:
        self._outside()

    def __len__(self) -> int:
        """Return the number of entries; reads them all (in the store's order, not into memory)."""
        self._outside()

    def between(
        self, start: Any = None, stop: Any = None, *, prefix: tuple[Any, ...] | None = None
    ) -> Iterator[Any]:
        """Iterate over the keys of the entries from ``start`` to before ``stop``, in order.

        It costs what it finds, however many entries there are: with times as entries, what was
        before some time is found, and removed, without looking at the rest.

        Args:
            start: The first key, present or not; None: from the beginning.
            stop: The first that is no longer wanted; None: to the end.
            prefix: Only keys that are tuples and begin with these items:
                ``between(prefix=("tea",))`` has ``("tea",)`` and ``("tea", 5)``.
        """
        self._outside()

    def __eq__(self, other: object) -> bool:
        return self is other


class BagState(StateDescriptor[T]):
    """A multiset a key. Adding is a blind write: it reads nothing. So its items do not expire."""

    @overload
    def __init__(self, format: type[T], *, was: str | None = None) -> None: ...

    @overload
    def __init__(self: BagState[Any], format: Any, *, was: str | None = None) -> None: ...

    def __init__(self, format: Any, *, was: str | None = None) -> None:
        super().__init__(format, was=was)

    def add(self, item: T) -> None:
        """Add one item."""
        self._outside()

    def __iter__(self) -> Iterator[T]:
        """Iterate over the items in the order they were added, a block at a time."""
        self._outside()

    def clear(self) -> None:
        """Forget all items."""
        self._outside()


class CombiningState(StateDescriptor[T]):
    """An accumulator a key, into which items are folded.

    Args:
        format: Type or coder of the accumulator.
        add: ``add(accumulator, item) -> accumulator``. The builtins ``sum``, ``min`` and ``max``
            stand for themselves.
        initial: The accumulator before the first item; None if the first item itself is it.
        expires: See :class:`ValueState`.
        domain: Likewise.
        was: Likewise.

    >>> CombiningState(int, max).fold(CombiningState(int, max).fold(None, 3), 5)
    5
    """

    @overload
    def __init__(
        self,
        format: type[T],
        add: Callable[[Any, Any], Any] = sum,
        initial: Any = None,
        *,
        expires: Duration | None = None,
        domain: TimeDomain = LOW_WATERMARK,
        was: str | None = None,
    ) -> None: ...

    @overload
    def __init__(
        self: CombiningState[Any],
        format: Any,
        add: Callable[[Any, Any], Any] = sum,
        initial: Any = None,
        *,
        expires: Duration | None = None,
        domain: TimeDomain = LOW_WATERMARK,
        was: str | None = None,
    ) -> None: ...

    def __init__(
        self,
        format: Any,
        add: Callable[[Any, Any], Any] = sum,
        initial: Any = None,
        *,
        expires: Duration | None = None,
        domain: TimeDomain = LOW_WATERMARK,
        was: str | None = None,
    ) -> None:
        super().__init__(format, expires=expires, domain=domain, was=was)
        if not callable(add):
            raise PipelineError(
                f"CombiningState(add={add!r}): it cannot be called. Expected sum, min, max, or a "
                "function (accumulator, item) -> accumulator."
            )
        if add not in _BUILTIN:
            refuse_parameters(add, "CombiningState(add=", "accumulator", "item")
        self.function = add
        self._add = _BUILTIN.get(add, add)
        self.initial = initial

    def fold(self, accumulator: Any, item: Any) -> Any:
        """Return the accumulator with one more item in it; the first item starts it."""
        if accumulator is None:
            if self.initial is None:
                return item
            # A copy: folding in place must not reach the next key's beginning.
            accumulator = copy.deepcopy(self.initial)
        return self._add(accumulator, item)

    def add(self, item: Any) -> None:
        """Fold one item into the accumulator."""
        self._outside()

    @overload
    def get(self) -> T | None: ...

    @overload
    def get(self, default: T) -> T: ...

    @overload
    def get(self, default: Default) -> T | Default: ...

    def get(self, default: Any = None) -> Any:
        """Return the accumulator, or ``default`` if nothing was added."""
        self._outside()

    def clear(self) -> None:
        """Forget the accumulator."""
        self._outside()


def _expiry(cell: str, expires: Duration | None, domain: TimeDomain) -> Expiry | None:
    """Return when what a cell keeps expires; None: never."""
    if domain not in tuple(TimeDomain):
        raise PipelineError(
            f"{cell}(domain={domain!r}): expected mr.LOW_WATERMARK or mr.WALL_TIME."
        )
    if expires is None:
        if domain is not LOW_WATERMARK:
            raise PipelineError(
                f'{cell}(domain={domain!r}): nothing expires. Say when, expires="1 h", or leave '
                "domain out."
            )
        return None
    after_us = duration_us(expires, f"{cell}(expires)")
    if after_us == 0:
        raise PipelineError(
            f"{cell}(expires={expires!r}): state that expires at once is never seen. Expected a "
            'longer time, such as "1 h".'
        )
    return Expiry(after_us, domain)


def _sum(accumulator: Any, item: Any) -> Any:
    return accumulator + item


# The builtins take an iterable; as a fold they take two. `min(a, b)` happens to do both.
_BUILTIN: dict[Any, Callable[[Any, Any], Any]] = {sum: _sum}


#: Bytes of a table in each key interval. What is larger is a stream to be joined, and no table.
_LIMIT: Final = 64 << 20


class SideInput(StateDescriptor[T], Mapping[Any, T]):
    """A mapping from key to row, of a slowly changing stream; the same for all keys. Read only.

    It is declared on a computation's class, like a cell. Each row of the stream is sent to every
    key interval. It is valid from its timestamp until the next row of its key; None instead of a
    row ends the one before. A retraction removes an equal row. A row must not be changed in place.

    With ``waits=True`` a record waits until the low watermark of the computation has passed its
    timestamp; that is the lower one of the inputs' and of this stream's. The record then sees the
    rows that are valid at its time, in whichever order they arrived. Records and timers of a key
    are processed in order of event time. A late record does not wait: like a timer of the wall
    clock, it sees the table at the low watermark. With ``waits=False`` no record waits for the
    stream: each sees the newest rows that have arrived.

    In a batch all rows have arrived before the first record.

    Args:
        stream: The stream of rows, by name; it is no other input of the computation.
        key: A row's key in the table: a field, or a function of the row, as :func:`millrace.by`
            takes them. By default the key that the stream has.
        waits: Whether records wait for the rows of their time.
        limit: How many bytes the table may have in a key interval, keys left out, with the rows
            before the low watermark left out that others have replaced. A row beyond is refused.

    Source: docs/design/2026-11-22-side-inputs.md; Dataflow's side inputs.

    >>> import millrace as mr
    >>> class Convert(mr.Computation):
    ...     inputs = {"sales": mr.by("shop")}
    ...     outputs = {"euros": float}
    ...     rates = mr.SideInput("rates", "currency")
    ...
    ...     def process_record(self, record):
    ...         rate = self.rates[record.value["currency"]]
    ...         self.produce("euros", record.value["amount"] * rate["euros"])
    >>> p = mr.Pipeline("convert")
    >>> sales, rates = p.inject("sales", format=dict), p.inject("rates", format=dict)
    >>> p.add(Convert)
    >>> with mr.testing.Harness(p) as h:
    ...     h.inject("sales", [({"shop": "a", "amount": 10, "currency": "USD"}, 15)])
    ...     h.inject(
    ...         "rates", [({"currency": "USD", "euros": e}, at) for e, at in ((0.9, 0), (0.8, 20))]
    ...     )
    ...     for stream in ("sales", "rates"):
    ...         h.advance_watermark(stream, 30)
    ...     [output.value for output in h.outputs("euros")]
    [9.0]
    """

    __hash__ = StateDescriptor.__hash__

    def __init__(
        self,
        stream: str,
        key: str | Callable[[Any], Any] | KeyExtractor | None = None,
        *,
        waits: bool = True,
        limit: int = _LIMIT,
    ) -> None:
        super().__init__(Any)  # the stream's format says more, when the pipeline is built
        if not isinstance(stream, str) or not stream:
            raise PipelineError(
                f'SideInput({stream!r}): expected the name of a stream, such as "rates". A table '
                "that does not change is a dict in an attribute of the class, or "
                "stream.lookup(table)."
            )
        if type(limit) is not int or limit < 1:
            raise PipelineError(
                f"SideInput({stream!r}, limit={limit!r}): expected how many bytes the table may "
                "have in a key interval, an int above zero."
            )
        self.stream = stream
        self.extractor = (
            by_key() if key is None else key if isinstance(key, KeyExtractor) else by(key)
        )
        self.waits = waits
        self.limit = limit
        #: How a row is kept, and read again; set when the pipeline is built.
        self.forms: tuple[Callable[[Any], Any], Callable[[Any], Any]] = (_as_is, _as_is)

    def __repr__(self) -> str:
        return f"SideInput({self.stream!r}, {self.extractor!r}, waits={self.waits})"

    def __getitem__(self, key: Any) -> T:
        """Return the row of a key; KeyError if there is none."""
        self._outside()

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the keys that have a row, in the order of their encoding."""
        self._outside()

    def __len__(self) -> int:
        """Return how many keys have a row; reads them all."""
        self._outside()

    def __eq__(self, other: object) -> bool:
        return self is other


def _as_is(row: Any) -> Any:
    return row
