"""The task side of the sink: the rows of a task go into the staging table by COPY."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from millrace.model.errors import SinkError, ZombieWriter, brief
from millrace.sinks.postgres.connection import Away, connect, said
from millrace.sinks.postgres.tables import ID, RETRACTED, TASK, Column, identifier
from millrace.sinks.postgres.text import as_csv

if TYPE_CHECKING:
    import psycopg

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

    Every attempt marks its rows with a number of its own, so the rows of one that died, or of a
    speculative copy, are never taken for another's: the driver merges those of which it is told.

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
        except psycopg.OperationalError as error:
            raise Away(f"{self._where}: the connection broke off: {said(error)}") from None
        except psycopg.DataError as error:
            bad = self._culprit(connection, batch)
            key, at, id = (bad.column(name)[0].as_py() for name in ("_key", "_timestamp", "_id"))
            raise SinkError(
                f"{self._where}: the table refuses the record of key {brief(key)}, timestamp "
                f"{at.isoformat()}, id {id.hex()}: {said(error)} {error.diag.context or ''}\n"
                "Nothing of the epoch was written. Mend the computation that produced it, or "
                "change the column's type, and start again."
            ) from None
        except psycopg.errors.UndefinedTable:
            raise ZombieWriter(
                f"zombie writer: {self._where}: the staging table of this run is gone. A newer run "
                "drops it when it takes over; this one must stop. Nothing was lost."
            ) from None
        except psycopg.Error as error:
            raise SinkError(
                f"{self._where}: {said(error)} Nothing of the epoch was written."
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
