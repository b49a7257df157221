"""A driver that runs a pipeline in real time until it has seen everything: what is killed.

It is given a folder of its own, in one with the settings, the input and the outputs of all drivers.
The pipeline is that of numbers, with some of the mixes beside it.
"""

from __future__ import annotations

import json
import logging
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
from pyspark.sql import SparkSession

import millrace as mr
from millrace.model.errors import CheckpointMismatch, UpdateFailed
from tests.spark.processes.live_pipeline import (
    Counting,
    Ticking,
    at_work,
    numbers,
    seconds_of,
    session,
)
from tests.spark.processes.live_stream import BEGUN
from tests.spark.processes.mixes import BEAT, BEATS, MIXES

#: After how long what the clock forgets is gone, and all beats were.
ENOUGH_S = BEAT * BEATS / mr.SECOND + 3
LATELY_S = 3
#: Of one stream, over all drivers.
UPDATES_MOST = 400


class Working(Counting):
    """Counts, and is seen to."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def process_record(self, record: mr.Record) -> None:
        at_work(self.root)
        super().process_record(record)


class Watching:
    """Writes down when rows of a key were seen, and the highest count; a file a process."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def __call__(self, rows: pa.RecordBatch) -> None:
        at_work(self.root)
        pairs = zip(rows.column("key").to_pylist(), rows.column("count").to_pylist(), strict=True)
        # Of equal keys the last, which is the highest.
        highest = dict(sorted(pairs))
        with (self.root / "seen" / str(os.getpid())).open("a") as file:
            now = time.monotonic()
            file.write("".join(f"{now} {key} {count}\n" for key, count in highest.items()))


class Tens(mr.Computation):
    """Comes and goes with updates, each time under another name."""

    inputs: ClassVar = {"numbers": mr.by(lambda row: row.number % 10)}
    count = mr.ValueState(int)

    def process_record(self, record: mr.Record) -> None:
        self.count.set(self.count.get(0) + 1)


class Live:
    """The run of a driver, from which another takes over at an update.

    Args:
        root: Of the stream.
        settings: Of the drivers.

    Attributes:
        run: What runs now.
        ending: Set when nothing is to be changed any more.
        changing: Held while an update is under way; there is none after the end of the input.
    """

    run: Any

    def __init__(self, root: Path, settings: dict[str, Any]) -> None:
        self.source = Ticking(root)
        self.mixes = [MIXES[name](root, settings["conninfo"]) for name in settings["mixes"]]
        self.checkpoint = root / "disk" / "checkpoint"
        self.ending = threading.Event()
        self.changing = threading.Lock()
        self._root = root

    def pipeline(self, number: int) -> mr.Pipeline:
        """Return the pipeline as it is after so many updates."""
        p = numbers(self.source, self._root / "disk" / "out", Working(self._root))
        p.sink("passed", mr.sinks.Function(Watching(self._root)))
        for mix in self.mixes:
            mix.build(p)
        if number % 2:
            p.add(Tens(), name=f"Tens{number}")
        for other in range(1, UPDATES_MOST + 1, 2):
            if other != number:
                p.remove(f"Tens{other}")
        return p

    def start(self, spark: SparkSession, options: dict[str, Any]) -> None:
        """Start the pipeline as it was last, which who waits does not know when it begins to."""
        numbers_of = [self.completed, self.tried, self.completed]
        while True:
            try:
                p = self.pipeline(numbers_of.pop(0)())
                self.run = p.start(spark, checkpoint=str(self.checkpoint), **options)
            except CheckpointMismatch as mismatch:
                logging.warning("as another version: %s", mismatch)
                if not numbers_of:
                    raise
            else:
                return

    def completed(self) -> int:
        """Return after how many updates the last mark of the checkpoint is; 0 before the first."""
        try:
            names = mr.ops.open_checkpoint(self.checkpoint).computations
        except mr.MillraceError:
            return 0
        return max((int(name[4:]) for name in names if name.startswith("Tens")), default=0)

    def tried(self) -> int:
        """Return how many updates there were, over all drivers, done or not."""
        file = self._root / "updates"
        return int(file.read_text()) if file.exists() else 0

    def next_number(self) -> int:
        """Return the number of the next update."""
        number = self.tried() + 1
        assert number <= UPDATES_MOST
        (self._root / "updates").write_text(str(number))
        return number

    def update(self) -> None:
        """Have a changed pipeline take over."""
        with self.changing:
            if self.source.file.exists():
                return
            try:
                self.run = self.run.update(self.pipeline(self.next_number()))
                logging.warning("updated: %s", self.run.updated.pause)
            except UpdateFailed as failed:
                logging.warning("not updated: %s", failed)
                # Without one, whoever waits for the run is told so.
                self.run = failed.run or self.run

    def ended(self) -> bool:
        """Whether the run has ended by itself; raises why."""
        with self.changing:
            return bool(self.run.wait("0 s"))


def remap(live: Live) -> None:
    """Split a key interval, or merge two: all tasks rest for it."""
    ids = [one.id for one in mr.ops.open_checkpoint(live.checkpoint)["Counting"].intervals]
    if not ids:
        return  # no mark is complete yet
    at = random.randrange(len(ids))
    several = at + 1 < len(ids) and random.random() < len(ids) / 8
    change = mr.ops.Merge(*ids[at : at + 2]) if several else mr.ops.Split(ids[at])
    live.run.remap("Counting", [change])


def scale(live: Live) -> None:
    """Have another number of tasks take over, as if the load were another."""
    live.run._run.engine.scale(3 - live.run.status().tasks)


def disturb(live: Live) -> None:
    """Do what mixes have somebody do from outside."""
    for mix in live.mixes:
        mix.disturb(live.run)


def now_and_then(live: Live, every_s: float, change: Callable[[Live], None]) -> None:
    """Change a run so often; while the disk is full, or the run ends, it is refused."""
    while not live.ending.wait(every_s):
        try:
            change(live)
        except mr.MillraceError as refused:
            logging.warning("%s: refused: %s", change.__name__, refused)


def fill_one_slot(spark: SparkSession) -> None:
    """Have a task that does nothing: where a query has the other slots, no other one has any."""

    def wait(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        time.sleep(3600)
        yield from batches

    while True:
        try:
            spark.range(0, 1, 1, 1).mapInArrow(wait, "id long").count()
        except Exception:  # noqa: BLE001  its executor was lost
            time.sleep(0.1)


def main(root: Path) -> None:
    settings = json.loads((root / "settings.json").read_text())
    logging.basicConfig(level=logging.WARNING, format="\n%(asctime)s %(message)s")
    logging.getLogger("millrace").setLevel(logging.INFO)
    least = mr.spark.realtime_settings(tasks=1) if settings["scales"] else {}
    spark = session(root, settings["master"], settings["conf"] | least)
    run(root, settings, spark)
    spark.stop()


def run(root: Path, settings: dict[str, Any], spark: SparkSession) -> None:
    """Run the pipeline until it has seen everything."""
    live = Live(root, settings)
    tasks = (1, 2) if settings["scales"] else 2
    options = {"realtime": True, "tasks": tasks, "progress": False} | settings["options"]
    if settings["lease"]:
        options["lease"] = settings["lease"]
    live.start(spark, options)
    logging.warning(BEGUN)
    changes = [(1, disturb), (settings["remaps"], remap), (settings["scales"], scale)]
    changes.append((settings["updates"], Live.update))
    threads: list[tuple[Any, tuple[Any, ...]]] = [
        (now_and_then, (live, every_s, change)) for every_s, change in changes if every_s
    ]
    if settings["filled"]:
        threads.append((fill_one_slot, (spark,)))
    for target, args in threads:
        threading.Thread(target=target, args=args, daemon=True).start()
    while not live.source.file.exists():
        time.sleep(0.2)
        if live.ended():
            raise SystemExit("the run has ended by itself")
    while not live.run.process_available("120 s"):
        if live.ended():
            raise SystemExit("the run has ended by itself")
    enough = ENOUGH_S - seconds_of(root) if live.mixes else 0
    live.run.wait(f"{max(enough, LATELY_S if live.mixes else 0)} s")
    live.ending.set()
    live.run.process_available("120 s")
    if not live.run.drain("120 s"):
        raise SystemExit("the run has not ended in two minutes")


if __name__ == "__main__":
    # Not as __main__: what is pickled here is read by workers.
    from tests.spark.processes import live_chaos

    live_chaos.main(Path(sys.argv[1]).parent)
