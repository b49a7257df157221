"""Refusals: what an injector read and could make no row of, beside the rows that it made.

A batch has them in a column of its own, which is there only if something was refused. A refused row
has null in every other column. Whoever sends the rows on makes a dead letter of each, or an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from millrace.model.errors import LETTER_MOST, RecordRejected, brief

#: The name of the column.
COLUMN: Final = "_millrace_refusal"
_KIND: Final = pa.struct(
    [
        ("reason", pa.string()),
        ("value", pa.string()),
        ("place", pa.string()),
        ("raw", pa.binary()),
        ("raw_key", pa.binary()),
        ("dropped", pa.bool_()),
    ]
)


class Refusal(NamedTuple):
    """Why a record is refused, and what is known of it where it has no value.

    Attributes:
        reason: In words.
        value: What stood where the value should, as text; None: the record has a value.
        place: Where that stood in its source; "": its id tells.
        raw: Its bytes as they came; None: a message without a value.
        raw_key: The bytes of its key as they came; None: there is none.
        dropped: Whether its source was told to drop such records: it is counted, and no letter.
    """

    reason: str
    value: str | None = None
    place: str = ""
    raw: bytes | None = b""
    raw_key: bytes | None = None
    dropped: bool = False

    @classmethod
    def of_bytes(
        cls, reason: str, place: str, raw: bytes | None, raw_key: bytes | None = None
    ) -> Refusal:
        """Return the refusal of a line or message."""
        return cls(_plain(reason), repr(raw), place, raw, raw_key)

    @classmethod
    def of_row(cls, reason: str, place: str, row: Any) -> Refusal:
        """Return the refusal of a row that an injector gave."""
        try:
            raw = msgspec.json.encode(row)
        except Exception:  # noqa: BLE001  a row may have anything in it
            raw = b""
        return cls(_plain(reason), brief(row, LETTER_MOST), place, raw)


def with_refusals(batch: pa.RecordBatch, refusals: Mapping[int, Refusal]) -> pa.RecordBatch:
    """Return a batch with the refusals of some of its rows, by position; new ones count."""
    if not refusals:
        return batch
    refusals = refusals_of(column_of(batch)) | dict(refusals)
    if COLUMN in batch.schema.names:
        batch = batch.drop_columns([COLUMN])
    found = [None if (one := refusals.get(n)) is None else one._asdict() for n in range(len(batch))]
    return batch.append_column(COLUMN, pa.array(found, _KIND))


def column_of(batch: pa.RecordBatch) -> pa.StructArray | None:
    """Return the column of a batch's refusals, null where a row is good; None if all rows are."""
    position = batch.schema.get_field_index(COLUMN)
    if position < 0:
        return None
    column = batch.column(position)
    return column if column.type == _KIND and column.null_count < len(column) else None


def refusals_of(column: pa.StructArray | None) -> dict[int, Refusal]:
    """Return the refusals by position.

    >>> refused = Refusal.of_bytes("it is no JSON", "line 7", b"oops")
    >>> rows = pa.RecordBatch.from_pydict({"n": [1, None]})
    >>> refusals_of(column_of(with_refusals(rows, {1: refused}))) == {1: refused}
    True
    """
    if column is None:
        return {}
    refused_rows = np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False)).tolist()
    return {n: Refusal(**column[n].as_py()) for n in refused_rows}


def without_refusals(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch of which every row is good, without those that its source drops.

    Raises:
        RecordRejected: One is not; the message names its place.
    """
    refusals = refusals_of(column_of(batch))
    for refused in refusals.values():
        if refused.dropped:
            continue
        shown = "" if refused.value is None else brief(refused.raw or refused.value, 200)
        raise RecordRejected(f"{refused.place}: {refused.reason}\n  {shown}")
    if refusals:
        batch = batch.take(pa.array([n for n in range(len(batch)) if n not in refusals]))
    return batch if COLUMN not in batch.schema.names else batch.drop_columns([COLUMN])


def _plain(text: str) -> str:
    """Return text that UTF-8 has; a message may hold half of a surrogate pair."""
    return text.encode("utf-8", "backslashreplace").decode()
