"""Records that cannot be processed: without a dead-letter stream, and with one."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession

import millrace as mr
from millrace.model.errors import RunFailed

DDL = "name string, size long, at long"
FAR = 7_000_000_000_000_000  # in 2191: past the injected clock and a day


class Row(msgspec.Struct):
    name: str
    size: int


class Work(mr.Computation):
    """Fails in the way that a record asks for, as long as the code is not mended."""

    outputs = {"out": str}
    total = mr.CombiningState(int)

    def __init__(self, *, native: bool, mended: bool = False) -> None:
        self.inputs = {"rows": mr.by("name") if native else mr.by(_name)}
        self.mended = mended

    def process_record(self, record: mr.Record) -> None:
        size = record.value.size
        self.total.add(size)
        if size == 500 and not self.mended:
            raise RuntimeError("record went wrong")
        if size == 501 and not self.mended:
            self.produce("nowhere", "x")
        if size == 502 and not self.mended:
            self.produce("out", 3.5)
        if size == 504 and not self.mended:
            os.kill(os.getpid(), signal.SIGSEGV)
        if size == 505 and not self.mended:
            signal.pause()
        if size == 503:
            self.set_timer("boom", at=self.wall_time, domain=mr.WALL_TIME)
        self.produce("out", f"{self.total.get()}")

    def process_timer(self, timer: mr.Timer) -> None:
        if not self.mended:
            raise RuntimeError("timer went wrong")


def _name(row: Row) -> str:
    return row.name


class Second(mr.Computation):
    inputs = {"out": mr.by_key()}
    outputs = {"sums": str}
    texts = mr.ValueState(str)

    def process_record(self, record: mr.Record) -> None:
        self.texts.set(self.texts.get("") + record.value + ";")
        self.produce("sums", self.texts.get())


def _pipeline(source: Any, work: Work, sinks: dict[str, Any]) -> mr.Pipeline:
    p = mr.Pipeline("bad input")
    p.inject("rows", source, timestamp="at", low_watermark=mr.BoundedDelay("1 s"), format=Row)
    p.add(work)
    p.add(Second)
    for stream, sink in sinks.items():
        p.sink(stream, sink)
    if "rejects" in sinks:
        p.dead_letter("rejects")
    return p


REFUSALS = {
    "a null key": ((None, 1, 10), "null|None|`str`"),
    "a null time": (("x", 1, None), "the timestamp is null"),
    "before 1970": (("x", 1, -1), "before 1970"),
    "far ahead": (("x", 1, FAR), "too far past the wall clock"),
    "refused by its format": (("x", None, 10), "Expected `int`, got `null`"),
}


@pytest.mark.parametrize("native", [True, False], ids=["native", "python"])
def test_dead_letters_take_what_is_refused_and_nothing_else(tools: Any, native: bool) -> None:
    feed = tools.feed(DDL)
    sinks = {name: tools.Kept() for name in ("out", "sums", "rejects")}
    run = tools.start(_pipeline(feed.stream, Work(native=native), sinks), time_limit="1 s")
    feed.add(("a", 1, 1_000_000), ("b", 2, 2_000_000))
    tools.step(run)
    if native:
        # One hangs, and in a later epoch one kills its process; both are set aside, and no other.
        feed.add(("hangs", 6, 2_000_000), ("hangs", 505, 2_000_000), ("hangs", 1, 2_000_000))
        tools.step(run)
        feed.add(("kills", 6, 2_000_000), ("kills", 504, 2_000_000), ("kills", 1, 2_000_000))
        tools.step(run)
    bad = [row for row, _ in REFUSALS.values()]
    user = [("u", 500, 3_000_000), ("u", 501, 3_000_001), ("u", 502, 3_000_002)]
    feed.add(("a", 3, 3_000_000), *bad, *user, ("u", 503, 3_000_003), ("b", 4, 4_000_000))
    tools.step(run)
    status = run.status()

    assert status.low_watermarks["Work"] == 3_000_000  # the far timestamp did not move it
    letters = sinks["rejects"].values
    injected = [letter for letter in letters if not letter["computation"] or letter["error"] == ""]
    reasons = [reason for _, reason in REFUSALS.values()]
    assert len(injected) == len(reasons)
    for reason in reasons:
        pattern = __import__("re").compile(reason)
        assert sum(bool(pattern.search(letter["reason"])) for letter in injected) >= 1, reason
    assert all(letter["stream"] == "rows" for letter in injected)
    failed = [letter for letter in letters if letter["error"]]
    if native:
        hung, killed = failed[:2]
        failed = failed[2:]
        assert (hung["key"], killed["key"]) == ("'hangs'", "'kills'")
        assert "took longer than 1 s" in hung["reason"]
        assert "ends the process that it runs in: signal SIGSEGV" in killed["reason"]
        assert "in process_record" in hung["error"]
        assert "in process_record" in killed["error"]
    assert sorted(letter["reason"].split(":")[0] for letter in failed) == [
        "CoderError", "PipelineError", "RuntimeError", "RuntimeError",
    ]  # fmt: skip
    assert all(letter["computation"] == "Work" and letter["key"] == "'u'" for letter in failed)
    (timer,) = [letter for letter in failed if letter["stream"] == ""]
    assert timer["value"] == "'boom'"
    assert "timer went wrong" in timer["error"]
    assert status.dead_letters == {"rows": len(reasons), "Work": 6 if native else 4}
    assert status.counters["Work"].dead_letters == (6 if native else 4)
    assert status.counters["Second"].dead_letters == 0
    assert status.injected == {"rows": 14 if native else 8}
    # Of what was set aside there is no trace, and nothing else of its key is lost.
    rest = {key: [("6", 2_000_000), ("7", 2_000_000)] for key in ("hangs", "kills") if native}
    # What failed left no trace in the state: 500, 501 and 502 are not in u's total.
    assert tools.by_key(sinks["out"].rows) == {
        "a": [("1", 1_000_000), ("4", 3_000_000)],
        "b": [("2", 2_000_000), ("6", 4_000_000)],
        "u": [("503", 3_000_003)],
        **rest,
    }
    sums = ["1;", "1;4;", "2;", "2;6;", "503;", *(["6;", "6;7;"] * len(rest))]
    assert sorted(sinks["sums"].values) == sorted(sums)


FAILURES = {
    "record": (500, ["RuntimeError: record went wrong", "process_record of Work", "key 'x'"]),
    "timer": (503, ["RuntimeError: timer went wrong", "process_timer of Work", "'boom'"]),
}


def test_a_failed_run_goes_on_when_the_code_is_mended(tools: Any) -> None:
    """Each failure in turn, on one checkpoint: nothing is lost and nothing happens twice."""
    feed = tools.feed(DDL)
    sinks = {name: tools.Kept() for name in ("out", "sums")}
    expected = 0
    for n, (size, words) in enumerate(FAILURES.values()):
        at = (n + 1) * 1_000_000
        feed.add(*((f"k{m}", 1, at) for m in range(20)), ("x", size, at))
        run = tools.start(_pipeline(feed.stream, Work(native=True), sinks))
        with pytest.raises(RunFailed) as caught:
            tools.step(run)
        message = str(caught.value)
        for word in [*words, "pipeline 'bad input' stopped", "epoch", "same checkpoint"]:
            assert word in message, message
        assert run.status().state == "failed"
        assert len(sinks["out"].rows) == expected
        expected += 21

        run = tools.start(_pipeline(feed.stream, Work(native=True, mended=True), sinks))
        tools.step(run)
        run.stop()
        assert len(sinks["out"].rows) == expected
    by_key = tools.by_key(sinks["out"].rows)
    assert all([int(v) for v, _ in by_key[f"k{m}"]] == [1, 2] for m in range(20))
    assert [int(value) for value, _ in by_key["x"]] == [500, 1003]


@pytest.mark.parametrize("native", [True, False], ids=["native", "python"])
def test_lines_that_are_refused_are_dead_letters_in_a_batch_and_by_epochs(
    spark: SparkSession, tools: Any, tmp_path: Path, native: bool
) -> None:
    lines = [b'{"name": "a", "size": 1, "at": 5}', b'{"name": "a", "size": 1.5, "at": 6}', b"oops"]
    (tmp_path / "1.log").write_bytes(b"\n".join([*lines, lines[0]]))
    kept = [{name: tools.Kept() for name in ("out", "rejects")} for _ in range(2)]
    batch, stream = (
        _pipeline(mr.sources.Files(tmp_path, schema=DDL), Work(native=native), sinks)
        for sinks in kept
    )
    batch.run_batch(spark)
    run = tools.start(stream)
    tools.step(run)

    assert run.status().dead_letters == {"rows": 2}
    assert run.status().injected == {"rows": 2}
    for sinks in kept:
        assert sorted(sinks["out"].values) == ["1", "2"]
        bent, oops = sorted(sinks["rejects"].values, key=lambda letter: letter["place"])
        assert "Decimal('1.5') is not a whole number" in bent["reason"]
        assert oops["reason"].startswith("DecodeError: JSON is malformed")
        assert [bytes(letter["raw"]) for letter in (bent, oops)] == lines[1:3]
        assert bent["place"] == f"{tmp_path / '1.log'}, line 2, byte 34"
        assert oops["place"] == f"{tmp_path / '1.log'}, line 3, byte 70"


@pytest.mark.parametrize(
    ("case", "native"), [("a null key", True), ("refused by its format", False)]
)
def test_without_dead_letters_a_refused_record_stops_a_batch(
    spark: SparkSession, tools: Any, case: str, native: bool
) -> None:
    row, reason = REFUSALS[case]
    feed = tools.feed(DDL)
    feed.add(("good", 1, 5), row)
    sink = tools.Kept()
    p = _pipeline(feed.bounded, Work(native=native), {"out": sink})

    with pytest.raises(RunFailed, match=reason) as caught:
        p.run_batch(spark)

    for word in ("stream 'rows'", "epoch 0", "value", "dead-letter stream"):
        assert word in str(caught.value)
    assert sink.rows == []


def test_a_refused_record_stops_a_run_and_dead_letters_let_it_go_on(tools: Any) -> None:
    feed = tools.feed(DDL)
    feed.add(("a", 1, 10), ("x", 1, FAR), ("b", 2, 10))
    out, rejects = tools.Kept(), tools.Kept()

    def work(row: Row) -> Row:
        if row.name == "c":
            raise LookupError("a step went wrong")
        return row

    def pipeline(*, letters: bool) -> mr.Pipeline:
        p = mr.Pipeline("steps")
        p.inject(
            "raw", feed.stream, timestamp="at", low_watermark=mr.BoundedDelay("1 s"), format=Row
        )
        p.stream("raw").map(work).to("rows", format=Row)
        p.add(Work(native=False))
        p.sink("out", out)
        if letters:
            p.dead_letter("rejects")
            p.sink("rejects", rejects)
        return p

    run = tools.start(pipeline(letters=False))
    with pytest.raises(RunFailed, match="too far past the wall clock"):
        tools.step(run)
    assert out.rows == []

    tools.checkpoint += "-with-letters"  # a stream more is another topology
    feed.add(("c", 3, 20), ("d", 4, 20))
    status = tools.run(pipeline(letters=True))
    assert sorted(out.rows) == [("a", "1", 10), ("b", "2", 10), ("d", "4", 20)]
    reasons = sorted(letter["reason"] for letter in rejects.values)
    assert len(reasons) == 2
    assert reasons[0] == "LookupError: a step went wrong"
    assert status.dead_letters == {"raw": 2}
