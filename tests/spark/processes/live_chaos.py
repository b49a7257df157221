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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

import millrace as mr
from tests.spark.processes.live_pipeline import (
    Counting,
    Ticking,
    at_work,
    numbers,
    seconds_of,
    session,
)
from tests.spark.processes.mixes import BEAT, BEATS, MIXES, Mix

#: After how long what the clock forgets is gone, and all beats were.
ENOUGH_S = BEAT * BEATS / mr.SECOND + 3
LATELY_S = 3


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


def remap_now_and_then(run: Any, checkpoint: Path, every_s: float) -> None:
    """Split a key interval, or merge two, so often: all tasks rest for it."""
    while not run.wait(f"{every_s} s"):
        try:
            ids = [one.id for one in mr.ops.open_checkpoint(checkpoint)["Counting"].intervals]
            if not ids:
                continue  # no mark is complete yet
            at = random.randrange(len(ids))
            several = at + 1 < len(ids) and random.random() < len(ids) / 8
            run.remap(
                "Counting", [mr.ops.Merge(*ids[at : at + 2]) if several else mr.ops.Split(ids[at])]
            )
        except mr.MillraceError as refused:  # the disk is full, the run ends
            logging.warning("not remapped: %s", refused)


def scale_now_and_then(run: Any, every_s: float) -> None:
    """Have another number of tasks take over so often, as if the load were another."""
    while not run.wait(f"{every_s} s"):
        run._run.engine.scale(3 - run.status().tasks)


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


def disturb(run: Any, mixes: list[Mix]) -> None:
    while not run.wait("1 s"):
        for mix in mixes:
            try:
                mix.disturb(run)
            except mr.MillraceError as refused:
                logging.warning("not done: %s", refused)


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
    source = Ticking(root)
    p = numbers(source, root / "disk" / "out", Working(root))
    p.sink("passed", mr.sinks.Function(Watching(root)))
    mixes = [MIXES[name](root, settings["conninfo"]) for name in settings["mixes"]]
    for mix in mixes:
        mix.build(p)
    tasks = (1, 2) if settings["scales"] else 2
    options = {"realtime": True, "tasks": tasks, "progress": False} | settings["options"]
    if settings["lease"]:
        options["lease"] = settings["lease"]
    checkpoint = root / "disk" / "checkpoint"
    started = p.start(spark, checkpoint=str(checkpoint), **options)
    threads: list[tuple[Any, tuple[Any, ...]]] = [(disturb, (started, mixes))]
    if settings["filled"]:
        threads.append((fill_one_slot, (spark,)))
    if settings["remaps"]:
        threads.append((remap_now_and_then, (started, checkpoint, settings["remaps"])))
    if settings["scales"]:
        threads.append((scale_now_and_then, (started, settings["scales"])))
    for target, args in threads:
        threading.Thread(target=target, args=args, daemon=True).start()
    while not (source.file.exists() and started.process_available("120 s")):
        if started.wait("0.2 s"):
            raise SystemExit("the run has ended by itself")
    enough = ENOUGH_S - seconds_of(root) if mixes else 0
    started.wait(f"{max(enough, LATELY_S if mixes else 0)} s")
    started.process_available("120 s")
    if not started.drain("120 s"):
        raise SystemExit("the run has not ended in two minutes")


if __name__ == "__main__":
    # Not as __main__: what is pickled here is read by workers.
    from tests.spark.processes import live_chaos

    live_chaos.main(Path(sys.argv[1]).parent)
