"""Real-time writer: writes a task's rows to the table, each batch in one transaction.

The transaction also records the number of each sender's last record. So a record that is repeated
after a failure, or because the answer to a commit was lost, is recognised and left out. It is one
statement: see :func:`~millrace.connectors.postgres.tables.in_turn`.

A thread beside the task writes, so the task does not wait for the server. While a transaction is
under way rows are buffered for the next: one row has the latency of one transaction, and many rows
need few. The buffer is bounded; when it is full the task waits.

A record's id on the wire names its sender and its number among that sender's records. Source:
docs/design/2026-11-22-the-real-time-plane.md, "Channels".
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.connectors.postgres.ledger import (
    Away,
    Ledger,
    connect,
    passing,
    prepare_statements,
    server_message,
)
from millrace.connectors.postgres.tables import in_turn
from millrace.connectors.postgres.text import as_array, as_arrays
from millrace.kernel.record_ids import ROW_BITS
from millrace.model.errors import InvariantViolation, SinkError, brief
from millrace.model.time import SECOND

_Integers = npt.NDArray[np.int64]


class News(NamedTuple):
    """What of some records is new.

    Attributes:
        fresh: By record, whether it is.
        senders: Who sent those.
        origins: By such a sender, the first half of its last record's id.
        sequences: The second half.
    """

    fresh: npt.NDArray[np.bool_]
    senders: list[int]
    origins: list[int]
    sequences: list[int]


class Consumed:
    """Of every sender, the id of the last record.

    Args:
        last: Sender -> both halves of that id.

    >>> consumed = Consumed({})
    >>> news = consumed.news(np.array([7, 7, 8]), np.array([0, 1, 0]))
    >>> news
    News(fresh=array([ True,  True,  True]), senders=[0], origins=[8], sequences=[0])
    >>> consumed.add(news)
    >>> consumed.news(np.array([8, 8]), np.array([0, 1])).fresh
    array([False,  True])
    """

    def __init__(self, last: dict[int, tuple[int, int]]) -> None:
        self._last = last

    def news(self, origins: _Integers, sequences: _Integers) -> News:
        """Return what of some records is new; one or more, those of a sender in its order.

        Raises:
            InvariantViolation: They are not in that order.
        """
        senders = senders_of(origins, sequences)
        distinct, first, inverse = np.unique(senders, return_index=True, return_inverse=True)
        if len(distinct) == len(senders):
            ends = first
        else:
            ends = _ends(senders, origins, sequences)
        before = np.array(
            [self._last.get(sender, (-1, -1)) for sender in distinct.tolist()], np.int64
        )
        fresh = _after(origins, sequences, before[inverse, 0], before[inverse, 1])
        # A sender's records ascend: if its last one is known, all are.
        ends = ends[fresh[ends]]
        return News(fresh, senders[ends].tolist(), origins[ends].tolist(), sequences[ends].tolist())

    def add(self, news: News) -> None:
        """Take what was new for known: the table has it."""
        halves = zip(news.origins, news.sequences, strict=True)
        self._last.update(zip(news.senders, halves, strict=True))


def senders_of(origins: _Integers, sequences: _Integers) -> _Integers:
    """Return who sent records: a computation's interval, or a process of an injected stream.

    >>> from millrace.kernel.record_ids import production_ids
    >>> origin, sequences = production_ids(3, 7, 5, 2)
    >>> senders_of(np.full(2, origin), np.array(sequences)) == (3 << 31) + 5
    array([ True,  True])
    """
    return (origins >> 48 << 31) | (sequences >> ROW_BITS)


def _ends(senders: _Integers, origins: _Integers, sequences: _Integers) -> _Integers:
    """Return the place of the last record of each sender, in order of the senders."""
    order = np.argsort(senders, kind="stable")
    same = np.diff(senders[order]) == 0
    earlier, later = order[:-1][same], order[1:][same]
    ascends = _after(origins[later], sequences[later], origins[earlier], sequences[earlier])
    if not ascends.all():
        n = int(np.flatnonzero(~ascends)[0])
        a, b = int(earlier[n]), int(later[n])
        raise InvariantViolation(
            f"a sender's records came out of order at a sink: id ({origins[b]}, {sequences[b]}) "
            f"after ({origins[a]}, {sequences[a]})."
        )
    ends: _Integers = order[np.append(~same, True)]
    return ends


def _after(
    origins: _Integers, sequences: _Integers, before: _Integers, before_sequences: _Integers
) -> npt.NDArray[np.bool_]:
    after: npt.NDArray[np.bool_] = (origins > before) | (
        (origins == before) & (sequences > before_sequences)
    )
    return after


#: How much may gather, and so how much a transaction has.
_BYTES_MAX = 8 << 20
#: How long a task that ends waits for what is under way. The server sees to it that it is whole.
_PATIENCE_S = 5.0


class Behind:
    """Hands rows to a thread that writes them.

    Args:
        table: Where to; but for ``stop``, it is called by the thread alone.
    """

    def __init__(self, table: TableWriter) -> None:
        self._table = table
        self._change = threading.Condition()
        self._rows: list[pa.RecordBatch] = []
        self._ids: list[tuple[_Integers, _Integers]] = []
        self._bytes = 0
        self._busy = self._ends = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="millrace sink", daemon=True)
        self._thread.start()

    def write(self, rows: pa.RecordBatch, origins: _Integers, sequences: _Integers) -> None:
        """Take rows, and wait if too many are waiting.

        Raises:
            SinkError: Earlier rows were refused.
            ZombieWriter: A newer run, or incarnation, writes.
        """
        with self._change:
            self._change.wait_for(lambda: self._bytes < _BYTES_MAX or self._error is not None)
            self._check()
            self._rows.append(rows)
            self._ids.append((origins, sequences))
            self._bytes += rows.nbytes
            self._change.notify_all()

    def flush(self) -> None:
        """Return when all rows are durable; see :meth:`write` for what it raises."""
        with self._change:
            self._change.wait_for(lambda: not (self._rows or self._busy) or self._error is not None)
            self._check()

    def close(self) -> None:
        """End the thread, and forget what it has not begun to write."""
        with self._change:
            self._ends = True
            self._change.notify_all()
        self._table.stop()
        self._thread.join(_PATIENCE_S)

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            while self._next():
                rows, ids = self._take()
                origins, sequences = map(np.concatenate, zip(*ids, strict=True))
                self._table.put(pa.concat_batches(rows), origins, sequences)
                with self._change:
                    self._busy = False
                    self._change.notify_all()
        except BaseException as error:  # noqa: BLE001  # the task raises it
            with self._change:
                self._error = error
                self._change.notify_all()
        finally:
            self._table.close()

    def _next(self) -> bool:
        """Wait for rows; return whether there are some to be written."""
        with self._change:
            self._change.wait_for(lambda: bool(self._rows) or self._ends)
            return not self._ends

    def _take(self) -> tuple[list[pa.RecordBatch], list[tuple[_Integers, _Integers]]]:
        with self._change:
            rows, ids = self._rows, self._ids
            self._rows, self._ids, self._bytes, self._busy = [], [], 0, True
            self._change.notify_all()
            return rows, ids


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

    def begin(self, incarnation: int, generation: int, task: int) -> Behind:
        """Return what a task writes with in an incarnation."""
        return Behind(TableWriter(self, incarnation, task))


class TableWriter:
    """Writes to the table, for one task of an incarnation."""

    def __init__(self, turns: Turns, incarnation: int, task: int) -> None:
        self._turns = turns
        self._tables = turns.ledger.tables
        self._who = turns.ledger.who() | {"task": task, "incarnation": incarnation}
        self._incarnation = incarnation
        self._task = task
        self._statement = in_turn(self._tables)
        self._connection: psycopg.Connection[Any] | None = None
        self._consumed = Consumed({})
        self._stopped = threading.Event()

    def put(
        self, rows: pa.RecordBatch, origins: npt.NDArray[np.int64], sequences: npt.NDArray[np.int64]
    ) -> None:
        """Write rows, but for those that the table has; wait for a server that is away.

        Raises:
            SinkError: The table refuses the rows, or the server was away for too long.
            ZombieWriter: A newer run, or incarnation, writes.
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
                        "is back and the incarnation begins again."
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
                raise self._turns.ledger.of_older_incarnation(self._incarnation)
            self._consumed.add(news)
        except passing() as error:
            # Also when the answer got lost: the ledger is asked again before anything is written.
            raise Away(
                f"{self._turns.sink}: the connection broke off: {server_message(error)}"
            ) from None
        except psycopg.Error as error:
            raise SinkError(
                f"{self._turns.sink}: the table refuses rows: {server_message(error)} Nothing of "
                "this turn was written. Mend the computation that produced them, or change the "
                "table, and start again."
            ) from error

    def _enter(self) -> None:
        connection = connect(self._turns.conninfo)
        try:
            prepare_statements(connection)
            last = self._turns.ledger.enter(connection, self._incarnation, self._task)
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
        row = self._connection.execute(self._statement, self._who | values).fetchone()
        assert row is not None, "a count is one row"
        return bool(row[0])

    def _refused(self, error: psycopg.Error, rows: pa.RecordBatch) -> SinkError:
        bad = self._culprit(rows)
        key, at, id = (bad.column(name)[0].as_py() for name in ("_key", "_timestamp", "_id"))
        return SinkError(
            f"{self._turns.sink}: the table refuses the record of key {brief(key)}, timestamp "
            f"{at.isoformat()}, id {id.hex()}: {server_message(error)}\nNothing of this turn was "
            "written. Mend the computation that produced it, or change the column's type, and "
            "start again."
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
