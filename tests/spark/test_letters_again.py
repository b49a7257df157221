"""Dead letters that are read back from their sink, as docs/operating.md shows it.

In real time, and with crashes: tests/unit/test_letters_again.py.
"""

import re
import time
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.dataset as ds
import pytest

import millrace as mr

_RECIPE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_OPERATING = Path(__file__).parents[2] / "docs" / "operating.md"


class Faulty(mr.Computation):
    inputs = {"trips": mr.by("taxi")}
    outputs = {"totals": float}
    total = mr.ValueState(float)

    def process_record(self, record: mr.Record) -> None:
        if record.value.fare < 0:
            raise ValueError(f"{record.value.fare} is negative")
        self.total.set(self.total.get(0.0) + record.value.fare)
        self.produce("totals", self.total.get())


class Mended(Faulty):
    def process_record(self, record: mr.Record) -> None:
        self.total.set(self.total.get(0.0) + record.value.fare)
        self.produce("totals", self.total.get())


@pytest.fixture
def recipe() -> Any:
    (code,) = _RECIPE.findall(_OPERATING.read_text())
    names: dict[str, Any] = {"__name__": "examples"}
    exec(code, names)
    return names


@pytest.mark.timeout(400)
def test_letters_are_sent_again_once_when_the_code_is_mended(
    recipe: Any, spark: Any, tools: Any, tmp_path: Path
) -> None:
    trips, again, rejects, totals = (tmp_path / n for n in ("trips", "again", "rejects", "totals"))
    for folder in (trips, again):
        folder.mkdir()

    def add(name: str, *fares: float) -> None:
        rows = [{"taxi": "T1", "fare": fare, "at": 10 + n} for n, fare in enumerate(fares)]
        hidden = trips / f".{name}"
        hidden.write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
        hidden.rename(trips / f"{name}.json")

    def start(computation: type[mr.Computation], *, letters: bool) -> Any:
        p = mr.Pipeline("ratios")
        files = mr.Files(trips, schema="taxi string, fare double, at long")
        p.inject("trips", files, timestamp="at", unit="s", format=recipe["Trip"])
        p.add(computation, name="Total")
        p.sink("totals", mr.Parquet(totals))
        p.dead_letter("rejects")
        p.sink("rejects", mr.Parquet(rejects))
        if letters:
            recipe["read_again"](p, again)
        return tools.start(p, clock=lambda: time.time_ns() // 1000)

    def process(run: Any) -> None:
        tools.step(run)
        run.stop()

    def seen() -> list[float]:
        return sorted(row["value"] for row in spark.read.parquet(str(totals)).collect())

    def send() -> int:
        wanted = ds.field("reason") == "ValueError: -2.0 is negative"
        sent: int = recipe["send_again"](ds.dataset(rejects, format="parquet"), again, wanted)
        return sent

    add("1", 1.0, -2.0, -30.0)
    process(start(Faulty, letters=False))
    assert seen() == [1.0]

    assert (send(), send()) == (1, 0)
    run = start(Mended, letters=True)
    process(run)
    assert seen() == [-1.0, 1.0]
    assert run.status().injected["trips again"] == 1

    assert send() == 0
    add("2", 100.0)
    process(start(Mended, letters=True))
    assert seen() == [-1.0, 1.0, 99.0]
    kept = spark.read.parquet(str(rejects)).collect()
    assert sorted((row["reason"], row["timestamp"]) for row in kept) == [
        ("ValueError: -2.0 is negative", 11 * mr.SECOND),
        ("ValueError: -30.0 is negative", 12 * mr.SECOND),
    ]
