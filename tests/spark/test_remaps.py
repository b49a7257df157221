"""Key intervals of a run split and merge while it goes on: each record once, nothing lost."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import millrace as mr
from millrace.model.errors import PipelineError
from millrace.spark.asks import RemapAsked, ask
from millrace.store import open_location


class Word(msgspec.Struct):
    word: str
    at: int


class Counts(mr.Computation):
    inputs = {"words": mr.by("word")}
    outputs = {"counts": str}
    n = mr.ValueState(int)

    def process_record(self, record: mr.Record) -> None:
        self.n.set(self.n.get(0) + 1)
        self.produce("counts", f"{record.key} {self.n.get()}")


def test_intervals_split_and_merge_under_load(spark: SparkSession, tmp_path: Path) -> None:
    source, checkpoint = tmp_path / "source", tmp_path / "checkpoint"
    source.mkdir()
    sent: list[dict[str, Any]] = []
    found: list[tuple[str, str]] = []

    def put(n: int) -> None:
        rows = [{"word": f"w{i % 29}", "at": (n * 100 + i) * 1_000_000} for i in range(100)]
        sent.extend(rows)
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / "unfinished")
        (tmp_path / "unfinished").rename(source / f"{n}.parquet")

    def collect(name: str) -> Any:
        return lambda frame, _: found.extend((name, repr(row["value"])) for row in frame.collect())

    p = mr.Pipeline("words")
    files = mr.sources.Files(source, schema="word string, at long", format="parquet")
    words = p.inject(
        "words", files, timestamp="at", low_watermark=mr.BoundedDelay("1 s"), format=Word
    )
    p.add(Counts)
    words.key_by("word").window(mr.FixedWindows(70 * mr.SECOND)).count().to("windows")
    p.sink("counts", collect("counts"))
    p.sink("windows", collect("windows"))

    def intervals(name: str = "Counts") -> list[int]:
        return [one.id for one in mr.ops.open_checkpoint(checkpoint)[name].intervals]

    put(0)
    run = p.start(spark, checkpoint=str(checkpoint), tasks=2, intervals=4)
    run.process_available()
    assert run.remap("Counts", [mr.ops.Split(0, 1 << 50), mr.ops.Merge(2, 3)]) == 4
    assert intervals() == [4, 5, 1, 6]
    put(1)
    run.process_available()
    assert run.remap("windows", [mr.ops.Split(1), mr.ops.Split(2)]) == 6
    mailbox = open_location(checkpoint, pipeline="words").mailbox
    about = msgspec.json.encode(RemapAsked("Counts", [(5, None)], [(1, 6)])).decode()
    answer = ask(mailbox, "remap", 1, about=about, timeout_s=60)
    assert answer is not None
    assert answer.text.startswith("Counts has 4 key intervals after epoch ")
    with pytest.raises(PipelineError, match="interval 0 is not there"):
        run.remap("Counts", [mr.ops.Split(0)])
    put(2)
    run.process_available()
    run.stop()
    # Another number of tasks goes on with the same map.
    assert mr.ops.remap_checkpoint(checkpoint, "Counts", [mr.ops.Split(4)]) == 5
    # And, when it has seen enough of the load, with another by itself.
    how = mr.ops.Balance(above=1.01, intervals=8)
    run = p.start(spark, checkpoint=str(checkpoint), tasks=3, balance=how)
    before = intervals()
    for n in range(3, 10):
        put(n)
        run.process_available()
    assert intervals() != before
    run.drain()

    seen, want = Counter[str](), Counter[tuple[str, str]]()
    for row in sent:
        seen[row["word"]] += 1
        want["counts", repr(f"{row['word']} {seen[row['word']]}")] += 1
    assert Counter(one for one in found if one[0] == "counts") == want
    windows = Counter((row["word"], row["at"] // 70_000_000) for row in sent)
    of_windows = Counter(value for name, value in found if name == "windows")
    assert of_windows == Counter(map(repr, windows.values()))
