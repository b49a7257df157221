"""Shapes: how the cells of a computation lie in rows, and what makes one shape of the one before.

A key's value and combining cells share a row, so rows are laid anew where one comes or goes, and
where values are migrated. A shape has a version; every report of a key interval says which of it
the interval's rows have. An interval is brought to the last one in the commit of its first bundle
after the change, whole: so a migration runs once for every value, and a crash finds an interval
either before or behind it. There are never more than two versions: a change that needs another is
refused until all intervals have the last one.

Source: docs/design/2026-11-22-state-that-changes-shape.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from millrace.compile.schemas import Schema, named
from millrace.compile.topology import ComputationSpec
from millrace.model.state import CombiningState, ValueState

#: Kinds of cells that share a row.
SCALARS: Final = (ValueState.__name__, CombiningState.__name__)


class Migrated(msgspec.Struct, frozen=True):
    """One cell whose values are made anew.

    Attributes:
        function: Name of what makes them.
        format: Schema of what they were.
    """

    function: str
    format: Schema


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """The last shape of a computation's state, as the registry has it.

    Attributes:
        version: 0 for the first.
        before: Numbers of the value and combining cells that shared a row in the version before.
        gone: Numbers of maps and bags that were dropped with this version.
        migrated: Number of a cell -> how its values were made for this version.
        done: ``cell: function`` of all migrations that have run, or had nothing to do.
    """

    version: int = 0
    before: list[int] = []
    gone: list[int] = []
    migrated: dict[int, Migrated] = {}
    done: list[str] = []


@dataclass(frozen=True)
class Reshape:
    """What brings an interval to the last shape.

    Attributes:
        version: Of the shape.
        before: Numbers of the cells that shared a row.
        after: Numbers of those that do now.
        gone: Numbers of maps and bags without rows any more.
        migrated: Number of a cell -> its name, schema of the values that were, the function.
    """

    version: int
    before: tuple[int, ...]
    after: tuple[int, ...]
    gone: frozenset[int]
    migrated: Mapping[int, tuple[str, Schema, Callable[[Any], Any]]]


def migrations_of(spec: ComputationSpec, known: Shape, state: Schema) -> dict[str, str]:
    """Return cell -> name of its migration, of those that have yet to run.

    Args:
        spec: The computation of the program.
        known: The shape so far.
        state: Cell -> what the checkpoint says of it.
    """
    names = {cell: named(function) for cell, function in spec.evolution.migrations.items()}
    done = _done(known, renamed(spec, state))
    return {cell: name for cell, name in names.items() if f"{cell}: {name}" not in done}


def _done(known: Shape, olds: Mapping[str, str]) -> set[str]:
    """Return what has run, of a cell that has another name now under that."""
    cells = {old: cell for cell, old in olds.items()}
    ran = (entry.partition(": ") for entry in known.done)
    return {f"{cells.get(cell, cell)}: {name}" for cell, _, name in ran}


def shape_after(
    known: Shape, stored: Schema | None, numbers: Mapping[str, int], spec: ComputationSpec
) -> tuple[Shape, dict[str, int]]:
    """Return the shape of a computation's state with another program, and its cells' numbers.

    Args:
        known: The shape so far.
        stored: What the checkpoint says of the computation; None if it is new.
        numbers: Cell -> its number; of those that were dropped, too, under names that no cell has.
        spec: The computation of the program.
    """
    state: Schema = {} if stored is None else stored["state"]
    olds, pending = renamed(spec, state), migrations_of(spec, known, state)
    ran = {f"{cell}: {name}" for cell, name in pending.items()}
    done = sorted(_done(known, olds) | ran)
    found = dict(numbers)
    if stored is None:
        return msgspec.structs.replace(known, done=done), found
    for cell, old in olds.items():
        found[cell] = found.pop(old)
    dropped = [cell for cell in state if cell in spec.evolution.dropped]
    gone = []
    for cell in dropped:
        number = found.pop(cell)
        found[f"{cell} (dropped: {number})"] = number
        if state[cell]["cell"] not in SCALARS:
            gone.append(number)
    following = 1 + max(found.values(), default=-1)
    for cell in sorted(spec.cells.keys() - found.keys()):
        found[cell], following = following, following + 1
    before = sorted(numbers[cell] for cell, said in state.items() if said["cell"] in SCALARS)
    migrated = {
        found[cell]: Migrated(name, state[olds.get(cell, cell)]["format"])
        for cell, name in pending.items()
        if olds.get(cell, cell) in state
    }
    after = scalars_of(spec, found)
    if not migrated and not gone and _lies(before, after):
        return msgspec.structs.replace(known, done=done), found
    version = known.version + 1
    made = Shape(version=version, before=before, gone=gone, migrated=migrated, done=done)
    return made, found


def scalars_of(spec: ComputationSpec, numbers: Mapping[str, int]) -> list[int]:
    """Return the numbers of a computation's value and combining cells, ascending."""
    return sorted(
        numbers[name]
        for name, cell in spec.cells.items()
        if isinstance(cell, ValueState | CombiningState)
    )


def renamed(spec: ComputationSpec, state: Schema) -> dict[str, str]:
    """Return cell -> the name under which a checkpoint knows it, of those with another."""
    return {
        name: cell.was
        for name, cell in spec.cells.items()
        if cell.was is not None and cell.was in state and name not in state
    }


def reshape_of(shape: Shape | None, numbers: Mapping[str, int], spec: ComputationSpec) -> Any:
    """Return what brings an interval to the last shape; None where there was never another."""
    if shape is None or not shape.version:
        return None
    names = {number: cell for cell, number in numbers.items()}
    functions = spec.evolution.migrations
    return Reshape(
        shape.version,
        tuple(shape.before),
        tuple(scalars_of(spec, numbers)),
        frozenset(shape.gone),
        {
            number: (names[number], how.format, functions[names[number]])
            for number, how in shape.migrated.items()
            if names[number] in functions and named(functions[names[number]]) == how.function
        },
    )


def _lies(before: list[int], after: list[int]) -> bool:
    """Return whether rows of some cells can be read as those of others, as they are."""
    if not before:
        return True  # there are no rows
    # The only one has its bytes as the row; of several, those behind the last are empty.
    return before == after or (len(before) > 1 and after[: len(before)] == before)
