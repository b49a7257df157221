"""Ids and order of injected records when an epoch is run again with its files split otherwise."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import millrace as mr
from millrace.epochlog.entries import Manifest, decode_entry
from millrace.model.errors import RunFailed
from millrace.store import open_location

LEAST = "spark.sql.files.minPartitionNum"
#: Two ways in which a session may cut the same files: at every two kilobytes, and hardly at all.
FINE = {
    "spark.sql.files.maxPartitionBytes": "2048",
    "spark.sql.files.openCostInBytes": "0",
    # By default the number of cores.
    LEAST: "5",
}
COARSE = {
    "spark.sql.files.maxPartitionBytes": "1g",
    "spark.sql.files.openCostInBytes": "1",
    LEAST: "1",
}


class Early(mr.Computation):
    """Says which ids a key's records have, in the order in which they came."""

    inputs = {"left": mr.by("key"), "right": mr.by("key")}
    outputs = {"early": str}

    def process_record(self, record: mr.Record) -> None:
        self.produce("early", f"{record.value['n']} {record.id.hex()}")


class Late(mr.Computation):
    """Says the same, if it is not broken. It is a level below ``Early``, which has committed."""

    inputs = {"left": mr.by("key"), "right": mr.by("key"), "early": mr.by(lambda text: text)}
    outputs = {"late": str}

    def __init__(self, broken: Path) -> None:
        self.broken = broken

    def process_record(self, record: mr.Record) -> None:
        if self.broken.exists():
            raise ValueError("it is broken")
        if record.stream == "early":
            return
        self.produce("late", f"{record.value['n']} {record.id.hex()}")


class Wide:
    """A sink on the injected stream itself: id and value of each record."""

    def __init__(self) -> None:
        self.rows: dict[bytes, int] = {}

    def __call__(self, rows: DataFrame, epoch: int) -> None:
        found = rows.select("_id", "value").collect()
        self.rows = {bytes(row[0]): int(json.loads(row[1])["n"]) for row in found}
        assert len(self.rows) == len(found), "two records share an id"


@contextmanager
def _settings(spark: SparkSession, settings: dict[str, str]) -> Iterator[None]:
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name in settings:
            spark.conf.unset(name)


def _write(folder: Path, files: int, lines: int) -> None:
    folder.mkdir()
    for file in range(files):
        rows = [{"key": f"k{n % 7}", "n": 1000 * file + n} for n in range(lines * (file + 1))]
        path = folder / f"{file}.json"
        path.write_text("".join(json.dumps({**row, "at": row["n"]}) + "\n" for row in rows))
        os.utime(path, (1_700_000_000 + file, 1_700_000_000 + file))


@pytest.mark.parametrize("native", [True, False], ids=["columns", "python"])
def test_a_restart_changes_neither_ids_nor_order_however_the_session_splits_files(
    spark: SparkSession, tools: Any, tmp_path: Path, native: bool
) -> None:
    _write(tmp_path / "left", 2, 150)
    _write(tmp_path / "right", 1, 200)
    broken = tmp_path / "broken"

    outcomes = []
    for disturbed in (False, True):
        early, late, wide = tools.Kept(), tools.Kept(), Wide()
        p = mr.Pipeline("restarted")
        for name in ("left", "right"):
            reader = spark.readStream.schema("key string, n long, at long")
            frame = reader.json(str(tmp_path / name))
            p.inject(name, frame, timestamp="at", low_watermark=mr.BoundedDelay(0))
        p.add(Early)
        p.add(Late(broken))
        p.sink("early", early)
        p.sink("late", late)
        if not native:
            p.sink("right", wide)
        checkpoint = str(tmp_path / f"checkpoint-{disturbed}")
        if disturbed:
            broken.touch()
            with _settings(spark, FINE), pytest.raises(RunFailed, match="it is broken"):
                tools.step(tools.start(p, checkpoint=checkpoint))
            broken.unlink()
            assert _splitting(checkpoint) == ("2048", "5")
        with _settings(spark, COARSE if disturbed else FINE):
            status = tools.run(p, checkpoint=checkpoint, tasks=3 if disturbed else None)
            assert spark.conf.get(LEAST) == (COARSE if disturbed else FINE)[LEAST]
        assert bool(status.replayed) is disturbed
        assert sum(status.injected.values()) == 650
        outcomes.append((tools.by_key(early.rows), tools.by_key(late.rows), wide.rows))

    undisturbed, again = outcomes
    assert len(undisturbed[0]) == 7
    assert len(undisturbed[2]) == (0 if native else 200)
    assert again == undisturbed
    assert _splitting(checkpoint) == ("1g", "1"), "an epoch of its own is split by its session"


def _splitting(checkpoint: str) -> tuple[str, str]:
    """Return the settings by which the newest epoch of a checkpoint was split."""
    log = open_location(checkpoint, pipeline="restarted").epochs
    entries = [decode_entry(log.read(n) or b"") for n in range(log.first(), log.last() + 1)]
    last = [entry for entry in entries if isinstance(entry, Manifest)][-1]
    return last.splitting["spark.sql.files.maxPartitionBytes"], last.splitting[LEAST]
