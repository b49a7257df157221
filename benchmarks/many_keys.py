"""Ten million keys on Spark with state larger than memory, beside ten thousand.

One pipeline by epochs in ``local[2]``: a count and some hundred bytes for each key, read and
written with each record. First every key gets a record, in no order of their hashes; then records
of keys that are drawn evenly are measured, which is the worst that keys can be: nearly each record
touches a page of the cache of its own. ``--skew`` has nine tenths of the records go to a hundredth
of the keys, as users' do. What is shown is records a second by whole epochs, as the checkpoint's
lines of metrics say, in the first and the last half of the measured epochs, and CPU time.

``--limit-gigabytes`` puts Spark, its workers and what the kernel keeps of their files into a memory
cgroup (version 1, as root), so that the cache cannot be in memory. Without it the state may fit, if
the machine lets files stay in memory: some page out what is not touched for a while, however much
is free. ``--cache /dev/shm`` has caches in memory for sure.

In the end all counts are read back from the checkpoint, and must add up.

Run it with ``python -m benchmarks.many_keys --limit-gigabytes 4``, with 60 GB of disk; a quarter
of an hour.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.table import Table

import millrace as mr
from benchmarks.blobs import size_of
from benchmarks.latency.synthetic import keys_of
from benchmarks.machine import describe
from benchmarks.measure import TreeSampler

_CGROUPS = Path("/sys/fs/cgroup/memory")
_PROCESSES = 2
_POOL = np.random.default_rng(1).bytes(1 << 20)
_FILL_BATCH = 100_000
#: Visits each number below a power of ten once: it has no factor in common with that.
_STRIDE = 7_368_787


class Kept(msgspec.Struct):
    """What is kept of a key."""

    count: int
    text: bytes


@dataclass(frozen=True)
class Case:
    """What is run.

    Attributes:
        keys: So many, a power of ten.
        value_bytes: Kept of each, besides its count.
        batch: Records of a measured epoch.
        epochs: Measured ones.
        skew: Whether nine tenths of the records are of a hundredth of the keys.
        limit_gigabytes: Memory of Spark, workers and their files; 0 for as much as there is.
        cache: Where caches lie; None for beside the checkpoint.
    """

    keys: int
    value_bytes: int
    batch: int
    epochs: int
    skew: bool
    limit_gigabytes: float
    cache: str | None = None


class Records(mr.sources.Injector):
    """A record of each key, then some of keys that are drawn; so many an epoch."""

    schema = "key long, at long"

    def __init__(self, case: Case) -> None:
        self._case = case

    def processes(self) -> Iterable[str]:
        """Return ``"0"`` and ``"1"``."""
        return [str(number) for number in range(_PROCESSES)]

    def advance(self, process: str, offset: Any) -> mr.sources.Advance:
        """Give what one epoch takes."""
        case, done = self._case, offset or 0
        filled = case.keys // _PROCESSES
        if done < filled:
            end = min(filled, done + _FILL_BATCH // _PROCESSES)
        else:
            end = min(
                filled + case.epochs * case.batch // _PROCESSES, done + case.batch // _PROCESSES
            )
        return mr.sources.Advance(end if end > done else offset, end)

    def read_arrow(self, process: str, start: Any, end: Any) -> Iterator[pa.RecordBatch]:
        """Make the records between two offsets."""
        case = self._case
        numbers = int(process) + np.arange(start or 0, end, dtype=np.int64) * _PROCESSES
        filling = (numbers * _STRIDE) % case.keys
        drawn = keys_of(numbers, case.keys)
        if case.skew:
            drawn = np.where(keys_of(numbers + 1, 10) > 0, drawn % max(1, case.keys // 100), drawn)
        keys = np.where(numbers < case.keys, filling, drawn)
        yield pa.RecordBatch.from_pydict({"key": keys, "at": numbers})


class Keep(mr.Computation):
    """Counts, beside some bytes that stay."""

    inputs = {"records": mr.by("key")}
    outputs = {}
    kept = mr.ValueState(Kept)
    value_bytes = 0

    def process_record(self, record: mr.Record) -> None:
        """Count one."""
        kept = self.kept.get(None)
        if kept is None:
            begin = (self.key * 31) % (len(_POOL) - self.value_bytes)
            kept = Kept(0, _POOL[begin : begin + self.value_bytes])
        self.kept.set(Kept(kept.count + 1, kept.text))


def main() -> None:
    """Run the cases, print the table, write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", default="10000,10000000")
    parser.add_argument("--batches", default="100000", help="records an epoch")
    parser.add_argument("--value-bytes", type=int, default=200)
    parser.add_argument("--epochs", type=int, default=12, help="measured")
    parser.add_argument("--skew", action="store_true")
    parser.add_argument("--limit-gigabytes", type=float, default=0.0)
    parser.add_argument("--directory", type=Path, help="with room for twenty times the state")
    parser.add_argument("--cache", help="for caches, such as /dev/shm: they are in memory then")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--case", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.case:
        folder, case = json.loads(given.case)
        print(json.dumps(_run(Path(folder), Case(**case))))
        return
    machine = describe()
    found = []
    for batch in map(int, given.batches.split(",")):
        for keys in map(int, given.keys.split(",")):
            case = Case(
                keys, given.value_bytes, batch, given.epochs, given.skew, given.limit_gigabytes,
                given.cache,
            )  # fmt: skip
            found.append({**asdict(case), **_measured(case, given.directory)})
            print(json.dumps(found[-1]), flush=True)
    table = Table("keys", "records an epoch", "records/s", "first, last half", "of the fewest keys",
                  "CPU s / million", "state, cache, GB", "fill, records/s")  # fmt: skip
    for one in found:
        first = next(other for other in found if other["batch"] == one["batch"])
        table.add_row(
            f"{one['keys']:,}", f"{one['batch']:,}", f"{one['records_per_s']:,.0f}",
            f"{one['first_per_s']:,.0f}, {one['last_per_s']:,.0f}",
            f"{one['records_per_s'] / first['records_per_s']:.2f} x",
            f"{one['cpu_s_per_million']:.1f}",
            f"{one['state_bytes'] / 1e9:.1f}, {one['cache_bytes'] / 1e9:.1f}",
            f"{one['fill_per_s']:,.0f}",
        )  # fmt: skip
    Console().print(table)
    started = dt.datetime.fromisoformat(machine["at"])
    named = Path(__file__).parent / "results" / f"many-keys-{started:%Y-%m-%d-%H%M}.json"
    results = {"benchmark": "many_keys", "machine": machine, "cases": found}
    (given.out or named).write_text(json.dumps(results, indent=1) + "\n")


def _measured(case: Case, directory: Path | None) -> dict[str, Any]:
    """Run a case in a process of its own, within its memory."""
    folder = Path(tempfile.mkdtemp(prefix="many-keys-", dir=directory))
    group = _group(case.limit_gigabytes) if case.limit_gigabytes else None
    try:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.many_keys", "--case",
             json.dumps([str(folder), asdict(case)])],
            stdout=subprocess.PIPE, check=True,
            env={**os.environ, "MANY_KEYS_CGROUP": str(group or "")},
        )  # fmt: skip
        return dict(json.loads(done.stdout.splitlines()[-1]))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if group is not None:
            group.rmdir()


def _group(gigabytes: float) -> Path:
    """Make a memory cgroup."""
    own = next(
        (line.split(":", 2)[2] for line in Path("/proc/self/cgroup").read_text().splitlines()
         if ":memory:" in line), None,
    )  # fmt: skip
    if own is None or os.geteuid() != 0:
        raise SystemExit(
            "--limit-gigabytes needs the memory controller of cgroups, version 1, and root. Leave "
            "it out to run with all the memory there is."
        )
    group = _CGROUPS / own.lstrip("/") / f"many-keys-{os.getpid()}"
    group.mkdir()
    (group / "memory.limit_in_bytes").write_text(str(int(gigabytes * (1 << 30))))
    return group


def _run(folder: Path, case: Case) -> dict[str, Any]:
    """Run the pipeline; return what it took."""
    if group := os.environ.get("MANY_KEYS_CGROUP"):
        (Path(group) / "cgroup.procs").write_text(str(os.getpid()))
    from benchmarks.spark_session import build_session

    Keep.value_bytes = case.value_bytes
    spark = build_session("many keys", cores=_PROCESSES, heap="1g")
    p = mr.Pipeline("many keys")
    p.inject("records", Records(case), timestamp="at", low_watermark=mr.BoundedDelay("1 s"))
    p.add(Keep)
    checkpoint = folder / "checkpoint"
    cache = Path(tempfile.mkdtemp(prefix="many-keys-", dir=case.cache or folder))
    with TreeSampler(os.getpid()) as sampler:
        run = p.start(spark, checkpoint=str(checkpoint), cache=str(cache), progress=False)
        run.process_available()
        run.stop()
    spark.stop()
    cached = size_of(cache)
    shutil.rmtree(cache)
    epochs = [*_epochs(checkpoint)]
    filling = [one for one in epochs if one.read <= case.keys]
    measured = epochs[len(filling) :]
    half = len(measured) // 2
    since_s, until_s = filling[-1].at_s, measured[-1].at_s
    keys = total = 0
    for one in mr.ops.open_checkpoint(checkpoint)["Keep"].scan():
        keys, total = keys + 1, total + one.cells["kept"]["count"]
    records = case.epochs * case.batch
    assert (keys, total) == (case.keys, case.keys + records), f"{keys} keys count {total}"
    return {
        "records_per_s": _rate(measured),
        "first_per_s": _rate(measured[:half]),
        "last_per_s": _rate(measured[-half:]),
        "fill_per_s": _rate(filling),
        "epochs_s": [one.seconds for one in epochs],
        "cpu_s_per_million": sum(sampler.cpu_s_between(since_s, until_s).values()) / records * 1e6,
        "state_bytes": size_of(checkpoint),
        "cache_bytes": cached,
        "peak_bytes": sampler.peak_bytes_before(until_s),
    }


@dataclass(frozen=True)
class _Epoch:
    """An epoch that had records.

    Attributes:
        read: Records read up to its end.
        records: Of it.
        seconds: How long it took.
        at_s: When it ended, Unix time.
    """

    read: int
    records: int
    seconds: float
    at_s: float


def _epochs(checkpoint: Path) -> Iterator[_Epoch]:
    """Yield the epochs that had records, by the checkpoint's lines of metrics."""
    files = sorted((checkpoint / "metrics").glob("epochs.jsonl*"), reverse=True)
    before = 0
    for line in map(json.loads, chain.from_iterable(f.read_text().splitlines() for f in files)):
        read = line["injected_records"].get("records", 0)
        if read > before:
            yield _Epoch(read, read - before, line["epoch_duration_seconds"], line["at"] / 1e6)
        before = read


def _rate(epochs: list[_Epoch]) -> float:
    """Return records a second."""
    return sum(one.records for one in epochs) / sum(one.seconds for one in epochs)


if __name__ == "__main__":
    main()
