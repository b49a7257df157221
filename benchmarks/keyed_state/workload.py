"""The input, made once and read by every contender, and what a right count of it is."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

SCHEMA_DDL = "key BIGINT, value BIGINT, time TIMESTAMP"
_SCHEMA = pa.schema(
    [("key", pa.int64()), ("value", pa.int64()), ("time", pa.timestamp("us", tz="UTC"))]
)
_SEED = 20130826
_FIRST_TIME_US = 1_700_000_000_000_000
_TIME_STEP_US = 100


@dataclass(frozen=True)
class Totals:
    """What identifies a state of counts well enough to compare two.

    The squares notice counts that went to the wrong key, which their sum does not.
    """

    keys: int
    total: int
    squares: int

    @classmethod
    def of(cls, counts: np.ndarray) -> Totals:
        """Return the totals of an array of counts, zeros not counted as keys."""
        return cls(int(np.count_nonzero(counts)), int(counts.sum()), int((counts**2).sum()))

    def __add__(self, other: Totals) -> Totals:
        """Return the totals of two states that share no key."""
        return Totals(
            self.keys + other.keys, self.total + other.total, self.squares + other.squares
        )


@dataclass(frozen=True)
class Workload:
    """Records with uniformly drawn keys, in batches, each split evenly over ``parts`` files.

    Args:
        records: Measured records, a multiple of ``batch_records``.
        keys: Distinct keys drawn from; with as many keys as records about 63 % of them occur.
        batch_records: Records a measured batch, a multiple of ``parts``.
        warmup_batches: Batches before the measured ones.
        warmup_batch_records: Records a warm-up batch, a multiple of ``parts``.
        parts: Files a batch.
    """

    records: int
    keys: int
    batch_records: int
    warmup_batches: int
    warmup_batch_records: int
    parts: int

    def __post_init__(self) -> None:
        uneven = self.batch_records % self.parts or self.warmup_batch_records % self.parts
        if self.records % self.batch_records or uneven:
            raise ValueError(
                f"{self.records} records do not split into whole batches of {self.batch_records} "
                f"records in {self.parts} files; give --records as a multiple of every batch size."
            )

    @property
    def warmup(self) -> int:
        """Records before the measured ones."""
        return self.warmup_batches * self.warmup_batch_records

    @property
    def batches(self) -> int:
        """Number of batches, warm-up included."""
        return self.warmup_batches + self.records // self.batch_records

    def totals(self) -> Totals:
        """Return what every contender's state must add up to, warm-up included."""
        return Totals.of(np.bincount(self.draw_keys(), minlength=self.keys))

    def link_into(self, cache: Path, folder: Path) -> None:
        """Fill ``folder`` with this workload's files, hard links to files made once in ``cache``.

        A shorter workload of the same keys and batches links a prefix of the same files, which is
        how ``--slow-records`` shortens a rival without changing its input.
        """
        warmup = f"warmup-{self.warmup_batches}x{self.warmup_batch_records}"
        made = cache / f"keys-{self.keys}-{warmup}-batch-{self.batch_records}-parts-{self.parts}"
        names = [
            f"batch-{batch:05}-part-{part}.parquet"
            for batch in range(self.batches)
            for part in range(self.parts)
        ]
        if not all((made / name).exists() for name in names):
            self._make(made, names)
        folder.mkdir(parents=True)
        for name in names:
            os.link(made / name, folder / name)

    def _make(self, made: Path, names: list[str]) -> None:
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir(parents=True)
        keys = self.draw_keys()
        start = 0
        for index, name in enumerate(names):
            warming = index < self.warmup_batches * self.parts
            rows = (self.warmup_batch_records if warming else self.batch_records) // self.parts
            positions = np.arange(start, start + rows)
            times = pa.array(self.times_us(positions))
            columns = [pa.array(keys[positions]), pa.array(positions), times.cast(_SCHEMA[2].type)]
            pq.write_table(pa.table(columns, schema=_SCHEMA), made / name)
            # Spark's file source takes the oldest files first.
            os.utime(made / name, (index, index))
            start += rows

    def draw_keys(self) -> np.ndarray:
        """Return the keys of all records, warm-up included, in order of arrival."""
        return np.random.default_rng(_SEED).integers(0, self.keys, self.warmup + self.records)

    @staticmethod
    def times_us(positions: np.ndarray) -> np.ndarray:
        """Return the times of records, by their place among all."""
        return _FIRST_TIME_US + positions * _TIME_STEP_US
