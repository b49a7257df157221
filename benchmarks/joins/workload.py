"""The input of the joins, and what a right answer to it is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

SCHEMA_DDL = "key BIGINT, value BIGINT, time TIMESTAMP"
INTERVAL, TABLE = "interval", "table"
#: Folder of the files for who has no batches.
WHOLE = "whole"
#: When a right value meets a left one, counted from that: in whole milliseconds, the end excluded.
FIRST_MS, END_MS = -5_000, 10_000
#: Event time of a batch, and by how much less than that records are out of order.
BATCH_MS = 10_000

_BEGIN_MS = 1_700_000_000_000
_SEED = 20150831
_SCHEMA = pa.schema(
    [
        ("key", pa.int64()),
        ("value", pa.int64()),
        ("time", pa.timestamp("us", tz="UTC")),
        ("time_ms", pa.int64()),
    ]
)


@dataclass(frozen=True)
class Totals:
    """What identifies the pairs well enough: their number, and the sums of their values."""

    pairs: int
    left: int
    right: int


@dataclass(frozen=True)
class Workload:
    """Two streams of so many records a batch each, in files of a batch.

    Args:
        shape: ``interval`` or ``table``.
        keys: Distinct keys drawn from.
        records: A batch of a side.
        batches: How many, the first of which is the table, and warms up.
        parts: How many files all records of a side are in besides, for who has no batches: each
            has every so-manyth record, in order.
    """

    shape: str
    keys: int
    records: int
    batches: int
    parts: int = 2

    def write(self, folder: Path) -> Totals:
        """Write the files of both sides; return the totals of their pairs."""
        sides: dict[str, list[tuple[np.ndarray, np.ndarray, np.ndarray]]] = {}
        for number, side in enumerate(("left", "right")):
            random = np.random.default_rng([_SEED, number])
            sides[side] = [self._batch(random, side, n) for n in range(self.batches)]
            whole = folder / WHOLE / side
            for made in (folder / side, whole):
                made.mkdir(parents=True)
            for n, batch in enumerate(sides[side]):
                pq.write_table(_table(*batch), folder / side / f"{n:05}.parquet")
            columns = [np.concatenate(of) for of in zip(*sides[side], strict=True)]
            for part in range(self.parts):
                table = _table(*(column[part :: self.parts] for column in columns))
                pq.write_table(table, whole / f"part-{part}.parquet")
        left, right = (
            [np.concatenate(columns) for columns in zip(*batches, strict=True)]
            for batches in sides.values()
        )
        return self._totals(left, right)

    def _batch(
        self, random: np.random.Generator, side: str, n: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        begin_ms = _BEGIN_MS + n * BATCH_MS
        if self.shape == TABLE and (side == "left") is (n == 0):
            keys = np.zeros(0, np.int64)
        elif self.shape == TABLE and side == "right":
            keys = random.permutation(self.keys)
        else:
            keys = random.integers(0, self.keys, self.records)
        times_ms = begin_ms + random.integers(0, BATCH_MS, len(keys))
        return keys.astype(np.int64), random.integers(0, 1_000, len(keys)), times_ms

    def _totals(self, left: list[np.ndarray], right: list[np.ndarray]) -> Totals:
        """Return the totals of all pairs: of each left value with a range of the sorted right."""
        # Keys apart by more than any time, so that one number orders by key and time.
        span_ms = 4 * (self.batches + 2) * BATCH_MS
        order = np.argsort(placed := right[0] * span_ms + right[2] - _BEGIN_MS)
        placed = placed[order]
        sums = np.concatenate([[0], np.cumsum(right[1][order])])
        if self.shape == TABLE:
            first, end = left[0] * span_ms, (left[0] + 1) * span_ms
        else:
            at = left[0] * span_ms + left[2] - _BEGIN_MS
            first, end = at + FIRST_MS, at + END_MS
        start, stop = np.searchsorted(placed, first), np.searchsorted(placed, end)
        return Totals(
            int((stop - start).sum()),
            int(((stop - start) * left[1]).sum()),
            int((sums[stop] - sums[start]).sum()),
        )


def _table(keys: np.ndarray, values: np.ndarray, times_ms: np.ndarray) -> pa.Table:
    columns = [keys, values, times_ms * 1_000, times_ms]
    return pa.Table.from_arrays([*map(pa.array, columns)], names=_SCHEMA.names).cast(_SCHEMA)


def read_totals(folder: Path) -> Totals:
    """Return the totals of what was written."""
    written = ds.dataset(folder, format="parquet").to_table(["left", "right"])
    left, right = (written[name].to_numpy() for name in ("left", "right"))
    return Totals(len(left), int(left.sum()), int(right.sum()))
