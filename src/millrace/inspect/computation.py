"""One computation in a checkpoint: its key intervals, the state of its keys, what is pending.

Cells of a computation: what the checkpoint says that it keeps a key, and how that is read.
"""

from __future__ import annotations

import bisect
import copy
import heapq
import itertools
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from millrace.compile.change.identity import COLUMNS
from millrace.compile.change.schemas import SCALARS, Schema, Shape
from millrace.inspect import interval_state
from millrace.inspect.interval_state import (
    DeliveredIds,
    PendingChunk,
    PendingHold,
    PendingTimer,
    WindowState,
    cell_reader,
)
from millrace.inspect.overview import ComputationOverview, some_time
from millrace.kernel import families, row_codec
from millrace.model.errors import NotKept
from millrace.model.keys import decode_key, encode_key, hash_key
from millrace.model.state import BagState, MapState, SideInput
from millrace.store import View
from millrace.watermark.report import NOTHING_PENDING, Report


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """A cell as a computation declares it.

    Attributes:
        name: Its name.
        kind: ``ValueState``, ``MapState``, ``BagState`` or ``CombiningState``; ``SideInput``: its
            rows are under the key ``"all keys"``.
        format: Schema of its values, as :mod:`millrace.compile.change.schemas` describes them.
    """

    name: str
    kind: str
    format: Schema


class CellReader:
    """The cells of one computation, and what reads their rows.

    Args:
        declared: Name -> what the checkpoint says of the cell.
        numbers: Name -> its number, which rows carry.
        older: The shape of the state, where rows have the one before it.

    Attributes:
        by_name: Name -> cell.
    """

    def __init__(
        self, declared: Mapping[str, Schema], numbers: Mapping[str, int], older: Shape | None = None
    ) -> None:
        migrated = {} if older is None else older.migrated
        formats = {
            name: migrated[numbers[name]].format if numbers[name] in migrated else said["format"]
            for name, said in declared.items()
        }
        self.by_name = {
            name: Cell(name=name, kind=said["cell"], format=formats[name])
            for name, said in sorted(declared.items())
        }
        self._names = {numbers[name]: name for name in declared}
        # Value and combining cells share a row, in this order.
        self._scalars = (
            [n for n in sorted(self._names) if self.by_name[self._names[n]].kind in SCALARS]
            if older is None
            else older.before
        )
        self._readers = {name: cell_reader(cell.format) for name, cell in self.by_name.items()}

    def empty(self) -> dict[str, Any]:
        """Return what a key has of which nothing is kept."""
        empty: dict[str, Any] = {
            MapState.__name__: dict, SideInput.__name__: dict, BagState.__name__: list
        }  # fmt: skip
        return {
            name: empty[cell.kind]() if cell.kind in empty else None
            for name, cell in self.by_name.items()
        }

    def read(self, stored: Iterable[tuple[bytes, bytes]]) -> dict[str, Any]:
        """Return what a key has, by name of the cell.

        Args:
            stored: The rows of values, entries and blocks of one key, each family in its order.

        Returns:
            A value or None; a dict of the entries of a map; a list of the items of a bag.
        """
        state = self.empty()
        for row in (families.unpack(*entry) for entry in stored):
            if isinstance(row, families.ValuesRow):
                parts = families.unpack_values(row.data, len(self._scalars))
                for number, part in zip(self._scalars, parts, strict=True):
                    if part is not None and (name := self._names.get(number)) is not None:
                        state[name] = self._readers[name](part)
            # Of cells that were dropped, rows are left until their interval has the last shape.
            elif isinstance(row, families.EntryRow):
                if (name := self._names.get(row.cell)) is not None:
                    state[name][decode_key(row.entry)] = self._readers[name](row.data)
            elif (
                isinstance(row, families.BlockRow)
                and (name := self._names.get(row.cell)) is not None
            ):
                state[name] += map(self._readers[name], row.items)
        return state


if TYPE_CHECKING:
    from millrace.inspect.checkpoint import Checkpoint

T = TypeVar("T")

#: Rows of one key with their values, and what tells an interval from others.
_Stored = list[tuple[bytes, bytes]]
_Extent = tuple[int, int, int, int, int]

#: The families that hold cells.
_FAMILIES = (families.VALUES, families.MAP, families.BAG)


class Interval(msgspec.Struct, frozen=True, kw_only=True):
    """A key interval after an epoch.

    Attributes:
        id: Its id.
        start: Lowest hash of its keys.
        end: One past the highest.
        commit: Number of its last commit; 0 if it has none.
        chain: That commit's, see :func:`~millrace.store.chain_of`.
        report: What is pending in it; None if it has not reported yet.
    """

    id: int
    start: int
    end: int
    commit: int
    chain: int
    report: Report | None


class KeyState(msgspec.Struct, frozen=True, kw_only=True):
    """What a computation keeps of a key.

    Attributes:
        key: The key; None if it takes more than 159 bytes: rows hold but a digest of such a one.
        hash: Of the key.
        cells: Name of a cell -> its value; the entries of a map; the items of a bag.
    """

    key: Any
    hash: int
    cells: dict[str, Any]


def windows_in(cells: Mapping[str, Any]) -> list[WindowState]:
    """Return the windows of a key of a grouping, of its cells; none of other computations."""
    values = (cell.values() if isinstance(cell, dict) else [cell] for cell in cells.values())
    return [item for item in itertools.chain(*values) if isinstance(item, WindowState)]


class StateDifference(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a key between two epochs.

    Attributes:
        key: The key; None if it takes more than 159 bytes.
        hash: Of the key.
        before: Name of a cell -> its value, after the earlier epoch; None if nothing was kept.
        after: The same after the later one.
    """

    key: Any
    hash: int
    before: dict[str, Any] | None
    after: dict[str, Any] | None


class ComputationInspection:
    """A computation, as its checkpoint was after an epoch.

    It reads a key interval whole when one of its keys is asked for, and remembers the last.

    Attributes:
        name: Its name.
        cells: Name -> cell. Groupings that are kept as columns have none; see :meth:`chunks`.
    """

    def __init__(self, checkpoint: Checkpoint, name: str) -> None:
        self._checkpoint = checkpoint
        self.name = name
        self._known_name = checkpoint.known_name(name)
        declared, numbers = checkpoint.declared(name)["state"], checkpoint.cell_numbers(name)
        self._shape = checkpoint.shape(name)
        self._cells = CellReader(declared, numbers)
        self._older = CellReader(declared, numbers, self._shape)
        self.cells: dict[str, Cell] = self._cells.by_name
        self._intervals = checkpoint.intervals(name)
        self._starts = [interval.start for interval in self._intervals]

    @property
    def as_columns(self) -> bool:
        """Whether it keeps windows as columns, of all keys together: see :meth:`chunks`."""
        return bool(self._checkpoint.declared(self.name)["kept as"] == COLUMNS)

    @property
    def overview(self) -> ComputationOverview:
        """Low watermarks and counters."""
        return self._checkpoint.overview.computations[self.name]

    @property
    def intervals(self) -> list[Interval]:
        """Its key intervals, by hash; none before the first epoch."""
        return list(self._intervals)

    @property
    def commits(self) -> int:
        """Number of its commits since the beginning, over all intervals."""
        return sum(interval.commit for interval in self._intervals)

    @property
    def commits_kept(self) -> int:
        """Number of its commits that are still in the log; the others were collected."""
        return sum(map(len, self._checkpoint.state.commits.numbers(self._known_name).values()))

    @property
    def snapshots_kept(self) -> int:
        """Number of its snapshots that are there, over all intervals."""
        return sum(map(len, self._checkpoint.state.snapshots.numbers(self._known_name).values()))

    @property
    def next_timer(self) -> int | None:
        """Its earliest low-watermark timer, in microseconds; None if there is none."""
        return self._earliest(lambda report: report.low_watermark_timer_us)

    @property
    def next_wall_timer(self) -> int | None:
        """Its earliest wall-clock timer, in microseconds; None if there is none."""
        return self._earliest(lambda report: report.wall_timer_us)

    @property
    def hold(self) -> int | None:
        """Its earliest hold, in microseconds; None if there is none."""
        return self._earliest(lambda report: report.hold_us)

    def get(self, key: Any) -> dict[str, Any]:
        """Return the state of a key, by the names of cells; of ``"all keys"`` also side inputs.

        Returns:
            Cell -> its value; for a map the dict of its entries, for a bag the list of its items. A
            cell that is empty has None, {} or [].

        Raises:
            CoderError: That cannot be a key.
            NotKept: The run has gone on, and what was after this epoch is not kept any more.
        """
        state = self._of_key(key, self._state_of) or self._cells.empty()
        if self._intervals and encode_key(key) == row_codec.ALL_KEYS:
            with self._checkpoint.rows(self.name, self._intervals[0]) as view:
                tables = self._state_of(view, row_codec.ALL_KEYS_ROW)
            state |= {name: table for name, table in tables.items() if table}
        return state

    def scan(self) -> Iterator[KeyState]:
        """Yield every key of which state is kept, with its state, in the order of their hashes.

        Raises:
            NotKept: As :meth:`get`.
        """
        return (self._state_in(key_row, entries) for key_row, entries in self._kept())

    def changes_since(self, earlier: ComputationInspection) -> Iterator[StateDifference]:
        """Yield every key whose state is not what it was, in the order of their hashes.

        Key intervals without a commit in between are not read. Timers and holds are not compared.

        Args:
            earlier: The same computation in the checkpoint as it was after another epoch:
                ``mr.ops.open_checkpoint(path, epoch=40)["Basket"]``.

        Raises:
            NotKept: As :meth:`get`; of either epoch.
        """
        here, there = set(map(_extent, self._intervals)), set(map(_extent, earlier._intervals))
        same = here & there
        before = ((key_row, 0, entries) for key_row, entries in earlier._kept(same))
        after = ((key_row, 1, entries) for key_row, entries in self._kept(same))
        merged = heapq.merge(before, after, key=itemgetter(0, 1))
        for key_row, sides in itertools.groupby(merged, key=itemgetter(0)):
            by_side = {side: entries for _, side, entries in sides}
            old, new = by_side.get(0), by_side.get(1)
            if old == new:
                continue
            was = None if old is None else earlier._state_in(key_row, old)
            now = None if new is None else self._state_in(key_row, new)
            known = was or now
            assert known is not None, "a key comes from one of the two"
            yield StateDifference(
                key=known.key,
                hash=known.hash,
                before=None if was is None else was.cells,
                after=None if now is None else now.cells,
            )

    def windows(self) -> Iterator[tuple[Any, WindowState]]:
        """Yield the key and the state of every window of a grouping that is kept key by key.

        Of one that is kept as columns there are :meth:`chunks`.

        Raises:
            NotKept: As :meth:`get`.
        """
        for state in self.scan():
            yield from ((state.key, window) for window in windows_in(state.cells))

    def timers(self, key: Any = ...) -> Iterator[PendingTimer]:
        """Yield pending timers: of a key by domain and tag; of all, in each interval, as they fire.

        Raises:
            NotKept: As :meth:`get`.
        """
        if key is ...:
            yield from self._each(interval_state.timers)
        else:
            yield from self._of_key(key, lambda *at: list(interval_state.timers_of(*at))) or ()

    def holds(self, key: Any = ...) -> Iterator[PendingHold]:
        """Yield holds: of a key its own and then its timers'; of all, in each interval by time.

        Raises:
            NotKept: As :meth:`get`.
        """
        if key is ...:
            yield from self._each(interval_state.holds)
        else:
            yield from self._of_key(key, lambda *at: list(interval_state.holds_of(*at))) or ()

    def chunks(self) -> Iterator[PendingChunk]:
        """Yield what a grouping that is kept as columns has to do, in each interval in order.

        Raises:
            NotKept: As :meth:`get`.
        """
        return self._each(interval_state.chunks)

    def delivered_ids(self) -> Iterator[DeliveredIds]:
        """Yield what is kept of the source ids of delivered records, in each interval by commit.

        Raises:
            NotKept: As :meth:`get`.
        """
        return self._each(interval_state.delivered_ids)

    def only(self, interval: int) -> ComputationInspection:
        """Return the computation as if it had but one key interval, for who reads them apart.

        Args:
            interval: Which, by its place among :attr:`intervals`.
        """
        narrowed = copy.copy(self)
        narrowed._intervals = self._intervals[interval : interval + 1]
        narrowed._starts = self._starts[interval : interval + 1]
        return narrowed

    def _kept(self, without: Container[_Extent] = ()) -> Iterator[tuple[bytes, _Stored]]:
        """Yield the row of every key, and its rows of cells, but for those of some intervals.

        What stands for all keys is the same in every interval, and comes of the first.
        """
        for interval in self._intervals:
            if _extent(interval) in without:
                continue
            with self._checkpoint.rows(self.name, interval) as view:
                scans = (row_codec.scan(view, family) for family in _FAMILIES)
                merged = heapq.merge(*scans, key=_key_row)
                for key_row, entries in itertools.groupby(merged, key=_key_row):
                    if interval.start == 0 or key_row != row_codec.ALL_KEYS_ROW:
                        yield key_row, list(entries)

    def _state_in(self, key_row: bytes, entries: _Stored) -> KeyState:
        encoded = row_codec.key_in(key_row)
        return KeyState(
            key=None if encoded is None else decode_key(encoded),
            hash=row_codec.hash_in(key_row),
            cells=self._cells_of(key_row).read(entries),
        )

    def _each(self, read: Callable[[View], Iterator[T]]) -> Iterator[T]:
        for interval in self._intervals:
            with self._checkpoint.rows(self.name, interval) as view:
                yield from read(view)

    def _of_key(self, key: Any, read: Callable[[View, bytes], T]) -> T | None:
        """Return something of a key's interval; None before the first epoch."""
        encoded = encode_key(key)
        if not self._intervals:
            return None
        hash = hash_key(encoded)
        place = bisect.bisect_right(self._starts, hash) - 1
        with self._checkpoint.rows(self.name, self._intervals[place]) as view:
            return read(view, row_codec.key_row(hash.to_bytes(row_codec.HASH_BYTES), encoded))

    def _state_of(self, view: View, key_row: bytes) -> dict[str, Any]:
        scans = (row_codec.scan(view, family + key_row) for family in _FAMILIES)
        return self._cells_of(key_row).read(itertools.chain.from_iterable(scans))

    def _cells_of(self, key_row: bytes) -> CellReader:
        """Return what reads the rows of a key, by the shape that its interval has."""
        if not self._shape.version:
            return self._cells
        place = bisect.bisect_right(self._starts, row_codec.hash_in(key_row)) - 1
        interval = self._intervals[place]
        if interval.report is None or not interval.commit:
            return self._cells
        version = interval.report.version
        if version < self._shape.version - 1:
            raise NotKept(
                f"{self.name!r} at that epoch has state from before the last two changes of its "
                "schema, which cannot be decoded any more. Look at a later epoch."
            )
        return self._cells if version == self._shape.version else self._older

    def _earliest(self, instant_of: Callable[[Report], int]) -> int | None:
        reports = [i.report for i in self._intervals if i.report is not None]
        return some_time(min(map(instant_of, [NOTHING_PENDING, *reports])))


def _extent(interval: Interval) -> _Extent:
    """Return what tells an interval, and all that is in it, from another."""
    return interval.start, interval.end, interval.id, interval.commit, interval.chain


def _key_row(entry: tuple[bytes, bytes]) -> bytes:
    return row_codec.key_row_at(entry[0], 1)
