"""What a run has found: the panes in the sinks' Parquet files, and their net.

The net of a stream is what is left of each window when every pane that was replaced or taken back
is left out: what a batch over the same scores would give.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pandas as pd
import pyarrow.dataset as ds

from .pipeline import STREAMS

#: Streams whose panes replace each other. Those of the others take each other back.
REPLACED = ("user_scores",)

_SLOT = ["_key", "_window_start", "_window_end"]


def read(out: Path) -> dict[str, pd.DataFrame]:
    """Return the panes of every stream, in order of production.

    The columns are those of the values, and ``_key``, ``_window_start``, ``_pane_timing``, ... of a
    sink; see docs/windows-and-triggers.md, "Panes".
    """
    return {stream: _panes(out / stream) for stream in STREAMS}


def _panes(directory: Path) -> pd.DataFrame:
    files = sorted(str(file) for file in directory.glob("epoch=*/*.parquet"))
    if not files:
        return pd.DataFrame()
    rows = ds.dataset(files, format="parquet").to_table().to_pandas()
    for name in rows.select_dtypes("datetime64").columns:
        rows[name] = rows[name].dt.tz_localize("UTC")  # Spark's INT96 is UTC, and does not say so
    # Within an epoch, the ids of a key's panes are in the order in which they were produced.
    return rows.sort_values(["_production_time", "_id"], ignore_index=True)


def net(stream: str, panes: pd.DataFrame) -> list[tuple]:
    """Return (key, start, end, values ...) of what holds in the end, sorted; times in microseconds.

    Args:
        stream: One of `STREAMS`.
        panes: Its panes.
    """
    if panes.empty:
        return []
    values = [name for name in panes.columns if not name.startswith("_")]
    if stream in REPLACED:
        latest = panes.sort_values("_pane_index").drop_duplicates(_SLOT, keep="last")
        return sorted(_rows(latest, [*_SLOT, *values]))
    left: dict[tuple, int] = {}
    for row, retraction in zip(_rows(panes, [*_SLOT, *values]), panes["_retraction"], strict=True):
        left[row] = left.get(row, 0) + (-1 if retraction else 1)
    assert set(left.values()) <= {0, 1}, "a retraction takes back a pane that was there"
    return sorted(row for row, count in left.items() if count)


def _rows(panes: pd.DataFrame, columns: list[str]) -> Iterable[tuple]:
    for row in panes[columns].itertuples(index=False, name=None):
        yield tuple(map(_plain, row))


def _plain(value: object) -> object:
    if isinstance(value, pd.Timestamp):
        return value.value // 1000  # it counts nanoseconds
    if hasattr(value, "tolist"):  # of numpy: a number, or an array, here of structs
        value = value.tolist()
    if isinstance(value, dict):
        return tuple(value.values())
    return tuple(map(_plain, value)) if isinstance(value, list) else value
