"""What the first stage reads of injectors: by columns or record by record, the same comes of it."""

from __future__ import annotations

import datetime as dt
import random
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

import millrace as mr
from millrace.epochlog.run_log import RunLog
from millrace.injectors.columns import column_names
from millrace.injectors.offsets import Piece, packed_piece
from millrace.kernel.execution import Execution
from millrace.kernel.record_ids import fingerprint
from millrace.kernel.user_errors import total
from millrace.model.keys import encode_key, hash_key
from millrace.model.time import EARLIEST_RECORD, LATEST_RECORD
from millrace.runtime import wire
from millrace.runtime.encode_stage import EncodeStage
from millrace.runtime.exchange import LocalExchange, through_levels
from millrace.runtime.packets import packed, unpacked
from millrace.runtime.partials_stage import LiftStage
from millrace.runtime.piece_reader import ReadStage
from millrace.runtime.reports import TaskReport, reports_in
from millrace.runtime.row_encoder import encoded, fingerprints, microseconds
from millrace.runtime.sink_writer import values_and_ids
from millrace.runtime.values import value_columns
from millrace.runtime.worker_process import SourceColumns, Task, WorkerProcess
from millrace.store import MemoryCaches, MemoryHardState

NOW = 10 * mr.HOUR


class Trip(msgspec.Struct):
    zone: str
    miles: int
    at: int


class Log(mr.sources.Injector):
    """Rows that a test gives; a piece is of so many."""

    schema = "id string, zone string, miles long, at timestamp"

    def __init__(self, rows: list[tuple[Any, ...]]) -> None:
        self.rows = rows

    def processes(self) -> list[str]:
        return ["log"]

    def advance(self, process: str, offset: Any) -> mr.sources.Advance:
        return mr.sources.Advance(len(self.rows))

    def read(self, process: str, start: Any, end: Any) -> Any:
        return self.rows[start:end]


def at(us: int | None) -> dt.datetime | None:
    return None if us is None else dt.datetime.fromtimestamp(us / 10**6, dt.UTC)


class PerZone(mr.Computation):
    inputs = {"trips": mr.by("zone")}
    outputs = {"seen": str}
    miles = mr.CombiningState(int)

    def process_record(self, record: mr.Record) -> None:
        self.miles.add(record.value.miles)
        self.produce("seen", f"{self.key} {self.miles.get()} at {record.timestamp}")


class PerMile(mr.Computation):
    inputs = {"trips": mr.by("miles")}
    outputs = {"seen": str}

    def process_record(self, record: mr.Record) -> None:
        self.produce("seen", f"{self.key}: {record.value.zone} {record.id.hex()}")


def pipeline(injector: mr.sources.Injector, *, id: str | None = None) -> mr.Pipeline:
    p = mr.Pipeline("trips")
    p.inject("trips", injector, timestamp="at", format=Trip, id=id)
    p.add(PerZone)
    p.add(PerMile)
    p.sink("seen", print)
    p.dead_letter("rejects")
    p.sink("rejects", print)
    return p


class Reader:
    """Runs an epoch of a pipeline whose first stage reads pieces."""

    def __init__(self, p: mr.Pipeline, *, native: bool, tasks: int = 2) -> None:
        self.topology = topology = p.build()
        (spec,) = topology.injected()
        injection, format = spec.injection, spec.format
        columns = value_columns(
            spec.name,
            format,
            column_names(injection.source.schema),
            injection.timestamp,
            (injection.id,),
        )
        source = SourceColumns(0, spec.name, columns, native, True, injection.id)
        state = MemoryHardState()
        self.run_log = RunLog(topology, state, intervals=4)
        execution = Execution(topology, state, MemoryCaches())
        self.runtime = WorkerProcess(topology, tasks=tasks, execution=execution, sources=[source])
        self.native = native

    def read(self, stage: ReadStage, *pieces: Piece) -> list[pa.RecordBatch]:
        """Return what leaves the first stage, and begin the epoch."""
        self.manifest = self.run_log.begin(
            self.run_log.completed + 1, wall_time_us=NOW, injectors={"trips": 0}
        )
        rows = pa.RecordBatch.from_pydict(
            {
                "piece": [packed_piece("trips", piece) for piece in pieces],
            }
        )
        sent = packed(stage.run(Task(self.runtime, self.manifest, 0), [rows]))
        return list(unpacked(sent))

    def epoch(self, *pieces: Piece, lift: bool = False) -> tuple[list[Any], TaskReport]:
        """Return the rows for sinks, by key and place, and what the tasks report."""
        then = LiftStage() if lift else None
        stage = ReadStage(then if self.native else EncodeStage(), keyed=self.native)
        sent = self.read(stage, *pieces)
        left = through_levels(LocalExchange(self.runtime, self.manifest), sent, self.topology.depth)
        rows = []
        for batch in left:
            edges = batch.column("edge").to_numpy()
            for edge in self.topology.edges:
                if edge.sink is not None and (edges == edge.number).any():
                    mine = wire.where(batch, edges == edge.number)
                    values, _, _ = values_and_ids(self.topology, edge.number, mine)
                    decode = self.topology.streams[edge.stream].coder.decode
                    rows += [(edge.stream, decode(value)) for value in values]
        return sorted(rows, key=repr), TaskReport.together(reports_in(left))


ROWS = [
    ("a", "Soho", 5, at(5)),
    ("b", "Bow", 7, at(6)),
    ("c", None, 7, at(6)),
    ("d", "Soho", None, at(7)),
    ("e", "Soho", 1, None),
    ("f", "Soho", 1, at(EARLIEST_RECORD - 1)),
    ("g", "Soho", 2, at(NOW + 400 * mr.DAY)),
    (None, "Ely", 3, at(9)),
    ("h", "Soho", -(2**63), at(8)),
]
PIECES = [
    Piece("log", (0, 4), None, last=False, number=0),
    Piece("log", (4, 9), 1234, last=True, number=1, reached="nine"),
]


@pytest.mark.parametrize("id", [None, "id"])
def test_what_is_keyed_by_columns_is_what_is_keyed_by_record(id):
    by_columns, seen = Reader(pipeline(Log(ROWS), id=id), native=True).epoch(*PIECES)
    by_record, also = Reader(pipeline(Log(ROWS), id=id), native=False).epoch(*PIECES)

    def sent(rows):
        # Of a record without a key of one consumer, the others get it or do not; ids of rows count
        # what left a step, or what was read.
        return [value for stream, value in rows if stream == "seen" and " at " in value]

    assert sent(by_columns) == sent(by_record) != []
    counts = [
        {stream: total(stats.letters) for stream, stats in found.sources.items()}
        for found in (seen, also)
    ]
    assert counts == [{"trips": 5 if id is None else 6}] * 2
    one, other = seen.sources["trips"], also.sources["trips"]
    assert (one.records, one.newest_us) == (other.records, other.newest_us)
    assert one.processes == other.processes
    assert one.processes["log"].process_watermark_us == 1234
    assert seen.reached == also.reached == {"trips": {"log": ("nine", 1234)}}
    # Values are columns there, and encoded here; what is refused was read as well.
    assert seen.injected_bytes["trips"] > 0
    assert also.injected_bytes["trips"] >= seen.injected_bytes["trips"]
    assert seen.received_bytes.keys() == also.received_bytes.keys() == {"PerZone", "PerMile"}
    assert min(*seen.received_bytes.values(), *also.received_bytes.values()) > 0


def test_a_record_has_the_same_id_whoever_reads_its_piece_and_when():
    def ids(*pieces):
        rows, _ = Reader(pipeline(Log(ROWS[:2] + ROWS[8:])), native=True).epoch(*pieces)
        return [value.split()[-1] for stream, value in rows if " at " not in str(value)]

    one, two = Piece("log", (0, 1), None, last=False), Piece("log", (1, 3), None, True, 1)
    assert ids(one, two) == ids(two, one)
    assert len(set(ids(one, two))) == 3


def test_a_promise_alone_is_told_and_nothing_is_read():
    rows, seen = Reader(pipeline(Log([])), native=True).epoch(Piece("log", None, 77, last=True))

    assert rows == []
    assert seen.sources["trips"].processes["log"].process_watermark_us == 77
    assert seen.sources["trips"].records == 0


def test_values_are_combined_before_they_are_sent():
    def windowed():
        p = mr.Pipeline("windows")
        rows = [("a", zone, 1, at(n)) for n, zone in enumerate(["Soho", "Bow"] * 50)]
        p.inject("trips", Log(rows), timestamp="at", format=Trip)
        (p.stream("trips").key_by("zone").window(mr.FixedWindows(1000)).sum("miles").to("seen"))
        p.sink("seen", print)
        return Reader(p, native=True, tasks=1)

    sent = windowed().read(
        ReadStage(LiftStage(), keyed=True), Piece("log", (0, 100), 5000, last=True)
    )
    edges = [edge for batch in sent for edge in batch.column("edge").to_pylist()]
    assert sorted(edges) == [wire.REPORT, wire.REPORT, wire.lifted(0), wire.lifted(0)]
    _, outcome = windowed().epoch(Piece("log", (0, 100), 5000, last=True), lift=True)
    assert (outcome.sources["trips"].records, outcome.partials) == (100, 2)


def test_keys_are_encoded_as_python_does_it():
    draw = random.Random(42)
    text = ["", "JFK", "é", "日本", "\U0001f600", "x" * 500, "a\x00b"]
    whole = [0, -1, 2**63 - 1, -(2**63), *(draw.randrange(-(2**63), 2**63) for _ in range(99))]
    data = [draw.randbytes(n) for n in range(40)]
    for values, kind in [(text, pa.string()), (whole, pa.int64()), (data, pa.binary())]:
        made = encoded(pa.array([*values, None], kind)).to_pylist()
        assert made == [*map(encode_key, values), None]
        ids = fingerprints(pa.array([*values, None], kind)).to_pylist()
        assert ids == [*map(fingerprint, values), None]
    assert encoded(pa.array([7], pa.int8())).to_pylist() == [encode_key(7)]


def test_a_row_goes_to_the_task_that_owns_its_key():
    rows = [("a", f"zone {n % 300}", n, at(5)) for n in range(1000)]
    reader = Reader(pipeline(Log(rows)), native=True, tasks=3)
    sent = reader.read(ReadStage(None, keyed=True), Piece("log", (0, 1000), None, last=True))
    table = pa.Table.from_batches(
        [batch for batch in sent if "s0" in batch.schema.names]
    ).to_pylist()

    assert len(table) == 2000
    owners = reader.manifest.interval_map("PerZone")
    of_zones = [e.number for e in reader.topology.edges if e.computation == "PerZone"]
    for row in table:
        key = row["s0"]["zone" if row["edge"] in of_zones else "miles"]
        hashed = np.array([hash_key(encode_key(key))], np.uint64)
        assert row["key"] == encode_key(key)
        assert row["hash"] == hashed.view(np.int64)[0]
        assert row["pid"] == owners.task_of(hashed, 3)[0]
        assert row["sequence"] == row["s0"]["miles"]


@pytest.mark.parametrize(
    ("unit", "given", "expected"),
    [
        (None, [5, None], [5, None]),
        ("us", [-5], [-5]),
        ("ns", [1999, -1999, -2000, None], [1, -2, -2, None]),
        ("ms", [7, None], [7000, None]),
    ],
)
def test_integers_are_times_of_their_unit(unit, given, expected):
    assert microseconds(pa.array(given, pa.int64()), unit).to_pylist() == expected


def test_a_time_that_would_overflow_is_out_of_range():
    far, before = microseconds(pa.array([1 << 62, -(1 << 62)]), "s").to_pylist()
    assert far > LATEST_RECORD
    assert before < EARLIEST_RECORD
