"""The input, made once and read by every contender, and what a right answer to it is."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

SCHEMA_DDL = "key BIGINT, value BIGINT, time TIMESTAMP"
WINDOWS, SESSIONS = "windows", "sessions"
#: Folders of the input: a file a part and batch, and a file a part.
BATCHES, WHOLE = "batches", "whole"
SIZE_MS = 10_000
GAP_MS = 5_000
#: Records are out of order by less than this; the bound on the delay is the same for everyone.
DISORDER_MS = 10_000
#: Of what pushes the low watermark on when the input is over; it is in no figure and no total.
FLUSH_KEY = -1

_SCHEMA = pa.schema(
    [
        ("key", pa.int64()),
        ("value", pa.int64()),
        ("time", pa.timestamp("us", tz="UTC")),
        ("time_ms", pa.int64()),
    ]
)
_SEED = 20150831
FIRST_MS = 1_700_000_000_000
#: Times are on a grid that no gap is a multiple of: two elements exactly one gap apart are two
#: sessions for one engine and one for another.
_GRID_MS = 3
_FLUSHES = 2
_FLUSH_AFTER_MS = 3_600_000
#: With sessions a key is silent for a third of the time, or sessions of a thousand keys would
#: never end.
_CYCLE_MS, _SILENT_MS = 45_000, 15_000
_GOLDEN = 0.6180339887498949
_ZIPF = 1.1


@dataclass(frozen=True)
class Totals:
    """What identifies the results well enough to compare two sets of them.

    The squares notice values that went to the wrong window, which their sum does not.
    """

    windows: int
    total: int
    squares: int

    @classmethod
    def of(cls, sums: np.ndarray) -> Totals:
        """Return the totals of the sums of all windows of all keys."""
        return cls(len(sums), int(sums.sum()), int((sums.astype(np.int64) ** 2).sum()))


@dataclass(frozen=True)
class Records:
    """All records in order of arrival: keys, values, event times in milliseconds since 1970."""

    keys: np.ndarray
    values: np.ndarray
    times_ms: np.ndarray


@dataclass(frozen=True)
class Workload:
    """Records with drawn keys, out of order, in batches, each split evenly over ``parts`` files.

    Args:
        shape: ``windows`` or ``sessions``.
        records: Measured records, a multiple of ``batch_records``.
        keys: Distinct keys drawn from.
        zipf: Draw them by Zipf's law with exponent 1.1 instead of uniformly.
        rate: Records that arrive per millisecond of event time.
        batch_records: Records a measured batch.
        warmup_batches: Batches before the measured ones.
        warmup_batch_records: Records a warm-up batch.
        parts: Files a batch.
    """

    shape: str
    records: int
    keys: int
    zipf: bool
    rate: int
    batch_records: int
    warmup_batches: int
    warmup_batch_records: int
    parts: int

    def __post_init__(self) -> None:
        window = SIZE_MS * self.rate
        if self.records % self.batch_records or self.records % window or self.warmup % window:
            raise ValueError(
                f"{self.records} records in batches of {self.batch_records} after {self.warmup} of "
                f"warm-up: expected whole batches; and records of whole windows, {window:,} each, "
                "both to warm up and to measure."
            )

    @property
    def warmup(self) -> int:
        """Records before the measured ones."""
        return self.warmup_batches * self.warmup_batch_records

    @property
    def batches(self) -> int:
        """Number of batches, warm-up included, without those that push the low watermark on."""
        return self.warmup_batches + self.records // self.batch_records

    def totals(self) -> Totals:
        """Return what every contender's results must add up to, warm-up included."""
        records = self.draw()
        order = np.lexsort((records.times_ms, records.keys))
        keys, times_ms = records.keys[order], records.times_ms[order]
        first = np.ones(len(keys), dtype=bool)
        if self.shape == WINDOWS:
            starts = times_ms // SIZE_MS
            first[1:] = (keys[1:] != keys[:-1]) | (starts[1:] != starts[:-1])
        else:
            first[1:] = (keys[1:] != keys[:-1]) | (np.diff(times_ms) >= GAP_MS)
        return Totals.of(np.add.reduceat(records.values[order], np.flatnonzero(first)))

    def draw(self) -> Records:
        """Return all records."""
        count = self.warmup + self.records
        random = np.random.default_rng(_SEED)
        arrival_ms = np.arange(count) // self.rate
        late_ms = random.integers(0, DISORDER_MS - _GRID_MS, count)
        times_ms = (arrival_ms - late_ms) // _GRID_MS * _GRID_MS
        keys = self._draw_keys(random, count)
        if self.shape == SESSIONS:
            silent = np.flatnonzero(_is_silent(keys, times_ms))
            while len(silent):
                keys[silent] = self._draw_keys(random, len(silent))
                silent = silent[_is_silent(keys[silent], times_ms[silent])]
        return Records(keys, random.integers(0, 1_000, count), FIRST_MS + times_ms)

    def link_into(self, cache: Path, folder: Path) -> None:
        """Fill ``folder`` with this workload's files, hard links to files made once in ``cache``.

        ``batches`` has ``parts`` files a batch; ``whole`` the same records, a file a part.
        """
        law = "zipf" if self.zipf else "uniform"
        warmup = f"warmup-{self.warmup_batches}x{self.warmup_batch_records}"
        made = cache / (
            f"{self.shape}-{self.records}-keys-{self.keys}-{law}-rate-{self.rate}-{warmup}-batch-"
            f"{self.batch_records}-parts-{self.parts}"
        )
        if not made.exists():
            making = made.with_name(f"{made.name}.making")
            shutil.rmtree(making, ignore_errors=True)
            self._make(making)
            making.rename(made)
        folder.mkdir(parents=True)
        for path in made.glob("*/*.parquet"):
            linked = folder / path.relative_to(made)
            linked.parent.mkdir(exist_ok=True)
            os.link(path, linked)

    def _make(self, folder: Path) -> None:
        for name in (BATCHES, WHOLE):
            (folder / name).mkdir(parents=True)
        table = self._table()
        wholes = [
            pq.ParquetWriter(folder / WHOLE / f"part-{part}.parquet", _SCHEMA)
            for part in range(self.parts)
        ]
        sizes = [self.warmup_batch_records] * self.warmup_batches
        sizes += [self.batch_records] * (self.batches - self.warmup_batches)
        sizes += [self.parts] * _FLUSHES
        start = 0
        for batch, size in enumerate(sizes):
            rows = size // self.parts
            for part, whole in enumerate(wholes):
                file = folder / BATCHES / f"batch-{batch:05}-part-{part}.parquet"
                piece = table.slice(start, rows)
                pq.write_table(piece, file)
                whole.write_table(piece)
                # Spark's file source takes the oldest files first.
                os.utime(file, (batch * self.parts + part,) * 2)
                start += rows
        for whole in wholes:
            whole.close()

    def _table(self) -> pa.Table:
        records = self.draw()
        flushes = self.parts * _FLUSHES
        last_ms = int(records.times_ms.max()) + _FLUSH_AFTER_MS
        late_ms = last_ms + _FLUSH_AFTER_MS * (np.arange(flushes) // self.parts)
        keys = np.append(records.keys, np.full(flushes, FLUSH_KEY))
        values = np.append(records.values, np.zeros(flushes, dtype=np.int64))
        times_ms = pa.array(np.append(records.times_ms, late_ms))
        times = pa.array(np.append(records.times_ms, late_ms) * 1_000).cast(_SCHEMA[2].type)
        return pa.table([pa.array(keys), pa.array(values), times, times_ms], schema=_SCHEMA)

    def _draw_keys(self, random: np.random.Generator, count: int) -> np.ndarray:
        if not self.zipf:
            return random.integers(0, self.keys, count)
        weights = np.cumsum(1 / np.arange(1, self.keys + 1) ** _ZIPF)
        # Not in order of rank, so that silences and key intervals do not follow it.
        names = np.random.default_rng(_SEED).permutation(self.keys)
        return names[np.searchsorted(weights, random.random(count) * weights[-1])]


def _is_silent(keys: np.ndarray, times_ms: np.ndarray) -> np.ndarray:
    """Return which keys may not occur at the times: each has silences at times of its own."""
    phases_ms = (keys * _GOLDEN % 1 * _CYCLE_MS).astype(np.int64)
    return (times_ms + phases_ms) % _CYCLE_MS < _SILENT_MS
