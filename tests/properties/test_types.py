"""The matrix of types, all of it that needs no server and no JVM; ``docs/types.md`` is its table.

Every type that a field can have goes through every door in, into every place inside, and out by
every door. That is not the full product: doors in by types, places by types, doors out by types.
They compose, because a value is decoded once, to one Python value, whatever door it came by; the
encoding of a place or a sink never sees where it came from. A pairwise sample from end to end is in
``spark/test_types.py``, which has the DataFrame, the callable and Memory; PostgreSQL is in
``faults/test_types.py``, Kafka in ``spark/processes/kafka/test_types.py``.

The oracle is the other system: pyarrow, deltalake and pyiceberg say here what is in a file or a
table. Each cell is ``equal``, ``refused`` when the pipeline is built, by name, or a dead ``letter``
whose reason names the field or its type. Anything else is a fault. ``kit/faults.py`` lists those
that are not mended yet; one that becomes right fails here until it is taken off.
"""

from __future__ import annotations

from pathlib import Path

import doors_in
import doors_out
import matrix_page
import places
import pytest
from field_types import CONTAINERS, ITEMS, KINDS, Kind, Outcome, nested, word_of


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
    cells = {kind.name: doors_out.outcomes(way, kind, tmp_path) for kind in KINDS}
    matrix_page.check("doors out", door, cells)


@pytest.mark.parametrize("place", ["value", "retraction", "Parquet"])
def test_nested_values_are_as_their_items(place: str, tmp_path: Path) -> None:
    def outcomes(kind: Kind) -> list[Outcome]:
        if place == "Parquet":
            return doors_out.outcomes(doors_out.FILES["Parquet"], kind, tmp_path)
        return places.outcomes(place, kind)

    alone = {kind.name: outcomes(kind) for kind in ITEMS}
    for container in CONTAINERS:
        apart, faults = [], {}
        for kind in ITEMS:
            made = outcomes(nested(container, kind))
            if not all(outcome.right for outcome in made):
                faults[f"{container} {kind.name}"] = made
            elif word_of(made) != word_of(alone[kind.name]):
                apart.append(f"{word_of(made)}: {kind.name}")
        listed = {f"{container} {kind.name}": [] for kind in ITEMS}
        matrix_page.check_faults("nested", place, faults, listed)
        text = "as the item" + "".join(f"; {each}" for each in apart)
        matrix_page.check_text("nested", place, {container: text})
