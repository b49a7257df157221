"""A driver that runs a pipeline in real time until it has seen everything: what is killed.

It is given a folder of its own, in one with the settings, the input and the outputs of all drivers.
"""

from __future__ import annotations

import json
import logging
import os
import random
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
from live_pipeline import Counting, Numbers, numbers, session

import millrace as mr


def at_work(root: Path) -> None:
    """Write down that this process has work now, of whatever level."""
    (root / "work" / str(os.getpid())).touch()


class Ticking(Numbers):
    """Has a row more every few milliseconds, until a file says how many."""

    def __init__(self, root: Path, rate: float) -> None:
        super().__init__(root / "limit")
        self.root, self.rate = root, rate

    def allowed(self) -> int:
        if self.file.exists():
            return super().allowed()
        seconds = time.time() - (self.root / "began").stat().st_mtime
        return int(seconds * self.rate)

    def read(self, process: str, start: Any, end: Any) -> Any:
        at_work(self.root)
        yield from super().read(process, start, end)


class Working(Counting):
    """Counts, and is seen to."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def process_record(self, record: mr.Record) -> None:
        at_work(self.root)
        super().process_record(record)


class Seen:
    """Writes down when rows were seen, and the highest count among them; a file a process."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def __call__(self, rows: pa.RecordBatch) -> None:
        at_work(self.root)
        with (self.root / "seen" / str(os.getpid())).open("a") as file:
            file.write(f"{time.time()} {max(rows.column('count').to_pylist())}\n")


def remap_now_and_then(run: Any, checkpoint: Path, every_s: float) -> None:
    """Split a key interval, or merge two, so often: all tasks rest for it."""
    while not run.wait(f"{every_s} s"):
        there = mr.open_checkpoint(checkpoint)["Counting"].intervals
        ids, at = [one.id for one in there], random.randrange(len(there))
        several = at + 1 < len(ids) and random.random() < len(ids) / 8
        try:
            run.remap("Counting", [mr.Merge(*ids[at : at + 2]) if several else mr.Split(ids[at])])
        except mr.MillraceError as refused:  # no mark is complete yet, or the run ends
            logging.info("not remapped: %s", refused)


def main(root: Path) -> None:
    settings = json.loads((root / "settings.json").read_text())
    logging.basicConfig(level=logging.WARNING, format="\n%(asctime)s %(message)s")
    logging.getLogger("millrace").setLevel(logging.INFO)
    spark = session(root, settings["master"], settings["conf"])
    source = Ticking(root, settings["rate"])
    p = numbers(source, root / "out", Working(root))
    p.sink("passed", mr.ArrowSink(Seen(root)))
    options = {"realtime": True, "tasks": 2, "progress": False} | settings["options"]
    checkpoint = root / "checkpoint"
    run = p.start(spark, checkpoint=str(checkpoint), **options)
    if settings["remaps"]:
        threading.Thread(
            target=remap_now_and_then, args=(run, checkpoint, settings["remaps"]), daemon=True
        ).start()
    while not (source.file.exists() and run.process_available("120 s")):
        if run.wait("0.2 s"):
            raise SystemExit("the run has ended by itself")
    run.stop()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]).parent)
