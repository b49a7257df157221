"""The PostgreSQL sink on Spark: parallel copies, a driver that dies around it, and batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession

import millrace as mr
from millrace.connectors.postgres.ledger import Away, Ledger
from millrace.epochlog.run_log import RunLog
from millrace.model.errors import CheckpointMismatch, PipelineError, RunFailed


class Total(msgspec.Struct):
    team: str
    points: int


class Totals(mr.Computation):
    inputs = {"scores": mr.by("team")}
    outputs = {"totals": Total}
    total = mr.CombiningState(int)

    def process_record(self, record: mr.Record) -> None:
        self.total.add(record.value["points"])
        self.produce("totals", Total(self.key, self.total.get()))


DDL = "team string, points long, at long"


def _pipeline(source: Any, *sinks: Any) -> mr.Pipeline:
    p = mr.Pipeline("league")
    p.inject("scores", source, timestamp="at", low_watermark=mr.BoundedDelay("1 s"))
    p.add(Totals)
    for sink in sinks:
        p.sink("totals", sink)
    return p


def _dies_before_completion(monkeypatch: pytest.MonkeyPatch) -> None:
    complete, dying = RunLog.complete, [True]

    def dies(self: RunLog, manifest: Any, results: Any, sources: Any, **more: Any) -> Any:
        if "scores" in sources and sources["scores"].records and dying:
            dying.clear()
            raise OSError("the driver dies")
        return complete(self, manifest, results, sources, **more)

    monkeypatch.setattr(RunLog, "complete", dies)


def _server_away_once(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let the server break off as an epoch's rows are merged; return whose they were."""
    merge, away = Ledger.merge, list[str]()

    def breaks_off(self: Ledger, epoch: int, staged: dict[int, int]) -> None:
        if not away:
            away.append(self.tables.name)
            raise Away("the server broke off")
        merge(self, epoch, staged)

    monkeypatch.setattr(Ledger, "merge", breaks_off)
    return away


@pytest.mark.parametrize("single", [True, False])
def test_append_and_upsert_are_exactly_once(
    spark: SparkSession, tools: Any, postgres: Any, monkeypatch: pytest.MonkeyPatch, single: bool
) -> None:
    conninfo = f"{postgres.conninfo} passfile={postgres.passfile}"
    feed = tools.feed(DDL)
    feed.add(*((f"team {n % 5}", n, n) for n in range(50)))

    def sinks() -> list[Any]:
        latest = mr.sinks.PostgreSQL(conninfo, "latest", key="team")
        return [latest] if single else [latest, mr.sinks.PostgreSQL(conninfo, "history")]

    again = _server_away_once(monkeypatch)
    _dies_before_completion(monkeypatch)
    run = tools.start(_pipeline(feed.stream, *sinks()))
    with pytest.raises(RunFailed, match="the driver dies"):
        tools.step(run)
    assert again == ["latest"], "the tasks write again what the server has lost"
    written = postgres.query("SELECT team, points FROM latest ORDER BY team")
    assert written == [(f"team {n}", sum(range(n, 50, 5))) for n in range(5)]
    ((before,),) = postgres.query("SELECT max(written_at) FROM millrace_epochs")

    run = tools.start(_pipeline(feed.stream, *sinks()))
    tools.step(run)
    assert run.status().replayed > 0
    assert postgres.query("SELECT max(written_at) FROM millrace_epochs") == [(before,)]
    feed.add(("team 0", 1000, 100), ("team new", 1, 100))
    tools.finish(run)
    assert postgres.query("SELECT team, points FROM latest ORDER BY team") == [
        ("team 0", 1225), *written[1:], ("team new", 1)
    ]  # fmt: skip
    if not single:
        counted = "SELECT count(*), count(DISTINCT _id), count(DISTINCT _key) FROM history"
        assert postgres.query(counted) == [(52, 52, 6)]
    assert set(postgres.query("SELECT pipeline, generation FROM millrace_epochs")) == {
        ("league", 2)
    }


def test_a_batch_and_what_is_refused(
    spark: SparkSession, tools: Any, postgres: Any, tmp_path: Path
) -> None:
    conninfo = f"{postgres.conninfo} passfile={postgres.passfile}"
    feed = tools.feed(DDL)
    feed.add(*((f"team {n % 5}", 1, n) for n in range(50)))
    sink = mr.sinks.PostgreSQL(conninfo, "totals", key="team")

    for twice in (
        [mr.sinks.PostgreSQL(conninfo, "t"), mr.sinks.PostgreSQL(conninfo, "public.t")],
        [mr.sinks.Parquet(tmp_path / "out"), mr.sinks.Parquet(f"{tmp_path}/./out")],
    ):
        with pytest.raises(PipelineError, match=r"two sinks write to P.*\bt|out"):
            tools.start(_pipeline(feed.stream, *twice))
    assert not list(Path(tools.checkpoint).glob("epochs/*"))

    _pipeline(feed.bounded, sink).run_batch(spark)
    assert postgres.query("SELECT team, points FROM totals ORDER BY team") == [
        (f"team {n}", 10) for n in range(5)
    ]
    with pytest.raises(CheckpointMismatch, match="output of another checkpoint"):
        _pipeline(feed.bounded, sink).run_batch(spark)

    postgres.query("DROP TABLE totals")
    postgres.query("DELETE FROM millrace_epochs")
    postgres.query("CREATE TABLE totals (team text, points smallint)")
    feed.add(("much", 100_000, 1))
    p = _pipeline(feed.bounded, mr.sinks.PostgreSQL(conninfo, "totals"))
    with pytest.raises(RunFailed, match=r"Total\(team='much'.*<= 32767 - at `\$\.points`"):
        p.run_batch(spark)
    assert postgres.query("SELECT count(*) FROM totals") == [(0,)]

    postgres.query("DELETE FROM millrace_epochs")
    letters = mr.sinks.Memory()
    p.dead_letter("letters")
    p.sink("letters", letters)
    p.run_batch(spark)
    assert postgres.query("SELECT count(*), max(points) FROM totals") == [(50, 10)]
    assert [letter.key for letter in letters.rows] == ["'much'"]
