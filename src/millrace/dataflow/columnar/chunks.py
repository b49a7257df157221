"""Chunks: what a computation that works on whole bundles is given, and what it leaves behind.

Such a computation keeps no cells: a bundle leaves chunks of bytes, each with the instant when it is
wanted again. In a chunk are the accumulators of many keys and windows, a column for each part of
one. Built-in computations only.

What elements bring to such a grouping is here too: the accumulator of each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from millrace.dataflow.aggregations import VectorFold
from millrace.dataflow.aggregations.fields import KeyFields
from millrace.dataflow.aggregations.vector import Columns, Mask, Positions, Starts, fits
from millrace.dataflow.element_types import Picks, SideBySide, itself
from millrace.dataflow.partials.partial import Partial
from millrace.dataflow.windows.window_fn import Ints, WindowFn
from millrace.model.errors import RAISED, CoderError, brief
from millrace.model.keys import decode_key
from millrace.model.pane import Pane, Window


@dataclass(frozen=True)
class Keyed:
    """The records of a bundle, as columns.

    Attributes:
        keys: The keys, encoded.
        hashes: Of the keys.
        key_of: Of each record, the position of its key; ascending.
        values: Of each record.
        timestamps: Of each record, microseconds.
    """

    keys: Sequence[bytes]
    hashes: npt.NDArray[np.uint64]
    key_of: npt.NDArray[np.int64]
    values: Sequence[Any]
    timestamps: Sequence[int]


class Stored(NamedTuple):
    """A chunk in the store: its row, the instant when it is wanted, and what it says."""

    row: bytes
    at_us: int
    chunk: bytes


@dataclass(frozen=True)
class ColumnarBundle:
    """A bundle of one key interval.

    Attributes:
        records: What arrived; None if nothing did.
        number: Of the commit that it will be.
        arrival_watermark_us: While the records were on their way.
        input_watermark_us: Now that they are here.
        wall_time_us: Of the epoch.
        stored: The chunks wanted until an instant, that included, in that order.
    """

    records: Keyed | None
    number: int
    arrival_watermark_us: int
    input_watermark_us: int
    wall_time_us: int
    stored: Callable[[int], Iterable[Stored]]


@dataclass(frozen=True)
class Emitted:
    """Panes that differ in key and value, and perhaps in window.

    Attributes:
        stream: Where they go.
        keys: Encoded; this and the next by pane.
        hashes: Of the keys.
        values: The results.
        pane: Of all of them, but for the window where those have their own.
        windows: (start, end) of each; None if all have that of the pane.
        timestamps: Event times, microseconds.
    """

    stream: str
    keys: list[bytes]
    hashes: list[int]
    values: Sequence[Any]
    pane: Pane
    windows: list[tuple[int, int]] | None
    timestamps: list[int]


@dataclass
class Updates:
    """Values on a stream, with their panes if they have some.

    Attributes:
        stream: Where they go.
        shared: Whether others have parts of the values that can be changed.
        sure: Whether the values are of the stream's format, as what they were made of was.
        keys: Encoded; this and the others by pane.
        hashes: Of the keys.
        values: The results.
        panes: Each value's; empty if values have none.
        tails: The panes, encoded.
        timestamps: Event times, microseconds.
    """

    stream: str
    shared: bool = True
    sure: bool = False
    keys: list[bytes] = field(default_factory=list)
    hashes: list[int] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)
    panes: list[Pane] = field(default_factory=list)
    tails: list[bytes] = field(default_factory=list)
    timestamps: list[int] = field(default_factory=list)


@dataclass
class Done:
    """What becomes of a bundle.

    Attributes:
        emitted: Panes, in order.
        removed: Rows of chunks that are not needed any more.
        added: Instant -> chunks that are wanted then; after the low watermark.
        refused: Position of a record -> why it was not taken.
        counted: Counters.
    """

    emitted: list[Emitted] = field(default_factory=list)
    removed: list[bytes] = field(default_factory=list)
    added: dict[int, list[bytes]] = field(default_factory=dict)
    refused: dict[int, BaseException] = field(default_factory=dict)
    counted: dict[str, int] = field(default_factory=dict)


class Columnar(Protocol):
    """A computation that works on whole bundles."""

    def run(self, bundle: ColumnarBundle) -> Done:
        """Return what becomes of a bundle. Every chunk that is due must be among the removed."""

    def pending(self, chunks: Iterable[tuple[int, bytes]]) -> Mapping[int, int]:
        """Return how many keys wait for an instant, by instant, each for each window of its own.

        Args:
            chunks: All there are: when each is wanted, and what it says.
        """


#: What the numbers of a column are in a chunk: integers or floats, little-endian.
DTYPES = {"i": np.dtype("<i8"), "f": np.dtype("<f8")}
#: The kind of integers beyond 64 bits, which are text in a chunk: a mean may need their sum.
_WIDE = "w"


@dataclass(frozen=True)
class Accumulators:
    """Accumulators, one a row.

    Their *kinds* say of each column whether its numbers are integers, ``i``, integers beyond 64
    bits, ``w``, or floats, ``f``. In memory a column may have all three, as Python's objects.
    """

    columns: Columns

    def __len__(self) -> int:
        return len(self.columns[0])

    def take(self, chosen: Starts) -> Accumulators:
        """Return those at some positions."""
        return Accumulators(tuple(column[chosen] for column in self.columns))

    def reduced(self, fold: VectorFold, starts: Starts) -> Accumulators:
        """Return those of segments."""
        return Accumulators(fold.reduce(self.columns, starts))

    @classmethod
    def together(cls, several: Sequence[Accumulators]) -> Accumulators:
        """Return several, one after another."""
        if len(several) == 1:
            return several[0]
        columns = []
        for parts in zip(*(each.columns for each in several), strict=True):
            if len({part.dtype.kind for part in parts}) > 1:
                parts = tuple(part.astype(object) for part in parts)
            columns.append(np.concatenate(parts))
        return cls(tuple(columns))

    # -- in a chunk --------------------------------------------------------------------------------

    def by_kinds(self) -> dict[str, Starts]:
        """Return the positions of those of the same kinds."""
        if all(column.dtype.kind in DTYPES for column in self.columns):
            return {"".join(column.dtype.kind for column in self.columns): np.arange(len(self))}
        rows = [list(map(_kind, column.tolist())) for column in self.columns]
        kinds_of = np.array(["".join(row) for row in zip(*rows, strict=True)])
        return {str(kinds): np.flatnonzero(kinds_of == kinds) for kinds in np.unique(kinds_of)}

    def encoded(self, kinds: str) -> list[bytes]:
        """Return the columns as bytes; all rows are of these kinds."""
        return [
            b" ".join(b"%d" % number for number in column.tolist())
            if kind == _WIDE
            else column.astype(DTYPES[kind]).tobytes()
            for kind, column in zip(kinds, self.columns, strict=True)
        ]

    @classmethod
    def decoded(cls, kinds: str, columns: Iterable[bytes]) -> Accumulators:
        """Return what :meth:`encoded` made the columns of."""
        pairs = zip(kinds, columns, strict=True)
        return cls(
            tuple(
                np.array(list(map(int, column.split())), object)
                if kind == _WIDE
                else np.frombuffer(column, DTYPES[kind])
                for kind, column in pairs
            )
        )


def _kind(number: Any) -> str:
    """Return what a number is in a chunk.

    >>> _kind(1.0), _kind(7), _kind(1 << 63)
    ('f', 'i', 'w')
    """
    if type(number) is float:
        return "f"
    return "i" if fits(number) or type(number) is bool else _WIDE


def no_number(part: Any) -> CoderError:
    """Return what to say of a part of an accumulator that no column can hold."""
    return CoderError(
        f"the accumulator cannot be stored: {brief(part, 120)} ({type(part).__name__}) in it is "
        "no int and no float."
    )


def exact() -> CoderError:
    """Return what to say of a Decimal, which a column of 64 bits cannot hold exactly."""
    return CoderError(
        "a Decimal came where the type of the values is not known, and they are kept as columns of "
        "int or float. Choose the value by the name of a field that is declared as Decimal, as in "
        "sum('amount'), or give the stream format=Decimal."
    )


@dataclass(frozen=True)
class PlainGrouping:
    """What is computed, and how its panes are called.

    Attributes:
        fold: Of the grouping.
        pick: Chooses the value to aggregate of an element.
        trigger: The trigger that fires, as text.
        output: Output stream.
        window_fn: Of the grouping; one that assigns columns.
        key_fields: Makes rows of results, which have key and window; None: results are as they are.
    """

    fold: VectorFold
    pick: Callable[[Any], Any]
    trigger: str
    output: str
    window_fn: WindowFn
    key_fields: KeyFields | None = None

    def __repr__(self) -> str:
        return "columns"

    def _results(
        self, keys: Sequence[bytes], windows: Sequence[tuple[int, int]], columns: Columns
    ) -> Sequence[Any]:
        """Return the results of accumulators, of which each has a key and a window."""
        results = self.fold.results(columns)
        if self.key_fields is None:
            return results
        return self.key_fields.rows(list(map(decode_key, keys)), windows, results)

    def _count(self, done: Done, dropped: Ints, lifted: Ints) -> None:
        """Count elements that are dropped, and those that came combined."""
        counts = {"dropped_late": dropped.sum(), "lifted": lifted.sum()}
        done.counted.update({name: int(count) for name, count in counts.items() if count})

    def _pane(self, window: Window, wall_time_us: int) -> Pane:
        """Return the only pane of a window: on time, first and last."""
        return Pane(window, production_time=wall_time_us, percentile=100, trigger=self.trigger)


class Brought(NamedTuple):
    """Elements of one kind.

    Attributes:
        positions: Where they lie among all.
        accumulators: What each brings.
    """

    positions: Positions
    accumulators: Accumulators


def weights(values: Sequence[Any]) -> tuple[npt.NDArray[np.int64], list[int]]:
    """Return how many elements each value stands for, and the positions of the partials."""
    counts = np.ones(len(values), np.int64)
    if Partial not in set(map(type, values)):
        return counts, []
    partials = [n for n, value in enumerate(values) if type(value) is Partial]
    for n in partials:
        counts[n] = values[n].elements
    return counts, partials


def brought(
    fold: VectorFold, pick: Callable[[Any], Any], values: Sequence[Any], judged: Mask
) -> tuple[list[Brought], dict[int, BaseException]]:
    """Return what elements bring, by kinds, and why some bring nothing.

    Args:
        fold: Of the grouping.
        pick: Chooses the value to aggregate of an element.
        values: Elements and partials.
        judged: Of each, whether it is not dropped: of what is, the value does not matter.
    """
    picked, refused = _picked(pick, values)
    parts: dict[str, list[Brought]] = {}
    alone = np.ones(len(picked), dtype=bool)
    own = _no_partials(picked)
    plain = picked if len(own) == len(picked) else [picked[n] for n in own.tolist()]
    for positions, columns in fold.gather(plain):
        alone[own[positions]] = False
        _add(parts, own[positions], Accumulators(columns))
    _one_by_one(fold, picked, np.flatnonzero(alone & judged).tolist(), parts, refused)
    elements = [
        Brought(
            np.concatenate([part.positions for part in those]),
            Accumulators.together([part.accumulators for part in those]),
        )
        for _, those in sorted(parts.items())
    ]
    return elements, refused


def _picked(
    pick: Callable[[Any], Any], values: Sequence[Any]
) -> tuple[Sequence[Any], dict[int, BaseException]]:
    refused: dict[int, BaseException] = {}
    if pick is itself:
        return values, refused
    try:
        if isinstance(pick, Picks) and Partial not in set(map(type, values)):
            return pick.of_all(values), refused
    except RAISED:  # found again below, at its record
        pass
    picked = list[Any]()
    add, left = picked.append, iter(values)
    # What is picked is not picked again: a function may have changed the value.
    while len(picked) < len(values):
        try:
            for value in left:
                add(value if type(value) is Partial else pick(value))
        except RAISED as error:  # a user's function may raise anything
            refused[len(picked)] = error
            add(None)
    return picked, refused


def _no_partials(values: Sequence[Any]) -> Positions:
    """Return where the values lie that are no partials, which most often are all or none."""
    if isinstance(values, SideBySide) or Partial not in set(map(type, values)):
        return np.arange(len(values))
    own = (type(value) is not Partial for value in values)
    return np.flatnonzero(np.fromiter(own, bool, len(values)))


def _one_by_one(
    fold: VectorFold,
    picked: Sequence[Any],
    positions: list[int],
    parts: dict[str, list[Brought]],
    refused: dict[int, BaseException],
) -> None:
    """Add what partials bring, and values that the scalar form has to judge."""
    several: list[int] = []
    rows: list[tuple[Any, ...]] = []
    for n in positions:
        value = picked[n]
        if n in refused:
            continue
        try:
            accumulator = (
                value.accumulator if type(value) is Partial else fold.add(fold.create(), value)
            )
            row = fold.split(accumulator)
            for part in row:
                if type(part) is not int and type(part) is not float:
                    raise exact() if type(part) is Decimal else no_number(part)
        except RAISED as error:  # whatever the value is
            refused[n] = error
            continue
        several.append(n)
        rows.append(row)
    if not rows:
        return
    columns = tuple(np.array(column, dtype=object) for column in zip(*rows, strict=True))
    accumulators, where = Accumulators(columns), np.array(several)
    for kinds, chosen in accumulators.by_kinds().items():
        encoded = accumulators.take(chosen).encoded(kinds)
        _add(parts, where[chosen], Accumulators.decoded(kinds, encoded))


def _add(parts: dict[str, list[Brought]], positions: Positions, made: Accumulators) -> None:
    if len(positions):
        kinds = "".join(column.dtype.kind for column in made.columns)
        parts.setdefault(kinds, []).append(Brought(positions, made))
