"""The recipe of docs/operating.md that sends dead letters again, without Spark."""

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from tests.live import Feeds, Kept, Live

import millrace as mr

_RECIPE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_OPERATING = Path(__file__).parents[2] / "docs" / "operating.md"


class Faulty(mr.Computation):
    may_produce_late = mr.UNBOUNDED_PAST
    inputs = {"trips": mr.by("taxi")}
    outputs = {"seen": tuple}

    def process_record(self, record: mr.Record) -> None:
        if record.value.fare < 0:
            raise ValueError(f"{record.value.fare} is negative")
        self.produce("seen", (record.value.fare, record.timestamp, record.late))


class Mended(Faulty):
    def process_record(self, record: mr.Record) -> None:
        self.produce("seen", (record.value.fare, record.timestamp, record.late))


@pytest.fixture
def recipe() -> Any:
    (code,) = _RECIPE.findall(_OPERATING.read_text())
    names: dict[str, Any] = {"__name__": "examples"}
    exec(code, names)
    return names


def _pipeline(recipe: Any, computation: type[mr.Computation], again: Path | None) -> mr.Pipeline:
    p = mr.Pipeline("taxis")
    p.inject("trips", format=recipe["Trip"])
    p.add(computation, name="Seen")
    p.dead_letter("rejects")
    if again is not None:
        recipe["read_again"](p, again)
    return p


def _keep(h: Any, file: Path) -> ds.Dataset:
    """Write letters as a sink has them."""
    rows = [msgspec.structs.asdict(o.value) | {"_id": o.id} for o in h.outputs("rejects")]
    pq.write_table(pa.Table.from_pylist(rows), file)
    return ds.dataset(file, format="parquet")


def test_a_letter_comes_again_with_its_own_time_and_is_late_if_it_is(
    recipe: Any, tmp_path: Path
) -> None:
    again = tmp_path / "again"
    again.mkdir()
    trip = recipe["Trip"]
    with mr.testing.Harness(_pipeline(recipe, Faulty, None)) as h:
        h.inject("trips", [(trip("T1", -1.0), 10), (trip("T1", 2.0), 11), (trip("T1", -3.0), 90)])
        h.advance_watermark("trips", 50)
        letters = _keep(h, tmp_path / "letters.parquet")
        assert recipe["send_again"](letters, again, ds.field("computation") == "Seen") == 2

        h.update(_pipeline(recipe, Mended, again))
        h.crash()
        assert h.poll("trips again") == 2
        assert h.poll("trips again") == 0
        assert [out.value for out in h.outputs("seen")] == [
            (2.0, 11, False),
            (-1.0, 10, True),
            (-3.0, 90, False),
        ]


def test_what_was_sent_is_not_sent_again_and_the_rest_is(recipe: Any, tmp_path: Path) -> None:
    again = tmp_path / "again"
    again.mkdir()
    trip, send = recipe["Trip"], recipe["send_again"]
    with mr.testing.Harness(_pipeline(recipe, Faulty, None)) as h:
        h.inject("trips", [(trip("T1", -1.0), 10), (trip("T1", -2.0), 11), (trip("T1", 0.0), None)])
        letters = _keep(h, tmp_path / "letters.parquet")
        assert len(h.outputs("rejects")) == 3

        assert send(letters, again, ds.field("reason") == "ValueError: -1.0 is negative") == 1
        every = ds.field("stream") == "trips"
        assert send(letters, again, every) == 1  # that one was sent, and one has no time
        assert send(letters, again, every) == 0


def test_in_real_time_a_letter_counts_once_through_crashes(recipe: Any, tmp_path: Path) -> None:
    again = tmp_path / "again"
    again.mkdir()
    rejects, seen = Kept(), Kept()
    feeds = Feeds(
        "taxi string, fare double, at long",
        {"p": [("T1", -1.0, mr.HOUR), ("T1", 2.0, mr.HOUR), ("T1", 3.0, mr.HOUR)]},
    )

    def pipeline(computation: type[mr.Computation], letters: Path | None) -> mr.Pipeline:
        p = mr.Pipeline("taxis")
        trip, policy = recipe["Trip"], mr.BoundedDelay(0)
        p.inject("trips", feeds, timestamp="at", unit="us", low_watermark=policy, format=trip)
        p.add(computation, name="Seen")
        p.dead_letter("rejects")
        p.sink("rejects", rejects)
        p.sink("seen", seen)
        if letters is not None:
            recipe["read_again"](p, letters)
        return p

    live = Live(pipeline(Faulty, None))
    live.boot()
    live.feed(2)
    live.plane.settle(live.clock_us)
    live.plane.end(live.clock_us)
    (letter,) = rejects.rows
    file = tmp_path / "letters.parquet"
    pq.write_table(pa.Table.from_pylist([letter]), file)
    every = ds.field("stream") == "trips"
    assert recipe["send_again"](ds.dataset(file, format="parquet"), again, every) == 1

    live.pipeline = pipeline(Mended, again)
    live.open()
    live.boot()
    live.plane.settle(live.clock_us)
    for _ in range(2):  # before it is in a mark, and after it
        live.plane.crash()
        live.open()
        live.boot()
        live.plane.settle(live.clock_us)
        live.plane.mark(live.clock_us)
    live.feed(3)
    live.finish()
    assert live.coordinator.ended
    assert len(rejects.rows) == 1
    assert sorted(json.loads(row["value"])[0] for row in seen.rows) == [-1.0, 2.0, 3.0]
