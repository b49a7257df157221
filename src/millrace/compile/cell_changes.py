"""Cell changes: what becomes of the cells of one computation with another program.

A cell that is new is empty, one that is gone must be named, one whose values are made anew has a
function for it. Everything else is a change of its format, by the rules of ``evolution.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from millrace.compile.change import ADDED, CHANGED, DROPPED, MIGRATED, REFUSED, RENAMED, Change
from millrace.compile.evolution import Difference, differences
from millrace.compile.schemas import Schema, plain
from millrace.compile.shapes import SCALARS, Shape, migrations_of, renamed
from millrace.compile.topology import ComputationSpec

#: What is said of a part that only one of the two has.
GONE: Final = "in the checkpoint, gone from the pipeline"
NEW: Final = "new in the pipeline, unknown to the checkpoint"


def cell_changes(
    spec: ComputationSpec, known: Shape, stored: Schema, given: Schema, where: str
) -> Iterator[Change]:
    """Yield what becomes of a computation's cells.

    Args:
        spec: The computation.
        known: The shape of its state so far.
        stored: Cell -> what the checkpoint says of it.
        given: The same of the pipeline.
        where: Begins every change.
    """
    olds, pending = renamed(spec, stored), migrations_of(spec, known, stored)
    left = stored.keys() - {*olds.values()}
    for cell in sorted({*left, *given}):
        at, old = f"{where}, state {cell!r}", stored.get(olds.get(cell, cell))
        if cell not in given:
            yield _gone(cell, at, spec)
        elif old is None:
            yield Change(ADDED, at, f"{NEW}; it is empty for every key", between=True)
        else:
            if cell in olds:
                yield Change(RENAMED, at, f"was {olds[cell]!r}", between=True)
            yield from _cell(cell, old, given[cell], at, pending.get(cell))


def _gone(cell: str, where: str, spec: ComputationSpec) -> Change:
    if cell in spec.evolution.dropped:
        return Change(DROPPED, where, "its rows go, of every key", between=True)
    return Change(
        REFUSED,
        where,
        GONE,
        f"to drop what it keeps, say so: p.add(..., dropped=[{cell!r}]). If it has another name "
        f"now, say which it had: mr.ValueState(..., was={cell!r})",
    )


def _cell(
    cell: str, old: Schema, new: Schema, where: str, migration: str | None
) -> Iterator[Change]:
    if old["cell"] != new["cell"] and not {old["cell"], new["cell"]} <= {*SCALARS}:
        yield Change(
            REFUSED,
            where,
            f"was {old['cell']}, is {new['cell']} now",
            f"give the new one another name, and drop the old: p.add(..., dropped=[{cell!r}])",
        )
        return
    found = _differences(old, new, where)
    if migration is not None:
        told = "; ".join(difference.what for difference in found)
        why = f"by {migration}, each value once{': ' * bool(told)}{told}"
        yield Change(MIGRATED, where, why, between=True)
        return
    way = (
        "make it a change that loses nothing (docs/changing.md has the table); or say what becomes "
        f"of its values: p.add(..., migrate={{{cell!r}: function}}), of a name that has not run yet"
    )
    for one in found:
        if one.refused:
            yield Change(REFUSED, one.where, one.what, way)
        else:
            yield Change(CHANGED, one.where, one.what)


def _differences(old: Schema, new: Schema, where: str) -> list[Difference]:
    if old["cell"] != new["cell"]:
        return [Difference(where, f"was {old['cell']}, is {new['cell']} now")]
    found = [*differences(old["format"], new["format"], where)]
    for part in ("add", "initial"):
        was, now = old.get(part), new.get(part)
        if plain(was) != plain(now):
            found.append(Difference(f"{where}, {part}", f"was {said(was)}, is {said(now)} now"))
    return found


def said(value: Any) -> str:
    """Return a value as a plan shows it."""
    return value if isinstance(value, str) else repr(value)
