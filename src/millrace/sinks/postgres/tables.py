"""The tables of a sink, by name: the user's, the staging table, and the one with the epochs."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from millrace.compile.sink_limits import ColumnLimit

if TYPE_CHECKING:
    from psycopg import sql

#: The staging table's own columns, before those of the record.
TASK, ID, RETRACTED = "millrace_task", "millrace_id", "millrace_retracted"

#: Millrace's own tables, by sink; and, of the real-time plane, by its tasks and by its senders.
EPOCHS, WRITERS, SENDERS = "millrace_epochs", "millrace_writers", "millrace_senders"


def identifier(schema: str, name: str) -> sql.Identifier:
    """Return a table's name, quoted."""
    from psycopg import sql

    return sql.Identifier(schema, name)


@dataclass(frozen=True)
class Column:
    """A column that the sink writes.

    Attributes:
        name: In the record and in the table.
        type: As PostgreSQL writes it, such as ``bigint`` or ``text[]``.
        array: Whether that is an array; nested data is written as JSON otherwise.
        limit: What it holds of the field's values; None: it bends none.
    """

    name: str
    type: str
    array: bool
    limit: ColumnLimit | None = None


@dataclass(frozen=True)
class Tables:
    """The tables of one sink, by their full names.

    Attributes:
        schema: Of the user's table.
        name: Of the user's table.
        workspace: Schema of Millrace's own tables.
        sink: What the sink is called in the table of epochs.
        columns: That the sink writes.
        key: Columns by which rows are replaced; none: rows are appended.
        deletes: Whether a record may be a retraction, which deletes the row of its key.
    """

    schema: str
    name: str
    workspace: str
    sink: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    deletes: bool

    def target(self) -> sql.Identifier:
        """Return the user's table."""
        return identifier(self.schema, self.name)

    def epochs(self) -> sql.Identifier:
        """Return the table with the last epoch of every sink."""
        return identifier(self.workspace, EPOCHS)

    def writers(self) -> sql.Identifier:
        """Return the table with the tasks of the real-time plane that may write."""
        return identifier(self.workspace, WRITERS)

    def senders(self) -> sql.Identifier:
        """Return the table with the last record that was written of every sender there."""
        return identifier(self.workspace, SENDERS)

    def staging_prefix(self) -> str:
        """Return how the names of the sink's staging tables begin."""
        return f"millrace_stage_{_digest(self.sink)}_"

    def staging(self, owner: str, generation: int) -> str:
        """Return the name of the staging table of a run."""
        return f"{self.staging_prefix()}{_digest(owner)}_{generation}"


def _digest(text: str) -> str:
    # PostgreSQL cuts names off after 63 bytes.
    return hashlib.sha256(text.encode()).hexdigest()[:12]
