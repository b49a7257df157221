"""PostgreSQL written in every turn, against a real server: crashes, zombies, replays."""

from __future__ import annotations

import os
import pickle
import shutil
import socket
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import millrace as mr
from millrace.connectors.postgres import live_writer
from millrace.connectors.postgres.live_writer import TableWriter
from millrace.kernel.record_ids import production_ids
from millrace.model.coder import Coder, MsgpackCoder
from millrace.model.errors import CheckpointMismatch, SinkError, ZombieWriter
from millrace.model.pane import Pane, Paned, PanedCoder, Window
from millrace.runtime.sink_contract import Binding
from millrace.runtime.values import SinkColumns


class Total(msgspec.Struct):
    team: str
    points: int


TOTAL = MsgpackCoder(Total)
#: Productions in a commit.
EACH = 3


def place(sender: int, number: int) -> tuple[int, int]:
    """Return both halves of the id of a sender's record: an interval of a computation."""
    origin, sequences = production_ids(5, 1 + number // EACH, sender, EACH)
    return origin, int(sequences[number % EACH])


def batch(records: list[tuple[int, int]], values: list[Any], coder: Coder = TOTAL) -> Any:
    """Return records, by sender and number, as a task is given them."""
    halves = [place(*record) for record in records]
    columns = SinkColumns(Total if coder is TOTAL else coder, coder)
    array = columns.array(
        [coder.encode(value) for value in values],
        [f"key {n}" for n in range(len(values))],
        pa.array([1_000_000 * n for n in range(len(values))], pa.int64()),
        pa.array([struct.pack(">qq", *half) for half in halves], pa.binary()),
    )
    rows = pa.RecordBatch.from_struct_array(array)
    return rows, np.array([a for a, _ in halves]), np.array([b for _, b in halves])


def totals_of(*records: tuple[int, int]) -> Any:
    return batch(list(records), [Total(f"s{sender}", n) for sender, n in records])


def bound(
    server: Any,
    coder: Coder = TOTAL,
    *,
    table: str = "totals",
    generation: int = 1,
    completed: int = -1,
    **options: Any,
) -> mr.sinks.PostgreSQL:
    sink = mr.sinks.PostgreSQL(server.conninfo, table, **options)
    columns = SinkColumns(Total if coder is TOTAL else coder, coder)
    sink.bind(Binding("league", "totals", "uuid-1", columns))
    sink.claim(generation, completed)
    return sink


def totals(server: Any) -> list[tuple[str, int]]:
    return server.query("SELECT team, points FROM totals ORDER BY 1, 2")


def table_of(sink: mr.sinks.PostgreSQL, incarnation: int = 1, task: int = 0) -> TableWriter:
    # As it gets to a worker.
    return TableWriter(pickle.loads(pickle.dumps(sink.live())), incarnation, task)


class Faults:
    """Lets the connection break off before or after statements take effect."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.next: list[str] = []
        execute = TableWriter._execute

        def faulty(table: TableWriter, values: dict[str, str]) -> bool:
            import psycopg

            fault = self.next.pop(0) if self.next else ""
            if fault == "before":
                raise psycopg.OperationalError("server closed the connection unexpectedly")
            passed = execute(table, values)
            if fault == "after":
                raise psycopg.OperationalError("server closed the connection unexpectedly")
            return passed

        monkeypatch.setattr(TableWriter, "_execute", faulty)
        monkeypatch.setattr(live_writer, "_PAUSE", 0.0)


class Tasks:
    """The tasks of one incarnation after the other, and what each sender has made."""

    def __init__(self, server: Any, senders: int) -> None:
        self.sink = bound(server)
        self.incarnation, self.generation = 0, 1
        self.made = [0] * senders
        self.marked = [0] * senders
        self.tables: list[TableWriter] = []
        self.left_behind: list[TableWriter] = []

    def begin(self, tasks: int) -> None:
        """Begin an incarnation with so many tasks; what was made since the mark comes again."""
        self.left_behind += self.tables
        self.incarnation += 1
        self.tables = [table_of(self.sink, self.incarnation, task) for task in range(tasks)]
        self.send([(s, n) for s in range(len(self.made)) for n in self._since(s)], cuts=2)

    def _since(self, sender: int) -> range:
        return range(self.marked[sender], self.made[sender])

    def send(self, records: list[tuple[int, int]], cuts: int) -> None:
        for task, table in enumerate(self.tables):
            mine = [record for record in records if record[0] % len(self.tables) == task]
            size = max(1, len(mine) // cuts)
            for first in range(0, len(mine), size):
                table.put(*totals_of(*mine[first : first + size]))

    def turn(self, counts: list[int]) -> None:
        records = []
        for sender, count in enumerate(counts):
            records += [(sender, self.made[sender] + n) for n in range(count)]
            self.made[sender] += count
        # Those of several senders come in any order, those of one in its own.
        self.send(sorted(records, key=lambda record: record[1]), cuts=1)

    def crash(self, counts: list[int], tasks: int, *, written: bool) -> None:
        """Let a turn's commits be durable and, perhaps, its rows be written; then all tasks die."""
        if written:
            self.turn(counts)
        else:
            self.made = [made + count for made, count in zip(self.made, counts, strict=True)]
        self.begin(tasks)

    def zombies(self) -> None:
        """Let what was left behind write what it has, and what the others have not."""
        for table in self.left_behind:
            with pytest.raises(ZombieWriter):
                table.put(*totals_of(*((s, made) for s, made in enumerate(self.made))))

    def take_over(self, server: Any, tasks: int) -> None:
        """Let a new driver claim the sink, and begin an incarnation."""
        self.generation += 1
        self.sink = bound(server, generation=self.generation)
        self.begin(tasks)

    def close(self) -> None:
        for table in self.tables + self.left_behind:
            table.close()


COUNTS = st.lists(st.integers(0, 4), min_size=3, max_size=3)
TASKS = st.integers(1, 3)
STEPS = st.one_of(
    st.tuples(st.just("turn"), COUNTS),
    st.tuples(st.just("mark")),
    st.tuples(st.just("fault"), st.sampled_from(["before", "after"])),
    st.tuples(st.just("crash"), COUNTS, TASKS, st.booleans()),
    st.tuples(st.just("take over"), TASKS),
    st.tuples(st.just("zombies")),
)


@given(steps=st.lists(STEPS, max_size=12))
@settings(
    max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
def test_any_schedule_leaves_the_rows_of_an_undisturbed_run(
    postgres: Any, steps: list[tuple[Any, ...]]
) -> None:
    postgres.query("CREATE TABLE IF NOT EXISTS totals (team text, points bigint, place bigserial)")
    for (table,) in postgres.query("SELECT tablename FROM pg_tables WHERE schemaname = 'public'"):
        postgres.query(f"TRUNCATE {table}")
    with pytest.MonkeyPatch.context() as monkeypatch:
        faults, tasks = Faults(monkeypatch), Tasks(postgres, senders=3)
        tasks.begin(2)
        for kind, *arguments in steps:
            if kind == "turn":
                tasks.turn(*arguments)
            elif kind == "mark":
                tasks.marked = list(tasks.made)
            elif kind == "fault":
                faults.next += arguments
            elif kind == "crash":
                counts, number, written = arguments
                tasks.crash(counts, number, written=written)
            elif kind == "take over":
                tasks.take_over(postgres, *arguments)
            else:
                faults.next.clear()
                tasks.zombies()
        tasks.close()
    for sender, made in enumerate(tasks.made):
        found = postgres.query(f"SELECT points FROM totals WHERE team = 's{sender}' ORDER BY place")
        assert found == [(n,) for n in range(made)]


def test_a_task_of_an_older_incarnation_that_begins_late_is_refused(postgres: Any) -> None:
    sink = bound(postgres)
    late = table_of(sink, incarnation=1)
    new = table_of(sink, incarnation=2, task=1)
    new.put(*totals_of((0, 0)))
    with pytest.raises(ZombieWriter, match="this task is of incarnation 1"):
        late.put(*totals_of((0, 1)))
    bound(postgres, generation=2)
    with pytest.raises(ZombieWriter):
        new.put(*totals_of((0, 1)))
    new.close()
    again = table_of(sink, incarnation=3)
    with pytest.raises(ZombieWriter, match=r"generation 2 of this pipeline.*generation 1"):
        again.put(*totals_of((0, 1)))
    assert totals(postgres) == [("s0", 0)]


def test_epochs_go_on_where_turns_ended_and_the_other_way_round(postgres: Any) -> None:
    sink = bound(postgres)
    live = table_of(sink)
    live.put(*totals_of((0, 0), (0, 1)))
    rows, _, _ = totals_of((0, 2))

    sink = bound(postgres, generation=2, completed=7)
    copying = sink.for_tasks().begin(8, 0)
    copying.write(rows)
    sink.publish(8, [copying.close()])
    with pytest.raises(ZombieWriter):
        live.put(*totals_of((0, 2)))
    live.close()

    again = table_of(bound(postgres, generation=3, completed=8), incarnation=2)
    again.put(*totals_of((0, 1)))
    again.put(*totals_of((0, 3)))
    again.close()
    assert totals(postgres) == [("s0", n) for n in range(4)]


def test_a_table_that_is_filled_anew_knows_no_sender(postgres: Any) -> None:
    table = table_of(bound(postgres, completed=4))
    table.put(*totals_of((0, 5)))
    table.close()
    with pytest.raises(CheckpointMismatch, match="recorded epoch 4, but the checkpoint's last one"):
        bound(postgres, generation=2, completed=2)
    # What the message about another checkpoint says to do.
    postgres.query("TRUNCATE totals")
    postgres.query("DELETE FROM public.millrace_epochs WHERE pipeline = 'league'")
    table = table_of(bound(postgres))
    table.put(*totals_of((0, 0)))
    table.close()
    assert totals(postgres) == [("s0", 0)]


RETRACTING = PanedCoder(Total, retracts=True)


def test_an_upsert_takes_the_last_record_and_retractions_delete(postgres: Any) -> None:
    def panes(first: int, *values: tuple[str, int, bool]) -> Any:
        return batch(
            [(0, first + n) for n in range(len(values))],
            [
                Paned(Total(team, points), Pane(Window(0, 10), retraction=retraction))
                for team, points, retraction in values
            ],
            RETRACTING,
        )

    table = table_of(bound(postgres, RETRACTING, key=("team", "_window_start")))
    table.put(*panes(0, ("a", 1, False), ("b", 2, False), ("a", 3, False)))
    assert totals(postgres) == [("a", 3), ("b", 2)]
    table.put(*panes(3, ("a", 3, True), ("a", 4, False), ("b", 2, True), ("c", 1, False)))
    assert totals(postgres) == [("a", 4), ("c", 1)]
    # They come again, with what follows.
    first = [("a", 1, False), ("b", 2, False), ("a", 3, False), ("a", 3, True), ("a", 4, False)]
    table.put(*panes(0, *first, ("b", 2, True), ("c", 1, False), ("c", 1, True), ("d", 9, False)))
    assert totals(postgres) == [("a", 4), ("d", 9)]
    table.close()


def test_a_server_that_crashes_is_waited_for(
    postgres: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    table = table_of(bound(postgres))
    table.put(*totals_of((0, 0)))
    postgres.stop("immediate")
    leave = TableWriter._leave

    def back(table: TableWriter) -> None:
        leave(table)
        postgres.start()
        monkeypatch.setattr(TableWriter, "_leave", leave)

    monkeypatch.setattr(TableWriter, "_leave", back)
    table.put(*totals_of((0, 0), (0, 1)))
    table.close()
    assert totals(postgres) == [("s0", 0), ("s0", 1)]
    said = [record.getMessage() for record in caplog.records if record.name == "millrace"]
    assert "PostgreSQL('totals'), stream 'totals' waits for the server: " in said[0]
    assert said[-1] == "PostgreSQL('totals'), stream 'totals' writes again."


def test_a_server_that_stays_away_ends_the_incarnation(postgres: Any) -> None:
    sink = bound(postgres, retry="300 ms")
    writing = sink.live().begin(1, 1, 0)
    postgres.stop()
    try:
        writing.write(*totals_of((0, 0)))
        with pytest.raises(SinkError, match=r"cannot be reached.*tried for 0.3 s.*nothing is lost"):
            writing.flush()
    finally:
        postgres.start()
    writing.close()
    writing = sink.live().begin(2, 1, 0)
    writing.write(*totals_of((0, 0)))
    writing.flush()
    writing.close()
    assert totals(postgres) == [("s0", 0)]


def test_a_row_that_is_refused_is_named_and_its_turn_is_not_written(postgres: Any) -> None:
    postgres.query("CREATE TABLE totals (team text PRIMARY KEY, points smallint)")
    table = table_of(bound(postgres))
    values = [Total("a", 1), Total("b", 100_000), Total("c", 3)]
    with pytest.raises(SinkError) as refused:
        table.put(*batch([(0, 0), (0, 1), (0, 2)], values))
    assert (
        "PostgreSQL('totals'), stream 'totals': the table refuses the record of key 'key 1'"
        in str(refused.value)
    )
    assert 'value "100000" is out of range for type smallint' in str(refused.value)
    table.put(*batch([(0, 0)], [Total("a", 1)]))
    with pytest.raises(
        SinkError,
        match=r"(?s)refuses the record of key 'key 1'.*duplicate key .*Nothing of this turn",
    ):
        table.put(*batch([(0, 1), (0, 2)], [Total("d", 1), Total("a", 1)]))
    table.close()
    assert totals(postgres) == [("a", 1)]


def test_a_null_in_the_key_is_an_error_though_an_index_takes_it(postgres: Any) -> None:
    postgres.query(
        "CREATE TABLE totals (team text, points int, _window_start timestamptz, "
        "UNIQUE (team, _window_start))"
    )
    table = table_of(bound(postgres, RETRACTING, key=("team", "_window_start")))
    values = [Paned(Total("a", 1), Pane(Window(0, 10))), Paned(Total("b", 2), Pane(Window()))]
    with pytest.raises(SinkError, match=r"record of key 'key 1'.*'_window_start' is of the key"):
        table.put(*batch([(0, 0), (0, 1)], values, RETRACTING))
    table.close()
    assert totals(postgres) == []


#: Debian has it where only root looks.
PGBOUNCER = shutil.which("pgbouncer") or "/usr/sbin/pgbouncer"
POOLER = """
[databases]
* = host=127.0.0.1 port={server}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = scram-sha-256
auth_file = {users}
pool_mode = transaction
default_pool_size = 2
"""


@pytest.fixture
def pooler(postgres: Any, die_with_parent: Callable[[], None]) -> Iterator[Any]:
    """PgBouncer: a transaction is given any of its two connections to the server."""
    import psycopg

    folder = Path(tempfile.mkdtemp(prefix="millrace-pgbouncer-"))
    folder.chmod(0o755)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    users, settings_file = folder / "users", folder / "pgbouncer.ini"
    users.write_text(f'"{postgres.user}" "{postgres.password}"\n')
    settings_file.write_text(POOLER.format(server=postgres.port, port=port, users=users))
    user = ["--user", "nobody"] if os.geteuid() == 0 else []  # it refuses to run as root
    process = subprocess.Popen(
        [PGBOUNCER, "--quiet", *user, settings_file], preexec_fn=die_with_parent
    )
    conninfo = postgres.conninfo.replace(f"port={postgres.port}", f"port={port}")
    deadline = time.monotonic() + 30
    while True:
        try:
            psycopg.connect(conninfo).close()
            break
        except psycopg.OperationalError:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
    yield SimpleNamespace(conninfo=conninfo)
    process.terminate()
    process.wait(30)
    shutil.rmtree(folder)


def process_of(connection: Any) -> int:
    ((process,),) = connection.execute("SELECT pg_backend_pid()").fetchall()
    return int(process)


def test_two_sinks_that_share_the_connections_of_a_pooler_write_each_to_its_table(
    postgres: Any, pooler: Any
) -> None:
    import psycopg

    first, second = (psycopg.connect(pooler.conninfo) for _ in range(2))
    home, away = (table_of(bound(pooler, table=name)) for name in ("home", "away"))
    one = process_of(first)
    other = process_of(second)
    first.rollback()
    for n in range(8):  # so often that psycopg would prepare the statement
        home.put(*totals_of((1, n)))
    assert process_of(first) == one
    second.rollback()
    for n in range(8):
        away.put(*totals_of((2, n)))
    assert process_of(second) == other
    first.rollback()
    for n in range(8, 16):  # now where the other sink has been
        away.put(*totals_of((2, n)))
    second.close()
    for n in range(8, 16):  # and both where both have been
        home.put(*totals_of((1, n)))
    for closed in (home, away, first):
        closed.close()
    for name, team in (("home", "s1"), ("away", "s2")):
        found = postgres.query(f"SELECT team, points FROM {name} ORDER BY points")
        assert found == [(team, n) for n in range(16)]


def test_statements_are_prepared_where_there_is_no_pooler(postgres: Any) -> None:
    table = table_of(bound(postgres))
    for n in range(8):
        table.put(*totals_of((0, n)))
    assert table._connection is not None
    prepared = table._connection.execute("SELECT statement FROM pg_prepared_statements").fetchall()
    table.close()
    assert ["WITH fence AS" in statement for (statement,) in prepared] == [True]


def test_a_turn_is_durable_whatever_the_server_does_by_default(postgres: Any) -> None:
    postgres.query("CREATE TABLE totals (team text, points bigint)")
    postgres.query("CREATE TABLE commits (setting text)")
    postgres.query(
        "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "INSERT INTO commits VALUES (current_setting('synchronous_commit')); RETURN NULL; END $$"
    )
    postgres.query(  # it is called when the transaction commits
        "CREATE CONSTRAINT TRIGGER noted AFTER INSERT ON totals DEFERRABLE INITIALLY DEFERRED "
        "FOR EACH ROW EXECUTE FUNCTION note()"
    )
    sink = bound(postgres)
    for n, setting in enumerate(("off", "local")):
        postgres.query(f"ALTER ROLE millrace SET synchronous_commit = {setting}")
        try:
            table = table_of(sink)
            table.put(*totals_of((0, n)))
            assert table._connection is not None
            # It is set for one transaction: behind a pooler others would have it next.
            after = table._connection.execute("SHOW synchronous_commit").fetchall()
            table.close()
        finally:
            postgres.query("ALTER ROLE millrace RESET synchronous_commit")
        assert after == [(setting,)]
    assert postgres.query("SELECT setting FROM commits") == [("on",), ("local",)]


def test_a_server_that_a_failover_made_a_replica_is_waited_for(
    postgres: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = table_of(bound(postgres))
    pauses: list[float] = []

    def promote() -> None:
        with pytest.MonkeyPatch.context() as writable:
            writable.setenv("PGOPTIONS", "-c default_transaction_read_only=off")
            postgres.query("ALTER ROLE millrace RESET default_transaction_read_only")

    def wait(pause: float) -> bool:
        pauses.append(pause)
        promote()
        return False

    monkeypatch.setattr(table._stopped, "wait", wait)
    postgres.query("ALTER ROLE millrace SET default_transaction_read_only = on")
    try:
        table.put(*totals_of((0, 0)))
    finally:
        promote()
    table.close()
    assert len(pauses) == 1
    assert totals(postgres) == [("s0", 0)]
