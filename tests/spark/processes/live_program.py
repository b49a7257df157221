"""A program that runs a pipeline in real time, and says what came of it.

What it does one after the other are the cases of ``test_realtime.py``.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.dataset as ds
import pytest
from obstore.store import S3Store
from pyspark.sql import SparkSession

import millrace as mr
from millrace.model.errors import CheckpointMismatch, PipelineError, RunFailed
from millrace.spark.realtime import liveness
from tests.spark.processes.live_pipeline import (
    Count,
    Counting,
    Numbers,
    Passing,
    Row,
    numbers,
    passed,
    wanted,
)

#: Of what the first level sends, the key and count of one record.
FATAL = (2, 9)


class Touchy(Counting):
    """Raises for a bad number, when it may."""

    def __init__(self, folder: Path, bad: int) -> None:
        self.folder = folder
        self.bad = bad

    def process_record(self, record: mr.Record) -> None:
        if record.value.number == self.bad:
            while not (self.folder / "go").exists():
                time.sleep(0.01)
            raise ZeroDivisionError(f"bad {self.bad}")
        super().process_record(record)


class Hundreds(Counting):
    """Counts by hundreds."""

    def process_record(self, record: mr.Record) -> None:
        count = self.count.get(0) + 100
        self.count.set(count)
        self.produce("counts", Count(self.key, count // 100))


def hundreds(count: int) -> int:
    return 100 * count


class Parities(mr.Computation):
    """Beside the second level; it comes and goes."""

    inputs = {"counts": mr.by(lambda count: count.count % 2)}
    outputs = {"parities": int}
    count = mr.ValueState(int)

    def process_record(self, record: mr.Record) -> None:
        self.count.set(self.count.get(0) + 1)
        self.produce("parities", self.count.get())


class Deadly(Passing):
    """Its process dies of one record, as of a fault in native code."""

    def process_record(self, record: mr.Record) -> None:
        if (record.value.key, record.value.count) == FATAL:
            os.kill(os.getpid(), signal.SIGSEGV)
        super().process_record(record)


class Letter(msgspec.Struct):
    """Of a dead letter, what a table can have: an epoch it has of its own."""

    computation: str
    reason: str
    error: str


def told(letter: mr.DeadLetter) -> Letter:
    return Letter(letter.computation, letter.reason, letter.error)


class Said(logging.Handler):
    """What the run says in its log."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: queue.SimpleQueue[str] = queue.SimpleQueue()

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.put(record.getMessage())

    def wait_for(self, words: str) -> str:
        while words not in (message := self.messages.get(timeout=120)):
            pass
        return message

    def how_often(self, words: str) -> int:
        """Return how many messages there were with these words, of those not yet waited for."""
        messages = [self.messages.get() for _ in range(self.messages.qsize())]
        return sum(words in message for message in messages)


class Case:
    """A pipeline in a folder of its own."""

    def __init__(self, spark: SparkSession, root: Path, name: str) -> None:
        self.folder = root / name
        self.folder.mkdir()
        self.input = Numbers(self.folder / "rows")
        self.input.allow(0)
        self._spark = spark

    def start(self, pipeline: mr.Pipeline | None = None, **options: Any) -> Any:
        checkpoint = options.pop("checkpoint", str(self.folder / "checkpoint"))
        p = pipeline or self.pipeline()
        return p.start(self._spark, checkpoint=checkpoint, **options)

    def send_again(self) -> str:
        """Have the command send the dead letters again; return what it says."""
        command = ["dead-letters", self.folder / "checkpoint", "--send", self.folder / "rejects"]
        ran = subprocess.run(
            [sys.executable, "-m", "millrace", *command], capture_output=True, check=True, text=True
        )
        return ran.stdout

    def pipeline(
        self, counting: Any = None, *more: Any, passing: Any = None, **how: Any
    ) -> mr.Pipeline:
        out = self.folder / "out"
        p = numbers(self.input, out, counting or Counting(), passing, skew="1 min", **how)
        for computation in more:
            p.add(computation)
        return p

    def counts(self, *lost: tuple[int, int]) -> str:
        """Return "right", or what is wrong with the rows that are seen, of which some were lost."""
        found = passed(self.folder / "out")
        right = wanted(self.input.allowed()) - Counter(lost)
        missing, more = right - found, found - right
        return "right" if found == right else f"{len(missing)} missing, {len(more)} too many"


def undisturbed(case: Case) -> dict[str, Any]:
    """Run, look, stop, go on, and end."""
    run = case.start(realtime=True)
    case.input.allow(1000)
    first = run.process_available("90 s"), case.counts()
    status, explained = run.status(), str(run.explain()).splitlines()[2]
    why = str(run.explain_watermark("Passing"))
    with run.dashboard() as dashboard, urllib.request.urlopen(dashboard.url + "api/now") as answer:
        shown = json.load(answer)
    run.pause("numbers")
    case.input.allow(1500)
    paused = run.process_available("90 s"), run.status().injected, run.status().held_back
    run.resume("numbers")
    run.limit_rate("numbers", 1_000_000)
    limited = run.process_available("90 s"), run.status().injected
    run.resume("numbers")
    run.stop()
    stopped = run.status().state, case.counts()
    run = case.start(realtime=True)
    case.input.allow(2000)
    second = run.process_available("90 s"), case.counts()
    drained = run.drain("60 s")
    return {
        "first": first,
        "explained": explained,
        "injected": status.injected,
        "low watermark": status.low_watermark,
        "steps": {step: list(times) for step, times in status.steps.items()},
        "state": status.state,
        "why": why,
        "shown": [shown["state"], shown["epoch"] >= 0, shown["totals"]["injected"]],
        "paused": paused,
        "limited": [*limited, run.status().held_back],
        "stopped": stopped,
        "second": second,
        "drained": drained,
        "end": run.status().state,
    }


def batches(case: Case) -> dict[str, Any]:
    """Let Spark end its batch, and kill a worker; a checkpoint in a bucket, segments on a disk."""
    segments, bucket = case.folder / "segments", S3Store("checkpoints", prefix="batches")
    run = case.start(
        realtime=True,
        spark_batch="3 s",
        checkpoint="s3://checkpoints/batches",
        segments=str(segments),
    )
    incarnations = set()
    for n in range(1, 4):
        case.input.allow(300 * n)
        if n == 2:
            while (1, 0) not in run.hosts:
                time.sleep(0.01)
            os.kill(run.hosts[1, 0].pid, signal.SIGKILL)
        assert run.process_available("90 s")
        incarnations.add(run._run.engine._control_loop.incarnation)
        while run._run.engine._control_loop.incarnation in incarnations:
            time.sleep(0.05)
    assert run.process_available("90 s")
    run.stop()
    found = mr.ops.open_checkpoint("s3://checkpoints/batches")["Counting"]
    return {
        "incarnations": len(incarnations),
        "counts": case.counts(),
        "state": found.get(3)["count"],
        "segments": len(list(segments.glob("*/incarnations/*-*"))),
        "folders in the bucket": sorted(
            {entry["path"].partition("/")[0] for entries in bucket.list() for entry in entries}
        ),
    }


def switched(case: Case) -> list[Any]:
    """Go from one plane to the other and back, each in mid-stream, with a changed pipeline."""
    found = []
    run = case.start(realtime=True)
    for rows, realtime, pipeline in (
        (500, False, case.pipeline(Counting(), Parities)),
        (900, True, case.pipeline(Hundreds(), Parities, migrate={"count": hundreds})),
        (1400, False, case.pipeline(Hundreds())),
    ):
        case.input.allow(rows)
        if not realtime:
            assert run.process_available("120 s")
        case.input.allow(rows + 100)  # under load
        if "Parities" not in pipeline.computations:
            found.append(way_out(run, pipeline))
            pipeline.remove("Parities")
        run = run.update(pipeline, realtime=realtime)
        found += [run.process_available("120 s"), case.counts()]
    run.stop()
    return found


def way_out(run: Any, pipeline: mr.Pipeline) -> str:
    """Return the way out that a run says of a change, and goes on."""
    try:
        run.update(pipeline)
    except CheckpointMismatch as mismatch:
        return str(mismatch).split("-> ")[1].split(". ")[0]
    return "not refused"


def failing(case: Case) -> dict[str, Any]:
    """Have user code hang, until the run says so, and then raise for good."""
    said = Said()
    logging.getLogger("millrace").addHandler(said)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(liveness, "_ASKED_S", 0.2)
        patch.setattr(liveness, "_WARN_AFTER_S", 1.0)
        run = case.start(case.pipeline(Touchy(case.folder, bad=42)), realtime=True, attempts=2)
        case.input.allow(100)
        hung = said.wait_for("a mark has been under way")
    (case.folder / "go").touch()
    try:
        run.wait("120 s")
    except RunFailed as error:
        log = "" if error.log is None else error.log.read_text()
        return {"message": str(error), "log": log, "state": run.status().state, "hung": hung}
    return {"message": "no error"}


def poisoned(case: Case) -> dict[str, Any]:
    """Have a record end the process that it runs in, until it is found; mend, and send it again."""

    def pipeline(passing: Passing) -> mr.Pipeline:
        p = case.pipeline(passing=passing)
        p.dead_letter("rejects", again=True)
        p.sink("rejects", mr.sinks.Parquet(case.folder / "rejects"))
        p.stream("rejects").map(told).to("letters", Letter)
        p.sink("letters", mr.sinks.Parquet(case.folder / "letters"))
        return p

    p = pipeline(Deadly())
    said = Said()
    logging.getLogger("millrace").addHandler(said)
    run = case.start(p, realtime=True, attempts=2)
    case.input.allow(500)
    found = [run.process_available("120 s"), case.counts(FATAL)]
    case.input.allow(600)
    found += [run.process_available("120 s"), case.counts(FATAL)]
    counters = run.status().counters["Passing"]
    run.stop()
    files = list((case.folder / "letters").glob("epoch=*/*.parquet"))
    letters = ds.dataset(files).to_table(columns=list(Letter.__struct_fields__)).to_pylist()
    run = case.start(pipeline(Passing()), realtime=True)
    sent = [case.send_again(), case.send_again()]
    until = time.monotonic() + 120
    while case.counts() != "right" and time.monotonic() < until:
        run.process_available("120 s")
    again = [case.counts(), run.status().injected["dead-letters.again"]]
    case.input.allow(700)
    run.process_available("120 s")
    again.append(case.counts())
    run.stop()
    return {
        "seen": found,
        "sent": sent,
        "again": again,
        "counted": [counters.records, counters.dead_letters],
        "letters": letters,
        "ended": said.how_often("the incarnation ended, and another begins"),
    }


def standing_by(case: Case) -> dict[str, Any]:
    """Kill a worker of the tasks that work, one of those that wait, and one at work again."""
    said, log = Said(), logging.getLogger("millrace")
    log.addHandler(said)
    level, _ = log.level, log.setLevel(logging.INFO)
    # Of one level, as all tasks are there twice.
    p = mr.Pipeline("numbers")
    policy = mr.BoundedDelay("1 s")
    p.inject("numbers", case.input, timestamp="at", low_watermark=policy, format=Row)
    p.add(Counting(), name="Counting")
    p.sink("counts", mr.sinks.Parquet(case.folder / "out"))
    run = case.start(p, realtime=True, tasks=2, standby=True)
    engine = run._run.engine
    away, right, hosts = [], [], []
    for n in range(1, 4):
        case.input.allow(300 * n)
        right.append(run.process_available("90 s"))
        while run.status().standby != "ready":
            time.sleep(0.02)
        victims = engine._failover.standby._called if n == 2 else run.hosts
        hosts.append(run.hosts[1, 0].pid)
        os.kill(victims[1, 0].pid, signal.SIGKILL)
        case.input.allow(300 * n + 100)
        if n == 2:
            said.wait_for("the standby has failed, and another is started")
        else:
            said.wait_for("the standby takes over")
            away.append(said.wait_for("another incarnation has begun, after"))
        right.append(run.process_available("90 s"))
    run.stop()
    log.removeHandler(said)
    log.setLevel(level)
    return {
        "right": right,
        "away": [float(re.findall(r"after ([0-9.]+) s", message)[0]) for message in away],
        "why": [message.partition(": ")[2].split(", ") for message in away],
        "undisturbed": hosts[1] == hosts[2],
        "counts": case.counts(),
        "stopped": (run.status().state, run.status().standby),
    }


def refused(spark: SparkSession, case: Case) -> list[str]:
    """Try what cannot be done."""
    found = []
    for options in ({"tasks": 9}, {"trigger": "1 s"}, {"pacemaker": "rabbit"}):
        try:
            case.start(realtime=True, **options)
        except PipelineError as error:
            found.append(str(error))
    p = mr.Pipeline("frames")
    p.inject("rows", spark.readStream.format("rate").load(), timestamp="timestamp")
    p.sink("rows", mr.sinks.Parquet(case.folder / "out"))
    try:
        p.start(spark, checkpoint=str(case.folder / "other"), realtime=True)
    except PipelineError as error:
        found.append(str(error))
    return [*found, f"checkpoint {(case.folder / 'checkpoint').exists()}"]


def main(spark: SparkSession, root: Path) -> dict[str, Any]:
    log = Path("log")
    before = log.stat().st_size
    return {
        "undisturbed": undisturbed(Case(spark, root, "undisturbed")),
        "console": log.read_bytes()[before:].decode(),
        "batches": batches(Case(spark, root, "batches")),
        "switched": switched(Case(spark, root, "switched")),
        "failing": failing(Case(spark, root, "failing")),
        "poisoned": poisoned(Case(spark, root, "poisoned")),
        "standby": standing_by(Case(spark, root, "standby")),
        "refused": refused(spark, Case(spark, root, "refused")),
    }
