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

#: Of all files of a task together: rows are kept until there are so many bytes of them.
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

    >>> plain, parted = staged_files([b"a.parquet", b'[["b.parquet", {"day": null}]]'])
    >>> plain, parted.partition
    (StagedFile(name='a.parquet', partition={}), {'day': None})
    """
    files = list[StagedFile]()
    for receipt in receipts:
        if receipt.startswith(b"["):
            files += [StagedFile(*file) for file in json.loads(receipt)]
        else:
            files.append(StagedFile(receipt.decode(), {}))
    return files


def not_partitions(parts: Sequence[PartitionField], schema: pa.Schema) -> str:
    """Return why rows cannot be parted; empty if they can.

    Args:
        parts: By what; a time's part is of a time.
        schema: Of the rows.
    """
    for name, unit in parts:
        if name not in schema.names:
            return f"the records have no column {name!r} to be parted by. They have {schema.names}."
        kind = schema.field(name).type
        if not unit and not any(is_one(kind) for is_one in _KINDS):
            return (
                f"records cannot be parted by {name!r}, which is {kind}. Expected text, an "
                "integer, a boolean or a date."
            )
    return ""


_KINDS: Final = (
    pa.types.is_string, pa.types.is_large_string, pa.types.is_integer, pa.types.is_boolean,
    pa.types.is_date32,
)  # fmt: skip


@dataclass(frozen=True)
class PartitionedWriter:
    """Writes a sink's rows of a task to a file for each partition.

    Attributes:
        files: Begins each.
        parts: By which rows are parted.
        whole: Whether the files have all columns.
    """

    files: TaskWriter
    parts: tuple[PartitionField, ...]
    whole: bool

    def begin(self, epoch: int, task: int) -> PartitionedFiles:
        """Return the files of an attempt at a task."""

        def begin() -> ParquetFile:
            file = self.files.begin(epoch, task)
            assert isinstance(file, ParquetFile), "it writes Parquet"
            return file

        return PartitionedFiles(begin, self.parts, whole=self.whole)


class PartitionedFiles:
    """Files under way, one for each partition.

    Args:
        begin: Begins a file.
        parts: By which rows are parted.
        whole: Whether the files have all columns.
    """

    def __init__(
        self, begin: Callable[[], ParquetFile], parts: Sequence[PartitionField], *, whole: bool
    ) -> None:
        self._begin = begin
        self._parts = parts
        self._whole = whole
        self._files: dict[tuple[str | None, ...], ParquetFile] = {}

    def write(self, rows: pa.RecordBatch) -> None:
        """Take rows; they may stay in memory for now."""
        for values, part in parts_of(rows, self._parts, whole=self._whole):
            file = self._files.get(values)
            if file is None:
                file = self._files[values] = self._begin()
            file.write(part)
        while sum(file.waiting for file in self._files.values()) > _BYTES:
            max(self._files.values(), key=lambda file: file.waiting).flush()

    def close(self) -> bytes:
        """Return the names of the files and their partitions; they are whole and durable."""
        columns = [] if self._whole else [part.column for part in self._parts]
        named = [
            (file.close().decode(), dict(zip(columns, values, strict=False)))
            for values, file in self._files.items()
        ]
        return json.dumps(named).encode()

    def abort(self) -> None:
        """Remove the files; if the disk refuses that, too, the next publication does."""
        for file in self._files.values():
            file.abort()


def parts_of(
    rows: pa.RecordBatch, parts: Sequence[PartitionField], *, whole: bool
) -> Iterator[tuple[tuple[str | None, ...], pa.RecordBatch]]:
    """Yield the values of each partition, as text, and its rows.

    Args:
        rows: Some rows.
        parts: By which they are parted; see :func:`not_partitions`.
        whole: Whether the rows keep these columns. If they do not, it is as Delta has it: an empty
            text is null.

    >>> rows = pa.record_batch({"day": ["mon", None, "mon"], "n": [1, 2, 3]})
    >>> [
    ...     (values, some.to_pydict())
    ...     for values, some in parts_of(rows, [PartitionField("day")], whole=False)
    ... ]
    [(('mon',), {'n': [1, 3]}), ((None,), {'n': [2]})]
    """
    texts = [
        (pc.floor_temporal(rows.column(name), unit=unit) if unit else rows.column(name)).cast(
            pa.string()
        )
        for name, unit in parts
    ]
    if not whole:
        texts = [pc.if_else(pc.equal(text, ""), None, text) for text in texts]
    keys = list(zip(*(text.to_pylist() for text in texts), strict=True))
    places: dict[tuple[str | None, ...], list[int]] = {}
    for n, values in enumerate(keys):
        places.setdefault(values, []).append(n)
    left_out = set[str]() if whole else {part.column for part in parts}
    own = rows.select([name for name in rows.schema.names if name not in left_out])
    for values, chosen in places.items():
        yield values, own if len(chosen) == len(rows) else own.take(pa.array(chosen, pa.int64()))
