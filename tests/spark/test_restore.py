"""What only a session shows: offsets of Spark go back to a savepoint; too many dead letters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

import millrace as mr
from millrace.cli.main import main
from millrace.model.errors import DeadLettersExceeded

deltalake = pytest.importorskip("deltalake", reason="an extra: pip install 'millrace-spark[delta]'")


class Sale(msgspec.Struct):
    item: str
    price: int


class Total(mr.Computation):
    inputs = {"sales": mr.by("item")}
    outputs = {"totals": int}
    total = mr.ValueState(int)

    def process_record(self, record: mr.Record) -> None:
        if record.value.price < 0:
            raise ValueError(f"{record.value.price} is no price")
        self.total.set(self.total.get(0) + record.value.price)
        self.produce("totals", self.total.get())


class Shop:
    def __init__(self, spark: Any, root: Path) -> None:
        self.spark, self.root = spark, root
        (root / "sales").mkdir(exist_ok=True)
        self.files = 0

    def add(self, *prices: int) -> None:
        rows = ", ".join(f"('tea', {price}, timestamp_seconds(5))" for price in prices)
        frame = self.spark.sql(f"SELECT * FROM VALUES {rows} AS (item, price, at)").coalesce(1)
        frame.write.mode("append").parquet(str(self.root / "sales"))

    def start(self, **options: Any) -> Any:
        schema = "item string, price int, at timestamp"
        sales = self.spark.readStream.schema(schema).parquet(str(self.root / "sales"))
        p = mr.Pipeline("shop")
        p.inject("sales", sales, timestamp="at", low_watermark=mr.BoundedDelay("5 s"), format=Sale)
        p.add(Total)
        p.sink("totals", mr.sinks.Parquet(self.root / "totals"))
        p.dead_letter("rejects", **options)
        p.sink("rejects", mr.sinks.Delta(self.root / "rejects"))
        return p.start(self.spark, checkpoint=str(self.root / "ckpt"))

    def totals(self) -> list[int]:
        rows = self.spark.read.parquet(str(self.root / "totals")).collect()
        return sorted(row["value"] for row in rows)


def run(*arguments: Any) -> Any:
    return CliRunner().invoke(main, list(map(str, arguments)))


def test_offsets_of_sparks_own_sources_go_back_to_a_savepoint(spark: Any, tmp_path: Path) -> None:
    shop, ckpt = Shop(spark, tmp_path), tmp_path / "ckpt"
    shop.add(1)
    first = shop.start()
    first.process_available()
    first.savepoint("before")
    shop.add(10)
    first.process_available()
    first.stop()
    assert shop.totals() == [1, 11]
    stopped = run("status", ckpt)
    assert "The run was stopped at " in stopped.output
    assert "by request, after epoch" in stopped.output

    said = run("checkpoint", "restore", ckpt, "--savepoint", "before")
    assert said.exit_code == 0, said.output
    second = shop.start()
    assert shop.totals() == [1]
    shop.add(100)
    second.process_available()
    assert shop.totals()[-1] == 111
    assert len(shop.totals()) == 3
    second.stop()
    third = shop.start()
    shop.add(1000)
    third.process_available()
    third.stop()
    assert shop.totals()[-1] == 1111
    assert run("checkpoint", "verify", ckpt).exit_code == 0


def test_a_limit_of_dead_letters_stops_a_run_and_loses_nothing(spark: Any, tmp_path: Path) -> None:
    shop = Shop(spark, tmp_path)
    shop.add(1, -1, -2, -3)
    run = shop.start(at_most=2)
    with pytest.raises(DeadLettersExceeded, match=r"3 dead letters.*\n.*3 times, in Total"):
        run.process_available()
    assert run.status().state == "failed"

    shop.add(5)
    again = shop.start(at_most=2)
    again.process_available()
    again.stop()
    rejects = deltalake.DeltaTable(str(tmp_path / "rejects")).to_pyarrow_table().to_pylist()
    assert sorted(row["reason"] for row in rejects) == [
        f"ValueError: -{n} is no price" for n in (1, 2, 3)
    ]
    assert shop.totals() == [1, 6]
