"""An hour in which more comes than can be done: what waits, waits at the source.

An injector always has more records than are read. Two stages in Python count by key, strong and
exactly once, with an fsync in each. Nobody is asked to keep up; what must be flat is what the run
takes: memory of every process, threads, open files, bytes on disk. Records that were injected are
those of a prefix of the input, so in the end the counts of all keys, read from the checkpoint, are
compared with NumPy's.

Run it with ``python -m benchmarks.overload``; it takes an hour, and all processors. ``--minutes 2``
is a look. Flat is said by the median of the last tenth of the samples over that of the second.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa

import millrace as mr
from benchmarks.latency.synthetic import keys_of
from benchmarks.machine import describe
from benchmarks.realtime import realtime_session
from benchmarks.soak import Sample, flatness, taken_by

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: So many are made at once.
_CHUNK = 10_000
#: From the year 2020 on: a small number might be one of seconds, and is refused.
_START_US, _STEP_US = 1_577_836_800_000_000, 10
#: What a key is multiplied by for the second stage.
_REKEY = 7_919


class Event(msgspec.Struct, frozen=True):
    """A record."""

    key: int


class Flood(mr.sources.Injector):
    """Has more records than are read.

    Args:
        keys: Keys are below it.
    """

    schema = "key long, at long"
    # What lies between two offsets is the same, however it is cut.
    seamless = True

    def __init__(self, keys: int) -> None:
        self._keys = keys

    def processes(self) -> list[str]:
        """Return the only one."""
        return ["all"]

    def advance(self, process: str, offset: Any) -> mr.sources.Advance:
        """Return the end of the next records."""
        end = (offset or 0) + _CHUNK
        return mr.sources.Advance(end, _START_US + end * _STEP_US)

    def read_arrow(self, process: str, start: Any, end: Any) -> Iterator[pa.RecordBatch]:
        """Make the records between two offsets."""
        numbers = np.arange(start or 0, end)
        columns = {"key": keys_of(numbers, self._keys), "at": _START_US + numbers * _STEP_US}
        yield pa.RecordBatch.from_pydict(columns)


class First(mr.Computation):
    """Counts, and sends each record on, to another key.

    Args:
        wait_s: How long user code waits for each record, as if it asked somebody.
    """

    inputs = {"flood": mr.by("key")}
    outputs = {"again": Event}
    count: mr.ValueState[int] = mr.ValueState(int)

    def __init__(self, wait_s: float) -> None:
        self._wait_s = wait_s

    def process_record(self, record: mr.Record) -> None:
        """Count."""
        if self._wait_s:
            time.sleep(self._wait_s)
        self.count.set(self.count.get(0) + 1)
        self.produce("again", Event(record.value.key * _REKEY))


class Second(mr.Computation):
    """Counts."""

    inputs = {"again": mr.by("key")}
    count: mr.ValueState[int] = mr.ValueState(int)

    def process_record(self, record: mr.Record) -> None:
        """Count."""
        self.count.set(self.count.get(0) + 1)


@dataclass(frozen=True)
class Moment:
    """How far a run has come.

    Attributes:
        taken: What it takes.
        injected: Records, as of the last mark.
        mark: The number of that mark.
    """

    taken: Sample
    injected: int
    mark: int


def main() -> None:
    """Run, print what is flat, write the results and the picture."""
    given = _parser().parse_args()
    machine = describe()
    spark = realtime_session("overload", tasks=given.tasks, levels=2, heap="2g")
    with tempfile.TemporaryDirectory(prefix="millrace-overload-") as folder:
        moments = _run(spark, Path(folder), given)
    spark.stop()
    for line in _flat(moments):
        print(line)
    rate = (moments[-1].injected - moments[0].injected) / (
        moments[-1].taken.at_s - moments[0].taken.at_s
    )
    marks = moments[-1].mark - moments[len(moments) // 2].mark
    if marks:
        apart_s = moments[-1].taken.at_s - moments[len(moments) // 2].taken.at_s
        print(f"in the second half a mark was complete every {apart_s / marks:.1f} s")
    print(f"{moments[-1].injected:,} records, {rate:,.0f} a second; the counts are those of NumPy")
    started = dt.datetime.fromisoformat(machine["at"])
    named = Path(__file__).parent / "results" / f"overload-{started:%Y-%m-%d-%H%M}.json"
    path = given.out or named
    settings = {name: str(value) for name, value in vars(given).items()}
    results = {"benchmark": "overload", "machine": machine, "settings": settings}
    both = results | {"moments": [asdict(one) for one in moments]}
    path.write_text(json.dumps(both) + "\n")
    _picture(moments).savefig(path.with_suffix(".png"), dpi=110)


def _run(spark: Any, folder: Path, given: argparse.Namespace) -> list[Moment]:
    p = mr.Pipeline("overload")
    policy = mr.BoundedDelay("1 s")
    p.inject("flood", Flood(given.keys), timestamp="at", low_watermark=policy, format=Event)
    p.add(First(given.wait_ms / 1e3), name="First")
    p.add(Second, name="Second")
    run = p.start(
        spark,
        checkpoint=str(folder / "checkpoint"),
        cache=str(folder / "cache"),
        tasks=given.tasks,
        realtime=True,
        progress=False,
    )
    moments: list[Moment] = []
    began_s = time.monotonic()
    while (since_s := time.monotonic() - began_s) < 60 * given.minutes:
        if since_s >= len(moments) * given.sample_every:
            moments.append(_moment(run, folder, since_s))
            megabytes = sum(moments[-1].taken.rss_mib.values())
            injected = moments[-1].injected
            print(f"{since_s:.0f} s: {megabytes:,.0f} MiB, {injected:,}", flush=True)
        if run.wait(1):
            raise RuntimeError(f"the run has ended: {run.status()}")
    run.stop("10 m")  # with slow code a mark, which has all that is counted, takes a while
    kept = mr.ops.open_checkpoint(folder / "checkpoint")
    _check({name: kept[name].scan() for name in ("First", "Second")}, run, given.keys)
    return moments


def _moment(run: Any, folder: Path, since_s: float) -> Moment:
    status = run.status()
    taken = taken_by(os.getpid(), folder, since_s)
    return Moment(taken, status.injected.get("flood", 0), status.epoch)


def _check(scanned: dict[str, Any], run: Any, keys: int) -> None:
    """Compare the counts of both stages with what they must be.

    Raises:
        AssertionError: A record was lost, or counted twice.
    """
    injected = run.status().injected["flood"]
    expected = np.zeros(keys, np.int64)
    for start in range(0, injected, 10**7):
        numbers = np.arange(start, min(injected, start + 10**7))
        expected += np.bincount(keys_of(numbers, keys), minlength=keys)
    wanted = {key: int(count) for key, count in enumerate(expected) if count}
    found = {name: {one.key: one.cells["count"] for one in kept} for name, kept in scanned.items()}
    assert found["First"] == wanted, "the first stage has other counts"
    again = {key * _REKEY: count for key, count in wanted.items()}
    assert found["Second"] == again, "the second stage has other counts"


def _flat(moments: list[Moment]) -> Iterator[str]:
    taken = [one.taken for one in moments]
    rates = [
        (after.injected - before.injected) / (after.taken.at_s - before.taken.at_s)
        for before, after in pairwise(moments)
    ]
    return flatness(
        {
            "records/s": rates,
            "resident memory, MiB": [sum(one.rss_mib.values()) for one in taken],
            "threads": [one.threads for one in taken],
            "open files": [one.open_files for one in taken],
            "checkpoint on disk, MiB": [one.disk_mib["checkpoint"] for one in taken],
            "cache on disk, MiB": [one.disk_mib["cache"] for one in taken],
        }
    )


def _picture(moments: list[Moment]) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 8), layout="constrained")
    records, memory, disk = figure.subplots(3, 1, sharex=True)
    at = [one.taken.at_s / 60 for one in moments]
    records.plot(at, [one.injected / 1e6 for one in moments], label="injected")
    records.set_ylabel("million records")
    for name in dict.fromkeys(name for one in moments for name in one.taken.rss_mib):
        memory.plot(at, [one.taken.rss_mib.get(name, 0) for one in moments], label=name)
    memory.set_ylabel("resident memory (MiB)")
    for name in ("checkpoint", "cache"):
        disk.plot(at, [one.taken.disk_mib[name] for one in moments], label=name)
    disk.set_ylabel("on disk (MiB)")
    disk.set_xlabel("minutes")
    for axes in (records, memory, disk):
        axes.grid(visible=True, color="0.92")
        axes.legend(loc="upper right", fontsize="small")
        axes.set_ylim(bottom=0)
    records.set_title("Two keyed stages, and more records than they can do")
    return figure


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.overload",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--tasks", type=int, default=2)
    parser.add_argument("--wait-ms", type=float, default=0, help="of user code, for each record")
    parser.add_argument("--sample-every", type=float, default=30, help="seconds")
    parser.add_argument("--out", type=Path, help="results file (default: benchmarks/results/…)")
    return parser


if __name__ == "__main__":
    main()
