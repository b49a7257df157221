"""PostgreSQL: rows of a table, exactly once, with the epoch recorded in the same transaction.

Tasks copy their rows into a staging table, side by side, in the job of the epoch. Then the driver,
in one transaction: locks the sink's row of ``millrace_epochs``, looks whether a newer run has
claimed it or this epoch is recorded there, moves the rows of the attempts that count into the
table, and records the epoch. On the real-time plane tasks write to the table themselves, in every
turn: :mod:`millrace.sinks.postgres.turns`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from millrace.compile.sink_limits import SinkLimits
from millrace.model.errors import PipelineError, SinkError
from millrace.model.time import SECOND, Duration, duration_us
from millrace.plane.task_sinks import WriteAgain
from millrace.sinks.postgres.connection import Away, checked, connect, said
from millrace.sinks.postgres.ledger import Ledger
from millrace.sinks.postgres.tables import ID, RETRACTED, TASK, Tables

if TYPE_CHECKING:
    from millrace.plane.binding import Binding
    from millrace.sinks.postgres.copying import CopyWriter
    from millrace.sinks.postgres.turns import Turns

#: Between attempts while the server is away, in seconds: twice as long each time.
_PAUSE, _PAUSE_MAX = 0.1, 5.0


class PostgreSQL:
    """Rows of a PostgreSQL table: appended, or replaced by key.

    The table's columns are the fields of the record format (or ``value``), and any of ``_key``
    (text), ``_timestamp`` (timestamptz) and ``_id`` (bytea, unique) that it has. A table that does
    not exist is made. Every epoch is one transaction, which also records the epoch in the table
    ``millrace_epochs``; an epoch that is retried after it was recorded writes nothing. On the
    real-time plane a task writes in every turn, in a transaction that also tells how far each
    sender has come, in ``millrace_senders``; what comes again is not written.

    Args:
        conninfo: ``"postgresql://user@host/database"`` or ``"host=... dbname=..."``. Passwords
            come from the environment (``PGPASSWORD``) or a password file (``PGPASSFILE``,
            ``~/.pgpass``), of the driver and of every worker.
        table: Its name, with or without a schema.
        key: Columns with a primary key or unique index: a record replaces the row with the same
            key. Of several in one epoch, or turn, the one that was produced last counts. None:
            append.
        workspace: Schema for Millrace's own tables; by default the table's. The user needs the
            CREATE privilege there.
        retry: How long an epoch, or a task, waits for a server that is away before the run fails.

    Raises:
        PipelineError: The connection string is malformed or holds a password, or psycopg is not
            installed.
    """

    #: A longer name PostgreSQL would cut, and tables have these columns of their own.
    limits = SinkLimits(
        nul=False,
        name_bytes=63,
        names=frozenset(
            {"ctid", "xmin", "xmax", "cmin", "cmax", "tableoid", TASK, ID, RETRACTED},
        ),
    )

    def __init__(
        self,
        conninfo: str,
        table: str,
        *,
        key: str | Sequence[str] = (),
        workspace: str | None = None,
        retry: Duration = 60 * SECOND,
    ) -> None:
        self.conninfo = checked(conninfo)
        self.table = table
        self.key = (key,) if isinstance(key, str) else tuple(key)
        self.workspace = workspace
        self.retry_us = duration_us(retry)
        if not all(table.split(".")) or table.count(".") > 1:
            raise PipelineError(
                f"mr.PostgreSQL(table={table!r}): expected 'table' or 'schema.table'."
            )
        self._stream = ""
        self._pause = _PAUSE
        self._deadline: float | None = None
        self._tables: Tables
        self._ledger: Ledger

    def bind(self, binding: Binding) -> str:
        """Check table and columns, and return what the sink writes to. Nothing is written.

        Raises:
            PipelineError: The table does not fit the records.
            CheckpointMismatch: The table holds the output of another checkpoint.
            SinkError: The server cannot be reached, or refuses.
        """
        import psycopg

        from millrace.sinks.postgres.preparing import check, recorded

        if self._stream not in ("", binding.stream):
            raise PipelineError(
                f"one {self!r} is the sink of two streams, {self._stream!r} and "
                f"{binding.stream!r}. Make one for each."
            )
        self._stream = binding.stream
        with connect(self.conninfo) as connection:
            try:
                self._tables = tables = check(
                    connection,
                    self.table,
                    self.key,
                    self.workspace,
                    binding.stream,
                    binding.columns,
                )
                columns = {one.name: one.limit for one in tables.columns if one.limit is not None}
                self.limits = replace(type(self).limits, columns=columns)
                self._ledger = Ledger(
                    self._where(), self.conninfo, tables, binding.pipeline, binding.owner
                )
                if recorded(connection, tables):
                    self._ledger.check_owner(connection)
            except psycopg.Error as error:
                raise SinkError(
                    f"{self!r} cannot be checked: {said(error)} Nothing was written."
                ) from error
        return f"PostgreSQL {tables.sink}"

    def claim(self, generation: int, completed: int) -> None:
        """Take the table over for a run, so that an older run's transactions are refused.

        Tables that are missing are made.

        Args:
            generation: Of the run.
            completed: Its last completed epoch.

        Raises:
            ZombieWriter: A newer run has claimed the table.
            CheckpointMismatch: The table is ahead of the checkpoint.
        """
        self._ledger.claim(generation, completed)

    @property
    def takes_back(self) -> bool:
        """Whether a checkpoint may go back to a savepoint: rows are replaced by key."""
        return bool(self.key)

    def take_back(self, after: int, until: int) -> None:
        """Forget what senders were told of; rows stay until their keys come again.

        Args:
            after: The epoch before the first that is taken back.
            until: The last.

        Raises:
            SinkError: The server cannot be reached, or refuses.
        """
        if self.key:
            self._ledger.forget_senders()

    def for_tasks(self) -> CopyWriter:
        """Return what tasks copy with."""
        from millrace.sinks.postgres.copying import CopyWriter

        return CopyWriter(self._where(), self.conninfo, self._ledger.staging, self._tables.columns)

    def live(self) -> Turns:
        """Return what tasks of the real-time plane write with in every turn."""
        from millrace.sinks.postgres.turns import Turns

        return Turns(self._where(), self.conninfo, self._ledger, self.retry_us)

    def publish(self, epoch: int, receipts: list[bytes]) -> None:
        """Move the rows that tasks have copied into the table, unless the epoch is recorded.

        Raises:
            WriteAgain: The server was away, or has lost the rows.
            SinkError: The table refuses the rows, or the server was away for too long.
            ZombieWriter: A newer run has claimed the table.
        """
        from millrace.sinks.postgres.copying import Copied

        copied = [msgspec.msgpack.decode(receipt, type=Copied) for receipt in receipts]
        gone = next((one.away for one in copied if one.away is not None), None)
        if gone is None:
            try:
                self._ledger.merge(epoch, {one.attempt: one.rows for one in copied})
            except Away as away:
                gone = str(away)
        if gone is None:
            self._pause, self._deadline = _PAUSE, None
            return
        if self._deadline is None:
            self._deadline = time.monotonic() + self.retry_us / SECOND
        if time.monotonic() + self._pause > self._deadline:
            raise SinkError(
                f"{gone} This was tried for {self.retry_us / SECOND:g} s (retry=...); "
                f"epoch {epoch} is written when the run is started again."
            )
        time.sleep(self._pause)
        self._pause = min(2 * self._pause, _PAUSE_MAX)
        raise WriteAgain(gone)

    def _where(self) -> str:
        return f"{self!r}, stream {self._stream!r}"

    def __repr__(self) -> str:
        return f"PostgreSQL({self.table!r})"
