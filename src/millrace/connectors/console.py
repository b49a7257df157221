"""Console: records as a table on the standard output.

Rows that tasks hand to the driver as their receipts, for sinks that are in the driver.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from rich import box
from rich.console import Console as Paper
from rich.table import Table
from rich.text import Text

from millrace.model.errors import PipelineError


@dataclass(frozen=True)
class Gather:
    """What tasks gather rows with."""

    def begin(self, epoch: int, task: int) -> Gathering:
        """Return what gathers the rows of an attempt at a task."""
        return Gathering()


class Gathering:
    """The rows of an attempt at a task; they stay in memory."""

    def __init__(self) -> None:
        self._batches: list[pa.RecordBatch] = []

    def write(self, rows: pa.RecordBatch) -> None:
        """Take rows."""
        self._batches.append(rows)

    def close(self) -> bytes:
        """Return the rows, as an Arrow stream."""
        out = pa.BufferOutputStream()
        with pa.ipc.new_stream(out, self._batches[0].schema) as stream:
            for batch in self._batches:
                stream.write_batch(batch)
        return bytes(out.getvalue())

    def abort(self) -> None:
        """Do nothing: what is not handed over is not seen."""


def gathered(receipts: Sequence[bytes]) -> pa.Table:
    """Return the rows of receipts, at least one, in their order.

    >>> made = Gather().begin(0, 0)
    >>> made.write(pa.RecordBatch.from_pydict({"value": [1, 2]}))
    >>> gathered([made.close()]).to_pydict()
    {'value': [1, 2]}
    """
    return pa.concat_tables(pa.ipc.open_stream(receipt).read_all() for receipt in receipts)


#: Wider than any table: lines are the reader's to wrap.
_WIDTH = 10_000


class Console:
    """Prints the records of each epoch, or mark, that has any.

    Args:
        rows: How many rows to print at the most.

    Raises:
        PipelineError: ``rows`` is no number above zero.
    """

    #: A checkpoint may go back to a savepoint: what was printed, nobody counts on.
    takes_back = True

    def __init__(self, rows: int = 20) -> None:
        if not isinstance(rows, int) or rows < 1:
            raise PipelineError(f"sinks.Console(rows={rows!r}): expected an int above zero.")
        self.most = rows

    def for_tasks(self) -> Gather:
        """Return what tasks hand their rows over with."""
        return Gather()

    def publish(self, epoch: int, receipts: list[bytes]) -> None:
        """Print the records of an epoch."""
        rows = gathered(receipts)
        table = Table(*rows.column_names, box=box.ASCII2, padding=0)
        for row in rows.slice(0, self.most).to_pylist():
            # Text, not str: what a user writes may look like rich's markup.
            table.add_row(*(Text(_cell_text(value)) for value in row.values()))
        out = io.StringIO()
        # In a notebook it would display what it prints, in a cell of its own.
        paper = Paper(
            file=out, width=_WIDTH, color_system=None, force_terminal=False, force_jupyter=False
        )
        paper.print(table)
        left = rows.num_rows - self.most
        more = f"and {left:,} more\n" if left > 0 else ""
        print(f"-- epoch {epoch}\n{out.getvalue()}{more}", end="")  # noqa: T201  # what it is for

    def __repr__(self) -> str:
        return f"Console({self.most})"


def _cell_text(value: Any) -> str:
    if value is None:
        return "NULL"
    return value.hex() if isinstance(value, bytes) else str(value)
