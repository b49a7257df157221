"""The driver program of these tests, as a user writes one: its classes are in ``__main__``.

Three levels, timers on both clocks, strong and weak productions, random numbers in user code, and
three sinks: PostgreSQL by append and by key, and Parquet. It is run as

    python program.py ROOT wait|finish

and reads ``ROOT/config.json``. Files under ``ROOT/traps`` are misfortunes that user code brings
about, each of them once: the task that removes the file is the one that it happens to.
"""

import json
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path

import msgspec
from pyspark import TaskContext
from pyspark.sql import SparkSession
from reading_formats import Reading

import millrace as mr

root = Path(sys.argv[1])
config = json.loads((root / "config.json").read_text())


class Confirmed(msgspec.Struct):
    sensor: str
    value: int
    at: int
    nonce: int


class Window(msgspec.Struct):
    sensor: str
    at: int
    total: int
    nonces: int


class Sum(msgspec.Struct):
    total: int
    nonces: int


class Confirm(mr.Computation):
    """Sends every reading on when the wall clock has moved, with a number nobody can know."""

    inputs = {"readings": mr.by("sensor")}
    outputs = {"confirmed": Confirmed}
    pending = mr.MapState(int)

    def __init__(self, root):
        self.root = root

    def process_record(self, record):
        self.pending[record.timestamp] = record.value.value
        at = self.wall_time + 1
        self.set_timer(record.timestamp, at=at, domain=mr.WALL_TIME, hold=record.timestamp)
        if trapped(self.root, "slow"):
            # Not before the copy that Spark starts meanwhile is at this record, too.
            while len(list(Path(self.root, "attempts").glob("slow *"))) < 2:
                time.sleep(0.02)
        if trapped(self.root, "paused"):
            # The executor and this task, in the middle of it.
            os.kill(parent(os.getppid()), signal.SIGSTOP)
            os.kill(os.getpid(), signal.SIGSTOP)

    def process_timer(self, timer):
        value, nonce = self.pending.pop(timer.tag), random.getrandbits(40)
        self.produce("confirmed", Confirmed(self.key, value, timer.tag, nonce), timestamp=timer.tag)


class Totals(mr.Computation):
    inputs = {"confirmed": mr.by("sensor")}
    outputs = {"windows": Window}
    productions = mr.WEAK
    windows = mr.MapState(Sum)

    def __init__(self, root):
        self.root = root

    def process_record(self, record):
        start = record.timestamp // 100 * 100
        held = self.windows.get(start, Sum(0, 0))
        total, nonces = held.total + record.value.value, held.nonces ^ record.value.nonce
        self.windows[start] = Sum(total, nonces)
        self.set_timer(start, at=start + 100)
        if trapped(self.root, "lost"):
            # This task's executor dies, and with it what level 1 left there for level 2.
            os.kill(parent(os.getppid()), signal.SIGKILL)
            time.sleep(60)

    def process_timer(self, timer):
        held = self.windows.pop(timer.tag)
        window = Window(self.key, timer.tag, held.total, held.nonces)
        self.produce("windows", window, timestamp=timer.at)


class Everything(mr.Computation):
    inputs = {"windows": mr.by(lambda window: window.sensor[0])}
    outputs = {"all": Sum}
    sums = mr.MapState(Sum)

    def process_record(self, record):
        held = self.sums.get(record.timestamp, Sum(0, 0))
        total, nonces = held.total + record.value.total, held.nonces ^ record.value.nonces
        self.sums[record.timestamp] = Sum(total, nonces)
        self.set_timer(record.timestamp, at=record.timestamp)

    def process_timer(self, timer):
        self.produce("all", self.sums.pop(timer.tag))


def trapped(root, name):
    """Return whether this call is the one that a misfortune happens to; write down all attempts."""
    task = TaskContext.get()
    attempts = Path(root, "attempts")
    me = f"{name} {task.stageId()} {task.partitionId()}"
    try:
        Path(root, "traps", name).unlink()
    except FileNotFoundError:
        if name == "slow" and any(p.name.startswith(f"{me} ") for p in attempts.iterdir()):
            (attempts / f"{me} {task.taskAttemptId()}").touch()
        return False
    where = f"{Path(mr.__file__).parent} {os.environ.get('TMPDIR')}"
    (attempts / f"{me} {task.taskAttemptId()}").write_text(where)
    return True


def parent(pid):
    """Return the parent of a process."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


builder = SparkSession.builder.master(config["master"])
for name, value in {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.session.timeZone": "UTC",
    "spark.submit.pyFiles": str(root / "reading_formats.py"),
    **config["conf"],
}.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
spark.sparkContext.setLogLevel("OFF")
SCHEMA = "sensor string, value long, at long"
if config["driven"]:
    # A file an epoch, too.
    source = mr.sources.Files(
        root / "in", schema=SCHEMA, format="parquet", pattern="[0-9]*", bytes_per_epoch=1
    )
else:
    reader = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
    source = reader.parquet(str(root / "in"))
p = mr.Pipeline("processes")
p.inject("readings", source, timestamp="at", low_watermark=mr.BoundedDelay(50), format=Reading)
p.add(Confirm(str(root)))
p.add(Totals(str(root)))
p.add(Everything)
if config["conninfo"]:
    p.sink("confirmed", mr.sinks.PostgreSQL(config["conninfo"], "confirmed"))
    p.sink("windows", mr.sinks.PostgreSQL(config["conninfo"], "windows", key="sensor"))
p.sink("all", mr.sinks.Parquet(root / "out"))


def remap_after_each_epoch(run):
    """Split an interval of each computation, or merge two, whenever an epoch has completed."""
    last = -1
    while True:
        time.sleep(0.01)
        if (epoch := run.status().epoch) in (None, last):
            continue
        last = epoch
        for name in ("Confirm", "Totals", "Everything"):
            try:
                there = [
                    one.id for one in mr.ops.open_checkpoint(config["checkpoint"])[name].intervals
                ]
                at = random.randrange(len(there))
                several = at + 1 < len(there) and random.random() < 0.6
                run.remap(
                    name,
                    [mr.ops.Merge(*there[at : at + 2]) if several else mr.ops.Split(there[at])],
                )
            except mr.MillraceError as refused:  # the next epoch is under way, or another run
                print("not remapped:", refused, file=sys.stderr)


run = p.start(spark, checkpoint=config["checkpoint"], cache=config.get("cache"), tasks=2)
if config.get("remaps"):
    threading.Thread(target=remap_after_each_epoch, args=(run,), daemon=True).start()
print("started", flush=True)
if sys.argv[2] == "wait":
    run.wait()
    print("stopped", run.status().state, run.status().epoch, flush=True)
else:
    assert run.process_available("900 s")
    assert run.drain("300 s")
    print("drained", run.status().replayed, flush=True)
