"""Kafka for real: partitions that are silent, stall, appear or lose records; and as a sink."""

from __future__ import annotations

import json
import pickle
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import millrace as mr
from millrace.cli.main import main
from millrace.epochlog.run_log import RunLog
from millrace.model.errors import RunFailed, SinkError
from millrace_examples.kafka.count_words import pipeline


class Ends(mr.Computation):
    """Says a record's time when the low watermark has passed it, and whether it was late."""

    inputs = {"numbers": mr.by("n")}
    outputs = {"ends": str}

    def process_record(self, record: mr.Record) -> None:
        self.set_timer("end", at=record.timestamp + 1)
        if record.late:
            self.produce("ends", f"late {record.timestamp}")

    def process_timer(self, timer: mr.Timer) -> None:
        self.produce("ends", f"{timer.at - 1}")


def _send(kafka: Any, topic: str, partition: int, *times: int) -> None:
    values = [json.dumps({"n": partition * 1000 + at, "at": at}).encode() for at in times]
    kafka.send(topic, partition, *values)


def _pipeline(kafka: Any, topic: str, *sinks: Any) -> mr.Pipeline:
    p = mr.Pipeline("kafka")
    source = mr.sources.Kafka(
        kafka.servers, topic, schema="n long, at long, kafka_offset long", records_per_epoch=3
    )
    p.inject("numbers", source, timestamp="at", low_watermark=mr.BoundedDelay(10), idle="1 min")
    p.add(Ends)
    for sink in sinks:
        p.sink("ends", sink)
    return p


def _until(tools: Any, run: Any, came: Callable[[], bool]) -> None:
    """A new partition is found within seconds, so what is there now may not be all.

    An epoch without work takes milliseconds, so it is time that bounds this, not epochs.
    """
    give_up = time.monotonic() + 60
    while not came():
        assert time.monotonic() < give_up, f"not all records came: {run.status()}"
        tools.step(run)


def _until_injected(tools: Any, run: Any, records: int) -> None:
    _until(tools, run, lambda: run.status().injected.get("numbers", 0) >= records)


def test_a_low_watermark_for_each_partition(kafka: Any, spark: Any, tools: Any) -> None:
    topic, kept = kafka.topic("numbers", 2), tools.Kept()
    _send(kafka, topic, 0, 100, 95, 130, 125, 150)  # out of order, within the bound
    batch = tools.Kept()
    _pipeline(kafka, topic, batch).run_batch(spark)  # the same, over what there is now
    assert sorted(batch.values) == ["100", "125", "130", "150", "95"]
    run = tools.start(_pipeline(kafka, topic, kept))
    tools.step(run)
    assert run.status().low_watermark == mr.MIN_TIMESTAMP  # partition 1 has nothing
    _send(kafka, topic, 1, 110)
    tools.step(run)
    assert run.status().low_watermark == 100
    assert kept.values == ["95"]

    # 1 stalls; after a minute it holds nothing any more. What it sends then is late.
    run.stop()
    tools.clock.now += mr.MINUTE
    run = tools.start(_pipeline(kafka, topic, kept))
    _send(kafka, topic, 0, 160)
    tools.step(run)
    assert run.status().idle == {"numbers": [f"{topic}-1"]}
    assert run.status().low_watermark == 150
    assert run.status().late == 0
    _send(kafka, topic, 1, 120)
    tools.step(run)
    assert run.status().late == 1
    assert run.status().idle == {}

    # Partitions that are added later are read from their beginning, and hold from then on.
    kafka.add_partitions(topic, 3)
    _send(kafka, topic, 2, 155, 158)
    _until_injected(tools, run, 10)
    _send(kafka, topic, 0, 300)
    _send(kafka, topic, 1, 300)
    tools.step(run)
    assert run.status().low_watermark == 150
    tools.finish(run)
    expected = [95, 100, 110, 120, 125, 130, 150, 155, 158, 160, 300, 300]
    assert sorted(int(value) for value in kept.values if "late" not in value) == expected
    assert [value for value in kept.values if "late" in value] == ["late 120"]


def test_messages_that_are_refused_are_dead_letters_with_their_bytes(
    kafka: Any, spark: SparkSession, tools: Any
) -> None:
    topic = kafka.topic("refused", 1)
    # The last is refused as a row, when the message is gone from memory.
    bad = [b'{"n": 1.5, "at": 6}', b"\x80", b'{"n": 3,  "note": "it has no time"}']
    kafka.send(topic, 0, b'{"n": 1, "at": 5}', *bad, b'{"n": 2, "at": 7}')

    def pipeline(*sinks: Any) -> mr.Pipeline:
        p = _pipeline(kafka, topic, sinks[0])
        p.dead_letter("rejects")
        p.sink("rejects", sinks[1])
        return p

    kept = [(tools.Kept(), tools.Kept()) for _ in range(2)]
    pipeline(*kept[0]).run_batch(spark)
    run = tools.start(pipeline(*kept[1]))
    _until_injected(tools, run, 2)
    tools.finish(run)
    for ends, rejects in kept:
        assert sorted(ends.values) == ["5", "7"]
        letters = sorted(rejects.values, key=lambda letter: letter["place"])
        places = [f"topic {topic!r}, partition 0, offset {n}" for n in (1, 2, 3)]
        assert [letter["place"] for letter in letters] == places
        assert [bytes(letter["raw"]) for letter in letters] == bad
        assert "Decimal('1.5') is not a whole number" in letters[0]["reason"]
        assert letters[1]["reason"].startswith("DecodeError")


class Halves(mr.Computation):
    inputs = {"numbers": mr.by("n")}
    outputs = {"halves": int}
    mended = False

    def process_record(self, record: mr.Record) -> None:
        if record.value["n"] % 2 and not self.mended:
            raise ValueError(f"{record.value['n']} is odd")
        self.produce("halves", record.value["n"] // 2)


class MendedHalves(Halves):
    mended = True


_PLACED = "n long, at long, kafka_topic string, kafka_partition int, kafka_offset long"


@pytest.mark.parametrize("schema", [None, _PLACED], ids=["messages", "columns"])
def test_messages_that_failed_are_sent_again_when_the_code_is_mended(
    kafka: Any, spark: SparkSession, tools: Any, tmp_path: Path, schema: str | None
) -> None:
    topic, halves = kafka.topic(f"mended-{schema is None}", 1), tools.Kept()
    messages = [b'{"n": %d, "at": %d}' % (n, 5 + n) for n in range(4)]
    kafka.send(topic, 0, *messages)

    def pipeline(computation: type[mr.Computation]) -> mr.Pipeline:
        p = mr.Pipeline("halves")
        at = "kafka_timestamp" if schema is None else "at"
        source = mr.sources.Kafka(kafka.servers, topic, schema=schema)
        stream = "messages" if schema is None else "numbers"
        messages = p.inject(stream, source, timestamp=at, low_watermark=mr.BoundedDelay(10))
        if schema is None:
            messages.map(_read).to("numbers", dict)
        p.add(computation, name="Halves")
        p.dead_letter("rejects", again=True)
        p.sink("halves", halves)
        p.sink("rejects", mr.sinks.Parquet(tmp_path / "rejects"))
        return p

    def process(computation: type[mr.Computation], count: int) -> None:
        run = tools.start(pipeline(computation), clock=lambda: time.time_ns() // 1000)
        _until(tools, run, lambda: len(halves.values) >= count)
        tools.step(run)
        run.stop()

    def send() -> str:
        command = ["dead-letters", str(tools.checkpoint), "--send", str(tmp_path / "rejects")]
        return CliRunner().invoke(main, command).output

    process(Halves, 2)
    assert sorted(halves.values) == [0, 1]
    rows = sorted(spark.read.parquet(str(tmp_path / "rejects")).collect(), key=lambda r: r["place"])
    assert [row["place"] for row in rows] == [
        f"topic {topic!r}, partition 0, offset {n}" for n in (1, 3)
    ]
    if schema is None:
        assert [bytes(row["raw"]) for row in rows] == messages[1::2]
    assert send() == "2 dead letters are sent again\n"
    assert send() == "0 dead letters are sent again; 2 were sent before\n"
    process(MendedHalves, 4)
    process(MendedHalves, 4)
    assert sorted(halves.values) == [0, 0, 1, 1]


def _read(message: dict[str, Any]) -> dict[str, Any]:
    return message | json.loads(message["value"])


def test_sparks_connector_with_a_low_watermark_for_each_partition(
    kafka: Any, tools: Any, spark: SparkSession
) -> None:
    """Injected as any DataFrame, its partitions named by a column; over a restart."""
    topic, kept = kafka.topic("connected", 2), tools.Kept()

    def start() -> Any:
        messages = (
            spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", kafka.servers)
            .option("subscribe", topic)
            .option("startingOffsets", "earliest")
            .load()
        )
        numbers = F.from_json(F.col("value").cast("string"), "n long, at long").alias("number")
        p = mr.Pipeline("connected")
        p.inject(
            "numbers",
            messages.select(numbers, "partition").select("number.*", "partition"),
            timestamp="at",
            low_watermark=mr.BoundedDelay(10),
            process="partition",
            expected=["0", "1"],
            idle="1 min",
        )
        p.add(Ends)
        p.sink("ends", kept)
        return tools.start(p)

    _send(kafka, topic, 0, 100, 95, 130, 125, 150)
    run = start()
    tools.step(run)
    assert run.status().missing == {"numbers": ["1"]}
    assert run.status().low_watermark == mr.MIN_TIMESTAMP
    _send(kafka, topic, 1, 110)
    tools.step(run)
    assert run.status().low_watermark == 100
    assert kept.values == ["95"]
    run.stop()

    tools.clock.now += mr.MINUTE
    _send(kafka, topic, 0, 160)
    run = start()
    tools.step(run)
    assert run.status().idle == {"numbers": ["1"]}
    assert run.status().low_watermark == 150
    _send(kafka, topic, 1, 120)
    tools.step(run)
    assert run.status().idle == {}
    assert tools.finish(run).injected == {"numbers": 8}
    expected = ["95", "100", "110", "120", "125", "130", "150", "160", "late 120"]
    assert sorted(kept.values, key=lambda value: value.rjust(4, "0")) == expected


def test_a_topic_that_lost_records_or_is_gone_ends_the_run(kafka: Any, tools: Any) -> None:
    topic = kafka.topic("fleeting", 1)
    _send(kafka, topic, 0, 1, 2, 3, 4)
    run = tools.start(_pipeline(kafka, topic, tools.Kept()))
    tools.step(run)
    run.stop()
    _send(kafka, topic, 0, 5, 6, 7, 8)
    kafka.truncate(topic, 0, 7)
    run = tools.start(_pipeline(kafka, topic, tools.Kept()))
    with pytest.raises(RunFailed, match=r"InputLost: .*'fleeting-0' .* 3 records were removed"):
        tools.step(run)
    kafka.delete(topic)
    run = tools.start(_pipeline(kafka, topic, tools.Kept()))
    with pytest.raises(RunFailed, match=r"InputLost: Kafka topic 'fleeting'.* deleted"):
        tools.step(run)
    # Made again, and longer than what was read of the old one: its offsets are not taken for those.
    kafka.make_again(topic)
    _send(kafka, topic, 0, *range(20, 30))
    run = tools.start(_pipeline(kafka, topic, tools.Kept()))
    with pytest.raises(RunFailed, match=r"InputLost: Kafka topic 'fleeting' was .* made again"):
        tools.step(run)


def test_a_retried_epoch_sends_the_ids_it_had(
    kafka: Any, tools: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = kafka.topic("source", 1), kafka.topic("target", 2)
    _send(kafka, source, 0, *range(5), 100)
    complete, dying = RunLog.complete, [True]

    def dies(self: RunLog, manifest: Any, results: Any, sources: Any, **more: Any) -> Any:
        results = list(results)
        if dying and any(result.counters.timers for result in results):
            dying.clear()
            raise OSError("the driver dies")
        return complete(self, manifest, results, sources, **more)

    monkeypatch.setattr(RunLog, "complete", dies)
    for turn in range(2):
        run = tools.start(_pipeline(kafka, source, mr.sinks.Kafka(kafka.servers, target)))
        if turn == 0:
            with pytest.raises(RunFailed, match="the driver dies"):
                tools.step(run)
        else:
            tools.step(run)
    messages = kafka.messages(target, 2)
    said = [(dict(m.headers())["millrace-id"], m.key(), m.value()) for m in messages]
    assert len(said) == 10
    assert sorted(value for _, _, value in set(said)) == [b"0", b"1", b"2", b"3", b"4"]
    assert len({id for id, _, _ in said}) == 5


def test_turns_reach_a_topic_and_come_again_with_their_ids(kafka: Any) -> None:
    """The tasks of two incarnations, the second of which begins at the last mark. No Spark."""
    target = kafka.topic("turns", 1)
    ids = [bytes([n]) * 16 for n in range(5)]

    def rows(first: int, end: int) -> pa.RecordBatch:
        numbers = range(first, end)
        at = pa.array([mr.SECOND * n for n in numbers], pa.timestamp("us", tz="UTC"))
        columns = {"value": [f"v{n}" for n in numbers], "_key": ["k" for _ in numbers]}
        return pa.RecordBatch.from_pydict(
            columns | {"_timestamp": at, "_id": [ids[n] for n in numbers]}
        )

    sink, halves = mr.sinks.Kafka(kafka.servers, target), (np.array([0]), np.array([0]))
    for incarnation, turns in ((1, [(0, 2), (2, 4)]), (2, [(2, 3), (3, 5)])):
        writing = pickle.loads(pickle.dumps(sink.live())).begin(incarnation, 1, 0)
        for first, end in turns:
            writing.write(rows(first, end), *halves)
        writing.flush()
        writing.close()
    messages = kafka.messages(target, 1)
    said = [(dict(m.headers())["millrace-id"], m.key(), m.value()) for m in messages]
    assert [value for _, _, value in said] == [f"v{n}".encode() for n in (0, 1, 2, 3, 2, 3, 4)]
    assert set(said) == {(ids[n].hex().encode(), b"k", f"v{n}".encode()) for n in range(5)}

    missing = mr.sinks.Kafka(kafka.servers, "no such topic", config={"message.timeout.ms": 2000})
    writing = missing.live().begin(1, 1, 0)

    def send() -> None:
        writing.write(rows(0, 1), *halves)  # fails at once, if the client has asked the broker
        writing.flush()

    with pytest.raises(SinkError, match="topic 'no such topic' did not take 1 messages"):
        send()
    writing.close()


def test_the_example_counts_words(kafka: Any, tools: Any) -> None:
    words, counts = kafka.topic("words", 2), kafka.topic("counts", 1)
    for partition, said in enumerate([[("tea", 0), ("tea", 59), ("mate", 70)], [("tea", 66)]]):
        texts = [json.dumps({"word": word, "at": at * mr.SECOND}) for word, at in said]
        kafka.send(words, partition, *(text.encode() for text in texts))
    run = tools.start(pipeline(kafka.servers, words, counts))
    tools.step(run)
    (message,) = kafka.messages(counts, 1)
    assert json.loads(message.value()) == {"word": "tea", "minute": 0, "count": 2}
    assert message.key() == b"tea"
    assert message.timestamp()[1] == 59_999
