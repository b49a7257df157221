"""Drivers that are told to end, and drivers that are killed: the next one finishes the work."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import millrace as mr

# Each starts Spark several times; the usual bound would cut them short on a busy machine.
pytestmark = pytest.mark.timeout(1200)

FORMATS = '''
import msgspec

class Reading(msgspec.Struct):
    """Workers import this one."""
    sensor: str
    value: int
'''

SCRIPT = '''
"""A driver as a user writes it: the classes are in __main__ and travel by value."""
import random, sys
from pathlib import Path

import msgspec
from pyspark.sql import SparkSession

import millrace as mr
from reading_formats import Reading

root = Path(sys.argv[1])


class Window(msgspec.Struct):
    sensor: str
    total: int


class Totals(mr.Computation):
    inputs = {"readings": mr.by("sensor")}
    outputs = {"windows": Window}
    totals = mr.MapState(int)

    def process_record(self, record):
        window = record.timestamp // 100 * 100
        self.totals[window] = self.totals.get(window, 0) + record.value.value
        self.set_timer(window, at=window + 100)

    def process_timer(self, timer):
        self.produce("windows", Window(self.key, self.totals.pop(timer.tag)), timestamp=timer.at)


class Running(mr.Computation):
    inputs = {"windows": mr.by("sensor")}
    outputs = {"running": Window}
    total = mr.CombiningState(int)

    def process_record(self, record):
        self.total.add(record.value.total)
        self.produce("running", Window(self.key, self.total.get()))


class Everything(mr.Computation):
    inputs = {"running": mr.by(lambda window: window.sensor[0])}
    outputs = {"all": int}
    sums = mr.MapState(int)

    def process_record(self, record):
        self.sums[record.timestamp] = self.sums.get(record.timestamp, 0) + record.value.total
        self.set_timer(record.timestamp, at=record.timestamp)

    def process_timer(self, timer):
        self.produce("all", self.sums.pop(timer.tag))


spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.ui.enabled", "false")
    .config("spark.ui.showConsoleProgress", "false")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.sql.session.timeZone", "UTC")
    .getOrCreate()
)
spark.sparkContext.setLogLevel("OFF")
source = (
    spark.readStream.schema("sensor string, value long, at long")
    .option("maxFilesPerTrigger", 1)
    .parquet(str(root / "in"))
)
p = mr.Pipeline("processes")
p.inject("readings", source, timestamp="at", low_watermark=mr.BoundedDelay(50), format=Reading)
for computation in (Totals, Running, Everything):
    p.add(computation)
p.sink("all", mr.Parquet(root / "out"))
run = p.start(spark, checkpoint=str(root / "checkpoint"))
print("started", flush=True)
if sys.argv[2] == "wait":
    run.wait()
    print("stopped", run.status().state, run.status().epoch, flush=True)
else:
    assert run.process_available("200 s")
    assert run.drain("100 s")
    print("drained", run.status().replayed, flush=True)
'''

FILES = 8


class Driver:
    """A driver process of the script."""

    def __init__(self, root: Path, mode: str) -> None:
        (root / "reading_formats.py").write_text(FORMATS)
        (root / "driver.py").write_text(SCRIPT)
        package = str(Path(mr.__file__).parents[1])
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(root), package]),
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        for name in ("SPARK_HOME", "PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET"):
            environment.pop(name, None)
        self._epochs = root / "checkpoint" / "epochs"
        self._log = root / f"driver-{time.monotonic_ns()}.log"
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(root / "driver.py"), str(root), mode],
                stdout=log, stderr=log, cwd=root, env=environment, start_new_session=True,
            )  # fmt: skip

    def entries(self) -> int:
        return len(list(self._epochs.glob("*.json"))) if self._epochs.exists() else 0

    def wait_for_entries(self, more: int) -> None:
        """Wait until the run has written so many entries of its epoch log."""
        wanted = self.entries() + more
        deadline = time.monotonic() + 120
        while self.entries() < wanted and self.process.poll() is None:
            assert time.monotonic() < deadline, self.output()
            time.sleep(0.005)

    def finish(self) -> str:
        assert self.process.wait(240) == 0, self.output()
        return self.output()

    def output(self) -> str:
        return self._log.read_text()

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def _readings(root: Path, feed: Any) -> None:
    draw = random.Random(2013)
    for file in range(FILES):
        feed.add(
            *(
                (f"{draw.choice('abc')}{draw.randrange(9)}", draw.randrange(100), file * 200 + n)
                for n in range(200)
            )
        )
    feed.folder.rename(root / "in")


def _undisturbed(spark: SparkSession, tools: Any, root: Path) -> list[tuple[Any, ...]]:
    """Return the same, computed without Millrace."""
    rows = spark.read.parquet(str(root / "in")).collect()
    totals: dict[tuple[str, int], int] = {}
    for row in rows:
        window = row.at // 100 * 100
        totals[row.sensor, window] = totals.get((row.sensor, window), 0) + row.value
    running: dict[str, int] = {}
    found = []
    for at in sorted({window for _, window in totals}):
        touched = sorted(sensor for sensor, window in totals if window == at)
        for sensor in touched:
            running[sensor] = running.get(sensor, 0) + totals[sensor, at]
        for first in sorted({sensor[0] for sensor in touched}):
            everything = sum(running[sensor] for sensor in touched if sensor[0] == first)
            found.append((first, everything, at + 100))
    return sorted(found, key=lambda row: (row[0], row[2]))


def _outputs(spark: SparkSession, root: Path) -> list[tuple[Any, ...]]:
    rows = spark.read.parquet(str(root / "out")).selectExpr(
        "_key", "value", "unix_micros(_timestamp) at", "_id"
    )
    collected = rows.collect()
    assert len({bytes(row._id) for row in collected}) == len(collected)
    return sorted(
        [(row._key, row.value, row.at) for row in collected], key=lambda row: (row[0], row[2])
    )


@pytest.fixture
def drivers(tmp_path: Path, tools: Any) -> Any:
    started: list[Driver] = []
    _readings(tmp_path, tools.feed("sensor string, value long, at long"))

    def start(mode: str) -> Driver:
        started.append(Driver(tmp_path, mode))
        return started[-1]

    yield start
    for driver in started:
        driver.end()


def test_sigterm_and_sigint_end_a_driver_and_the_next_goes_on(
    spark: SparkSession, tools: Any, tmp_path: Path, drivers: Any
) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        driver = drivers("wait")
        driver.wait_for_entries(5)
        driver.process.send_signal(number)
        output = driver.finish()
        assert "stopped stopped" in output
        assert "Traceback" not in output

    assert "drained" in drivers("finish").finish()
    assert _outputs(spark, tmp_path) == _undisturbed(spark, tools, tmp_path)


def test_a_driver_that_is_killed_at_any_moment(
    spark: SparkSession, tools: Any, tmp_path: Path, drivers: Any
) -> None:
    draw = random.Random(20130208)
    kills = []
    for _ in range(4):
        driver = drivers("finish")
        driver.wait_for_entries(draw.randrange(2, 6))
        # Somewhere within the epoch that is under way.
        time.sleep(draw.random() * 0.4)
        kills.append(driver.process.poll())
        driver.end()

    assert "drained" in drivers("finish").finish()
    assert kills[:3] == [None] * 3, "the drivers were to be killed at work"
    assert _outputs(spark, tmp_path) == _undisturbed(spark, tools, tmp_path)
    claims = [
        json.loads(line)
        for file in sorted((tmp_path / "checkpoint" / "epochs").glob("*.json"))
        for line in file.read_text().splitlines()[:1]
    ]
    generations = [entry["generation"] for entry in claims if entry.get("type") == "claim"]
    assert generations == list(range(1, 6))
