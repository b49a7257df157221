"""ColumnComputation: the class a user derives from to compute over many keys at once.

Source: docs/design/2026-11-28-key-blocks.md.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.model.computation import Computation
from millrace.model.coroutines import refuse_returned
from millrace.model.errors import PipelineError
from millrace.model.expression import column_of, listed
from millrace.model.record import Produced, Record

Ints = npt.NDArray[np.int64]
#: What the only column of values is called that are plain, and have no fields.
PLAIN: Final = "_value"
#: What can be a column: Arrow's, NumPy's, or a list.
Column = Any


@dataclass(frozen=True)
class BlockSchema:
    """The types of keys, values and results in the blocks of a computation.

    Attributes:
        title: What messages call the computation.
        fields: Field of its records -> the type of the column.
        cells: State cell -> the type of the column.
        outputs: Output stream -> class of its values; None where they are as columns have them.
    """

    title: str
    fields: Mapping[str, pa.DataType]
    cells: Mapping[str, pa.DataType]
    outputs: Mapping[str, type | None]


class BlockProduction(NamedTuple):
    """Values that a block has produced to a stream.

    Attributes:
        stream: The stream.
        values: The values.
        key_of: Of each, the position of its key in the block.
        timestamps: Of each, microseconds.
    """

    stream: str
    values: list[Any]
    key_of: Ints
    timestamps: Ints


@dataclass
class KeyBlock:
    """Records of many keys as columns, and the state of these keys.

    Records of a key stand together, in order of arrival. State and productions take
    effect when the hook returns, and none of them if it raises.

    Attributes:
        keys: The keys.
        key_of: Of each record, the position of its key in ``keys``; ascending.
        timestamps: Of each record, microseconds.
        late: Of each record, whether it is late.
        values: Of each record, as ``process_record`` would get it.
        low_watermark: Of the input, in microseconds, while the records were on their way.
        wall_time: Wall-clock time of the epoch in microseconds; the same on every retry.
        state: A table with a row for each key and a column for each cell; null: the key has none.
    """

    keys: Sequence[Any]
    key_of: Ints
    timestamps: Ints
    late: npt.NDArray[np.bool_]
    values: Sequence[Any]
    low_watermark: int
    wall_time: int
    state: pa.Table
    _schema: BlockSchema
    _changed: dict[str, list[Any]] = field(default_factory=dict)
    _produced: list[BlockProduction] = field(default_factory=list)

    def __len__(self) -> int:
        """Return how many records it has."""
        return len(self.key_of)

    def __repr__(self) -> str:
        return f"KeyBlock({len(self)} records of {len(self.keys)} keys)"

    @functools.cached_property
    def records(self) -> pa.Table:
        """A table with a row for each record and a column for each field."""
        return pa.table(
            {
                name: column_of([_field(value, name) for value in self.values], kind)
                for name, kind in self._schema.fields.items()
            }
        )

    @property
    def starts(self) -> Ints:
        """Of each key, the position of its first record, for ``np.add.reduceat`` and its like."""
        return np.searchsorted(self.key_of, np.arange(len(self.keys)))

    def set_state(self, **cells: Column) -> None:
        """Replace the state of the keys.

        Args:
            **cells: Cell -> a column with a value for each key; null: the key has none any more.

        Raises:
            PipelineError: The computation has no such cell, or the column does not fit.
        """
        for name, column in cells.items():
            if (kind := self._schema.cells.get(name)) is None:
                raise PipelineError(
                    f"{self._schema.title}: set_state({name}=...) names no cell of it. It has: "
                    f"{', '.join(self._schema.cells) or 'none'}."
                )
            where = f"{self._schema.title}: set_state({name}=...)"
            array = _array(column, kind, where)
            _fits(len(array), len(self.keys), "keys", where)
            self._changed[name] = listed(array)

    def produce(
        self,
        stream: str,
        columns: Mapping[str, Column] | pa.Table | Column,
        *,
        key_of: Column | None = None,
        timestamps: Column | None = None,
    ) -> None:
        """Send values to one of the computation's output streams.

        Args:
            stream: One of ``outputs``.
            columns: A table, or columns by name: the fields of the values. Or one column: the
                values themselves.
            key_of: Of each value, the position of its key in ``keys``. By default there is a value
                for each record, with that record's key.
            timestamps: Of each value, microseconds or instants, of NumPy in UTC. By default that of
                the record; with ``key_of`` that of the key's newest record in the block.

        Raises:
            PipelineError: The columns are not as long as they must be, or no times, or no
                positions.
        """
        where = f"{self._schema.title}: produce({stream!r}, ...)"
        values = self._values(stream, columns, where)
        if key_of is None:
            _fits(len(values), len(self), "records", where)
            positions = self.key_of
        else:
            positions = _integers(key_of, f"{where}, key_of")
            _fits(len(positions), len(values), "values", f"{where}, key_of")
            if len(positions) and not 0 <= positions.min() <= positions.max() < len(self.keys):
                raise PipelineError(
                    f"{where}: key_of has positions from {positions.min()} to {positions.max()}. "
                    f"Expected positions of the block's {len(self.keys)} keys, counted from 0."
                )
        if timestamps is not None:
            at_us = _times_us(timestamps, f"{where}, timestamps")
            _fits(len(at_us), len(values), "values", f"{where}, timestamps")
        elif key_of is None:
            at_us = self.timestamps
        else:
            at_us = np.maximum.reduceat(self.timestamps, self.starts)[positions]
        self._produced.append(BlockProduction(stream, values, positions, at_us))

    def _values(self, stream: str, columns: Any, where: str) -> list[Any]:
        """Return columns as the values of a stream."""
        if isinstance(columns, pa.Table):
            columns = dict(zip(columns.column_names, columns.columns, strict=True))
        if not isinstance(columns, Mapping):
            return listed(_array(columns, None, where))
        if not columns:
            raise PipelineError(f"{where}: there are no columns, so it has no values.")
        lists = {name: listed(_array(column, None, where)) for name, column in columns.items()}
        lengths = {name: len(one) for name, one in lists.items()}
        if len(set(lengths.values())) > 1:
            raise PipelineError(f"{where}: columns of one length were expected, not {lengths}.")
        rows = [dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True)]
        kind = self._schema.outputs.get(stream)
        if kind is None:
            return rows
        try:
            return [kind(**row) for row in rows]
        except TypeError as refused:
            raise PipelineError(
                f"{where}: {kind.__name__} cannot be made of the columns {', '.join(lists)}: "
                f"{refused}."
            ) from None

    @property
    def changed(self) -> Mapping[str, list[Any]]:
        """Cell -> what its state shall be, by key; cells that stay as they are, are left out."""
        return self._changed

    @property
    def produced(self) -> Sequence[BlockProduction]:
        """What was produced, in order."""
        return self._produced


class ColumnComputation(Computation[Produced]):
    """A computation over the records of many keys at once, as columns.

    It has one hook::

        class Spend(mr.ColumnComputation):
            inputs = {"payments": mr.by("card")}
            outputs = {"spent": Spent}
            total = mr.ValueState(float)

            def process_batch(self, block):
                before = block.state["total"].fill_null(0.0).to_numpy()
                amounts = block.records["amount"].to_numpy()
                sums = before + np.add.reduceat(amounts, block.starts)
                block.set_state(total=sums)
                block.produce("spent", {"total": sums}, key_of=np.arange(len(block.keys)))

    The guarantees are those of every computation. The hook must give the same however the records
    of a key are cut into blocks: a record may come alone. It has no timers and no holds, and of
    state ``mr.ValueState`` of bool, int, float, str, bytes, datetime and date.
    """

    #: Made when the pipeline is built.
    block_schema: BlockSchema | None = None
    #: Of an instance that no machine binds: cells and calls of one key refuse to be used there.
    hook: Callable[[KeyBlock], Any] | None = None

    def process_batch(self, block: KeyBlock) -> None:
        """React to the records of a block of keys.

        Called for the records of many keys, each record in one block, those of a key in order of
        arrival. An exception fails the epoch. Where the pipeline declares a dead-letter stream, the
        block is cut until the record stands alone, and that record is sent there.

        Args:
            block: The records and the state of their keys.
        """
        raise NotImplementedError(f"{type(self).__name__} has no process_batch")

    def process_record(self, record: Record) -> None:
        """Run the hook over a block of one record: what a block of many must come to."""
        schema = self.schema
        state = {name: [getattr(self, name).get()] for name in schema.cells}
        block = self.block(
            [self.key],
            np.zeros(1, np.int64),
            np.array([record.timestamp]),
            np.array([record.late]),
            [record.value],
            state,
        )
        self.run_hook(block)
        for name, (value,) in block.changed.items():
            if value is None:
                getattr(self, name).clear()
            else:
                getattr(self, name).set(value)
        for stream, values, _, timestamps in block.produced:
            for value, at_us in zip(values, timestamps.tolist(), strict=True):
                self.produce(stream, value, at_us)

    @property
    def schema(self) -> BlockSchema:
        """The types of keys, values and results in its blocks."""
        if self.block_schema is None:
            raise PipelineError(f"{type(self).__name__} is no part of a pipeline that was built.")
        return self.block_schema

    def block(
        self,
        keys: Sequence[Any],
        key_of: Ints,
        timestamps: Ints,
        late: npt.NDArray[np.bool_],
        values: Sequence[Any],
        state: Mapping[str, Sequence[Any]],
    ) -> KeyBlock:
        """Return a block of records, and of the state of their keys by cell."""
        schema = self.schema
        table = {name: column_of(state[name], kind) for name, kind in schema.cells.items()}
        whole = pa.table(table) if table else pa.table({"": pa.nulls(len(keys))}).select([])
        return KeyBlock(
            keys,
            key_of,
            timestamps,
            late,
            values,
            self.low_watermark,
            self.wall_time,
            whole,
            schema,
        )

    def run_hook(self, block: KeyBlock) -> None:
        """Call the hook, with nothing at hand but the block: no key is current."""
        assert self.hook is not None, "it is part of a pipeline that was built"
        returned = self.hook(block)
        if returned is not None:
            refuse_returned(returned, "process_batch")


def _array(column: Column, kind: pa.DataType | None, where: str) -> pa.Array:
    try:
        array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        if isinstance(array, pa.ChunkedArray):
            array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], kind)
        if not isinstance(array, pa.Array):
            inferred = None if isinstance(array, np.ndarray) else _with_loss(array, kind)
            if inferred is None:
                plain = isinstance(array, list | tuple)
                return column_of(array, kind) if plain else pa.array(array, kind)
            array = inferred
        if kind is None or array.type == kind:
            return array
        if pa.types.is_timestamp(kind) and getattr(array.type, "tz", kind.tz) is None:
            raise PipelineError(f"{where}: {array.type} has no time zone, so it names no instants.")
        return array.cast(kind)
    except (TypeError, OverflowError, pa.ArrowInvalid, pa.ArrowNotImplementedError) as refused:
        wanted = "a column" if kind is None else f"a column of {kind}"
        raise PipelineError(f"{where}: {wanted} was expected: {refused}.") from None


def _with_loss(column: Column, kind: pa.DataType | None) -> pa.Array | None:
    """Return a list as what it is, if Arrow makes it a kind with loss; else None.

    It would cut off the fractions of floats, and take datetimes without a zone for such in UTC.
    """
    if kind is not None and pa.types.is_integer(kind):
        inferred = pa.array(column)
        return inferred if pa.types.is_floating(inferred.type) else None
    if kind is not None and pa.types.is_timestamp(kind):
        inferred = pa.array(column)
        return inferred if pa.types.is_timestamp(inferred.type) else None
    return None


def _integers(column: Column, where: str) -> Ints:
    """Return a column of integers; a float that is one counts as one."""
    array = _array(column, None, where)
    if not (pa.types.is_integer(array.type) or pa.types.is_floating(array.type)):
        raise PipelineError(f"{where}: a column of integers was expected, not of {array.type}.")
    return _known(_array(array, pa.int64(), where), where)


def _times_us(column: Column, where: str) -> Ints:
    """Return a column of times in microseconds; of instants, parts below are cut off."""
    array = _array(column, None, where)
    if not pa.types.is_timestamp(array.type):
        return _integers(array, where)
    if array.type.tz is None and not isinstance(column, np.ndarray):
        raise PipelineError(f"{where}: {array.type} has no time zone, so it names no instants.")
    return _known(array.cast(pa.timestamp("us", array.type.tz), safe=False).view(pa.int64()), where)


def _known(array: pa.Array, where: str) -> Ints:
    if array.null_count:
        raise PipelineError(f"{where}: {array.null_count} of its {len(array)} values are null.")
    values: Ints = array.to_numpy()
    return values


def _fits(length: int, wanted: int, what: str, where: str) -> None:
    if length != wanted:
        raise PipelineError(
            f"{where}: it has {length} values, and there are {wanted} {what}. Expected one "
            "for each."
        )


def _field(value: Any, name: str) -> Any:
    if name == PLAIN:
        return value
    return value[name] if isinstance(value, Mapping) else getattr(value, name)
