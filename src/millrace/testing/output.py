"""Output: one record as it left the pipeline."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from millrace.model.errors import PipelineError
from millrace.model.pane import Pane, Timing, Window
from millrace.model.time import datetime_of, timestamp_us

#: Columns of a sink's row that are no part of the value: the record's and the pane's.
_NO_VALUE = (
    "_key", "_timestamp", "_id",
    "_window_start", "_window_end", "_pane_index", "_pane_timing", "_is_first", "_is_last",
    "_retraction", "_production_time", "_percentile", "_trigger",
)  # fmt: skip


@dataclass(frozen=True)
class Output:
    """One record of a stream, as a sink would have received it.

    Attributes:
        key: The producer's key; None for a record that came straight from an injector.
        value: The value.
        timestamp: Event time in microseconds.
        pane: What a window's trigger emitted it as; None outside of windows.
        wall_time: Wall clock of the epoch that it left in, in the Harness; microseconds.
        id: What a sink would have got as ``_id``: 16 bytes, unique, the same on every attempt. Two
            outputs that differ in nothing else, or in their wall time, are equal.
    """

    key: Any
    value: Any
    timestamp: int
    pane: Any = None
    wall_time: int = field(default=0, compare=False, repr=False)
    id: bytes = field(default=b"", compare=False, repr=False)

    @property
    def time(self) -> dt.datetime:
        """Event time as a datetime, UTC."""
        return datetime_of(self.timestamp)

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> Self:
        """Return what a row is that a sink on Spark got.

        Args:
            row: Column -> value, with instants as datetimes with a time zone, or microseconds: as
                ``rows.toArrow().to_pylist()`` has it. The key is text, as in the column.

        Returns:
            The value is that of column ``value``, or else a dict of all columns that are neither of
            the record nor of the pane.

        Raises:
            PipelineError: It has no ``_timestamp``, or an instant has no time zone.

        >>> Output.of_row({"_key": "red", "_timestamp": 9, "_id": b"", "points": 5})
        Output(key='red', value={'points': 5}, timestamp=9, pane=None)
        """
        if "_timestamp" not in row:
            raise PipelineError(
                f"a row with the columns {list(row)} is not one of a sink, which has _key, "
                "_timestamp and _id beside those of the value."
            )
        found: dict[str, Any] = {
            name: None if _is_null(value) else value for name, value in row.items()
        }
        value: Any = {name: value for name, value in found.items() if name not in _NO_VALUE}
        if value.keys() - {"epoch"} == {"value"}:  # the epoch is that of mr.Parquet's directories
            value = value["value"]
        at_us = timestamp_us(found["_timestamp"])
        id = bytes(found.get("_id") or b"")
        return cls(found.get("_key"), value, at_us, _pane(found), id=id)


def outputs_of(rows: Any) -> list[Output]:
    """Return what the rows of a sink are, in their order.

    Args:
        rows: An Arrow table, a Spark or pandas DataFrame, or mappings; see :meth:`Output.of_row`.
            Outputs are returned as they are.

    Raises:
        PipelineError: They are none of these.
    """
    if hasattr(rows, "toArrow"):
        rows = rows.toArrow()
    if hasattr(rows, "to_pylist"):
        rows = rows.to_pylist()
    elif hasattr(rows, "to_dict"):
        rows = rows.to_dict("records")
    if not isinstance(rows, Iterable) or isinstance(rows, str | bytes | Mapping):
        raise PipelineError(
            f"{type(rows).__name__} is not rows of a sink. Expected an Arrow table, "
            "a Spark or pandas DataFrame, a list of mappings, or a Harness's outputs."
        )
    return [row if isinstance(row, Output) else Output.of_row(row) for row in rows]


def _pane(row: dict[str, Any]) -> Pane | None:
    if row.get("_pane_index") is None:
        return None
    start, end = row["_window_start"], row["_window_end"]
    percentile = row.get("_percentile")
    return Pane(
        Window() if end is None else Window(timestamp_us(start), timestamp_us(end)),
        int(row["_pane_index"]),
        Timing(row["_pane_timing"]),
        bool(row["_is_first"]),
        bool(row["_is_last"]),
        bool(row["_retraction"]),
        timestamp_us(row["_production_time"]),
        None if percentile is None else int(percentile),
        row["_trigger"],
    )


def _is_null(value: Any) -> bool:
    # pandas has NaN and NaT where Arrow has null; neither is equal to itself.
    return value is None or (not isinstance(value, list | dict) and bool(value != value))
