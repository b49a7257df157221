"""The PostgreSQL sink against a real server: retries, zombies, crashes, bad rows. Without a JVM."""

from __future__ import annotations

import datetime as dt
import re
import struct
import threading
from typing import Any

import msgspec
import pyarrow as pa
import pytest

import millrace as mr
from millrace.model.coder import MsgpackCoder
from millrace.model.errors import CheckpointMismatch, PipelineError, SinkError, ZombieWriter
from millrace.model.pane import Pane, Paned, PanedCoder, Window
from millrace.runtime.sink_contract import Binding, WriteAgain
from millrace.runtime.values import SinkColumns


class Total(msgspec.Struct):
    team: str
    points: int


class Job:
    """Stands for Spark: runs tasks that write the rows of each partition."""

    def __init__(self, *partitions: pa.RecordBatch, between: Any = None) -> None:
        self.partitions = partitions
        self.between = between
        self.runs = 0
        self.lost: list[int] = []

    def receipts(self, sink: mr.sinks.PostgreSQL, epoch: int) -> list[bytes]:
        self.runs += 1
        writer = sink.for_tasks()

        def attempt(number: int) -> bytes:
            writing = writer.begin(epoch, number)
            # A task has rows in as many batches as it likes.
            for row in range(self.partitions[number].num_rows):
                writing.write(self.partitions[number].slice(row, 1))
            return writing.close()

        for lost in self.lost:
            # An attempt that copied its rows and was not heard of again.
            attempt(lost)
        found = [attempt(n) for n, rows in enumerate(self.partitions) if rows.num_rows]
        if self.between is not None:
            self.between, between = None, self.between
            between()
        return found


def put(sink: mr.sinks.PostgreSQL, job: Job, epoch: int) -> None:
    """Write an epoch as a run does."""
    while True:
        receipts = job.receipts(sink, epoch)
        try:
            if receipts:
                sink.publish(epoch, receipts)
        except WriteAgain:
            continue
        return


def columns_of(format: Any) -> SinkColumns:
    return SinkColumns(format, format if isinstance(format, PanedCoder) else MsgpackCoder(format))


def rows(format: Any, *values: Any, first: int = 0) -> pa.RecordBatch:
    """Return records as the outlet makes them, ids in order."""
    columns = columns_of(format)
    coder = format if isinstance(format, PanedCoder) else MsgpackCoder(format)
    array = columns.array(
        [coder.encode(value) for value in values],
        [f"key {n}" for n in range(len(values))],
        pa.array([1_000_000 * n for n in range(len(values))], pa.int64()),
        pa.array([struct.pack(">qq", 1, first + n) for n in range(len(values))], pa.binary()),
    )
    return pa.RecordBatch.from_struct_array(array)


def bound(
    sink: mr.sinks.PostgreSQL,
    format: Any = Total,
    *,
    owner: str = "uuid-1",
    generation: int = 1,
    completed: int = -1,
    stream: str = "totals",
) -> mr.sinks.PostgreSQL:
    sink.bind(Binding("league", stream, owner, columns_of(format)))
    sink.claim(generation, completed)
    return sink


def sink_of(server: Any, **options: Any) -> mr.sinks.PostgreSQL:
    return mr.sinks.PostgreSQL(server.conninfo, "totals", **options)


def totals(server: Any) -> list[tuple[str, int]]:
    return server.query("SELECT team, points FROM totals ORDER BY 1, 2")


def test_an_epoch_is_appended_once_however_often_it_is_retried(postgres: Any) -> None:
    sink = bound(sink_of(postgres))
    job = Job(rows(Total, Total("a", 1), Total("b", 2)), rows(Total, Total("c", 3), first=2))
    job.lost = [0]
    put(sink, job, 0)
    put(sink, job, 0)
    again = bound(sink_of(postgres), generation=2)
    put(again, job, 0)
    put(again, Job(rows(Total, Total("a", 1))), 1)

    assert totals(postgres) == [("a", 1), ("a", 1), ("b", 2), ("c", 3)]
    recorded = "SELECT pipeline, sink, checkpoint, generation, epoch FROM millrace_epochs"
    assert postgres.query(recorded) == [("league", "totals -> public.totals", "uuid-1", 2, 1)]
    staging = "SELECT relname FROM pg_class WHERE relname LIKE 'millrace_stage%'"
    ((table,),) = postgres.query(staging)
    assert table.endswith("_2")
    assert postgres.query(f"SELECT count(*) FROM {table}") == [(0,)]
    ids = postgres.query("SELECT _id, _key, _timestamp FROM totals WHERE team = 'c'")
    assert ids == [(struct.pack(">qq", 1, 2), "key 0", dt.datetime(1970, 1, 1, tzinfo=dt.UTC))]


def test_an_upsert_takes_the_record_produced_last(postgres: Any) -> None:
    sink = bound(sink_of(postgres, key="team"))
    put(
        sink,
        Job(
            rows(Total, Total("a", 7), Total("b", 5), first=10),
            rows(Total, Total("a", 9), Total("b", 1), first=2),
        ),
        0,
    )
    assert totals(postgres) == [("a", 7), ("b", 5)]
    put(sink, Job(rows(Total, Total("a", 1))), 3)
    assert totals(postgres) == [("a", 1), ("b", 5)]


RETRACTING = PanedCoder(Total, retracts=True)


def pane(team: str, points: int, start: int = 0, *, retraction: bool = False) -> Paned:
    return Paned(Total(team, points), Pane(Window(start, start + 10), retraction=retraction))


def test_a_retraction_deletes_its_row_unless_it_was_replaced(postgres: Any) -> None:
    sink = bound(sink_of(postgres, key=("team", "_window_start")), RETRACTING)
    put(sink, Job(rows(RETRACTING, pane("a", 1), pane("b", 2), pane("b", 3, start=10))), 0)
    assert totals(postgres) == [("a", 1), ("b", 2), ("b", 3)]
    # The value of a is refined; that of b's second window goes: its records joined the first's.
    retractions = rows(
        RETRACTING,
        pane("a", 1, retraction=True),
        pane("a", 4),
        pane("b", 3, start=10, retraction=True),
        pane("b", 2, retraction=True),
        pane("b", 5),
        pane("c", 9),
        pane("c", 9, retraction=True),
    )
    put(sink, Job(retractions), 1)
    assert totals(postgres) == [("a", 4), ("b", 5)]
    put(sink, Job(rows(RETRACTING, pane("a", 4, retraction=True), first=20)), 2)
    assert totals(postgres) == [("b", 5)]


def test_retractions_are_not_appended_unmarked(postgres: Any) -> None:
    postgres.query("CREATE TABLE totals (team text, points bigint)")
    with pytest.raises(PipelineError, match="Add a column _retraction boolean, or name a key"):
        bound(sink_of(postgres), RETRACTING)
    postgres.query("ALTER TABLE totals ADD _retraction boolean, ADD _window_end timestamptz")
    sink = bound(sink_of(postgres), RETRACTING)
    put(sink, Job(rows(RETRACTING, pane("a", 1), pane("a", 1, retraction=True))), 0)
    assert postgres.query("SELECT points, _retraction FROM totals ORDER BY 2") == [
        (1, False),
        (1, True),
    ]


def test_an_epoch_without_rows_touches_nothing(postgres: Any) -> None:
    sink = bound(sink_of(postgres))
    put(sink, Job(rows(Total)), 5)
    assert postgres.query("SELECT epoch FROM millrace_epochs") == [(-1,)]


def test_a_zombie_is_refused_before_and_after_its_rows_are_staged(postgres: Any) -> None:
    old = bound(sink_of(postgres, key="team"))
    new = sink_of(postgres, key="team")

    # It paused after its tasks had copied; meanwhile the newer run wrote this epoch and the next.
    def replaced() -> None:
        bound(new, generation=2)
        put(new, Job(rows(Total, Total("a", 1))), 0)
        put(new, Job(rows(Total, Total("a", 2))), 1)

    with pytest.raises(ZombieWriter, match=r"generation 2 of this pipeline.*generation 1"):
        put(old, Job(rows(Total, Total("a", 1)), between=replaced), 0)
    # Its tasks have nowhere to copy to.
    with pytest.raises(ZombieWriter, match="staging table of this run is gone"):
        put(old, Job(rows(Total, Total("a", 1))), 0)
    with pytest.raises(ZombieWriter):
        old.claim(1, 0)
    assert totals(postgres) == [("a", 2)]


def test_a_paused_copy_of_an_older_run_holds_nobody_up(postgres: Any) -> None:
    import psycopg

    bound(sink_of(postgres))
    ((staging,),) = postgres.query(
        "SELECT relname FROM pg_class WHERE relname LIKE 'millrace_stage%'"
    )
    with psycopg.connect(postgres.conninfo) as paused:
        paused.execute(f"LOCK {staging} IN ROW EXCLUSIVE MODE")
        new = bound(sink_of(postgres), generation=2)
        put(new, Job(rows(Total, Total("a", 1))), 0)
    assert totals(postgres) == [("a", 1)]
    bound(sink_of(postgres), generation=3, completed=0)
    left = postgres.query("SELECT relname FROM pg_class WHERE relname LIKE 'millrace_stage%'")
    assert [name.rpartition("_")[2] for (name,) in left] == ["3"]


def test_two_drivers_in_one_epoch_write_it_once(postgres: Any) -> None:
    """Both get the row lock one after the other, in the same epoch and of the same generation."""
    sinks = [bound(sink_of(postgres)) for _ in range(4)]
    together = threading.Barrier(4)
    jobs = [Job(rows(Total, Total("a", 1)), between=together.wait) for _ in sinks]
    threads = [
        threading.Thread(target=put, args=(sink, job, 0))
        for sink, job in zip(sinks, jobs, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert totals(postgres) == [("a", 1)]


def test_a_server_that_crashes_after_the_copy_loses_no_row(postgres: Any) -> None:
    sink = bound(sink_of(postgres))

    def crash() -> None:
        postgres.stop("immediate")
        postgres.start()

    # Both an unlogged table that comes back empty, and connections that are gone.
    job = Job(rows(Total, Total("a", 1), Total("b", 2)), between=crash)
    put(sink, job, 0)
    assert job.runs == 2
    assert totals(postgres) == [("a", 1), ("b", 2)]


def test_a_server_that_stays_away_is_told(postgres: Any) -> None:
    sink = bound(sink_of(postgres, retry="300 ms"))
    postgres.stop()
    try:
        job = Job(rows(Total, Total("a", 1)))
        with pytest.raises(SinkError, match=r"cannot be reached.*tried for 0.3 s.*epoch 0 is"):
            put(sink, job, 0)
        assert job.runs > 1
        with pytest.raises(SinkError, match="Is the server up"):
            bound(sink_of(postgres), generation=2)
    finally:
        postgres.start()
    put(sink, job, 0)
    assert totals(postgres) == [("a", 1)]


def test_an_answer_to_commit_that_gets_lost(postgres: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import psycopg

    sink = bound(sink_of(postgres))
    clear, lost = sink._ledger.clear, []

    def cut_off(connection: Any) -> None:
        if not lost:
            lost.append(True)
            raise psycopg.OperationalError("server closed the connection unexpectedly")
        clear(connection)

    monkeypatch.setattr(sink._ledger, "clear", cut_off)
    job = Job(rows(Total, Total("a", 1)))
    put(sink, job, 0)
    assert job.runs == 2
    assert totals(postgres) == [("a", 1)]


class Everything(msgspec.Struct):
    flag: bool
    ratio: float
    data: bytes
    when: dt.datetime
    day: dt.date
    maybe: int | None
    text: str | None
    numbers: list[int]
    names: list[str | None]
    pairs: list[list[int]]
    inner: Total
    inners: list[Total]
    anything: dict[str, Any]


EVERYTHING = Everything(
    True, float("inf"), b"\x00\xff", dt.datetime(2013, 2, 8, 1, 2, 3, 4, tzinfo=dt.UTC),
    dt.date(2013, 2, 8), None, "", [1, 2], ['a "b\\', None, "", "NULL", "{,}"], [[1], [2, 3]],
    Total("ä\n\\.\n", 1), [Total("b", 2)], {"k": [1, None]},
)  # fmt: skip
EXPECTED = (
    True, float("inf"), b"\x00\xff", EVERYTHING.when, EVERYTHING.day, None, "", [1, 2],
    ['a "b\\', None, "", "NULL", "{,}"], [[1], [2, 3]], {"team": "ä\n\\.\n", "points": 1},
    [{"team": "b", "points": 2}], {"k": [1, None]},
)  # fmt: skip


def test_types_of_a_table_that_is_made(postgres: Any) -> None:
    sink = bound(mr.sinks.PostgreSQL(postgres.conninfo, "public.things"), Everything)
    put(sink, Job(rows(Everything, EVERYTHING)), 0)
    names = ", ".join(f'"{field.name}"' for field in msgspec.structs.fields(Everything))
    assert postgres.query(f"SELECT {names} FROM public.things") == [EXPECTED]
    kinds = postgres.query(
        "SELECT string_agg(format_type(atttypid, atttypmod), ' ' ORDER BY attnum) FROM pg_attribute"
        " WHERE attrelid = 'public.things'::regclass AND attnum > 0"
    )
    assert kinds == [
        (
            "boolean double precision bytea timestamp with time zone date bigint text bigint[] "
            "text[] jsonb jsonb jsonb jsonb text timestamp with time zone bytea",
        )
    ]


def test_a_table_with_types_of_its_own(postgres: Any) -> None:
    """PostgreSQL converts text to whatever the column is; columns with defaults are left to it."""
    postgres.query("CREATE SCHEMA shop")
    postgres.query(
        'CREATE TABLE shop."Über" (n bigserial PRIMARY KEY, value uuid, _timestamp timestamptz, '
        "at timestamptz NOT NULL DEFAULT now(), "
        "year int GENERATED ALWAYS AS (date_part('year', _timestamp AT TIME ZONE 'UTC')) STORED)"
    )
    sink = bound(mr.sinks.PostgreSQL(postgres.conninfo, "shop.Über", workspace="public"), str)
    word = "6f1c2c52-9d57-4f7a-9d3b-0c6d1f5b7a10"
    put(sink, Job(rows(str, word)), 0)
    assert postgres.query('SELECT n, value::text, year, at IS NOT NULL FROM shop."Über"') == [
        (1, word, 1970, True)
    ]
    with pytest.raises(SinkError) as refused:
        put(sink, Job(rows(str, word, "a\nb", word)), 1)
    message = str(refused.value)
    assert re.search(
        r"PostgreSQL\('shop.Über'\), stream '\w+', epoch 1: the table refuses the record of key "
        r"'key 1', "
        r"timestamp 1970-01-01T00:00:01\+00:00, id 0+10+1: invalid input syntax for type uuid",
        message,
    )
    assert "Nothing of the epoch was written" in message
    with pytest.raises(SinkError, match="invalid byte sequence"):
        put(sink, Job(rows(str, "\x00")), 1)
    assert postgres.query('SELECT count(*) FROM shop."Über"') == [(1,)]


def test_a_row_that_breaks_a_constraint(postgres: Any) -> None:
    postgres.query("CREATE TABLE totals (team text PRIMARY KEY, points int CHECK (points > 0))")
    sink = bound(sink_of(postgres))
    with pytest.raises(SinkError, match=r"check constraint.*Failing row contains \(b, -1\)"):
        put(sink, Job(rows(Total, Total("a", 1), Total("b", -1))), 0)
    put(sink, Job(rows(Total, Total("a", 1))), 0)
    with pytest.raises(SinkError, match=r"duplicate key.*already exists"):
        put(sink, Job(rows(Total, Total("a", 1))), 1)
    assert totals(postgres) == [("a", 1)]


class Guest(msgspec.Struct):
    team: str | None
    points: int


def test_a_null_in_the_key_is_an_error_though_an_index_takes_it(postgres: Any) -> None:
    """To a unique index nulls differ: each record would be a row more, and none would go."""
    postgres.query("CREATE TABLE totals (team text UNIQUE, points bigint)")
    sink = bound(sink_of(postgres, key="team"), Guest)
    with pytest.raises(SinkError, match=r"record of key 'key 1'.*'team' is of the key.*null"):
        put(sink, Job(rows(Guest, Guest("a", 1), Guest(None, 1))), 0)
    put(sink, Job(rows(Guest, Guest("a", 1))), 0)
    assert totals(postgres) == [("a", 1)]


@pytest.mark.parametrize(
    ("table", "options", "message"),
    [
        ("team text", {}, r"fields \['points'\], for which the table has no column"),
        ("team text, points int, season int NOT NULL", {}, r"\['season'\] are NOT NULL"),
        ("team text, points int", {"key": "team"}, "CREATE UNIQUE INDEX ON public.totals"),
        ("team text PRIMARY KEY, points int", {"key": "_key"}, r"names \['_key'\]"),
        (
            "team text PRIMARY KEY, points int",
            {"key": ("team", "points")},
            "no primary key or unique index on exactly",
        ),
    ],
)
def test_a_table_that_does_not_fit_is_refused_before_the_run(
    postgres: Any, table: str, options: dict[str, Any], message: str
) -> None:
    postgres.query(f"CREATE TABLE totals ({table})")
    with pytest.raises(PipelineError, match=message):
        bound(sink_of(postgres, **options))
    assert postgres.query("SELECT relname FROM pg_class WHERE relname LIKE 'millrace%'") == []


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("cents", r"numeric\(10,2\) would round, cut or reinterpret values of double"),
        ("cents_again", r"numeric\(10,2\) would round"),
        ("cents[]", r"numeric\(10,2\)\[\] would round"),
        ("price", r"numeric\(10,2\)\[\] would round"),
    ],
)
def test_a_domain_holds_what_the_type_behind_it_does(
    postgres: Any, kind: str, message: str
) -> None:
    postgres.query("CREATE DOMAIN cents AS numeric(10, 2)")
    postgres.query("CREATE DOMAIN cents_again AS cents CHECK (VALUE > 0)")
    postgres.query("CREATE DOMAIN price AS numeric(10, 2)[]")
    postgres.query(f"CREATE TABLE totals (value {kind})")
    array = kind in ("price", "cents[]")
    with pytest.raises(PipelineError, match=message):
        bound(sink_of(postgres), list[float] if array else float)


def test_values_that_fit_into_a_domain_are_written(postgres: Any) -> None:
    postgres.query("CREATE DOMAIN code AS varchar(3)")
    postgres.query("CREATE TABLE totals (value code)")
    sink = bound(sink_of(postgres), str)
    put(sink, Job(rows(str, "abc")), 0)
    with pytest.raises(SinkError, match="would round or cut a value"):
        put(sink, Job(rows(str, "abcd")), 1)
    assert postgres.query("SELECT value FROM totals") == [("abc",)]
    assert sink.limits.columns["value"].length == 3


def test_a_field_that_only_the_server_gives_a_value_is_refused(postgres: Any) -> None:
    postgres.query("CREATE TABLE totals (team text, points bigint GENERATED ALWAYS AS IDENTITY)")
    with pytest.raises(PipelineError, match=r"\['points'\], for which .* can be written"):
        bound(sink_of(postgres))


class Place(msgspec.Struct):
    latitude: float
    name: str | None


class Trip(msgspec.Struct):
    begin: Place
    stops: list[Place]
    grid: list[list[float]]


def test_numbers_that_json_lacks_are_not_null_in_nested_data(postgres: Any) -> None:
    nan, infinity = float("nan"), float("inf")
    trip = Trip(Place(nan, None), [Place(-infinity, "home")], [[nan, 1.5], [infinity]])
    sink = bound(sink_of(postgres), Trip)
    put(sink, Job(rows(Trip, trip)), 0)
    assert postgres.query("SELECT begin, stops, grid FROM totals") == [
        (
            {"latitude": "NaN", "name": None},
            [{"latitude": "-Infinity", "name": "home"}],
            [["NaN", 1.5], ["Infinity"]],
        )
    ]


def test_a_claim_that_the_server_refuses_is_said(postgres: Any) -> None:
    sink = sink_of(postgres)
    sink.bind(Binding("league", "totals", "uuid-1", columns_of(Total)))
    postgres.query("CREATE VIEW millrace_epochs AS SELECT 1 AS no_such_table")
    with pytest.raises(SinkError, match=r"PostgreSQL\('totals'\) cannot be claimed: .*column"):
        sink.claim(1, -1)


@pytest.mark.parametrize("schema", ["no_such", "pg_catalog"])
def test_a_schema_that_cannot_be_used_is_refused_before_the_run(postgres: Any, schema: str) -> None:
    postgres.query("CREATE ROLE clerk LOGIN PASSWORD 'x' IN ROLE pg_read_all_data")
    try:
        sink = mr.sinks.PostgreSQL(postgres.conninfo, f"{schema}.totals")
        sink.conninfo = sink.conninfo.replace(f"user={postgres.user}", "user=clerk")
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PGPASSWORD", "x")
            with pytest.raises(PipelineError, match=f"the schema '{schema}' (does not|may not)"):
                sink.bind(Binding("league", "totals", "uuid-1", columns_of(Total)))
    finally:
        postgres.query("DROP ROLE clerk")


def test_checking_a_sink_writes_nothing(postgres: Any) -> None:
    sink_of(postgres, key="team").bind(Binding("league", "totals", "u", columns_of(Total)))
    assert postgres.query("SELECT relname FROM pg_class WHERE relname ~ '^(millrace|totals)'") == []


def test_another_checkpoint_and_an_older_copy_of_it_are_refused(postgres: Any) -> None:
    sink = bound(sink_of(postgres))
    put(sink, Job(rows(Total, Total("a", 1))), 6)
    with pytest.raises(CheckpointMismatch, match=r"another checkpoint.*uuid-1; this one is uuid-2"):
        bound(sink_of(postgres), owner="uuid-2")
    with pytest.raises(CheckpointMismatch, match="recorded epoch 6, but the checkpoint's last"):
        bound(sink_of(postgres), generation=2, completed=4)
    bound(sink_of(postgres), generation=3, completed=5)


def test_two_streams_into_one_table(postgres: Any) -> None:
    first = bound(sink_of(postgres), stream="home")
    second = bound(sink_of(postgres), stream="away")
    put(first, Job(rows(Total, Total("a", 1))), 0)
    put(second, Job(rows(Total, Total("b", 1))), 0)
    assert totals(postgres) == [("a", 1), ("b", 1)]
    with pytest.raises(PipelineError, match="sink of two streams, 'home' and 'guests'"):
        bound(first, stream="guests")


def test_two_pipelines_with_a_stream_of_one_name_write_to_one_table(postgres: Any) -> None:
    """Who starts drops what earlier runs have staged: its own ones, and not the other's."""
    league, cup = sink_of(postgres), sink_of(postgres)
    for sink, pipeline in (league, "league"), (cup, "cup"):
        sink.bind(Binding(pipeline, "totals", f"uuid of {pipeline}", columns_of(Total)))
        sink.claim(1, -1)
    put(league, Job(rows(Total, Total("a", 1))), 0)
    put(cup, Job(rows(Total, Total("b", 1))), 0)
    assert totals(postgres) == [("a", 1), ("b", 1)]


def test_a_stream_may_go_to_tables_of_one_name_in_two_databases(postgres: Any) -> None:
    postgres.query("CREATE DATABASE elsewhere")
    try:
        conninfo = re.sub("dbname=[^ ]+", "dbname=elsewhere", postgres.conninfo)
        binding = Binding("league", "totals", "uuid-1", columns_of(Total))
        places = [
            mr.sinks.PostgreSQL(info, "totals").bind(binding)
            for info in (postgres.conninfo, conninfo, f"{conninfo} options=-ctimezone=Asia/Kolkata")
        ]
    finally:
        postgres.query("DROP DATABASE elsewhere")
    assert places[0] != places[1] == places[2]


def test_a_password_stays_out_of_messages(postgres: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for conninfo in (
        "postgresql://me:s3cret@127.0.0.1/db",
        "host=127.0.0.1 password=s3cret",
        "host=127.0.0.1 password='s3cret",
    ):
        with pytest.raises(PipelineError) as refused:
            mr.sinks.PostgreSQL(conninfo, "t")
        assert "s3cret" not in str(refused.value)
        assert refused.value.__cause__ is None
    monkeypatch.setenv("PGPASSWORD", "s3cret")
    with pytest.raises(SinkError, match="password authentication failed") as failed:
        bound(sink_of(postgres))
    assert "s3cret" not in str(failed.value)
    assert "s3cret" not in repr(vars(sink_of(postgres)))


def test_a_password_file_will_do(
    postgres: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    file = tmp_path / "pgpass"
    file.write_text(f"127.0.0.1:{postgres.port}:*:{postgres.user}:{postgres.password}\n")
    file.chmod(0o600)
    monkeypatch.delenv("PGPASSWORD")
    monkeypatch.setenv("PGPASSFILE", str(file))
    bound(sink_of(postgres))


@pytest.mark.parametrize("table", ["", "a.b.c", ".t"])
def test_table_names(table: str) -> None:
    with pytest.raises(PipelineError, match=r"expected 'table' or 'schema.table'"):
        mr.sinks.PostgreSQL("dbname=x", table)
