"""What keyed state costs in Python at the least, and how far above that a live task is.

The floor is a loop of thirty lines that has nothing of Millrace but the class of a record: it
groups a batch by key, reads the rows of its keys from LMDB, calls user code with each record, whose
cell decodes and encodes a count by msgspec, writes the rows that changed in one transaction, and
appends them to a file with one fdatasync. No windows, timers, watermarks, checksums, ids, retries,
or productions: whoever keeps state of a key on disk beside Python does that much. Beside it stands
the task of level 1 in real time with the same user code over the same keys, taken turn by turn;
both in this process, CPU time, fdatasync apart.

Run it with ``python -m benchmarks.keyed_floor``; a minute or two, and it needs no Spark.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import lmdb
import msgspec
import numpy as np
from rich.console import Console
from rich.table import Table

import millrace as mr
from benchmarks import live_turns
from benchmarks.machine import describe

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(int).decode


class RunningCount(mr.Computation):
    """Counts the records of a key, and produces nothing."""

    inputs = {"events": mr.by("key")}
    outputs = {"counts": int}
    count = mr.ValueState(int)

    def process_record(self, record: mr.Record) -> None:
        """Add one."""
        self.count.set(self.count.get(0) + 1)


class Cell:
    """The least that a value of a key on disk can be for user code."""

    def begin(self, raw: bytes | None) -> None:
        """Take a key's bytes."""
        self.raw = raw
        self.value: int | None = None

    def get(self, default: int) -> int:
        """Return the value, decoded when it is asked for."""
        if self.value is None:
            self.value = default if self.raw is None else _decode(self.raw)
        return self.value

    def set(self, value: int) -> None:
        """Have another value."""
        self.value = value


class Bare:
    """The floor.

    Args:
        directory: Where state and log lie.
    """

    def __init__(self, directory: Path) -> None:
        self._env = lmdb.open(str(directory / "state"), map_size=1 << 34, sync=False)
        self._log = (directory / "log").open("ab", buffering=0)
        self._user = type("User", (), {"process_record": RunningCount.process_record})()
        self._user.count = Cell()
        self.synced_s = 0.0

    def turn(self, keys: np.ndarray, at: np.ndarray) -> None:
        """Take a batch."""
        order = np.argsort(keys, kind="stable")
        grouped = keys[order]
        starts = np.flatnonzero(np.diff(grouped, prepend=-1))
        own, times = grouped[starts].tolist(), at[order].tolist()
        rows = [b"V" + key.to_bytes(8, "big") for key in own]
        with self._env.begin() as txn:
            found = list(map(txn.get, rows))
        user, cell, process = self._user, self._user.count, self._user.process_record
        ends = [*starts[1:].tolist(), len(keys)]
        written = []
        for key, row, raw, start, stop in zip(own, rows, found, starts.tolist(), ends, strict=True):
            user.key = key
            cell.begin(raw)
            for n in range(start, stop):
                process(mr.Record(key, key, times[n], "events", False, 0, n))
            written.append((row, _encode(cell.value)))
        self._log.write(b"".join(map(b"".join, written)))
        began = time.process_time()
        os.fdatasync(self._log.fileno())
        self.synced_s += time.process_time() - began
        with self._env.begin(write=True) as txn, txn.cursor() as cursor:
            cursor.putmulti(written)


def main() -> None:
    """Measure, print the table, write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", default="1000,200000")
    parser.add_argument("--records", type=int, default=50_000, help="a turn")
    parser.add_argument("--turns", type=int, default=40)
    parser.add_argument("--where", default=str(Path.cwd()))
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    machine = describe()
    found = [
        measure(int(keys), given.records, given.turns, given.where)
        for keys in given.keys.split(",")
    ]
    table = Table(
        "keys", "records a key and turn", "floor, us a record", "Millrace", "of the floor"
    )
    for one in found:
        table.add_row(
            f"{one['keys']:,}", f"{one['records_a_key']:.1f}", f"{one['floor_us']:.2f}",
            f"{one['millrace_us']:.2f}", f"{one['millrace_us'] / one['floor_us']:.2f} x",
        )  # fmt: skip
    Console().print(table)
    started = dt.datetime.fromisoformat(machine["at"])
    named = Path(__file__).parent / "results" / f"keyed-floor-{started:%Y-%m-%d-%H%M}.json"
    results = {"benchmark": "keyed_floor", "machine": machine, "cases": found}
    (given.out or named).write_text(json.dumps(results, indent=1) + "\n")


def measure(keys: int, records: int, turns: int, where: str) -> dict[str, Any]:
    """Return CPU us a record of both, by the median of the turns after a quarter of them."""
    with tempfile.TemporaryDirectory(dir=where, prefix=".floor-") as directory:
        (Path(directory) / "millrace").mkdir()
        bare = Bare(Path(directory))
        live_turns.Count = RunningCount
        live_turns.KEYS = keys
        plane = live_turns.Plane("native", Path(directory) / "millrace", intervals=4)
        random = np.random.default_rng(1)
        floors, ours, distinct = [], [], []
        for n in range(turns):
            drawn = random.integers(0, keys, records)
            began, synced = time.process_time(), bare.synced_s
            bare.turn(drawn, np.full(records, n))
            floors.append(time.process_time() - began - (bare.synced_s - synced))
            plane.prepare(records)
            packets = plane.turn(0, [])
            began, synced = time.process_time(), plane.synced.spent_s
            plane.turn(1, packets)
            ours.append(time.process_time() - began - (plane.synced.spent_s - synced))
            distinct.append(len(np.unique(drawn)))
        plane.close()
    warm = turns // 4
    return {
        "keys": keys,
        "records_a_key": records / statistics.mean(distinct),
        "floor_us": statistics.median(floors[warm:]) / records * 1e6,
        "millrace_us": statistics.median(ours[warm:]) / records * 1e6,
    }


if __name__ == "__main__":
    main()
