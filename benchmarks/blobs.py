"""Keyed blobs on one worker: epochs through the kernel and the store, without Spark.

What Spark's task does is done here in one process: the same manifest, worker, commit log, cache,
snapshot thread and collector. What is missing is the shuffle and Spark's own cost an epoch.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np

import millrace as mr
from millrace.epochlog.run_log import RunLog
from millrace.kernel.bundle import ReceivedRecords
from millrace.kernel.execution import Execution
from millrace.model.keys import encode_key, hash_key
from millrace.store import (
    CacheLimit,
    Collector,
    LmdbCaches,
    LocalHardState,
    Repair,
    SnapshotPolicy,
    SnapshotWriter,
    bring,
)
from tests.kit.epochs import run_epoch

_PATIENCE_S = 60
NEVER = SnapshotPolicy(fixed_bytes=1 << 60)


class Blob(mr.Computation):
    """Keeps the last value of every key, and how many there were."""

    inputs = {"blobs": mr.by_key()}
    blob = mr.ValueState(bytes)
    count = mr.CombiningState(int)

    def process_record(self, record: mr.Record) -> None:
        """Replace the blob, after a look at the old one."""
        old = self.blob.get(b"")
        if old and old[:8] != record.value[:8]:
            raise AssertionError(f"the blob of key {self.key} is another key's")
        self.blob.set(record.value)
        self.count.add(1)


class BlobWorker:
    """One worker process on one checkpoint.

    Args:
        home: Directory of the checkpoint; the caches are in ``cache`` under it.
        intervals: Key intervals, a power of two.
        value_bytes: Size of a blob, 16 or more.
        policy: When snapshots are due.
        cache: Another directory for caches.
    """

    def __init__(
        self,
        home: Path,
        *,
        intervals: int,
        value_bytes: int,
        policy: SnapshotPolicy,
        cache: Path | None = None,
    ) -> None:
        pipeline = mr.Pipeline("blobs")
        pipeline.inject("blobs")
        pipeline.add(Blob)
        self.home = home
        self.topology = pipeline.build()
        self.state = LocalHardState.create_or_open(home, pipeline="blobs")
        self.caches = LmdbCaches(cache or home / "cache", self.state.uuid)
        self._policy = policy
        self.snapshots = SnapshotWriter(self.caches, self.state.snapshots, policy)
        self._run_log = RunLog(self.topology, self.state, intervals=intervals)
        self._execution = Execution(self.topology, self.state, self.caches)
        self._collector = Collector(self.state)
        self._filling = os.urandom(value_bytes - 16)

    def epoch(self, keys: np.ndarray[tuple[int], np.dtype[np.int64]]) -> float:
        """Give each key a new blob; return how many seconds the epoch took, input aside."""
        epoch = self._run_log.completed + 1
        encoded = [encode_key(int(key)) for key in keys]
        stamp = epoch.to_bytes(8, "little")
        count = len(encoded)
        arrivals = ReceivedRecords(
            np.array([hash_key(key) for key in encoded], dtype=np.uint64),
            encoded,
            [int(key).to_bytes(8, "little") + stamp + self._filling for key in keys],
            np.zeros(count, dtype=np.int64),
            "blobs",
            np.full(count, epoch, dtype=np.int64),
            np.arange(count, dtype=np.int64),
        )
        started = time.perf_counter()
        manifest = self._run_log.begin(epoch, wall_time_us=epoch, injectors={"blobs": 0})
        assert manifest is not None, "the next epoch is not complete"
        (spec,) = self.topology.computations
        positions, owned = self._run_log.positions, range(len(manifest.interval_map(spec.name)))
        produced = run_epoch(self._execution, spec, manifest, positions, owned, arrivals, {100: 0})
        self._run_log.complete(manifest, [result for result, _ in produced])
        seconds = time.perf_counter() - started
        self.snapshots.offer(spec.name, [result.interval for result, _ in produced])
        self._collector.collect(self._run_log.collectable())
        return seconds

    def bring(self, interval: int) -> Repair:
        """Build the cache of an interval again if it is not there; return what it took."""
        number = self._run_log.collectable().numbers["Blob"][interval]
        return bring(self.caches.open("Blob", interval), self.state, "Blob", interval, number)

    def limit(self, limit_bytes: int) -> None:
        """Let the caches take no more than this from now on."""
        limit = CacheLimit(self.caches, ["Blob"], limit_bytes)
        self.settle()
        self.snapshots = SnapshotWriter(self.caches, self.state.snapshots, self._policy, limit)
        self.snapshots.offer("Blob", [0])
        self.settle()

    def settle(self) -> None:
        """Wait until the snapshots that are due are written, and what is over the limit is gone."""
        assert self.snapshots.wait(_PATIENCE_S), "no snapshot takes so long"

    def caches_bytes(self) -> int:
        """Return what all caches take on disk."""
        return size_of(self.caches.home)

    def recover(self, cache: Path) -> tuple[float, list[Repair]]:
        """Build all caches in an empty directory; return the seconds and what it took."""
        caches = LmdbCaches(cache, self.state.uuid)
        known = self._run_log.collectable().numbers["Blob"]
        started = time.perf_counter()
        repairs = [
            bring(caches.open("Blob", interval), self.state, "Blob", interval, number)
            for interval, number in sorted(known.items())
        ]
        return time.perf_counter() - started, repairs


def size_of(folder: Path) -> int:
    """Return the bytes on disk under a folder; a file with several names counts once."""
    sizes = {}
    for path in folder.rglob("*"):
        stat = path.stat()
        sizes[stat.st_ino] = stat.st_blocks * 512
    return sum(sizes.values())


def anonymous_bytes() -> int:
    """Return this process's memory that is its own: not pages of files, which can be dropped."""
    status = Path("/proc/self/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) * 1024
