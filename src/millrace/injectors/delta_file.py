"""A data file of a Delta table, and its rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pyarrow as pa

from millrace.injectors.columns import arrow_schema, conformed
from millrace.injectors.file_formats import open_parquet, row_batches
from millrace.model.errors import InputLost, PipelineError


class DataFile(NamedTuple):
    """A Parquet file of a table.

    Attributes:
        path: Of the file.
        partition: Values of the columns that are not in it, as text; None: null.
    """

    path: str
    partition: dict[str, str | None]


@contextmanager
def opened(path: str, who: str) -> Iterator[Any]:
    """Open a file: a ``pyarrow.parquet.ParquetFile``.

    Args:
        path: Of the file.
        who: The injector, for messages.

    Raises:
        InputLost: It is gone.
        PipelineError: It is no Parquet file.
    """
    where = f"{who}, {path}"
    try:
        file = open(path, "rb")  # noqa: PTH123, SIM115  # it is closed below
    except FileNotFoundError as gone:
        raise InputLost(
            f"{where}: the file was removed before it was read. Was the table vacuumed of what "
            "the run had still to read? Put it back and start again with the same checkpoint; or "
            "start with a new one."
        ) from gone
    with file:
        try:
            found = open_parquet(file)
        except pa.ArrowInvalid as refused:
            raise PipelineError(
                f"{where} is not a Parquet file, as those of a Delta table are: {refused}. Has "
                "somebody written over it?"
            ) from refused
        yield found


def rows_of(file: DataFile, schema: str, who: str) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file, with the columns of a schema.

    A column that the file has not was added to the table later, and is null.

    Args:
        file: The file.
        schema: As Spark writes it. The table has these columns.
        who: The injector, for messages.

    Raises:
        InputLost: The file is gone.
        PipelineError: It is no Parquet file, or a column is not of its declared type.
    """
    wanted = arrow_schema(schema)
    with opened(file.path, who) as found:
        for batch in row_batches(found, [n for n in wanted.names if n not in file.partition]):
            for field in wanted:
                if batch.schema.get_field_index(field.name) < 0:
                    value = file.partition.get(field.name)
                    column = pa.repeat(_parsed(value, field.type), batch.num_rows)
                    batch = batch.append_column(field, column)
            yield conformed(batch, schema, f"{who}, {file.path}")


def _parsed(value: str | None, kind: pa.DataType) -> pa.Scalar:
    """Return a partition's value; an empty text is null, as Delta has it."""
    if not value:
        return pa.scalar(None, kind)
    if pa.types.is_timestamp(kind):
        # An instant may be written without a zone; it is then in UTC.
        value = value.removesuffix("Z") + ("Z" if kind.tz else "")
    return pa.scalar(value).cast(kind)
