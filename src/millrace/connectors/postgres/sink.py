"""PostgreSQL: rows of a table, exactly once, with the epoch recorded in the same transaction.

Tasks copy their rows into a staging table, side by side, in the job of the epoch. Then the driver,
in one transaction: locks the sink's row of ``millrace_epochs``, looks whether a newer run has
claimed it or this epoch is recorded there, moves the rows of the attempts that count into the
table, and records the epoch. On the real-time plane tasks write to the table themselves, in every
turn: :mod:`millrace.connectors.postgres.live_writer`.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from millrace.compile.sink_limits import SinkLimits
from millrace.connectors.postgres.ledger import (
    Away,
    Ledger,
    checked,
    connect,
    passing,
    server_message,
)
from millrace.connectors.postgres.tables import ID, RETRACTED, TASK, Column, Tables, identifier
from millrace.connectors.postgres.text import as_csv
from millrace.model.declarations import names
from millrace.model.errors import PipelineError, SinkError, ZombieWriter, brief
from millrace.model.time import SECOND, Duration, duration_us
from millrace.runtime.sink_contract import WriteAgain

if TYPE_CHECKING:
    import psycopg

    from millrace.connectors.postgres.live_writer import Turns
    from millrace.runtime.sink_contract import Binding

#: Rows are kept until there are so many bytes of them: one COPY.
_COPY_BYTES = 8 << 20


class Copied(msgspec.Struct, array_like=True):
    """What a task tells the driver.

    Attributes:
        attempt: By which its rows in the staging table are known.
        rows: How many they are.
        away: What was wrong, if the server was away.
    """

    attempt: int
    rows: int
    away: str | None


@dataclass(frozen=True)
class CopyWriter:
    """What tasks write with.

    Attributes:
        sink: The sink, for messages.
        conninfo: How to connect; without a password.
        staging: Schema and name of the run's staging table.
        columns: Written, in this order.
    """

    sink: str
    conninfo: str
    staging: tuple[str, str]
    columns: tuple[Column, ...]

    def begin(self, epoch: int, task: int) -> Copying:
        """Return what copies the rows of an attempt at a task."""
        return Copying(self, f"{self.sink}, epoch {epoch}")


class Copying:
    """Copies the rows of one attempt at a task.

    Every attempt marks its rows with a number of its own. The driver merges the rows of one attempt
    a task, so those of an attempt that died, or of a speculative copy, are never merged.

    Args:
        writer: Of the sink.
        where: The sink and the epoch, for messages.
    """

    def __init__(self, writer: CopyWriter, where: str) -> None:
        self._writer = writer
        self._where = where
        self._attempt = secrets.randbits(62)
        self._connection: psycopg.Connection[Any] | None = None
        self._waiting: list[pa.RecordBatch] = []
        self._bytes = 0
        self._copied = 0
        self._away: str | None = None

    def write(self, rows: pa.RecordBatch) -> None:
        """Take rows; they may stay in memory for now."""
        self._waiting.append(rows)
        self._bytes += rows.nbytes
        if self._bytes >= _COPY_BYTES:
            self._flush()

    def close(self) -> bytes:
        """Copy what waits, and return what to tell the driver."""
        try:
            self._flush()
        finally:
            self.abort()
        return msgspec.msgpack.encode(Copied(self._attempt, self._copied, self._away))

    def abort(self) -> None:
        """Leave: what was copied is never looked at, and removed with the next epoch."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _flush(self) -> None:
        waiting, self._waiting, self._bytes = self._waiting, [], 0
        if not waiting or self._away is not None:
            return
        rows = pa.concat_batches(waiting)
        try:
            if self._connection is None:
                self._connection = connect(self._writer.conninfo)
            self._copy(self._connection, rows)
            self._copied += rows.num_rows
        except Away as gone:
            # Told, not raised: on a local master Spark does not try a task again.
            self._away = str(gone)

    def _copy(self, connection: psycopg.Connection[Any], batch: pa.RecordBatch) -> None:
        import psycopg

        try:
            self._send(connection, batch)
        except passing() as error:
            raise Away(
                f"{self._where}: the connection broke off: {server_message(error)}"
            ) from None
        except psycopg.DataError as error:
            bad = self._culprit(connection, batch)
            key, at, id = (bad.column(name)[0].as_py() for name in ("_key", "_timestamp", "_id"))
            raise SinkError(
                f"{self._where}: the table refuses the record of key {brief(key)}, timestamp "
                f"{at.isoformat()}, id {id.hex()}: {server_message(error)} "
                f"{error.diag.context or ''}\nNothing of the epoch was written. Mend the "
                "computation that produced it, or change the column's type, and start again."
            ) from None
        except psycopg.errors.UndefinedTable:
            raise ZombieWriter(
                f"zombie writer: {self._where}: the staging table of this run is gone. A newer run "
                "drops it when it takes over; this one must stop. Nothing was lost."
            ) from None
        except psycopg.Error as error:
            raise SinkError(
                f"{self._where}: {server_message(error)} Nothing of the epoch was written."
            ) from None

    def _send(self, connection: psycopg.Connection[Any], batch: pa.RecordBatch) -> None:
        from psycopg import sql

        columns: Sequence[Column] = self._writer.columns
        names = [TASK, ID, RETRACTED, *(column.name for column in columns)]
        statement = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT csv)").format(
            identifier(*self._writer.staging), sql.SQL(", ").join(map(sql.Identifier, names))
        )
        written = as_csv(self._attempt, batch, columns)
        with connection.cursor() as cursor, cursor.copy(statement) as copy:
            copy.write(written)

    def _culprit(
        self, connection: psycopg.Connection[Any], batch: pa.RecordBatch
    ) -> pa.RecordBatch:
        """Return the first row that the table refuses, by halves; line numbers count line ends."""
        import psycopg

        while batch.num_rows > 1:
            half = batch.slice(0, batch.num_rows // 2)
            try:
                self._send(connection, half)
            except psycopg.DataError:
                batch = half
            else:
                batch = batch.slice(half.num_rows)
        return batch


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
        self.key = names(key, "mr.sinks.PostgreSQL(key")
        self.workspace = workspace
        self.retry_us = duration_us(retry, "mr.sinks.PostgreSQL(retry)")
        if not all(table.split(".")) or table.count(".") > 1:
            raise PipelineError(
                f"mr.sinks.PostgreSQL(table={table!r}): expected 'table' or 'schema.table'."
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

        from millrace.connectors.postgres.tables import check, database, recorded

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
                columns = {
                    column.name: column.limit
                    for column in tables.columns
                    if column.limit is not None
                }
                self.limits = replace(type(self).limits, columns=columns)
                self._ledger = Ledger(
                    self._where(), self.conninfo, tables, binding.pipeline, binding.owner
                )
                if recorded(connection, tables):
                    self._ledger.check_owner(connection)
                place = database(connection)
            except psycopg.Error as error:
                raise SinkError(
                    f"{self!r} cannot be checked: {server_message(error)} Nothing was written."
                ) from error
        return f"PostgreSQL {tables.sink}, {place}"

    def claim(self, generation: int, completed: int) -> None:
        """Take the table over for a run, so that an older run's transactions are refused.

        Tables that are missing are made.

        Args:
            generation: Of the run.
            completed: Its last completed epoch.

        Raises:
            ZombieWriter: A newer run has claimed the table.
            CheckpointMismatch: The table is ahead of the checkpoint.
            SinkError: The server cannot be reached, or refuses.
        """
        import psycopg

        try:
            self._ledger.claim(generation, completed)
        except psycopg.Error as error:
            raise SinkError(
                f"{self!r} cannot be claimed: {server_message(error)} No record was written."
            ) from error

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
        from millrace.connectors.postgres.sink import CopyWriter

        return CopyWriter(self._where(), self.conninfo, self._ledger.staging, self._tables.columns)

    def live(self) -> Turns:
        """Return what tasks of the real-time plane write with in every turn."""
        from millrace.connectors.postgres.live_writer import Turns

        return Turns(self._where(), self.conninfo, self._ledger, self.retry_us)

    def publish(self, epoch: int, receipts: list[bytes]) -> None:
        """Move the rows that tasks have copied into the table, unless the epoch is recorded.

        Raises:
            WriteAgain: The server was away, or has lost the rows.
            SinkError: The table refuses the rows, or the server was away for too long.
            ZombieWriter: A newer run has claimed the table.
        """
        from millrace.connectors.postgres.sink import Copied

        copied = [msgspec.msgpack.decode(receipt, type=Copied) for receipt in receipts]
        gone = next((attempt.away for attempt in copied if attempt.away is not None), None)
        if gone is None:
            try:
                self._ledger.merge(epoch, {attempt.attempt: attempt.rows for attempt in copied})
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
