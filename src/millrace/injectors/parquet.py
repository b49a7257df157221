"""Parquet: rows of a file that others have written, as Arrow has them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, BinaryIO, Final

import pyarrow as pa

#: Rows that are decoded at once.
_ROWS: Final = 100_000


def open_parquet(file: BinaryIO) -> Any:
    """Return a ``pyarrow.parquet.ParquetFile``.

    Raises:
        ArrowInvalid: It is none.
    """
    # Only those that read Parquet files pay for it.
    import pyarrow.parquet as pq

    return pq.ParquetFile(file, coerce_int96_timestamp_unit="us")


def row_batches(
    found: Any, columns: Collection[str], groups: Sequence[int] | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a Parquet file, those of these columns that it has.

    Args:
        found: As :func:`open_parquet` returns it.
        columns: Their names.
        groups: Numbers of row groups; by default all.
    """
    names = [name for name in found.schema_arrow.names if name in columns]
    # Spark and Impala write instants as INT96, which says nothing of a time zone.
    instants = {
        column.name
        for column in map(found.schema.column, range(len(found.schema)))
        if column.physical_type == "INT96"
    }
    for batch in found.iter_batches(_ROWS, groups, names, use_threads=False):
        for name in instants.intersection(batch.schema.names):
            at = batch.schema.get_field_index(name)
            times = batch.column(at).cast(pa.timestamp("us", "UTC"))
            batch = batch.set_column(at, name, times)
        yield batch
