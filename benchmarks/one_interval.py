"""One key interval as a worker has it, on LMDB and without Spark: bundle after bundle, timed."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

import millrace as mr
from millrace.kernel.bundle import Attempt, Bundle, KeyedRecords, Position, ReceivedRecords
from millrace.kernel.machine import Effects, Machine
from millrace.kernel.router import Router
from millrace.model.keys import encode_key, hash_key
from millrace.store import Commit, LmdbCaches
from millrace.watermark.intervals import IntervalMap
from millrace.watermark.report import NOTHING_PENDING

_BUNDLE = 100_000
_MAP = IntervalMap.uniform(1)


class OneInterval:
    """Machine and cache of a pipeline's only computation, which consumes stream ``events``."""

    def __init__(self, pipeline: mr.Pipeline, directory: str) -> None:
        topology = pipeline.build()
        (self._spec,) = topology.computations
        self._machine = Machine(topology, self._spec, Router(topology))
        self._cache = LmdbCaches(directory, pipeline.name).open(self._spec.name, 0)
        self._number = 0
        self._report = NOTHING_PENDING

    @property
    def size_bytes(self) -> int:
        """What the cache takes."""
        return self._cache.size_bytes

    def load(self, parts: Iterable[list[tuple[bytes, bytes]]], like: Effects) -> None:
        """Have rows in the cache, ascending, with nothing before them, as if it had run for them.

        Args:
            parts: The rows, so many at a time.
            like: Effects that pin the low watermark as all of them do.
        """
        self._number = 1
        self._cache.load(1, 0, parts)
        self._report = like.report

    def run(self, records: KeyedRecords, low_watermark_us: int) -> tuple[Effects, float]:
        """Return the effects of a bundle, applied, and its seconds."""
        self._number += 1
        before = mr.MIN_TIMESTAMP
        attempt = Attempt(self._number, 1, 0, before, {100: low_watermark_us})
        position = Position(self._number - 1, report=self._report)
        bundle = Bundle(_MAP.intervals[0], position, attempt, records)
        started = time.perf_counter()
        with self._cache.view() as view:
            effects = self._machine.run(bundle, view)
        self._report = effects.report
        mutations = list(effects.mutations.items())
        self._cache.apply(Commit(self._spec.name, 0, self._number, self._number, 1, mutations))
        return effects, time.perf_counter() - started


def bundles(
    keys: Sequence[int], values: Sequence[Any], times_us: Sequence[int]
) -> Iterator[KeyedRecords]:
    """Yield records, one for each key, value and time, in bundles of 100,000."""
    for start in range(0, len(keys), _BUNDLE):
        encoded = [encode_key(key) for key in keys[start : start + _BUNDLE]]
        count = len(encoded)
        arrivals = ReceivedRecords(
            np.array([hash_key(key) for key in encoded], dtype=np.uint64),
            encoded,
            list(values[start : start + _BUNDLE]),
            np.array(times_us[start : start + _BUNDLE], dtype=np.int64),
            "events",
            np.zeros(count, dtype=np.int64),
            np.arange(start, start + count, dtype=np.int64),
        )
        yield from (records for _, records in arrivals.by_interval(_MAP))
