"""The latest row of each key: which of several records count, and what a table becomes by them.

A table by key is what :class:`~millrace.sinks.Parquet` and :class:`~millrace.sinks.Delta` make
with ``key=``: a record replaces the row of its key, and a retraction deletes it, unless the key
has a later record in the same epoch. Which is the later one the ids say: of one sender they ascend.

Source: VLDB 2015 Dataflow paper, 2.3: panes that refine one another, and retractions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.model.errors import PipelineError, SinkError

_RETRACTION: Final = "_retraction"
_ID: Final = "_id"
#: A column for a row's place, beside those of the key; and for the last place of each key.
_PLACE: Final = "_millrace_place"
_LAST_PLACE: Final = f"{_PLACE}_max"
#: No field of a record may have the name of one of these.
OWN_COLUMNS: Final = frozenset({_PLACE, _LAST_PLACE})


def check_key(key: Sequence[str], columns: pa.StructType, sink: str) -> None:
    """Refuse a key that rows of a stream cannot have.

    Args:
        key: Names of its columns.
        columns: Of the rows.
        sink: The sink, for messages.

    Raises:
        PipelineError: A column is not there, or of a type by which rows cannot be told.
    """
    there = {field.name: field.type for field in columns}
    for name in key:
        if name not in there:
            raise PipelineError(
                f"the sink {sink} has the key {name!r}, and its stream no such column. It has "
                f"{list(there)}: the key of a record is '_key', and of a window's pane "
                "('_key', '_window_start')."
            )
        if pa.types.is_nested(there[name]) or pa.types.is_floating(there[name]):
            raise PipelineError(
                f"the sink {sink} has the key {name!r}, of type {there[name]}. A key is made of "
                "text, bytes, integers, truth values, dates and times; name columns of these."
            )


def newest(rows: pa.Table, key: Sequence[str], where: str) -> pa.Table:
    """Return the record of each key that was produced last.

    Args:
        rows: Records, with their ids.
        key: Names of the key's columns.
        where: The sink and the epoch, for messages.

    Raises:
        SinkError: A record has no key.

    >>> rows = pa.table({"k": ["a", "b", "a"], "n": [1, 2, 3], "_id": [b"3", b"1", b"2"]})
    >>> newest(rows, ["k"], "").to_pylist()
    [{'k': 'b', 'n': 2, '_id': b'1'}, {'k': 'a', 'n': 1, '_id': b'3'}]
    """
    for name in key:
        if missing := rows.column(name).null_count:
            raise SinkError(
                f"{where}: {missing} of {rows.num_rows} records have no {name!r}, which is of the "
                f"table's key {list(key)}. Nothing of the epoch was published. Filter such records "
                "out, or name another key: a global window has no start and no end."
            )
    rows = rows.take(pc.sort_indices(rows.column(_ID)))
    placed = _placed(rows, key).group_by(list(key), use_threads=False)
    last_rows = placed.aggregate([(_PLACE, "max")]).column(_LAST_PLACE)
    return rows.take(_ascending(last_rows))


def retracted(rows: pa.Table) -> pa.ChunkedArray:
    """Return of each record whether it is a retraction."""
    if _RETRACTION not in rows.column_names:
        return pa.chunked_array([pa.repeat(False, rows.num_rows)])
    return pc.fill_null(rows.column(_RETRACTION), False)


def replaced(table: pa.Table, rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """Return what a table becomes by the :func:`newest` records of an epoch.

    >>> table = pa.table({"k": ["a", "b", "c"], "n": [1, 2, 3], "_retraction": [False] * 3})
    >>> rows = pa.table({"k": ["d", "b", "a"], "n": [4, 5, 1], "_retraction": [None, None, True]})
    >>> replaced(table, rows, ["k"]).select(["k", "n"]).to_pylist()
    [{'k': 'c', 'n': 3}, {'k': 'd', 'n': 4}, {'k': 'b', 'n': 5}]
    """
    # By the key's columns alone: Arrow joins no lists and structs, which others may be.
    stay = _placed(table, key).join(rows.select(list(key)), list(key), join_type="left anti")
    unchanged = table.take(_ascending(stay.column(_PLACE)))
    there = rows.filter(pc.invert(retracted(rows)))
    # A format may have gained fields since the table was made.
    return pa.concat_tables([unchanged, there], promote_options="default")


def _placed(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    row_numbers = pa.array(np.arange(rows.num_rows, dtype=np.int64))
    return rows.select(list(key)).append_column(_PLACE, row_numbers)


def _ascending(row_numbers: pa.ChunkedArray) -> pa.ChunkedArray:
    return row_numbers.take(pc.sort_indices(row_numbers))
