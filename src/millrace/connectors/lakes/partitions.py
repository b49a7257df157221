"""Partitions of a table: a task writes a file for each.

Delta's log says what they are, so their columns are not in the files. Iceberg's manifests do, too,
and PyIceberg finds it out from the files, which have all columns.

Source: the Delta transaction protocol, "Partition Value Serialization"; the Iceberg table
specification, "Partition Transforms".
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from millrace.connectors.parquet.files import ParquetFile

if TYPE_CHECKING:
    from millrace.runtime.sink_contract import TaskWriter

#: Of all partitions of a task together: rows are kept until there are so many bytes of them.
_BYTES: Final = 64 << 20


class StagedFile(NamedTuple):
    """A file that a task has written.

    Attributes:
        name: In the staging folder.
        partition: Values of the columns that are not in it, as text; None: null.
    """

    name: str
    partition: dict[str, str | None]


class PartitionField(NamedTuple):
    """What rows of one partition have in common.

    Attributes:
        column: Its name.
        unit: ``year``, ``month``, ``day`` or ``hour`` of its time; empty: its value.
    """

    column: str
    unit: str = ""


def staged_files(receipts: Sequence[bytes]) -> list[StagedFile]:
    """Return the files that receipts of tasks name.

    >>> plain, partitioned = staged_files([b"a.parquet", b'[["b.parquet", {"day": null}]]'])
    >>> plain, partitioned.partition
    (StagedFile(name='a.parquet', partition={}), {'day': None})
    """
    files = list[StagedFile]()
    for receipt in receipts:
        if receipt.startswith(b"["):
            files += [StagedFile(*file) for file in json.loads(receipt)]
        else:
            files.append(StagedFile(receipt.decode(), {}))
    return files


def not_partitions(fields: Sequence[PartitionField], schema: pa.Schema) -> str:
    """Return why rows cannot be partitioned; empty if they can.

    Args:
        fields: By what; a time's part is of a time.
        schema: Of the rows.
    """
    for name, unit in fields:
        if name not in schema.names:
            return f"the records have no column {name!r} to partition by. They have {schema.names}."
        kind = schema.field(name).type
        if not unit and not any(is_one(kind) for is_one in _KINDS):
            return (
                f"records cannot be partitioned by {name!r}, which is {kind}. Expected text, an "
                "integer, a boolean or a date."
            )
    return ""


_KINDS: Final = (
    pa.types.is_string, pa.types.is_large_string, pa.types.is_integer, pa.types.is_boolean,
    pa.types.is_date32,
)  # fmt: skip


#: What the rows of a partition have in common, as text; None: null.
_Values = tuple[str | None, ...]


@dataclass(frozen=True)
class PartitionedWriter:
    """Writes a sink's rows of a task to a file for each partition.

    Attributes:
        files: Begins each.
        fields: By which rows are partitioned.
        whole: Whether the files have all columns.
    """

    files: TaskWriter
    fields: tuple[PartitionField, ...]
    whole: bool

    def begin(self, epoch: int, task: int) -> PartitionedFiles:
        """Return the files of an attempt at a task."""

        def begin() -> ParquetFile:
            file = self.files.begin(epoch, task)
            assert isinstance(file, ParquetFile), "it writes Parquet"
            return file

        return PartitionedFiles(begin, self.fields, whole=self.whole)


class PartitionedFiles:
    """Files of partitions. One is written at a time, however many partitions there are.

    Rows are kept in memory. If there are too many of them, the partition that has most gets its
    file at once, and further rows of it another one.

    Args:
        begin: Begins a file.
        fields: By which rows are partitioned.
        whole: Whether the files have all columns.
    """

    def __init__(
        self, begin: Callable[[], ParquetFile], fields: Sequence[PartitionField], *, whole: bool
    ) -> None:
        self._begin = begin
        self._fields = fields
        self._whole = whole
        self._waiting: dict[_Values, list[pa.RecordBatch]] = {}
        self._bytes: dict[_Values, int] = {}
        self._written: list[tuple[ParquetFile, str, _Values]] = []

    def write(self, rows: pa.RecordBatch) -> None:
        """Take rows; they may stay in memory for now."""
        for values, part in by_partition(rows, self._fields, whole=self._whole):
            self._waiting.setdefault(values, []).append(part)
            self._bytes[values] = self._bytes.get(values, 0) + part.nbytes
        while sum(self._bytes.values()) > _BYTES:
            self._write_out(max(self._bytes, key=self._bytes.__getitem__))

    def close(self) -> bytes:
        """Return the names of the files and their partitions; they are whole and durable."""
        for values in list(self._waiting):
            self._write_out(values)
        columns = [] if self._whole else [field.column for field in self._fields]
        named = [
            (name, dict(zip(columns, values, strict=False))) for _, name, values in self._written
        ]
        return json.dumps(named).encode()

    def abort(self) -> None:
        """Remove the files; if the disk refuses that, too, the next publication does."""
        for file, _, _ in self._written:
            file.abort()

    def _write_out(self, values: _Values) -> None:
        """Write the rows of a partition that are in memory to a file of their own."""
        file = self._begin()
        try:
            for rows in self._waiting.pop(values):
                file.write(rows)
            name = file.close().decode()
        except BaseException:
            file.abort()
            raise
        del self._bytes[values]
        self._written.append((file, name, values))


def by_partition(
    rows: pa.RecordBatch, fields: Sequence[PartitionField], *, whole: bool
) -> Iterator[tuple[_Values, pa.RecordBatch]]:
    """Yield the values of each partition, as text, and its rows.

    Args:
        rows: Some rows.
        fields: By which they are partitioned; see :func:`not_partitions`.
        whole: Whether the rows keep these columns. If they do not, it is as Delta has it: an empty
            text is null.

    >>> rows = pa.record_batch({"day": ["mon", None, "mon"], "n": [1, 2, 3]})
    >>> [
    ...     (values, some.to_pydict())
    ...     for values, some in by_partition(rows, [PartitionField("day")], whole=False)
    ... ]
    [(('mon',), {'n': [1, 3]}), ((None,), {'n': [2]})]
    """
    texts = [
        (pc.floor_temporal(rows.column(name), unit=unit) if unit else rows.column(name)).cast(
            pa.string()
        )
        for name, unit in fields
    ]
    if not whole:
        texts = [pc.if_else(pc.equal(text, ""), None, text) for text in texts]
    keys = list(zip(*(text.to_pylist() for text in texts), strict=True))
    places: dict[_Values, list[int]] = {}
    for n, values in enumerate(keys):
        places.setdefault(values, []).append(n)
    left_out = set[str]() if whole else {field.column for field in fields}
    own = rows.select([name for name in rows.schema.names if name not in left_out])
    for values, chosen in places.items():
        yield values, own if len(chosen) == len(rows) else own.take(pa.array(chosen, pa.int64()))
