"""The task side of the sink: a partition's rows go into the staging table by COPY."""

from __future__ import annotations

import io
import secrets
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.csv as pc

from millrace.model.errors import SinkError, ZombieWriter
from millrace.spark.postgres.connection import Away, connect, said
from millrace.spark.postgres.tables import ID, RETRACTED, TASK, Column

if TYPE_CHECKING:
    import psycopg
    from psycopg import sql

#: What a task tells the driver: which rows are its own, how many, and whether the server was away.
REPORT_DDL = "task bigint, rows bigint, away string"
_REPORT = pa.schema([("task", pa.int64()), ("rows", pa.int64()), ("away", pa.string())])


class CopyTask:
    """The function of the copying stage, one call a task attempt.

    Every attempt marks its rows with a number of its own, so the rows of one that died, or of a
    speculative copy, are never taken for another's. Spark says which attempt counts: the one whose
    report reaches the driver.

    Args:
        conninfo: How to connect; without a password.
        staging: The staging table.
        columns: Written, in this order.
        where: The sink and the epoch, for messages.
    """

    def __init__(
        self, conninfo: str, staging: sql.Identifier, columns: Sequence[Column], where: str
    ) -> None:
        self.conninfo = conninfo
        self.staging = staging
        self.columns = tuple(columns)
        self.where = where

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Copy the rows and yield the report; nothing for a partition without rows."""
        task, count = secrets.randbits(62), 0
        connection: psycopg.Connection[Any] | None = None
        away = None
        try:
            for batch in batches:
                if batch.num_rows == 0 or away is not None:
                    continue
                try:
                    if connection is None:
                        connection = connect(self.conninfo)
                    self._copy(connection, task, batch)
                    count += batch.num_rows
                except Away as gone:
                    # Told, not raised: on a local master Spark does not try a task again.
                    away = str(gone)
        finally:
            if connection is not None:
                connection.close()
        if count or away is not None:
            yield pa.RecordBatch.from_arrays(
                [pa.array([task]), pa.array([count]), pa.array([away], pa.string())],
                schema=_REPORT,
            )

    def _copy(self, connection: psycopg.Connection[Any], task: int, batch: pa.RecordBatch) -> None:
        import psycopg

        try:
            self._send(connection, task, batch)
        except psycopg.OperationalError as error:
            raise Away(f"{self.where}: the connection broke off: {said(error)}") from None
        except psycopg.DataError as error:
            bad = self._culprit(connection, task, batch)
            key, at, id = (bad.column(name)[0].as_py() for name in ("_key", "_timestamp", "_id"))
            raise SinkError(
                f"{self.where}: the table refuses the record of key {key!r}, timestamp "
                f"{at.isoformat()}, id {id.hex()}: {said(error)} {error.diag.context or ''}\n"
                "Nothing of the epoch was written. Mend the computation that produced it, or "
                "change the column's type, and start again."
            ) from None
        except psycopg.errors.UndefinedTable:
            raise ZombieWriter(
                f"zombie writer: {self.where}: the staging table of this run is gone. A newer run "
                "drops it when it takes over; this one must stop. Nothing was lost."
            ) from None
        except psycopg.Error as error:
            raise SinkError(
                f"{self.where}: {said(error)} Nothing of the epoch was written."
            ) from None

    def _send(self, connection: psycopg.Connection[Any], task: int, batch: pa.RecordBatch) -> None:
        from psycopg import sql

        names = [TASK, ID, RETRACTED, *(column.name for column in self.columns)]
        statement = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT csv)").format(
            self.staging, sql.SQL(", ").join(map(sql.Identifier, names))
        )
        with connection.cursor() as cursor, cursor.copy(statement) as copy:
            copy.write(self._csv(task, batch))

    def _culprit(
        self, connection: psycopg.Connection[Any], task: int, batch: pa.RecordBatch
    ) -> pa.RecordBatch:
        """Return the first row that the table refuses, by halves; line numbers count line ends."""
        import psycopg

        while batch.num_rows > 1:
            half = batch.slice(0, batch.num_rows // 2)
            try:
                self._send(connection, task, half)
            except psycopg.DataError:
                batch = half
            else:
                batch = batch.slice(half.num_rows)
        return batch

    def _csv(self, task: int, batch: pa.RecordBatch) -> bytes:
        arrays = [
            pa.array([task] * batch.num_rows),
            _text(batch.column("_id"), False),
            _retracted(batch),
            *(_text(batch.column(column.name), column.array) for column in self.columns),
        ]
        made = pa.RecordBatch.from_arrays(arrays, names=[str(n) for n in range(len(arrays))])
        out = io.BytesIO()
        # Texts are quoted and nulls are not, which is how PostgreSQL tells '' from NULL.
        pc.write_csv(made, out, pc.WriteOptions(include_header=False))
        return out.getvalue()


def _retracted(batch: pa.RecordBatch) -> pa.Array:
    if "_retraction" not in batch.schema.names:
        return pa.repeat(False, batch.num_rows)
    return batch.column("_retraction").fill_null(False)


def _text(array: pa.Array, as_array: bool) -> pa.Array:
    """Return a column as what Arrow writes in CSV and PostgreSQL reads."""
    kind = array.type
    if pa.types.is_binary(kind):
        return _each(array, lambda data: f"\\x{data.hex()}")
    if pa.types.is_list(kind) and as_array:
        return _each(array, _array_literal)
    if pa.types.is_nested(kind):
        return _each(array, lambda value: msgspec.json.encode(value).decode())
    return array


def _each(array: pa.Array, write: Any) -> pa.Array:
    return pa.array(
        [None if value is None else write(value) for value in array.to_pylist()], pa.string()
    )


def _array_literal(values: list[Any]) -> str:
    """Return a list as PostgreSQL writes arrays.

    >>> print(_array_literal([1, None, "a, b"]))
    {"1",NULL,"a, b"}
    """
    return "{" + ",".join(map(_element, values)) + "}"


def _element(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, list):
        return _array_literal(value)
    if isinstance(value, bytes):
        value = f"\\x{value.hex()}"
    elif isinstance(value, dict):
        value = msgspec.json.encode(value).decode()
    escaped = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
