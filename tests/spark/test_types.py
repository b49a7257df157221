"""The matrix of types where it takes a session; see ``properties/test_types.py``.

The doors are the DataFrame, the callable and Memory. All kinds go through one query; the oracle is
Spark, which reads the same Parquet files and the columns that a sink is given. The session is in
the zone of New York: what is read and written must not depend on it.
"""

from __future__ import annotations

import datetime as dt
import pickle
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import doors_in
import field_types
import matrix_page
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from doors_in import ARROW, NO_COLUMN, plain
from doors_out import compared_with_system
from field_types import KINDS, Kind, Outcome, lettered, raised, refused
from pyspark.sql import SparkSession

import millrace as mr

#: Text that is none, as a column of Spark's can have it.
INVALID = Kind("str, invalid UTF-8", str, (doors_in.NOTHING,), "string")

WITH_COLUMNS = [*(kind for kind in KINDS if kind.ddl is not None), INVALID]


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> Iterator[SparkSession]:
    for module in (field_types, doors_in):
        spark.sparkContext.addPyFile(str(module.__file__))
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    yield spark
    spark.conf.set("spark.sql.session.timeZone", str(zone))


def each(
    run: Callable[[Sequence[Kind]], dict[str, list[Outcome]]], kinds: Sequence[Kind], column: str
) -> dict[str, list[Outcome]]:
    """Return the outcomes of kinds, all in one run; of those that are listed as faults, alone."""
    listed = matrix_page.FAULTS.get(column, {})
    apart = [kind for kind in kinds if "error" in listed.get(kind.name, "")]
    together = [kind for kind in kinds if kind not in apart]
    try:
        made = run(together)
    except Exception:  # noqa: BLE001  which of them it is, is what the test tells
        made, apart = {}, list(kinds)
    for kind in apart:
        try:
            made |= run([kind])
        except Exception as error:  # noqa: BLE001  it is the outcome
            made[kind.name] = [raised(error, kind.name)] * len(kind.values)
    return made


class Seen(msgspec.Struct):
    kind: str
    n: int
    data: bytes


def sees(kinds: Sequence[Kind]) -> type[mr.Computation]:
    """Return a computation that tells what it sees of each kind's stream."""

    class Sees(mr.Computation):
        inputs = {_stream(kind): mr.by("n") for kind in kinds}
        outputs = {"seen": Seen}

        def process_record(self, record: Any) -> None:
            value = record.value
            self.produce("seen", Seen(record.stream, value.n, pickle.dumps(value.x)))

    return Sees


def _stream(kind: Kind) -> str:
    return f"rows_{[each.name for each in WITH_COLUMNS].index(kind.name)}"


def test_data_frames(session: SparkSession, tmp_path: Path) -> None:
    def run(kinds: Sequence[Kind]) -> dict[str, list[Outcome]]:
        made: dict[str, list[Outcome]] = {}
        left = list(kinds)
        while left:
            memory, letters, p = mr.sinks.Memory(), mr.sinks.Memory(), mr.Pipeline("matrix")
            p.dead_letter("letters")
            for kind in left:
                format = msgspec.defstruct("Row", [("x", kind.type), ("n", int)])
                frame = session.read.parquet(str(tmp_path / _stream(kind)))
                p.inject(_stream(kind), frame, timestamp="n", format=format, unit="us")
            p.add(sees(left))
            p.sink("seen", memory)
            p.sink("letters", letters)
            try:
                p.run_batch(session, progress=False)
            except mr.MillraceError as error:
                named = [kind for kind in left if f"{_stream(kind)!r}" in str(error)]
                if not isinstance(error, ValueError) or len(named) != 1:
                    raise
                made[named[0].name] = [refused(error, _stream(named[0]))] * len(named[0].values)
                left.remove(named[0])
                continue
            for kind in left:
                made[kind.name] = _outcomes(kind, memory.rows, letters.rows)
            break
        return made

    for kind in WITH_COLUMNS:
        write(kind, tmp_path / _stream(kind))
    cells = each(run, WITH_COLUMNS, "doors in: DataFrame")
    cells |= {kind.name: [NO_COLUMN] for kind in KINDS if kind.ddl is None}
    invalid = {INVALID.name: cells.pop(INVALID.name)}
    matrix_page.check("doors in", "DataFrame", {kind.name: cells[kind.name] for kind in KINDS})
    matrix_page.check_faults("doors in", "DataFrame", invalid, invalid)


def write(kind: Kind, folder: Path) -> None:
    """Write a kind's values to a file, as another program does."""
    folder.mkdir()
    arrow = ARROW[str(kind.ddl)]
    if kind is INVALID:
        data = pa.array([b"a\x80b"], pa.binary())
        column = pa.Array.from_buffers(pa.string(), 1, data.buffers())
    else:
        column = pa.array([plain(value, arrow) for value in kind.values], arrow)
    table = pa.table({"x": column, "n": pa.array(range(len(kind.values)), pa.int64())})
    pq.write_table(table, folder / "rows.parquet")


def _outcomes(kind: Kind, seen: Sequence[Any], letters: Sequence[Any]) -> list[Outcome]:
    values = {row.n: pickle.loads(row.data) for row in seen if row.kind == _stream(kind)}
    refusals = [letter.reason for letter in letters if letter.stream == _stream(kind)]
    made = []
    for n, value in enumerate(kind.values):
        if n not in values and refusals:
            made.append(lettered(refusals.pop(0), "x", type(value).__name__))
        else:
            made.append(doors_in.outcome(value, [values[n]] if n in values else [], []))
    return made


def test_callables_and_memory(session: SparkSession, tmp_path: Path) -> None:
    found: dict[str, dict[str, list[Outcome]]] = {"callable": {}, "Memory": {}}

    def run(kinds: Sequence[Kind]) -> dict[str, list[Outcome]]:
        fields = [(f"c{n}", kind.type | None, None) for n, kind in enumerate(kinds)]
        wide = msgspec.defstruct("Wide", [("id", str), *fields])  # type: ignore[arg-type]
        places = [(k, v) for k, kind in enumerate(kinds) for v in range(len(kind.values))]
        names = [kind.name for kind in kinds]

        class Makes(mr.Computation):
            inputs = {"numbers": mr.by(lambda n: n)}
            outputs = {"out": wide}

            def process_record(self, record: Any) -> None:
                k, v = places[record.value]
                kind = next(kind for kind in field_types.KINDS if kind.name == names[k])
                self.produce("out", wide(id=f"{k} {v}", **{f"c{k}": kind.values[v]}))

        frames: list[pa.Table] = []
        memory, letters, p = mr.sinks.Memory(), mr.sinks.Memory(), mr.Pipeline("matrix")
        p.dead_letter("letters")
        numbers = session.range(len(places)).selectExpr("id AS n", "id AS at")
        p.inject("numbers", numbers, timestamp="at", unit="us", format=int)
        p.add(Makes)
        p.sink("out", lambda rows, _: frames.append(rows.toArrow()))
        p.sink("out", memory)
        p.sink("letters", letters)
        p.run_batch(session, progress=False)
        rows = {row["id"]: row for frame in frames for row in frame.to_pylist()}
        refusals = {letter.key: letter.reason for letter in letters.rows}
        there = {row.id: row for row in memory.rows}
        for column, by_id in (("callable", rows), ("Memory", there)):
            for k, kind in enumerate(kinds):
                made = found[column][kind.name] = []
                for v, value in enumerate(kind.values):
                    row, n = by_id.get(f"{k} {v}"), places.index((k, v))
                    if row is None and str(n) in refusals:
                        made.append(lettered(refusals[str(n)], f"c{k}", "Wide", "out"))
                    else:
                        seen = [] if row is None else [_as_instants(row[f"c{k}"])]
                        made.append(compared_with_system(value, seen))
        return found["callable"]

    cells = each(run, KINDS, "doors out: callable")
    for column, made in (("callable", cells), ("Memory", cells | found["Memory"])):
        matrix_page.check("doors out", column, {kind.name: made[kind.name] for kind in KINDS})


def _as_instants(value: Any) -> Any:
    """Return what Spark's rows have, with instants, which they have by the local zone."""
    if isinstance(value, dt.datetime) and value.tzinfo is None:
        try:
            return value.astimezone(dt.UTC)
        except (OverflowError, ValueError):  # Python looks a day further, beyond the first year
            return value.replace(tzinfo=dt.UTC)
    if hasattr(value, "asDict"):
        return {name: _as_instants(item) for name, item in value.asDict().items()}
    if isinstance(value, list):
        return [_as_instants(item) for item in value]
    if isinstance(value, dict):
        return {name: _as_instants(item) for name, item in value.items()}
    return value
