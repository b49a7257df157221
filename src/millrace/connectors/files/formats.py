"""Formats of files: where reading may stop, which pieces are read apart, and what is in one.

Places in a file are bytes from its beginning, whatever its format; a piece goes from one to the
next.

Parquet: rows of a file that others have written, as Arrow has them.
"""

from __future__ import annotations

import codecs
import itertools
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, Final, Protocol
from urllib.parse import unquote

import pyarrow as pa

from millrace.connectors.buckets import BucketPath
from millrace.connectors.files.lines import RowMaker
from millrace.injectors.columns import arrow_schema, column_names, conformed
from millrace.model.errors import InputLost, PipelineError

#: Rows that are decoded at once.
_ROWS: Final = 100_000


def open_parquet(file: BinaryIO) -> Any:
    """Return a ``pyarrow.parquet.ParquetFile``.

    Raises:
        ArrowInvalid: It is none; or ``OSError``.
    """
    # Only those that read Parquet files pay for it.
    import pyarrow.parquet as pq

    return pq.ParquetFile(file, coerce_int96_timestamp_unit="us")


def undamaged(batches: Iterator[pa.RecordBatch], where: str) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a Parquet file; say which it is if it cannot be decoded, and what to do.

    Raises:
        FileNotFoundError: It is gone.
        PipelineError: It is damaged.
    """
    while True:
        try:
            batch = next(batches, None)
        except (FileNotFoundError, pa.ArrowMemoryError):
            raise
        except (pa.ArrowException, OSError) as refused:
            raise PipelineError(
                f"{where} cannot be read: {refused}. Is it damaged? Put it back as it was written, "
                "and start again with the same checkpoint."
            ) from refused
        if batch is None:
            return
        yield batch


def row_batches(
    parquet: Any, columns: Collection[str], where: str, groups: Sequence[int] | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a Parquet file, those of these columns that it has.

    Args:
        parquet: As :func:`open_parquet` returns it.
        columns: Their names.
        where: The file, for messages.
        groups: Numbers of row groups; by default all.

    Raises:
        PipelineError: It is damaged.
    """
    names = [name for name in parquet.schema_arrow.names if name in columns]
    # Spark and Impala write instants as INT96, which says nothing of a time zone.
    leaves = map(parquet.schema.column, range(len(parquet.schema)))
    int96 = [leaf.physical_type == "INT96" for leaf in leaves]
    taken = iter(int96)
    kinds = {field.name: _zoned(field.type, taken) for field in parquet.schema_arrow}
    batches = parquet.iter_batches(_ROWS, groups, names, use_threads=False)
    for batch in undamaged(batches, where):
        if any(int96):
            schema = pa.schema([field.with_type(kinds[field.name]) for field in batch.schema])
            batch = batch.cast(schema)
        yield batch


def _zoned(kind: pa.DataType, int96: Iterator[bool]) -> pa.DataType:
    """Return a column's type with a zone where instants have none.

    Args:
        kind: The type.
        int96: Of each leaf of it, in order, whether it is an INT96; they are taken.
    """
    if isinstance(kind, pa.BaseExtensionType):
        _zoned(kind.storage_type, int96)
        return kind
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_zoned(field.type, int96)) for field in kind])
    if pa.types.is_map(kind):
        key, item = (_zoned(part, int96) for part in (kind.key_type, kind.item_type))
        return pa.map_(key, kind.item_field.with_type(item))
    lists = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    if any(holds(kind) for holds in lists):
        return pa.list_(kind.value_field.with_type(_zoned(kind.value_type, int96)))
    return pa.timestamp("us", "UTC") if next(int96) else kind


#: How a folder is called whose files have null in its column.
_NO_VALUE: Final = "__HIVE_DEFAULT_PARTITION__"
#: How much is read at once while looking for the end of a line.
_BLOCK: Final = 1 << 16
#: Bytes of lines that one task reads. To start a task takes as long as to read a tenth of that.
_PIECE: Final = 8 << 20
#: Bytes of row groups that one task reads at the least: they are many records, packed.
_ROW_GROUPS: Final = 1 << 20
#: Up to so far into a file a refused line is named by its number as well: to count takes a moment.
_COUNTED: Final = 64 << 20
#: How files begin that are no plain text -> what they are.
_NO_LINES: Final = {
    b"\x1f\x8b\x08": "compressed (gzip)",
    b"BZh91AY&SY": "compressed (bzip2)",
    b"\xfd7zXZ\0": "compressed (xz)",
    b"\x28\xb5\x2f\xfd": "compressed (zstd)",
    b"\x04\x22\x4d\x18": "compressed (lz4)",
    b"PK\x03\x04": "an archive (zip)",
    b"PAR1\x15": "a Parquet file",
    codecs.BOM_UTF16_LE: "text in UTF-16",
    codecs.BOM_UTF16_BE: "text in UTF-16",
}
_MAGIC: Final = max(map(len, _NO_LINES))
#: Lines that are decoded at once.
_LINES: Final = 20_000


def folder_columns(name: str, schema: str, where: str) -> dict[str, pa.Scalar]:
    """Return the columns of a schema that a file's folders name, as Hive and Spark write them.

    Args:
        name: Its path in the directory.
        schema: As Spark writes it.
        where: The directory, for messages.

    Raises:
        PipelineError: A folder's value is not of its column's type.

    >>> folder_columns("zone=a%2Fb/1.parquet", "n long, day date, zone string", "")
    {'zone': <pyarrow.StringScalar: 'a/b'>}
    """
    columns, values = arrow_schema(schema), dict[str, pa.Scalar]()
    for folder in name.split("/")[:-1]:
        column, equals, text = map(unquote, folder.partition("="))
        if not equals or column not in columns.names:
            continue
        kind = columns.field(column).type
        value = pa.scalar(None if text == _NO_VALUE else text, pa.string())
        try:
            values[column] = value.cast(kind)
        except pa.ArrowException as refused:
            raise PipelineError(
                f"{where}: the folder {folder!r} says that the column {column!r} is {text!r}, "
                f"which is no {kind}: {refused}. Declare it as string, or rename the folder."
            ) from refused
    return values


class Format(Protocol):
    """How a file is cut and read."""

    def end(self, file: BinaryIO, start: int, room: int, size: int, *, settled: bool) -> int:
        """Return where reading stops that begins at a place: after ``room`` bytes, about.

        Args:
            file: The file.
            start: Where it begins.
            room: How much there is to be read.
            size: Of the file.
            settled: Whether nothing is added to it any more.
        """
        ...

    def pieces(self, path: Path | BucketPath, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the pieces that different tasks may read; always the same."""
        ...

    def read(
        self, path: Path | BucketPath, file: BinaryIO, start: int, end: int
    ) -> Iterator[pa.RecordBatch]:
        """Yield what is in a piece. The file is known to be as it was when it was cut."""
        ...


class Lines:
    """Lines of text.

    Args:
        make: Makes rows of them.
        folders: Columns that a file's folders name, for lines that have nothing for them.
    """

    def __init__(self, make: RowMaker, folders: Mapping[str, pa.Scalar] = MappingProxyType({})):
        self._make = make
        self._folders = folders

    def end(self, file: BinaryIO, start: int, room: int, size: int, *, settled: bool) -> int:
        """Return the end of a line; of the last one, which needs none, in a settled file.

        Raises:
            PipelineError: The file is compressed, or otherwise none of lines.
        """
        if start == 0:
            _refuse_what_has_no_lines(file)
        end = _line_end(file, start, room, size)
        return size if settled and (size <= start + room or end == start) else end

    def pieces(self, path: Path | BucketPath, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield pieces of whole lines."""
        if end - start > 2 * _PIECE:
            with path.open("rb") as file:
                while end - start > 2 * _PIECE:
                    stop = _line_end(file, start, _PIECE, end)
                    if stop == start:
                        break
                    yield start, stop
                    start = stop
        yield start, end

    def read(
        self, path: Path | BucketPath, file: BinaryIO, start: int, end: int
    ) -> Iterator[pa.RecordBatch]:
        """Yield the lines that are not empty, many at a time."""
        file.seek(start)
        data = file.read(end - start)
        if len(data) != end - start:
            raise InputLost(f"{path}: it was truncated while it was read. Put it back as it was.")
        lines = data.splitlines(keepends=True)
        places = itertools.accumulate(map(len, lines), initial=start)
        full = [(line.rstrip(b"\r\n"), at) for line, at in zip(lines, places, strict=False)]
        if start == 0 and full:
            full[0] = full[0][0].removeprefix(codecs.BOM_UTF8), 0
        full = [(line, at) for line, at in full if line]
        place = _Places(path, file, start, lines)
        for first in range(0, len(full), _LINES):
            some = full[first : first + _LINES]
            beside = {name: pa.repeat(value, len(some)) for name, value in self._folders.items()}
            yield self._make.batch([line for line, _ in some], partial(place.of, some), beside)


class ParquetFormat:
    """Row groups of Parquet files, those columns that a schema declares.

    Args:
        schema: As Spark writes it.
        folders: Columns that a file's folders name, for files that have them not.
    """

    def __init__(self, schema: str, folders: Mapping[str, pa.Scalar] = MappingProxyType({})):
        self._schema = schema
        self._folders = folders

    def end(self, file: BinaryIO, start: int, room: int, size: int, *, settled: bool) -> int:
        """Return the end of a row group; a file that is not settled has no footer yet."""
        if not settled or start == size:
            return start
        places = [at for at, _ in _cuts(_open(file, file.name), size) if at > start]
        return max((at for at in places if at <= start + room), default=places[0])

    def pieces(self, path: Path | BucketPath, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield pieces of one row group, or of several small ones."""
        with path.open("rb") as file:
            cuts = _cuts(_open(file, path), file.seek(0, os.SEEK_END))
        places = [start, *(at for at, _ in cuts if start < at <= end)]
        yield from itertools.pairwise(places)

    def read(
        self, path: Path | BucketPath, file: BinaryIO, start: int, end: int
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a piece.

        Raises:
            PipelineError: A column that the schema declares is missing, or of another type.
        """
        parquet = _open(file, path)
        cuts = _cuts(parquet, file.seek(0, os.SEEK_END))
        groups = [n for at, before in cuts if start < at <= end for n in before]
        names = parquet.schema_arrow.names
        folders = {name: value for name, value in self._folders.items() if name not in names}
        for batch in row_batches(parquet, column_names(self._schema), str(path), groups):
            for name, value in folders.items():
                batch = batch.append_column(name, pa.repeat(value, batch.num_rows))
            yield conformed(batch, self._schema, str(path), names)


class _Places:
    """Says where a line stands. Lines are counted only when a first one is asked for."""

    def __init__(
        self, path: Path | BucketPath, file: BinaryIO, start: int, lines: Sequence[bytes]
    ) -> None:
        self._path = path
        self._file = file
        self._start = start
        self._lines = lines
        self._numbers: dict[int, int] | None = None

    def of(self, some: Sequence[tuple[bytes, int]], n: int) -> str:
        """Return the place of the n-th of some lines, each with its first byte."""
        at = some[n][1]
        if self._start > _COUNTED:
            return f"{self._path}, byte {at}"
        if self._numbers is None:
            self._file.seek(0)
            before = len(self._file.read(self._start).splitlines())
            places = itertools.accumulate(map(len, self._lines), initial=self._start)
            self._numbers = {at: n for n, at in enumerate(places, before + 1)}
        return f"{self._path}, line {self._numbers[at]}, byte {at}"


def _refuse_what_has_no_lines(file: BinaryIO) -> None:
    file.seek(0)
    begin = file.read(_MAGIC)
    kind = next((kind for magic, kind in _NO_LINES.items() if begin.startswith(magic)), None)
    if kind is not None:
        raise PipelineError(
            f"{file.name} is {kind}, and lines are read of plain UTF-8 text. Write it as that "
            "under another name, and pass over this one with pattern=, or remove it."
        )


def _open(file: BinaryIO, path: Any) -> Any:
    try:
        return open_parquet(file)
    except (pa.ArrowInvalid, OSError) as refused:
        raise PipelineError(
            f"{path} is not a Parquet file: {refused}. Is it still being written? Write it under a "
            "name that begins with '_', then rename it. If it is of another format, say so: "
            'Files(format="json").'
        ) from refused


def _cuts(parquet: Any, size: int) -> list[tuple[int, list[int]]]:
    """Return the places where a Parquet file may be cut, and the row groups before each."""
    metadata, cuts, groups, begun = parquet.metadata, list[tuple[int, list[int]]](), list[int](), 0
    for n in range(metadata.num_row_groups):
        group = metadata.row_group(n)
        at = min(
            place
            for column in map(group.column, range(group.num_columns))
            for place in (column.dictionary_page_offset, column.data_page_offset)
            if place
        )
        if groups and at - begun >= _ROW_GROUPS:
            cuts.append((at, groups))
            groups, begun = [], at
        groups.append(n)
    return [*cuts, (size, groups)]


def _line_end(file: BinaryIO, start: int, room: int, size: int) -> int:
    """Return where the last whole line ends that begins within ``room``; ``start`` if none ends."""
    at = min(start + room, size)
    while at > start:
        begin = max(start, at - _BLOCK)
        file.seek(begin)
        line_break = file.read(at - begin).rfind(b"\n")
        if line_break >= 0:
            return begin + line_break + 1
        at = begin
    at = min(start + room, size)
    file.seek(at)
    while block := file.read(_BLOCK):  # one line that is longer than the room there is
        line_break = block.find(b"\n")
        if line_break >= 0:
            return at + line_break + 1
        at += len(block)
    return start
