"""Records refused after their message was parsed: the letter has the message as it came."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from confluent_kafka import Producer

import millrace as mr
from tests.live import InEpochs, Kept, Live


class Payment(msgspec.Struct):
    """What its format refuses is known where it is consumed, if keys are in columns."""

    account: str
    cents: int


class Sum(mr.Computation):
    inputs = {"payments": mr.by("account")}
    outputs = {"sums": str}
    total = mr.CombiningState(int)

    def process_record(self, record: mr.Record) -> None:
        self.total.add(record.value.cents)
        self.produce("sums", f"{self.key} {self.total.get()}")


class SumInPython(Sum):
    inputs = {"payments": mr.by(lambda payment: payment.account)}


GOOD = b'{"account": "a", "cents": 5,  "at": 7}'
NO_CENTS = b'{"account": "b",  "at": 7, "note": "JSON of the row has no note"}'
NO_TIME = b'{"account": "c", "cents": 1}'
NO_KEY = b'{"at": 8, "cents": 2}'
BAD = (NO_CENTS, NO_TIME, NO_KEY)


def _letters(plane: str, p: mr.Pipeline, rejects: Kept) -> list[tuple[str, bytes, bytes]]:
    if plane == "harness":
        with mr.testing.Harness(p) as h:
            while h.poll("payments") or len(h.outputs("rejects")) < len(BAD):
                pass
            found = [msgspec.structs.asdict(out.value) for out in h.outputs("rejects")]
    elif plane == "epochs":
        live = Live(p)
        epochs = InEpochs(live)
        for _ in range(4):
            epochs.run(live.clock_us)
        found = rejects.rows
    else:
        live = Live(p)
        live.boot()
        for _ in range(1000):
            live.plane.turn((0, 0), live.clock_us, 0)
            live.plane.turn((0, 1), live.clock_us, 0)
            live.plane.mark(live.clock_us)
            if len(rejects.rows) == len(BAD):
                break
        live.finish()
        found = rejects.rows
    return sorted((row["place"], bytes(row["raw"]), bytes(row["raw_key"])) for row in found)


@pytest.mark.parametrize("computation", [Sum, SumInPython], ids=["columns", "Python"])
@pytest.mark.parametrize("plane", ["harness", "epochs", "real time"])
def test_a_row_that_is_refused_leaves_a_letter_with_the_message_as_it_came(
    kafka: Any, plane: str, computation: type[mr.Computation]
) -> None:
    topic = kafka.topic(f"payments-{plane.replace(' ', '-')}-{computation.__name__}", 2)
    kafka.send(topic, 0, GOOD)
    # A transaction leaves gaps: the row of an offset is not that of its count.
    kafka.transact(topic, 1, GOOD, commit=False)
    producer = Producer(kafka.client)
    for value in (GOOD, *BAD):
        producer.produce(topic, value, key=b"\xffkey", partition=1)
    assert producer.flush(30) == 0
    p, rejects = mr.Pipeline("payments"), Kept()
    source = mr.sources.Kafka(kafka.servers, topic, schema="account string, cents long, at long")
    p.inject("payments", source, timestamp="at", format=Payment)
    p.add(computation)
    p.dead_letter("rejects")
    p.sink("sums", Kept())
    p.sink("rejects", rejects)

    assert _letters(plane, p, rejects) == [
        (f"topic {topic!r}, partition 1, offset {offset}", message, b"\xffkey")
        for offset, message in enumerate(BAD, 3)
    ]


class MayLackCents(msgspec.Struct):
    account: str
    cents: int | None


class CountsMissing(Sum):
    def process_record(self, record: mr.Record) -> None:
        self.total.add(record.value.cents or 0)
        self.produce("sums", f"{self.key} {self.total.get()}")


def test_a_row_that_its_format_refused_is_sent_again_once_that_is_mended(kafka: Any) -> None:
    topic = kafka.topic("mended-format", 1)
    kafka.send(topic, 0, GOOD, *BAD)

    def pipeline(format: type, computation: type[mr.Computation]) -> mr.Pipeline:
        p = mr.Pipeline("payments")
        source = mr.sources.Kafka(
            kafka.servers, topic, schema="account string, cents long, at long"
        )
        p.inject("payments", source, timestamp="at", format=format)
        p.add(computation, name="Sum")
        p.dead_letter("rejects", again=True)
        return p

    with mr.testing.Harness(pipeline(Payment, Sum)) as h:
        while h.poll("payments") or not h.outputs("rejects"):
            pass
        h.update(pipeline(MayLackCents, CountsMissing))
        done = h.send_dead_letters()
        while h.poll("payments"):
            pass

        assert [out.value for out in h.outputs("sums")] == ["a 5", "b 0"]
        assert (done.sent, sum(done.refused.values())) == (2, 1)
        again = [out.value for out in h.outputs("rejects")][-1]
        assert again.reason.startswith("sent again: ")
        assert again.raw == NO_KEY
