"""One computation driven epoch by epoch through the kernel's worker, on disk, without a JVM.

What is measured is what a level's task does between reading its rows and sending what it made:
order and cut the records, filter duplicates, user code, the commit (fsync'd), and the cache (LMDB).
The shuffle and Spark's part of the source are left out; they are the same whatever the options are,
but for the fingerprint of an id, which Spark makes (SHA-256 in the JVM).
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

import millrace as mr
from millrace.epochlog.entries import SourceStats
from millrace.epochlog.run_log import RunLog
from millrace.kernel.bundle import ReceivedRecords
from millrace.kernel.execution import Execution
from millrace.kernel.record_ids import SourceIds, injected_origin
from millrace.kernel.results import Counters
from millrace.kernel.source_dedup import Deduplicator
from millrace.model.keys import encode_key, hash_key
from millrace.store import LmdbCaches, LocalHardState
from tests.kit.epochs import run_epoch

STREAM = "events"
T = TypeVar("T")


@dataclass(frozen=True)
class Batch:
    """The records of one epoch: positions of their keys, and fingerprints of their ids."""

    keys: npt.NDArray[np.int64]
    fingerprints: bytes
    second: int

    def __len__(self) -> int:
        return len(self.keys)


@dataclass(frozen=True)
class Spent:
    """What some epochs cost.

    Attributes:
        records: Delivered to the worker.
        cpu_s: Of this process: user and system time.
        wall_s: Elapsed.
        written: Bytes of the commit log.
    """

    records: int
    cpu_s: float
    wall_s: float
    written: int


def batches(
    *, count: int, records: int, keys: int, repeated: float, seed: int = 0
) -> Iterator[Batch]:
    """Yield epochs of records with new ids, of which a share has come in the epoch before.

    Event time goes on by a minute an epoch.

    Args:
        count: How many epochs.
        records: In each.
        keys: Distinct keys, drawn uniformly.
        repeated: Share of the records that are the epoch's before, once more.
        seed: Of the generator.
    """
    random = np.random.default_rng(seed)
    earlier: tuple[npt.NDArray[np.int64], bytes] = (np.empty(0, np.int64), b"")
    for second in range(0, 60 * count, 60):
        again = min(int(records * repeated), len(earlier[0]))
        fresh = random.integers(0, keys, records - again)
        new_ids = random.bytes(16 * (records - again))
        yield Batch(
            np.concatenate([earlier[0][:again], fresh]), earlier[1][: 16 * again] + new_ids, second
        )
        earlier = (fresh, new_ids)


class Kernel:
    """A pipeline of one computation on a checkpoint of its own.

    Args:
        pipeline: It injects ``events`` and adds one computation.
        directory: For checkpoint and caches.
        keys: How many keys there are: 0, 1, 2, ...
        intervals: Key intervals.
        clock: By which user code is timed, as in a run; None: it is not.
    """

    def __init__(
        self,
        pipeline: mr.Pipeline,
        directory: Path,
        *,
        keys: int,
        intervals: int = 16,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._topology = pipeline.build()
        (self._spec,) = self._topology.computations
        self._log = directory / "checkpoint"
        self._state = LocalHardState.create_or_open(self._log, pipeline=pipeline.name)
        self._run_log = RunLog(self._topology, self._state, intervals=intervals)
        caches = LmdbCaches(directory / "cache", self._state.uuid)
        self._execution = Execution(self._topology, self._state, caches, seconds=clock)
        self._encoded = [encode_key(n) for n in range(keys)]
        self._hashes = np.array([hash_key(key) for key in self._encoded], dtype=np.uint64)
        self._identified = self._topology.edges[0].identified

    @property
    def counters(self) -> Counters:
        """What the computation did."""
        return self._run_log.counters[self._spec.name]

    @property
    def deduplicator(self) -> Deduplicator | None:
        """What filters its duplicates."""
        found = self._execution.deduplicators[self._spec.name]
        return found if isinstance(found, Deduplicator) else None

    def limit_filters(self, bytes_max: int) -> None:
        """Give the Bloom filters another limit."""
        self._execution.deduplicators[self._spec.name] = Deduplicator(self._spec, bytes_max)

    def run(self, batch: Batch) -> Spent:
        """Run an epoch."""
        now_us = batch.second * mr.SECOND
        manifest = self._run_log.begin(
            self._run_log.completed + 1, wall_time_us=now_us, injectors={STREAM: now_us}
        )
        assert manifest is not None, "the next epoch is not completed"
        intervals = manifest.interval_map(self._spec.name)
        count = len(batch)
        before = self._written()
        started_s, cpu_s = time.perf_counter(), time.process_time()
        # A level's task gets its rows in order of hash; sorting columns is a small part of it.
        order = np.argsort(self._hashes[batch.keys], kind="stable")
        keys = batch.keys[order].tolist()
        origins = np.full(count, injected_origin(0, manifest.epoch), dtype=np.int64)
        ids = None
        if self._identified:
            ids = SourceIds.of(
                STREAM, batch.fingerprints, origins, self._topology.streams[STREAM].slacks
            ).take(order)
        arrivals = ReceivedRecords(
            self._hashes[batch.keys[order]],
            [self._encoded[n] for n in keys],
            keys,
            np.full(count, now_us, dtype=np.int64),
            STREAM,
            origins,
            order.astype(np.int64),
            ids,
        )
        produced = run_epoch(
            self._execution,
            self._spec,
            manifest,
            self._run_log.positions,
            range(len(intervals)),
            arrivals,
            {100: now_us},
        )
        spent = Spent(
            count,
            time.process_time() - cpu_s,
            time.perf_counter() - started_s,
            self._written() - before,
        )
        results = [result for result, _ in produced]
        self._run_log.complete(manifest, results, {STREAM: SourceStats(now_us, count)})
        return spent

    def _written(self) -> int:
        """Return the bytes of the commit log."""
        # A segment has a name for each of its intervals, so the same file is met often.
        found = (file.stat() for file in (self._log / "commits").rglob("*") if file.is_file())
        return sum({one.st_ino: one.st_size for one in found}.values())


def alone(function: Callable[..., T], *arguments: Any) -> T:
    """Return what a function returns in a process of its own, which no other case has used."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(function, *arguments).result()


def together(spent: list[Spent]) -> Spent:
    """Return what several epochs cost."""
    return Spent(
        sum(one.records for one in spent),
        sum(one.cpu_s for one in spent),
        sum(one.wall_s for one in spent),
        sum(one.written for one in spent),
    )
