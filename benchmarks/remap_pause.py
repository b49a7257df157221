"""How long a split of a hot key interval holds up a run of epochs on Spark, by part.

A run writes a value for each key, then has epochs that change some of them. One interval is split
while such epochs go on, as ``balance=True`` or ``millrace remap`` would, and as many epochs follow.
Shown is for how long the run stood still between two epochs, by part (reading the interval,
dividing its rows, and the rest: the claim, the snapshots of both parts and the completion); how
long was read beside the epochs, and how long those took; and the epoch right after, in which the
caches of both parts are built. Each round splits the next interval, in turns with rows that are
read beside the epochs and with all of them read in the pause, as it was once.

Run it with ``python -m benchmarks.remap_pause``; a million keys take some minutes.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

import millrace as mr
from benchmarks.machine import describe
from benchmarks.spark_session import build_session
from millrace.balance import transfer
from millrace.balance.preparation import Preparation
from millrace.epochlog.run_log import RunLog

_EPOCHS = 5
_WRITTEN_AN_EPOCH = 100_000
_CHANGED_AN_EPOCH = 10_000


class Keep(mr.Computation):
    """Keeps as many bytes for each key as a record says, others each time."""

    inputs = {"rows": mr.by("key")}
    value = mr.ValueState(bytes)

    def process_record(self, record: mr.Record) -> None:
        """Replace the value."""
        row = record.value
        self.value.set(random.Random(record.timestamp + row["key"]).randbytes(row["size"]))


@dataclass(frozen=True)
class Pause:
    """A split of one interval.

    Attributes:
        ahead: Whether rows were read beside the epochs.
        state_bytes: Of keys' values in the interval, about.
        before_s: Median of how long an epoch took before it, without a remap.
        ahead_s: How long rows were read beside epochs.
        beside_s: Median of how long those epochs took in which the split was asked for, and done.
        pause_s: How long the run stood still for the split.
        read_s: Of that, until the rows of the interval were read.
        divide_s: Of that, until they were divided.
        after_s: How long the epoch right after those took.
        later_s: Median of those after it.
    """

    ahead: bool
    state_bytes: int
    before_s: float
    ahead_s: float
    beside_s: float
    pause_s: float
    read_s: float
    divide_s: float
    after_s: float
    later_s: float


def main() -> None:
    """Run all rounds, print the table, write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--value-bytes", type=int, default=100)
    parser.add_argument("--intervals", type=int, default=16, help="a power of two")
    parser.add_argument("--rounds", type=int, default=6, help="every other one reads ahead")
    parser.add_argument("--tasks", type=int, default=2)
    parser.add_argument("--directory", type=Path, help="with room for some times the state")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    machine = describe()
    spark = build_session("remap pause", cores=given.tasks)
    with tempfile.TemporaryDirectory(prefix="millrace-pause-", dir=given.directory) as folder:
        pauses = _run(spark, Path(folder), given)
    spark.stop()
    table = Table(
        "read", "before", "ahead", "beside", "pause", "read", "divide", "rest", "after", "later"
    )
    for one in pauses:
        rest = one.pause_s - one.read_s - one.divide_s
        shown = (
            one.before_s, one.ahead_s, one.beside_s, one.pause_s, one.read_s, one.divide_s, rest,
            one.after_s, one.later_s,
        )  # fmt: skip
        how = "ahead" if one.ahead else "in it"
        table.add_row(how, *(f"{seconds:.2f}" for seconds in shown))
    Console().print(table)
    with_it, without = (
        statistics.median(one.pause_s for one in pauses if one.ahead is ahead)
        for ahead in (True, False)
    )
    print(f"pause, median: {with_it:.2f} s, and {without:.2f} s if all is read in it")
    started = dt.datetime.fromisoformat(machine["at"])
    named = Path(__file__).parent / "results" / f"remap-pause-{started:%Y-%m-%d-%H%M}.json"
    about = {"keys": given.keys, "value_bytes": given.value_bytes, "intervals": given.intervals}
    results = {"benchmark": "remap_pause", "machine": machine, **about}
    results["pauses"] = [*map(asdict, pauses)]
    (given.out or named).write_text(json.dumps(results, indent=1) + "\n")


def _run(spark: Any, folder: Path, given: argparse.Namespace) -> list[Pause]:
    source, checkpoint = folder / "in", folder / "checkpoint"
    source.mkdir()
    p = mr.Pipeline("remap pause")
    stream = spark.readStream.schema("key long, at long, size int").option("maxFilesPerTrigger", 1)
    rows = stream.parquet(str(source))
    p.inject("rows", rows, timestamp="at", low_watermark=mr.BoundedDelay("1 s"))
    p.add(Keep)
    run = p.start(spark, checkpoint=str(checkpoint), tasks=given.tasks, intervals=given.intervals)
    drawn, files = np.random.default_rng(1), 0

    def deliver(epochs: list[np.ndarray[Any, Any]]) -> list[float]:
        nonlocal files
        for keys in epochs:
            size = np.full(len(keys), given.value_bytes, dtype=np.int32)
            at = np.full(len(keys), files * mr.SECOND)
            file = folder / f"{files:05}.parquet"
            pq.write_table(pa.table({"key": keys, "at": at, "size": size}), file)
            os.utime(file, (1_700_000_000 + files,) * 2)  # Spark reads the oldest first
            file.rename(source / file.name)  # whole, and as old as it is to be: the run looks on
            files += 1
        run.process_available()
        seconds = [*_epochs(checkpoint)]
        assert len(seconds) == files, f"{len(seconds)} epochs of {files} files"
        return seconds[-len(epochs) :]

    def some() -> list[np.ndarray[Any, Any]]:
        return [drawn.integers(0, given.keys, _CHANGED_AN_EPOCH) for _ in range(_EPOCHS)]

    every = np.arange(given.keys)
    deliver(np.array_split(every, max(1, given.keys // _WRITTEN_AN_EPOCH)))
    pauses = []
    for interval in range(given.rounds):
        ahead = interval % 2 == 0
        before = deliver(some())
        with _parts(ahead=ahead) as parts:
            splitting = threading.Thread(target=run.remap, args=["Keep", [mr.ops.Split(interval)]])
            splitting.start()
            beside = deliver(some())
            splitting.join()
        first, *later = deliver(some())
        pauses.append(
            Pause(
                ahead=ahead,
                state_bytes=given.keys * given.value_bytes // given.intervals,
                before_s=statistics.median(before),
                ahead_s=parts["ahead"],
                beside_s=statistics.median(beside),
                pause_s=parts["pause"],
                read_s=parts["read"],
                divide_s=parts["divide"],
                after_s=first,
                later_s=statistics.median(later),
            )
        )
    run.stop()
    kept = mr.ops.open_checkpoint(checkpoint)["Keep"]
    assert len(kept.intervals) == given.intervals + given.rounds, "not divided"
    assert sum(1 for _ in kept.scan()) == given.keys, "keys lost"
    return pauses


@contextmanager
def _parts(*, ahead: bool) -> Iterator[dict[str, float]]:
    """Add up how long parts of a remap take; read nothing ahead if that is not to be."""
    seconds = dict.fromkeys(("ahead", "pause", "read", "divide"), 0.0)

    def timed(part: str, what: Callable[..., Any]) -> Callable[..., Any]:
        def called(*of: Any, **how: Any) -> Any:
            started = time.perf_counter()
            try:
                return what(*of, **how)
            finally:
                seconds[part] += time.perf_counter() - started

        return called

    rows_at = transfer.rows_at
    with ExitStack() as patches:
        for owner, name, other in (
            (transfer, "rows_at", lambda *of: timed("read", rows_at(*of))),
            (transfer, "remade", timed("divide", transfer.remade)),
            (RunLog, "remap", timed("pause", RunLog.remap)),
            (Preparation, "read", timed("ahead", Preparation.read)),
        ):
            patches.enter_context(patch.object(owner, name, other))
        if not ahead:
            patches.enter_context(patch.object(Preparation, "is_near", lambda _: True))
        yield seconds


def _epochs(checkpoint: Path) -> Iterator[float]:
    """Yield how long each epoch took that had records: there are some without any between."""
    files = sorted((checkpoint / "metrics").glob("epochs.jsonl*"), reverse=True)
    had = 0
    for line in chain.from_iterable(file.read_text().splitlines() for file in files):
        said = json.loads(line)
        read = said["injected_records"].get("rows", 0)
        if read > had:
            had = read
            yield said["epoch_duration_seconds"]


if __name__ == "__main__":
    main()
