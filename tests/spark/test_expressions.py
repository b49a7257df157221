"""Expressions and blocks of keys on Spark, by epochs and as a batch: rows as in the Harness."""

from __future__ import annotations

import datetime as dt
import math
import random
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow.parquet as pq
import pytest

import millrace as mr


class Row(msgspec.Struct, frozen=True):
    n: int
    m: int | None
    x: float
    s: str
    t: str | None
    at: dt.datetime


class Made(msgspec.Struct, frozen=True):
    n: int
    twice: int
    half: float
    lower: str | None
    hour: int | None
    at: dt.datetime


class Seen(mr.ColumnComputation):
    """Which record of its key is it, and what is the largest x so far?"""

    inputs = {"rows": mr.by("s")}
    outputs = {"seen": int}
    count = mr.ValueState(int)

    def process_batch(self, block: mr.KeyBlock) -> None:
        before = block.state["count"].fill_null(0).to_numpy()
        nth = np.arange(len(block)) - block.starts[block.key_of] + 1 + before[block.key_of]
        block.set_state(count=before + np.bincount(block.key_of, minlength=len(block.keys)))
        block.produce("seen", nth)


COLUMNS = "n long, m long, x double, s string, t string, at timestamp, ts long"
LEAST, MOST = -(1 << 63), (1 << 63) - 1


def _rows() -> list[Row]:
    dice = random.Random(7)
    some: dict[str, list[Any]] = {
        "n": [0, 1, -1, 7, LEAST, MOST, 1 << 53],
        "m": [None, 0, 3, LEAST],
        "x": [0.0, -0.0, 1.5, math.nan, math.inf, -math.inf],
        "s": ["", "a", "B", "ß", "tea"],
        "t": [None, "", "TEA", "İ"],
    }
    first = dt.datetime(1999, 12, 31, 23, 30, tzinfo=dt.UTC)
    return [
        Row(
            at=first + dt.timedelta(minutes=n, microseconds=n),
            **{name: dice.choice(each) for name, each in some.items()},
        )
        for n in range(300)
    ]


ROWS = _rows()


def pipeline(source: Any = None) -> mr.Pipeline:
    p = mr.Pipeline("rows")
    how = {} if source is None else {"timestamp": "ts"}
    rows = p.inject("rows", source, format=Row, low_watermark=mr.BoundedDelay(1000), **how)
    made = rows.filter((mr.col("x") > 0) | mr.col("m").is_null()).select(
        "n",
        "at",
        twice=mr.col("n") * 2,
        half=mr.col("x") / 2,
        lower=mr.col("t").str.to_lowercase(),
        hour=mr.col("at").dt.hour(),
    )
    made.to("made", Made)
    rows.key_by(mr.col("s").str.to_uppercase()).map(mr.col("m")).to("keyed")
    by_text = rows.key_by(mr.col("s").str.len_chars())
    by_text.window(mr.FixedWindows(1_000)).count().to("counts")
    p.add(Seen)
    return p


def wanted() -> dict[str, list[Any]]:
    p = pipeline()
    with mr.testing.Harness(p) as h:
        h.inject("rows", [(row, 10 * n) for n, row in enumerate(ROWS)])
        h.advance_watermark("rows", mr.MAX_TIMESTAMP)
        return {
            name: sorted(
                repr((None if o.key is None else str(o.key), _plain(o.value)))
                for o in h.outputs(name)
            )
            for name in ("made", "keyed", "counts", "seen")
        }


def _plain(value: Any) -> Any:
    if isinstance(value, Made):
        value = msgspec.structs.asdict(value)
    return [*value.items()] if isinstance(value, dict) else value


@pytest.mark.parametrize("how", ["batch", "stream"])
def test_rows_are_those_of_the_harness(how: str, spark: Any, tools: Any, tmp_path: Path) -> None:
    feed = tools.feed(COLUMNS)
    for first in range(0, len(ROWS), 100):
        some = enumerate(ROWS[first : first + 100], first)
        feed.add(*[(*msgspec.structs.astuple(row), 10 * n) for n, row in some])
    frame = feed.bounded if how == "batch" else feed.stream
    p = pipeline(frame)
    for name in ("made", "keyed", "counts", "seen"):
        p.sink(name, mr.sinks.Parquet(str(tmp_path / name)))
    if how == "batch":
        p.run_batch(spark)
    else:
        handle = p.start(spark, checkpoint=str(tmp_path / "checkpoint"))
        assert handle.process_available("2 min")
        assert handle.drain("2 min")
    want = wanted()
    for name in want:
        assert _read(tmp_path / name) == want[name], name


def _read(path: Path) -> list[str]:
    found = []
    for row in pq.read_table(path).to_pylist():
        fields = {
            key: value.astimezone(dt.UTC) if isinstance(value, dt.datetime) else value
            for key, value in row.items()
            if not key.startswith("_") and key != "epoch"
        }
        value = fields["value"] if "value" in fields else [*fields.items()]
        found.append(repr((row["_key"], value)))
    return sorted(found)
