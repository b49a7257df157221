"""Which row of a table stands at a time, by definition: whatever order rows and questions come in.

A row stands from its timestamp until the next of its key, or until it expires. Who waits for the
low watermark sees that one. What a row that comes late still meets depends on who was first, and
so does what a late question sees: then there is more than one right answer.

Source: docs/how-to/look-up-a-table.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple


class Row(NamedTuple):
    """A row of a table's stream.

    Attributes:
        value: The row.
        at: Since when it stands.
        epoch: When it came.
        late: Whether it may have come after somebody asked for its time.
    """

    value: Any
    at: int
    epoch: int
    late: bool


def standing(rows: Iterable[Row], at: int, expires: int | None = None) -> list[Any]:
    """Return the rows that a question about a time may find if it waited; None stands for none.

    Args:
        rows: Of the key.
        at: The time.
        expires: For how long a row stands.
    """
    reach = [row for row in rows if row.at <= at]
    sure = max((row.at for row in reach if not row.late), default=None)
    found = [row for row in reach if sure is None or row.at >= sure]
    answers = [] if sure is not None else [None]
    return answers + [_unless_over(row, at, expires) for row in found]


def at_once(
    rows: Iterable[Row], at: int, epoch: int | None, expires: int | None = None
) -> list[Any]:
    """Return the rows that a question may find if it did not wait: the newest that is there.

    Args:
        rows: Of the key.
        at: The time of the question, by which rows expire.
        epoch: When it was asked; None: nobody knows.
        expires: For how long a row stands.
    """
    there = [row for row in rows if epoch is None or row.epoch <= epoch]
    before = [row.at for row in there if epoch is not None and row.epoch < epoch]
    found = [row for row in there if not before or row.at >= max(before)]
    answers = [] if before else [None]
    return answers + [_unless_over(row, at, expires) for row in found]


def _unless_over(row: Row, at: int, expires: int | None) -> Any:
    return row.value if expires is None or at < row.at + expires else None
