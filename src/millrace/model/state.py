"""Persistent state as a user declares and uses it: cells of one key.

A cell is declared on the class and used on the instance, inside ``process_record`` and
``process_timer``, where it means the current key's cell::

    class WindowCounter(mr.Computation):
        buckets = mr.MapState(int)

        def process_record(self, record):
            second = record.timestamp // mr.SECOND
            self.buckets[second] = self.buckets.get(second, 0) + 1

Each cell takes a type, or a :class:`~millrace.model.coder.Coder` for bytes of the user's own
making. With ``expires="1 h"`` what it keeps is forgotten so long after its last write: by event
time, when the low watermark is there, or with ``domain=mr.WALL_TIME`` by the wall clock. The kernel
gives the declared cells their contents (``windmill/cells/``); here they only know their format, and
refuse use outside of a hook.

Source: MillWheel, "Persistent State" (4.4), figure 9.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any, Generic, NamedTuple, NoReturn, TypeVar

from millrace.model.coder import coder_for, is_immutable, shape_of
from millrace.model.errors import PipelineError
from millrace.model.record import LOW_WATERMARK, TimeDomain
from millrace.model.time import Duration, duration_us

T = TypeVar("T")


class Expiry(NamedTuple):
    """For how long after its last write something is kept, in microseconds, and by which clock."""

    after_us: int
    domain: TimeDomain


class StateDescriptor:
    """A declared cell: name, owner, coder; when what it keeps expires, what it was called."""

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


class ValueState(StateDescriptor, Generic[T]):
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

    def get(self, default: Any = None) -> Any:
        """Return the value, or ``default`` if there is none."""
        self._outside()

    def set(self, value: T | None) -> None:
        """Replace the value."""
        self._outside()

    def clear(self) -> None:
        """Forget the value."""
        self._outside()


class MapState(StateDescriptor, MutableMapping[Any, T], Generic[T]):
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


class BagState(StateDescriptor, Generic[T]):
    """A multiset a key. Adding is a blind write: it reads nothing. So its items do not expire."""

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


class CombiningState(StateDescriptor, Generic[T]):
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
            f"{cell}(expires={expires!r}): what is kept for no time is not kept. Expected more, as "
            '"1 h".'
        )
    return Expiry(after_us, domain)


def _sum(accumulator: Any, item: Any) -> Any:
    return accumulator + item


# The builtins take an iterable; as a fold they take two. `min(a, b)` happens to do both.
_BUILTIN: dict[Any, Callable[[Any, Any], Any]] = {sum: _sum}
