"""The matrix of types, all of it that needs no server and no JVM; ``docs/types.md`` is its table.

Every type that a field can have goes through every door in, into every place inside, and out by
every door. That is not the full product: doors in by types, places by types, doors out by types.
They compose, because a value is decoded once, to one Python value, whatever door it came by; the
encoding of a place or a sink never sees where it came from. A sample goes from end to end, in which
each pair of a door in, a place and a door out is met. The DataFrame, the callable and Memory are in
``spark/test_types.py``, PostgreSQL in ``faults/test_types.py``, Kafka in
``spark/processes/kafka/test_types.py``.

The oracle is the other system: pyarrow, deltalake and pyiceberg say here what is in a file or a
table. Each cell is ``equal``, ``refused`` when the pipeline is built, by name, or a dead ``letter``
whose reason names the field or its type. Anything else is a fault. ``kit/faults.py`` lists those
that are not mended yet; one that becomes right fails here until it is taken off.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import doors_in
import doors_out
import matrix_page
import msgspec
import places
import pytest
from field_types import CONTAINERS, EQUAL, ITEMS, KINDS, Kind, Outcome, nested, word_of

import millrace as mr
from millrace.runtime.sink_contract import bind_sinks


@pytest.mark.parametrize("place", places.PLACES)
def test_places(place: str) -> None:
    matrix_page.check("places", place, {kind.name: places.outcomes(place, kind) for kind in KINDS})


def test_the_harness_as_a_door() -> None:
    cells = {kind.name: doors_in.harness_outcomes(kind) for kind in KINDS}
    matrix_page.check("doors in", "Harness", cells)


@pytest.mark.parametrize("door", doors_in.DOORS)
def test_doors_in(door: str, tmp_path: Path) -> None:
    cells = {kind.name: doors_in.outcomes(door, kind, tmp_path) for kind in KINDS}
    matrix_page.check("doors in", door, cells)


def test_json_that_almost_fits(tmp_path: Path) -> None:
    cells = {
        kind.name: doors_in.outcomes("Files, JSON", kind, tmp_path) for kind in doors_in.ALMOST
    }
    matrix_page.check("almost", "Files, JSON", cells)


@pytest.mark.parametrize("door", doors_out.FILES)
def test_doors_out(door: str, tmp_path: Path) -> None:
    if door in ("Delta", "Iceberg"):
        pytest.importorskip({"Delta": "deltalake", "Iceberg": "pyiceberg"}[door], reason="an extra")
    way = doors_out.FILES[door]
    cells = doors_out.outcomes(way, KINDS, tmp_path)
    matrix_page.check("doors out", door, cells)


@pytest.mark.parametrize("place", ["value", "retraction", "Parquet"])
def test_nested_values_are_as_their_items(place: str, tmp_path: Path) -> None:
    def outcomes(kinds: Sequence[Kind]) -> dict[str, list[Outcome]]:
        if place == "Parquet":
            return doors_out.outcomes(doors_out.FILES["Parquet"], kinds, tmp_path)
        return {kind.name: places.outcomes(place, kind) for kind in kinds}

    alone = outcomes(ITEMS)
    within = outcomes([nested(container, kind) for container in CONTAINERS for kind in ITEMS])
    for container in CONTAINERS:
        apart, faults = [], {}
        for kind in ITEMS:
            made = within[f"{container} {kind.name}"]
            if not all(outcome.right for outcome in made):
                faults[f"{container} {kind.name}"] = made
            elif word_of(made) != word_of(alone[kind.name]):
                word = word_of(made)
                apart.append(f"{matrix_page.SHOWN.get(word, word)}: {kind.name}")
        rows = [f"{container} {kind.name}" for kind in ITEMS]
        matrix_page.check_faults("nested", place, faults, rows)
        text = "as the item" + "".join(f"; {each}" for each in apart)
        matrix_page.check_text("nested", place, {container: text})


#: Of every sort one that each door and each place of the sample has as equal.
SAMPLE = [
    kind
    for kind in KINDS
    if kind.name
    in ("bool", "int, 64 bits", "float", "str with NUL", "str, astral", "instant beyond 2262",
        "instant before 1970", "null", "list of lists", "Struct")
]  # fmt: skip

WAYS = {"Injector": doors_in.injected, "Files, Parquet": doors_in.parquet, "JSON": doors_in.json}
OUT = ("sinks.Function", "Parquet", "Delta")
STAYS = ("ValueState", "window", "BagState")


@pytest.mark.parametrize("out", range(3))
@pytest.mark.parametrize("way", range(3))
def test_a_sample_from_end_to_end(way: int, out: int, tmp_path: Path) -> None:
    door, place, sink = list(WAYS)[way], STAYS[(way + out) % 3], OUT[out]
    if sink == "Delta":
        pytest.importorskip("deltalake", reason="an extra")
    for kind in SAMPLE:
        for n, value in enumerate(kind.values):
            folder = tmp_path / f"{kind.name} {n}"
            (folder / "in").mkdir(parents=True)
            found = _through(WAYS[door], place, doors_out.FILES[sink], kind, n, folder)
            outcome = doors_out.compared_with_system(value, found)
            assert outcome == EQUAL, f"{kind.name}, {door}, {place}, {sink}: {outcome}"


def _through(
    way: Any, place: str, door: doors_out.Door, kind: Kind, n: int, folder: Path
) -> list[Any]:
    """Return what the system behind a sink has of a value that came in and stayed in a place."""
    row = msgspec.defstruct("Row", [("x", kind.type), ("id", str, "")])

    class Stays(mr.Computation):
        inputs = {"rows": mr.by(lambda _: 0)}
        outputs = {"values": row}
        one = mr.ValueState(row)
        bag = mr.BagState(row)

        def process_record(self, record: Any) -> None:
            self.one.set(record.value)
            self.bag.add(record.value)
            self.set_timer("out", at=record.timestamp + 1)

        def process_timer(self, timer: Any) -> None:
            self.produce("values", next(iter(self.bag)) if place == "BagState" else self.one.get())

    p = mr.Pipeline("matrix")
    way(p, kind, n, folder / "in")
    if place == "window":
        groups = p.stream("rows").key_by(lambda _: "all").window(mr.FixedWindows(10)).group()
        groups.map(lambda group: group[0]).to("values", row)
    else:
        p.add(Stays)
    batches: list[Any] = []
    sink = door.sink(folder, [kind])
    p.sink("values", mr.sinks.Function(batches.append))
    if sink is not None:
        p.sink("values", sink)
    bind_sinks(p.build(), "matrix")
    with mr.testing.Harness(p, intervals=1) as h:
        h.poll("rows")
        h.crash()
        h.advance_watermark("rows", 20)
    if sink is None or door.read is None:
        return [x for batch in batches for x in batch.column("x").to_pylist()]
    doors_out.write(sink, batches)
    return [row["x"] for row in door.read(folder).values()]
