"""Turns: a task's rows into the table, each batch in one transaction with what tells them apart.

The transaction also writes down the last record of every sender, so what comes again after a
failure, or because the answer to a commit was lost, is known and left out. It is one statement: see
:func:`~millrace.sinks.postgres.statements.in_turn`.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.model.errors import SinkError, brief
from millrace.model.time import SECOND
from millrace.sinks.postgres import statements
from millrace.sinks.postgres.behind import Behind
from millrace.sinks.postgres.connection import Away, connect, said
from millrace.sinks.postgres.consumed import Consumed
from millrace.sinks.postgres.ledger import Ledger
from millrace.sinks.postgres.text import as_array, as_arrays

if TYPE_CHECKING:
    import psycopg

_log = logging.getLogger("millrace")

#: Between attempts while the server is away, in seconds: twice as long each time.
_PAUSE, _PAUSE_MAX = 0.1, 5.0


@dataclass(frozen=True)
class Turns:
    """What the tasks of the real-time plane know of the sink.

    Attributes:
        sink: The sink, for messages.
        conninfo: How to connect; without a password.
        ledger: Of the sink, as the run has claimed it.
        retry_us: How long a task waits for a server that is away.
    """

    sink: str
    conninfo: str
    ledger: Ledger
    retry_us: int

    def begin(self, session: int, generation: int, task: int) -> Behind:
        """Return what a task writes with in a session."""
        return Behind(TableWriter(self, session, task))


class TableWriter:
    """Writes to the table, for one task of a session.

    Args:
        turns: Of the sink.
        session: Number of the session.
        task: Number of the task.
    """

    def __init__(self, turns: Turns, session: int, task: int) -> None:
        self._turns = turns
        self._tables = turns.ledger.tables
        self._who = turns.ledger.who() | {"task": task, "session": session}
        self._session = session
        self._task = task
        self._statement = statements.in_turn(self._tables)
        self._connection: psycopg.Connection[Any] | None = None
        self._consumed = Consumed({})
        self._stopped = threading.Event()

    def put(
        self, rows: pa.RecordBatch, origins: npt.NDArray[np.int64], sequences: npt.NDArray[np.int64]
    ) -> None:
        """Write rows, but for those that the table has; wait for a server that is away.

        Raises:
            SinkError: The table refuses the rows, or the server was away for too long.
            ZombieWriter: A newer run, or session, writes.
        """
        pause, since = _PAUSE, time.monotonic()
        while True:
            try:
                self._put(rows, origins, sequences)
            except Away as away:
                self._leave()
                if time.monotonic() + pause - since > self._turns.retry_us / SECOND:
                    raise SinkError(
                        f"{away} This was tried for {self._turns.retry_us / SECOND:g} s "
                        "(retry=...); nothing is lost, and the rows are written when the server "
                        "is back and the session begins again."
                    ) from None
                if pause == _PAUSE:
                    _log.warning("%s waits for the server: %s", self._turns.sink, away)
                if self._stopped.wait(pause):
                    raise
                pause = min(2 * pause, _PAUSE_MAX)
            else:
                if pause > _PAUSE:
                    _log.warning("%s writes again.", self._turns.sink)
                return

    def stop(self) -> None:
        """Wait no more, from whatever thread; what is under way may not be written."""
        self._stopped.set()

    def close(self) -> None:
        """Give the connection back."""
        self._leave()

    def _put(
        self, rows: pa.RecordBatch, origins: npt.NDArray[np.int64], sequences: npt.NDArray[np.int64]
    ) -> None:
        import psycopg

        try:
            if self._connection is None:
                self._enter()
            news = self._consumed.news(origins, sequences)
            if not news.senders:
                return
            fresh = rows if news.fresh.all() else rows.filter(pa.array(news.fresh))
            told = {
                "senders": as_array(news.senders),
                "origins": as_array(news.origins),
                "sequences": as_array(news.sequences),
            }
            try:
                passed = self._execute(told | as_arrays(fresh, self._tables.columns))
            except (psycopg.DataError, psycopg.IntegrityError) as error:
                raise self._refused(error, fresh) from None
            if not passed:
                raise self._turns.ledger.of_older_session(self._session)
            self._consumed.add(news)
        except psycopg.OperationalError as error:
            # Also when the answer got lost: the ledger is asked again before anything is written.
            raise Away(f"{self._turns.sink}: the connection broke off: {said(error)}") from None
        except psycopg.Error as error:
            raise SinkError(
                f"{self._turns.sink}: the table refuses rows: {said(error)} Nothing of this turn "
                "was written. Mend the computation that produced them, or change the table, and "
                "start again."
            ) from error

    def _enter(self) -> None:
        connection = connect(self._turns.conninfo)
        try:
            # A server that loses its last transactions in a crash would have forgotten rows that
            # the checkpoint counts as written.
            connection.execute(
                "SELECT set_config('synchronous_commit', 'on', false) "
                "WHERE current_setting('synchronous_commit') = 'off'"
            )
            last = self._turns.ledger.enter(connection, self._session, self._task)
        except BaseException:
            connection.close()
            raise
        self._connection, self._consumed = connection, Consumed(last)

    def _leave(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _execute(self, values: dict[str, str]) -> bool:
        """Run the statement of a turn; return whether the task may write."""
        assert self._connection is not None, "a task enters before it writes"
        (passed,) = self._connection.execute(self._statement, self._who | values).fetchone() or (0,)
        return bool(passed)

    def _refused(self, error: psycopg.Error, rows: pa.RecordBatch) -> SinkError:
        bad = self._culprit(rows)
        key, at, id = (bad.column(name)[0].as_py() for name in ("_key", "_timestamp", "_id"))
        return SinkError(
            f"{self._turns.sink}: the table refuses the record of key {brief(key)}, timestamp "
            f"{at.isoformat()}, id {id.hex()}: {said(error)}\nNothing of this turn was written. "
            "Mend the computation that produced it, or change the column's type, and start again."
        )

    def _culprit(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the first row that the table refuses, by halves; nothing is written."""
        import psycopg

        nobody = {"senders": "{}", "origins": "{}", "sequences": "{}"}
        assert self._connection is not None, "its answer was just read"
        while rows.num_rows > 1:
            half = rows.slice(0, rows.num_rows // 2)
            try:
                with self._connection.transaction(force_rollback=True):
                    self._execute(nobody | as_arrays(half, self._tables.columns))
            except (psycopg.DataError, psycopg.IntegrityError):
                rows = half
            else:
                rows = rows.slice(half.num_rows)
        return rows
