"""A program that runs, in real time, features that have no other test there: all in one pipeline.

Its cases are those of ``test_live_features.py``: a worker is killed with rows under way, the caches
are removed between two runs, and the input ends. Then one more run is timed. What was found is
pickled.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import millrace as mr
from millrace.model.keys import encode_key, hash_key
from millrace.spark import housekeeping
from millrace.testing.on_spark import ScriptedClock, ScriptedStream
from millrace.testing.output import Output, outputs_of

#: Where the clock begins; far ahead, as the alarm of an idle run goes by the machine's own.
T0 = 4_102_444_800 * mr.SECOND
#: Hashes of keys are below it; a task has one half of them at each of two levels.
HASHES = 1 << 64
PATIENCE_S = 60.0
#: Of the run that is timed.
RATE, WARM_UP_S, MEASURED_S = 200, 4, 6


def keys_with_hash(first: int, last: int, count: int) -> list[str]:
    """Return keys whose hashes lie between two eighths of all, in order."""
    found: list[str] = []
    number = 0
    while len(found) < count:
        key = f"k{number}"
        if first <= hash_key(encode_key(key)) * 8 // HASHES < last:
            found.append(key)
        number += 1
    return found


#: Keys of the first task of a level, and of the second; and of one key interval.
FIRST, SECOND = keys_with_hash(0, 4, 8), keys_with_hash(4, 8, 8)
BIG = keys_with_hash(0, 2, 25)
BIG_CHARACTERS = 100_000
#: Of a call that does not return.
LIMIT_S = 4


class Calls:
    """Writes down in files, one a process, what was called with what."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)

    def note(self, name: str, value: Any) -> None:
        with (self.folder / str(os.getpid())).open("a") as file:
            file.write(f"{name}\t{value}\n")

    def of(self, name: str) -> Counter[str]:
        """Return how often it was called with each value."""
        texts = [file.read_text() for file in self.folder.iterdir()]
        calls = [line.split("\t") for text in texts for line in text.splitlines()]
        return Counter(value for called, value in calls if called == name)


# -- what users write ------------------------------------------------------------------------------


class Amount(msgspec.Struct, frozen=True):
    key: str
    amount: int


class Total(msgspec.Struct, frozen=True):
    name: str
    count: int
    total: int


class Totals(mr.Computation):
    """Says after each amount what there is of its key."""

    inputs = {"orders": mr.by("key")}
    outputs = {"totals": Total}
    count = mr.CombiningState(int)
    total = mr.CombiningState(int)

    def process_record(self, record: mr.Record) -> None:
        self.count.add(1)
        self.total.add(record.value.amount)
        self.produce("totals", Total(self.key, self.count.get(), self.total.get()))


class Counted(mr.Computation):
    """Counts by key."""

    count = mr.CombiningState(int)

    def __init__(self, source: str, output: str) -> None:
        self.inputs = {source: mr.by("key")}
        self.outputs = {output: int}

    def process_record(self, record: mr.Record) -> None:
        (output,) = self.outputs
        self.count.add(1)
        self.produce(output, self.count.get())


class Noted(mr.Computation):
    """Passes amounts on, and writes down each call."""

    def __init__(self, calls: Calls, source: str, output: str) -> None:
        self.inputs = {source: mr.by("key")}
        self.outputs = {output: Amount}
        self.calls, self.name = calls, output

    def process_record(self, record: mr.Record) -> None:
        (output,) = self.outputs
        self.calls.note(self.name, record.value.amount)
        self.produce(output, record.value)


class Hanging(mr.Computation):
    """Waits for ever for one of its records."""

    inputs = {"requests": mr.by("key")}
    outputs = {"answers": int}

    def process_record(self, record: mr.Record) -> None:
        while record.value.amount == 13:
            time.sleep(0.05)
        self.produce("answers", record.value.amount)


class Fading(mr.Computation):
    """Says what it keeps, for ten seconds of the wall clock; zero is only a question."""

    inputs = {"fades": mr.by("key")}
    outputs = {"faded": int}
    total = mr.CombiningState(int, expires="10 s", domain=mr.WALL_TIME)

    def process_record(self, record: mr.Record) -> None:
        self.produce("faded", self.total.get(0))
        if record.value.amount:
            self.total.add(record.value.amount)


class Big(mr.Computation):
    """Keeps much, which is other each time."""

    inputs = {"sizes": mr.by("key")}
    outputs = {"kept": str}
    text = mr.ValueState(str)
    count = mr.CombiningState(int)

    def process_record(self, record: mr.Record) -> None:
        kept = self.text.get("")
        self.produce("kept", f"{self.count.get(0)} {len(kept)} {kept[:1]}")
        self.count.add(1)
        self.text.set(str(record.value.amount) * BIG_CHARACTERS)


class Beginning(mr.Computation):
    """Begins by itself."""

    outputs = {"begun": str}
    count = mr.CombiningState(int)

    def process_start(self) -> None:
        self.set_timer("beat", at=self.wall_time + mr.SECOND, domain=mr.WALL_TIME)

    def process_timer(self, timer: mr.Timer) -> None:
        self.count.add(1)
        self.produce("begun", f"{self.count.get()} at {timer.at - T0}")
        if self.count.get() < 3:
            self.set_timer("beat", at=timer.at + 3 * mr.SECOND, domain=mr.WALL_TIME)


class Letter(msgspec.Struct, frozen=True):
    computation: str
    key: str
    reason: str


def letter_of(letter: mr.DeadLetter) -> Letter:
    return Letter(letter.computation, repr(letter.key), letter.reason)


def key_and_value(record: mr.Record) -> list[Any]:
    return [record.key, record.value]


def last_digit(pair: list[Any]) -> str:
    return f"{pair[0]}-{pair[1] % 10}"


def amount_of(pair: list[Any]) -> int:
    amount: int = pair[1]
    return amount


def told(stream: str, value: Any) -> str:
    return json.dumps([stream, msgspec.to_builtins(value)])


AMOUNTS = "key string, amount long, at long"
#: Injected stream -> columns of its source.
FEEDS = {
    "orders": AMOUNTS,
    "visits": "key string, amount long, event string, at long",
    "drops": AMOUNTS,
    "coins": AMOUNTS,
    "requests": AMOUNTS,
    "scores": AMOUNTS,
    "left": AMOUNTS,
    "right": AMOUNTS,
    "fades": AMOUNTS,
    "arrivals": "key string, amount long",
    "sizes": AMOUNTS,
}


#: Streams whose records are written down with their names.
TOLD = (
    "sums", "visited", "visited at least", "once", "weakly counted", "answers", "letters",
    "called", "pairs", "faded", "arrived", "kept", "begun",
)  # fmt: skip


class Features:
    """The pipeline, what is fed to it, and what came of it.

    Args:
        spark: The session.
        root: A folder for all that is written.
        conninfo: Of PostgreSQL.
    """

    def __init__(self, spark: SparkSession, root: Path, conninfo: str) -> None:
        root.mkdir()
        self._spark, self._root, self._conninfo = spark, root, conninfo
        self.clock = ScriptedClock(root / "clock")
        self.clock.set(T0)
        self.calls = Calls(root / "calls")
        self.sources = {
            name: ScriptedStream(root / "in" / name, ddl) for name, ddl in FEEDS.items()
        }
        #: Injected stream -> all rows that were fed.
        self.fed: dict[str, list[tuple[Any, ...]]] = {name: [] for name in FEEDS}
        self.at_us = 0
        self.catalog = {
            "type": "sql",
            "uri": f"sqlite:///{root}/lake.db",
            "warehouse": str(root / "lake"),
        }
        self.run: Any = None

    def start(self) -> None:
        self.run = self._pipeline().start(
            self._spark, checkpoint=str(self._root / "checkpoint"), cache=str(self._root / "cache"),
            realtime=True, tasks=2, intervals=4, progress=False, clock=self.clock,
            # Marks are made when they are asked for: what is weak is not durable in between.
            marks="10 min", time_limit=f"{LIMIT_S} s", stuck_after="1 s",
        )  # fmt: skip

    def feed(self, stream: str, *rows: tuple[Any, ...]) -> None:
        """Append rows as one entry; where it has event times, each is a tenth of a second later."""
        timed = FEEDS[stream].endswith("at long")
        entry = []
        for row in rows:
            self.at_us += 100 * mr.MILLISECOND
            entry.append((*row, self.at_us) if timed else row)
        self.fed[stream] += entry
        self.sources[stream].append(entry)

    def settle(self) -> None:
        if not self.run.process_available("120 s"):
            self.run.wait(0)
            raise AssertionError("not done in two minutes")

    def wait_for(self, reached: Callable[[], Any], what: str) -> Any:
        deadline = time.monotonic() + PATIENCE_S
        while not (found := reached()):
            assert time.monotonic() < deadline, f"waited in vain: {what}"
            assert not self.run.wait("20 ms"), "the run has ended"
        return found

    def _pipeline(self) -> mr.Pipeline:
        p = mr.Pipeline("features")
        delay = mr.BoundedDelay("1 s")
        for name, source in self.sources.items():
            more: dict[str, Any] = {"timestamp": "at", "low_watermark": delay}
            if name == "arrivals":
                more = {"timestamp": mr.INGRESS}
            elif name == "visits":
                more |= {"id": "event", "slack": "1 h"}
            p.inject(name, source, format=Amount, **more)
        p.dead_letter("rejects")
        p.stream("rejects").map(letter_of).to("letters", Letter)

        p.add(Totals)
        orders = p.stream("orders").key_by("key")
        orders.window(mr.FixedWindows("10 s")).sum("amount").to("sums")
        refined = orders.window(
            trigger=mr.Repeat(mr.AfterCount(1)), mode=mr.ACCUMULATING_AND_RETRACTING
        )
        pairs = refined.sum("amount").map(mr.of_record(key_and_value))
        pairs.key_by(last_digit).map(amount_of).to("standing", int)

        p.add(Counted("visits", "visited"), name="Visits")
        p.add(Counted("visits", "visited at least"), name="Visits at least",
              delivery=mr.AT_LEAST_ONCE)  # fmt: skip

        p.add(Noted(self.calls, "drops", "weak"), name="Weak", productions=mr.WEAK)
        p.add(Noted(self.calls, "coins", "strong"), name="Strong")
        p.add(Noted(self.calls, "weak", "once"), name="Once")
        p.add(Noted(self.calls, "weak", "at least once"), name="At least once",
              delivery=mr.AT_LEAST_ONCE)  # fmt: skip
        p.add(Counted("weak", "weakly counted"), name="Weakly counted")

        p.add(Hanging)
        scores = p.stream("scores").key_by("key")
        scores.window(trigger=mr.Repeat(mr.OnCall("now"))).sum("amount").to("called")
        left, right = p.stream("left").key_by("key"), p.stream("right").key_by("key")
        left.join(right, "full").to("pairs")
        p.add(Fading)
        p.add(Noted(self.calls, "arrivals", "arrived"), name="Arrivals")
        p.add(Big)
        p.add(Beginning, keys=["here", "there"])

        for name in TOLD:
            p.stream(name).map(functools.partial(told, name)).to("told", format=str)
        p.sink("told", mr.sinks.Parquet(self._root / "told"))
        p.sink("totals", mr.sinks.PostgreSQL(self._conninfo, "totals"))
        p.sink("totals", mr.sinks.Delta(self._root / "totals"))
        p.sink(
            "totals", mr.sinks.Iceberg("lake.totals", self._root / "iceberg", catalog=self.catalog)
        )
        p.sink("standing", mr.sinks.PostgreSQL(self._conninfo, "standing", key="_key"))
        p.sink("standing", mr.sinks.Delta(self._root / "standing", key="_key"))
        p.sink("standing", mr.sinks.Parquet(self._root / "latest", key="_key"))
        return p

    # -- what came of it ---------------------------------------------------------------------------

    def told(self) -> dict[str, list[Output]]:
        """Return the outputs of each stream, mark by mark."""
        found: dict[str, list[Output]] = {}
        folders = (self._root / "told").glob("epoch=*")
        for folder in sorted(folders, key=lambda one: int(one.name.partition("=")[2])):
            for file in sorted(folder.glob("*.parquet")):
                for output in outputs_of(pq.ParquetFile(file).read()):
                    stream, value = json.loads(output.value)
                    found.setdefault(stream, []).append(
                        Output(output.key, value, output.timestamp, output.pane)
                    )
        return found

    def tables(self) -> dict[str, pa.Table]:
        """Return what is in the tables of all sinks but PostgreSQL's."""
        from deltalake import DeltaTable
        from pyiceberg.catalog import load_catalog

        lake = load_catalog(**self.catalog).load_table("lake.totals")
        return {
            "totals in Delta": DeltaTable(self._root / "totals").to_pyarrow_table(),
            "totals in Iceberg": lake.scan().to_arrow(),
            "standing in Delta": DeltaTable(self._root / "standing").to_pyarrow_table(),
            "standing in Parquet": pq.read_table((self._root / "latest" / "latest").resolve()),
        }

    def values(self, stream: str) -> list[tuple[Any, Any]]:
        """Return keys and values of a stream, as far as they are to be seen."""
        return [(output.key, output.value) for output in self.told().get(stream, [])]

    def remove_caches(self) -> None:
        shutil.rmtree(self._root / "cache")


def orders(keys: Iterable[str], first: int, count: int) -> list[tuple[str, int]]:
    """Return amounts of keys by turns."""
    keys = list(keys)
    return [(keys[n % len(keys)], n * n % 17 - 3) for n in range(first, first + count)]


def run_features(
    spark: SparkSession, root: Path, conninfo: str, count_totals: Callable[[], int]
) -> dict[str, Any]:
    """Feed everything, with a failure and a restart amid it; return what was found."""
    features = Features(spark, root, conninfo)
    found: dict[str, Any] = {}
    features.start()
    try:
        found |= _begin(features)
        found |= _fail(features, count_totals)
        found |= _restart(features)
        status = features.run.status()
        assert features.run.drain("120 s")
        found["state"] = features.run.status().state
        found["counters"] = status.counters
    finally:
        features.run.stop()
    return found | {"fed": features.fed, "told": features.told(), "tables": features.tables()}


def _begin(features: Features) -> dict[str, Any]:
    found: dict[str, Any] = {"explained": str(features.run.explain())}
    features.feed("requests", (FIRST[0], 7), (FIRST[0], 13), (FIRST[0], 8), (SECOND[0], 9))
    found["stuck"] = features.wait_for(lambda: features.run.status().stuck, "a stuck call")
    features.clock.set(T0 + 1_200 * mr.MILLISECOND)
    for n in range(10):
        features.feed("orders", *orders(FIRST + SECOND, 20 * n, 20))
    features.feed("visits", (SECOND[0], 1, "e1"), (SECOND[0], 1, "e1"), (SECOND[0], 2, "e2"))
    features.feed("visits", (SECOND[0], 2, "e2"))
    features.feed("scores", (FIRST[0], 5), (SECOND[0], 3), (FIRST[0], 4))
    features.feed("left", *[(key, n) for n, key in enumerate(FIRST[:4] + SECOND[:4])])
    features.feed("right", *[(key, 10 + n) for n, key in enumerate((FIRST[:2] + SECOND[:2]) * 2)])
    features.feed("fades", (FIRST[0], 5))
    features.feed("arrivals", (FIRST[1], 1), (SECOND[1], 2))
    for n in range(3):
        features.feed("sizes", *[(key, n) for key in BIG])
        features.settle()
    found["not called"] = features.values("called")
    features.run.fire("now", FIRST[0])
    features.settle()
    found["called one"] = features.values("called")

    def snapshots() -> int:
        features.settle()  # they are reported with marks
        return int(features.run.status().snapshots)

    found["snapshots"] = features.wait_for(snapshots, "a snapshot")
    features.clock.set(T0 + 3_300 * mr.MILLISECOND)
    features.feed("fades", (FIRST[0], 7))
    features.settle()
    return found


def _fail(features: Features, count_totals: Callable[[], int]) -> dict[str, Any]:
    """Kill the first task of level 1, with rows of others under way, and weak ones of its own."""
    run, calls = features.run, features.calls
    # Windows of the first task end before: what is weak waits for the next strong commit there.
    features.feed("orders", (SECOND[0], 0))
    features.settle()
    before = count_totals()
    features.feed("coins", *[(key, 100 + n) for n, key in enumerate(SECOND)])
    features.feed("visits", (SECOND[0], 2, "e2"), (SECOND[0], 3, "e3"))
    features.feed("arrivals", (SECOND[1], 3))
    features.feed("left", *[(key, 20 + n) for n, key in enumerate(SECOND[4:])])
    features.wait_for(lambda: calls.of("strong").total() == len(SECOND), "what is strong")
    features.wait_for(lambda: calls.of("arrived")["3"], "an arrival")
    for n in range(3):
        features.feed("drops", *[(key, 10 * n + m) for m, key in enumerate(FIRST)])
    weak = 3 * len(FIRST)
    for name in ("weak", "once", "at least once"):
        features.wait_for(lambda of=name: calls.of(of).total() == weak, f"what is {name}")
    for n in range(30):
        features.feed("orders", *orders(SECOND, 200 + 10 * n, 10))
    features.wait_for(lambda: count_totals() > before, "rows in PostgreSQL")
    victim = run.hosts[1, 0].pid
    os.kill(victim, signal.SIGKILL)
    # What was read has its time: it is read again when the clock is elsewhere.
    features.clock.set(T0 + 5_000 * mr.MILLISECOND)
    features.settle()
    found: dict[str, Any] = {"another process": run.hosts[1, 0].pid != victim}
    found["calls"] = {name: calls.of(name) for name in ("weak", "once", "at least once", "strong")}
    features.feed("arrivals", (SECOND[1], 4))
    run.fire("now")
    features.settle()
    found["called all"] = features.values("called")
    found["collected"] = features.wait_for(lambda: run.status().collected, "collection")
    return found


def _restart(features: Features) -> dict[str, Any]:
    """Stop, lose all caches, go on."""
    features.run.stop()
    features.remove_caches()
    features.clock.set(T0 + 13_200 * mr.MILLISECOND)
    features.feed("visits", (SECOND[0], 1, "e1"), (SECOND[0], 3, "e3"), (SECOND[0], 4, "e4"))
    features.feed("orders", *orders(FIRST + SECOND, 500, 40))
    features.feed("right", *[(key, 40 + n) for n, key in enumerate(SECOND[4:6] + FIRST[4:6])])
    features.feed("fades", (FIRST[0], 0))
    features.feed("sizes", *[(key, 3) for key in BIG])
    features.start()
    features.settle()
    rebuilt = features.run.status().rebuilt
    features.clock.set(T0 + 13_400 * mr.MILLISECOND)
    features.settle()
    features.feed("fades", (FIRST[0], 0))
    features.settle()
    return {
        "rebuilt": rebuilt,
    }


def time_records(spark: SparkSession, root: Path) -> dict[str, Any]:
    """Count in two stages what comes at 200 records/s; return when it was sent and seen.

    And how much longer than on a quiet machine a fixed piece of work takes meanwhile.
    """
    from benchmarks.latency import probe
    from benchmarks.latency.job import Job
    from benchmarks.latency.millrace_flow import pipeline_of
    from tests.kit.durations import fixed_work, slowness_of

    root.mkdir()
    records = RATE * (WARM_UP_S + MEASURED_S)
    job = Job(
        "millrace-realtime", servers="", source="", sink="", conninfo="", rate=RATE,
        records=records, keys=1_000, stages=2, partitions=2, scratch_dir=root, jars=[], every_ms=5,
    )  # fmt: skip
    run: Any = pipeline_of(job).start(
        spark, checkpoint=str(root / "checkpoint"), realtime=True, tasks=2, progress=False
    )
    try:
        assert run.process_available("120 s")
        begin_ns = time.time_ns() + 100_000_000
        making = job.begin_path.with_suffix(".making")
        making.write_text(str(begin_ns))
        making.rename(job.begin_path)
        deadline = time.monotonic() + WARM_UP_S + MEASURED_S + PATIENCE_S
        works = []
        while probe.count(job.probes_dir) < records and time.monotonic() < deadline:
            assert not run.wait("500 ms"), "the run has ended"
            works.append(fixed_work())
        return {
            "slowness": slowness_of(works),
            "sent and seen": probe.read(job.probes_dir),
            "measured from": begin_ns + WARM_UP_S * 1_000_000_000,
            "steps": {step: list(times) for step, times in run.status().steps.items()},
        }
    finally:
        run.stop()


def main(spark: SparkSession, root: Path, conninfo: str) -> dict[str, Any]:
    import psycopg

    def count_totals() -> int:
        with psycopg.connect(conninfo) as connection:
            (count,) = connection.execute("SELECT count(*) FROM totals").fetchone() or (0,)
        return int(count)

    spark.sparkContext.setLogLevel("ERROR")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(housekeeping, "_PERIOD_SECONDS", 0.5)
        found = run_features(spark, root / "features", conninfo, count_totals)
    return {"features": found, "latency": time_records(spark, root / "latency")}
