"""Dead letters that are sent again by epochs, from the directory of their sink.

In real time: ``processes/test_realtime.py``; of Kafka: ``processes/kafka/test_kafka.py``; crashes:
``tests/unit/test_dead_letters_again.py``.
"""

import time
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

import millrace as mr
from millrace.cli.main import main


class Trip(msgspec.Struct):
    taxi: str
    fare: float


class Faulty(mr.Computation):
    inputs = {"trips": mr.by("taxi")}
    outputs = {"totals": float}
    total = mr.ValueState(float)
    mended = False

    def process_record(self, record: mr.Record) -> None:
        if record.value.fare < 0 and not self.mended:
            raise ValueError(f"{record.value.fare} is negative")
        self.total.set(self.total.get(0.0) + record.value.fare)
        self.produce("totals", self.total.get())


class Mended(Faulty):
    mended = True


class Doubled(mr.Computation):
    """On the second level."""

    inputs = {"totals": mr.by_key()}
    outputs = {"doubled": float}
    mended = False

    def process_record(self, record: mr.Record) -> None:
        if record.value == 1.0 and not self.mended:
            raise ValueError("one")
        self.produce("doubled", 2 * record.value)


class MendedDoubled(Doubled):
    mended = True


@pytest.mark.timeout(400)
@pytest.mark.parametrize("keys", ["by Spark", "by Python"])
def test_letters_are_sent_again_once_when_the_code_is_mended(
    spark: Any, tools: Any, tmp_path: Any, keys: str
) -> None:
    trips = tools.feed("taxi string, fare double, at long")
    totals, doubled, rejects = tools.Kept(), tools.Kept(), tmp_path / "rejects"

    def process(*computations: type[mr.Computation]) -> Any:
        p = mr.Pipeline("ratios")
        policy = mr.BoundedDelay("1 min")
        p.inject("trips", trips.stream, timestamp="at", unit="s", format=Trip, low_watermark=policy)
        if keys == "by Python":
            p.stream("trips").filter(lambda trip: trip.fare > 99).to("dear", format=Trip)
            p.sink("dear", tools.Kept())
        for computation, name in zip(computations, ("Total", "Doubled"), strict=True):
            p.add(computation, name=name)
        p.sink("totals", totals)
        p.sink("doubled", doubled)
        p.dead_letter("rejects", again=True)
        p.sink("rejects", mr.sinks.Parquet(rejects))
        run = tools.start(p, clock=lambda: time.time_ns() // 1000)
        assert ("by Spark alone" in str(run.explain())) == (keys == "by Spark")
        tools.step(run)
        run.stop()
        return run.status()

    def send(*options: str) -> str:
        command = ["dead-letters", tools.checkpoint, "--send", str(rejects), *options]
        return CliRunner().invoke(main, command).output

    trips.add(("T1", 1.0, 10), ("T1", -2.0, 11), ("T2", -30.0, 12))
    process(Faulty, Doubled)
    assert (totals.values, doubled.values) == ([1.0], [])

    assert send("--reason", "-2.0 is negative") == "1 dead letter is sent again\n"
    assert send("--reason", "-2.0 is") == "0 dead letters are sent again; 1 were sent before\n"
    status = process(Mended, Doubled)
    assert (totals.values, doubled.values) == ([1.0, -1.0], [-2.0])
    assert status.injected["dead-letters.again"] == 1

    assert send() == "2 dead letters are sent again; 1 were sent before\n"
    trips.add(("T1", 100.0, 20))
    process(Mended, MendedDoubled)
    process(Mended, MendedDoubled)
    assert sorted(totals.values) == [-30.0, -1.0, 1.0, 99.0]
    assert sorted(doubled.values) == [-60.0, -2.0, 2.0, 198.0]
    assert len(spark.read.parquet(str(rejects)).collect()) == 3


def test_a_batch_of_such_a_pipeline_has_no_letters_to_send_again(spark: Any, tools: Any) -> None:
    trips = tools.feed("taxi string, fare double, at long")
    totals, rejects = tools.Kept(), tools.Kept()
    trips.add(("T1", 1.0, 10), ("T1", -2.0, 11), ("T2", 3.0, 12))
    p = mr.Pipeline("ratios")
    p.inject("trips", trips.bounded, timestamp="at", unit="s", format=Trip)
    p.add(Faulty)
    p.sink("totals", totals)
    p.dead_letter("rejects", again=True)
    p.sink("rejects", rejects)

    status = p.run_batch(spark)

    assert sorted(totals.values) == [1.0, 3.0]
    assert [letter["reason"] for letter in rejects.values] == ["ValueError: -2.0 is negative"]
    assert status.injected == {"trips": 3}
