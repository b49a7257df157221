"""The ledger of a sink: who may write, which epochs are written, and the rows of one more.

The row of a sink in ``millrace_epochs`` is the lock, the fence and the memory. Every transaction of
a driver takes it first, so two drivers come one after the other, and the later sees what the
earlier did. Tasks of the real-time plane take it when they begin, and leave a row each in
``millrace_writers``, which is theirs to lock with what they write: a later run, or an incarnation,
removes the rows of those before it.

Connections show no passwords, and failures say what to do.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from millrace.connectors.postgres.tables import (
    ID,
    RETRACTED,
    TASK,
    Tables,
    append,
    delete,
    identifier,
    staged_rows,
    upsert,
)
from millrace.model.errors import CheckpointMismatch, PipelineError, SinkError, ZombieWriter

if TYPE_CHECKING:
    import psycopg

#: Executions of a statement until it is prepared.
_PREPARE_AFTER = 5

#: A server that does not answer must not hold an epoch for as long as TCP would.
_DEFAULTS = {"connect_timeout": "10", "application_name": "millrace"}

_QUOTED = re.compile('".*"', re.DOTALL)

_SECRETS = (
    "password",
    "sslpassword",
    "scram_client_key",
    "scram_server_key",
    "oauth_client_secret",
)


class Away(SinkError):
    """The server cannot be reached, or broke off: worth another attempt."""


def checked(conninfo: str) -> str:
    """Return a connection string with defaults filled in.

    Raises:
        PipelineError: psycopg is missing, or the string is malformed or holds a password.
    """
    try:
        from psycopg.conninfo import conninfo_to_dict, make_conninfo
    except ImportError as missing:
        raise PipelineError(
            "mr.sinks.PostgreSQL needs the package psycopg, on the driver and on the workers: "
            "pip install 'millrace-spark[postgres]'."
        ) from missing
    import psycopg

    try:
        parameters: dict[str, Any] = dict(conninfo_to_dict(conninfo))
    except (psycopg.ProgrammingError, TypeError) as malformed:
        # The string itself is not repeated: it may hold a password. libpq quotes of it what it
        # could not read, which may be the password, or have a quote of its own.
        why = _QUOTED.sub("...", str(malformed)).strip()
        raise PipelineError(
            "mr.sinks.PostgreSQL: expected a connection string such as "
            f"'postgresql://user@host/database' or 'host=... dbname=...'; libpq says: {why}"
        ) from None
    secrets = [name for name in _SECRETS if parameters.get(name)]
    if secrets:
        raise PipelineError(
            f"mr.sinks.PostgreSQL: the connection string holds a {secrets[0]}, which would travel "
            "with every task and show up in logs. Leave it out, and give it to driver and workers "
            "through the environment (PGPASSWORD; on a cluster spark.executorEnv.PGPASSWORD) or a "
            "password file (PGPASSFILE, ~/.pgpass)."
        )
    return make_conninfo("", **(_DEFAULTS | parameters))


def connect(conninfo: str) -> psycopg.Connection[Any]:
    """Return a new connection in autocommit mode.

    It prepares no statements; see :func:`prepare_statements`.

    Raises:
        Away: The server cannot be reached or is starting up.
        SinkError: It refuses the user, or has no such database.
    """
    import psycopg

    try:
        return psycopg.connect(conninfo, autocommit=True, prepare_threshold=None)
    except psycopg.OperationalError as error:
        raise Away(
            f"PostgreSQL cannot be reached: {server_message(error)} Is the server up, may this "
            "host and user connect, and is the password in this process's environment or "
            "password file?"
        ) from None


def prepare_statements(connection: psycopg.Connection[Any]) -> None:
    """Let a connection prepare what it executes again, unless there is a pooler behind it.

    A pooler may give each transaction another connection to the server: there a statement of that
    name is unknown, or is that of another sink, and would write to its table. The process that a
    pooler names for a connection is none of the server's. A turn takes twice as long without.
    """
    (server_process,) = connection.execute("SELECT pg_backend_pid()").fetchone() or (None,)
    if connection.info.backend_pid == server_process:
        connection.prepare_threshold = _PREPARE_AFTER


def passing() -> tuple[type[psycopg.Error], ...]:
    """Return the errors of a server that may take the same statements later.

    It is away, or it is what a failover has left behind: a replica, where only reading is allowed.
    """
    import psycopg

    return psycopg.OperationalError, psycopg.errors.ReadOnlySqlTransaction


def server_message(error: psycopg.Error) -> str:
    """Return the message of the server or libpq, in one line that ends as a sentence."""
    primary, detail = error.diag.message_primary, error.diag.message_detail
    text = " ".join(part for part in (primary, detail) if part) or str(error)
    line = " ".join(text.split())
    return line if line.endswith((".", "?", "!")) else f"{line}."


#: How long clearing or dropping a staging table may wait for those who write there. What it holds
#: is never read again, so a later epoch, or a later run, does it as well.
_LOCK_WAIT = "100ms"


class Ledger:
    """The epochs that one sink has written.

    Args:
        name: The sink, for messages.
        conninfo: How to connect.
        tables: Of the sink.
        pipeline: Name of the pipeline.
        owner: Id of the checkpoint.

    Attributes:
        tables: Of the sink.
        generation: Of the run, once it has claimed the sink.
    """

    def __init__(self, name: str, conninfo: str, tables: Tables, pipeline: str, owner: str) -> None:
        self._name = name
        self._conninfo = conninfo
        self.tables = tables
        self._pipeline = pipeline
        self._owner = owner
        self.generation = 0

    @property
    def staging(self) -> tuple[str, str]:
        """Schema and name of this run's staging table."""
        name = self.tables.staging(self._pipeline, self._owner, self.generation)
        return self.tables.workspace, name

    def check_owner(self, connection: psycopg.Connection[Any]) -> None:
        """Refuse a sink that holds the output of another checkpoint.

        Raises:
            CheckpointMismatch: It does.
        """
        recorded = self._recorded(connection)
        if recorded is not None and recorded[0] != self._owner:
            raise self._of_another(recorded[0])

    def claim(self, generation: int, completed: int) -> None:
        """Take the sink over for a run, and make its staging table.

        Raises:
            ZombieWriter: A newer run has claimed the sink.
            CheckpointMismatch: The sink is ahead of the checkpoint.
        """
        from millrace.connectors.postgres.tables import make

        self.generation = generation
        with connect(self._conninfo) as connection:
            with connection.transaction():
                make(connection, self.tables)
                anew = self._execute(
                    connection,
                    "INSERT INTO {} (pipeline, sink, checkpoint, generation, epoch) "
                    "VALUES (%s, %s, %s, %s, -1) ON CONFLICT DO NOTHING",
                    self._pipeline,
                    self.tables.sink,
                    self._owner,
                    generation,
                )
                if anew.rowcount:
                    self._forget_senders(connection)
                epoch = self._fenced(connection)
                if epoch > completed + 1:
                    raise CheckpointMismatch(
                        f"{self._name} has recorded epoch {epoch}, but the checkpoint's last one "
                        f"is {completed}. Was the checkpoint restored from an older copy? What the "
                        "table took since would be taken for done. Restore the database of the "
                        "same time, or write to another table from a new checkpoint."
                    )
                self._execute(
                    connection,
                    "UPDATE {} SET generation = %s, epoch = greatest(epoch, %s) "
                    "WHERE pipeline = %s AND sink = %s",
                    generation,
                    # Nobody records epochs on the real-time plane, and an older copy is refused.
                    completed,
                    self._pipeline,
                    self.tables.sink,
                )
                self._expel(connection, incarnation=None)
            self._stage(connection)

    def who(self) -> dict[str, str]:
        """Return what the sink's rows in Millrace's own tables are known by."""
        return {"pipeline": self._pipeline, "sink": self.tables.sink}

    def enter(
        self, connection: psycopg.Connection[Any], incarnation: int, task: int
    ) -> dict[int, tuple[int, int]]:
        """Let a task of the real-time plane write, and none of an older incarnation any more.

        Returns:
            Sender -> both halves of the id of its last record that the table has.

        Raises:
            ZombieWriter: A newer run, or incarnation, writes.
        """
        from psycopg import sql

        sink = tuple(self.who().values())
        with connection.transaction():
            self._fenced(connection)
            self._expel(connection, incarnation)
            entered = connection.execute(
                sql.SQL(
                    "INSERT INTO {} (pipeline, sink, task, incarnation, written_at) "
                    "SELECT %s, %s, %s, %s, now() WHERE NOT EXISTS "
                    "(SELECT FROM {} WHERE pipeline = %s AND sink = %s AND incarnation > %s) "
                    "ON CONFLICT (pipeline, sink, task) DO UPDATE SET written_at = now()"
                ).format(self.tables.writers(), self.tables.writers()),
                [*sink, task, incarnation, *sink, incarnation],
            )
            if not entered.rowcount:
                raise self.of_older_incarnation(incarnation)
            rows = connection.execute(
                sql.SQL(
                    "SELECT sender, origin, sequence FROM {} WHERE pipeline = %s AND sink = %s"
                ).format(self.tables.senders()),
                sink,
            ).fetchall()
        return {sender: (origin, sequence) for sender, origin, sequence in rows}

    def of_older_incarnation(self, incarnation: int) -> ZombieWriter:
        """Return the error of a task whose incarnation is not the last."""
        return ZombieWriter(
            f"zombie writer: a newer run or incarnation writes to {self._name}, and this task is "
            f"of incarnation {incarnation}. It was left behind, and must stop. Nothing was lost."
        )

    def forget_senders(self) -> None:
        """Forget how far each sender has come: the checkpoint went back, and they begin anew."""
        with connect(self._conninfo) as connection, connection.transaction():
            self._fenced(connection)
            self._forget_senders(connection)

    def _forget_senders(self, connection: psycopg.Connection[Any]) -> None:
        """Forget what a sink was told of that has been given up: another checkpoint's numbers."""
        from psycopg import sql

        connection.execute(
            sql.SQL("DELETE FROM {} WHERE pipeline = %s AND sink = %s").format(
                self.tables.senders()
            ),
            [self._pipeline, self.tables.sink],
        )

    def _expel(self, connection: psycopg.Connection[Any], incarnation: int | None) -> None:
        """Let no task of an incarnation before this one write any more; None: of none at all."""
        from psycopg import sql

        # It waits for what they are writing: that counts, and is there when this returns.
        connection.execute(
            sql.SQL(
                "DELETE FROM {} WHERE pipeline = %s AND sink = %s AND incarnation < coalesce(%s, "
                "incarnation + 1)"
            ).format(self.tables.writers()),
            [self._pipeline, self.tables.sink, incarnation],
        )

    def merge(self, epoch: int, staged: dict[int, int]) -> None:
        """Move staged rows into the table and record the epoch, unless it is recorded.

        Args:
            epoch: The epoch.
            staged: Task attempts that count -> how many rows they staged.

        Raises:
            Away: The server broke off, or lost the staged rows: stage them again.
            SinkError: The table refuses the rows.
            ZombieWriter: A newer run has claimed the sink.
        """
        import psycopg

        where = f"{self._name}, epoch {epoch}"
        with connect(self._conninfo) as connection:
            try:
                with connection.transaction():
                    # A server that loses its last transactions in a crash would have forgotten an
                    # epoch that the checkpoint counts as written.
                    connection.execute(
                        "SELECT set_config('synchronous_commit', 'on', true) "
                        "WHERE current_setting('synchronous_commit') = 'off'"
                    )
                    if self._fenced(connection) >= epoch:
                        return
                    self._move(connection, where, staged)
                    self._execute(
                        connection,
                        "UPDATE {} SET epoch = %s, written_at = now() "
                        "WHERE pipeline = %s AND sink = %s",
                        epoch,
                        self._pipeline,
                        self.tables.sink,
                    )
                self.clear(connection)
            except passing() as error:
                # Also when the answer to COMMIT got lost: the next attempt finds it recorded.
                raise Away(f"{where}: {server_message(error)}") from None
            except psycopg.Error as error:
                raise SinkError(
                    f"{where}: the table refuses the epoch: {server_message(error)} Nothing of the "
                    "epoch was written. Mend the computation that produced it, or change the "
                    "table, and start again."
                ) from error

    def clear(self, connection: psycopg.Connection[Any]) -> None:
        """Empty the staging table, unless somebody still copies there."""
        from psycopg import errors, sql

        try:
            with connection.transaction():
                connection.execute(f"SET LOCAL lock_timeout = '{_LOCK_WAIT}'")
                connection.execute(sql.SQL("TRUNCATE {}").format(identifier(*self.staging)))
        except errors.LockNotAvailable:
            # A task attempt that was given up, or that is paused.
            return

    def _move(
        self, connection: psycopg.Connection[Any], where: str, staged: dict[int, int]
    ) -> None:
        from psycopg import sql

        tables, attempts = self.tables, [list(staged)]
        rows = staged_rows(self.staging)
        counted = connection.execute(
            sql.SQL("SELECT count(*) FROM ({}) AS s").format(rows), attempts
        )
        (count,) = counted.fetchone() or (0,)
        if count != sum(staged.values()):
            # The staging table is unlogged: a server that crashed comes back with it empty.
            raise Away(
                f"{where}: {count} of {sum(staged.values())} staged rows were found. Did the "
                "server restart?"
            )
        if not tables.key:
            connection.execute(append(tables, rows), attempts)
            return
        if tables.deletes:
            connection.execute(delete(tables, rows), attempts)
        connection.execute(upsert(tables, rows), attempts)

    def _fenced(self, connection: psycopg.Connection[Any]) -> int:
        """Lock the sink's row and return the last epoch, or refuse a run that was superseded."""
        recorded = self._recorded(connection, " FOR UPDATE")
        if recorded is None:
            raise SinkError(
                f"{self._name}: the row of sink {self.tables.sink!r} was deleted from "
                "millrace_epochs, so it is unknown which epochs are written. Stop the run, restore "
                "the row or empty the table, and start again."
            )
        checkpoint, generation, epoch = recorded
        if checkpoint != self._owner:
            raise self._of_another(checkpoint)
        if generation > self.generation:
            raise ZombieWriter(
                f"zombie writer: {self._name} was claimed by generation {generation} of this "
                f"pipeline, and this run has generation {self.generation}. A newer run has taken "
                "over; this one must stop. Nothing was lost."
            )
        return epoch

    def _recorded(
        self, connection: psycopg.Connection[Any], lock: str = ""
    ) -> tuple[str, int, int] | None:
        row: tuple[str, int, int] | None = self._execute(
            connection,
            "SELECT checkpoint, generation, epoch FROM {} WHERE pipeline = %s AND sink = %s" + lock,
            self._pipeline,
            self.tables.sink,
        ).fetchone()
        return row

    def _execute(
        self, connection: psycopg.Connection[Any], statement: str, *values: Any
    ) -> psycopg.Cursor[Any]:
        """Run a statement on the table of epochs."""
        from psycopg import sql

        return connection.execute(sql.SQL(statement).format(self.tables.epochs()), values)

    def _of_another(self, checkpoint: str) -> CheckpointMismatch:
        return CheckpointMismatch(
            f"the sink {self._name} holds the output of another checkpoint of pipeline "
            f"{self._pipeline!r} (id {checkpoint}; this one is {self._owner}). Was the checkpoint "
            "deleted and its output kept? Write to another table; or empty this one and DELETE "
            f"FROM {self.tables.workspace}.millrace_epochs WHERE pipeline = '{self._pipeline}' "
            f"AND sink = '{self.tables.sink}'."
        )

    def _stage(self, connection: psycopg.Connection[Any]) -> None:
        """Make this run's staging table, and drop those of earlier runs."""
        from psycopg import errors, sql

        own = sql.SQL("{} bigint, {} bytea, {} boolean").format(
            *(sql.Identifier(name) for name in (TASK, ID, RETRACTED))
        )
        written = [
            sql.SQL("{} {}").format(sql.Identifier(column.name), sql.SQL(column.type))
            for column in self.tables.columns
        ]
        connection.execute(
            sql.SQL("CREATE UNLOGGED TABLE IF NOT EXISTS {} ({})").format(
                identifier(*self.staging), sql.SQL(", ").join([own, *written])
            )
        )
        earlier = connection.execute(
            "SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
            "WHERE n.nspname = %s AND starts_with(c.relname, %s) AND c.relname <> %s",
            [
                self.tables.workspace,
                self.tables.staging_prefix(self._pipeline),
                self.staging[1],
            ],
        ).fetchall()
        for (name,) in earlier:
            table = identifier(self.tables.workspace, name)
            try:
                with connection.transaction():
                    connection.execute(f"SET LOCAL lock_timeout = '{_LOCK_WAIT}'")
                    connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(table))
            except errors.LockNotAvailable:
                continue
