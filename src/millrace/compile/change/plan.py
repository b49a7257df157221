"""Change: what becomes of one part of a checkpoint with another pipeline, why, and the way out.

All of them together are the plan that ``p.plan(checkpoint)`` returns, and the text with which a
start is refused.

Cell changes: what becomes of the cells of one computation with another program.

A cell that is new is empty, one that is gone must be named, one whose values are made anew has a
function for it. Everything else is a change of its format, by the rules of ``evolution.py``.

Comparison: what becomes of a checkpoint's identity with another pipeline, part by part.

It is the rule of what may change, and the only one: the plan, and the refusal of a start, come of
it. Between two epochs no record is on its way, so what lasts is the state of computations, under
their keys; computations, inputs and outputs may come and go. State is never dropped unnamed, and
never read as what it is not.

Source: docs/changing.md; MillWheel, "Streams" (4.3): computations are added to and removed from a
topology that runs.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from millrace.compile.change.identity import identity, sunk
from millrace.compile.change.registry import Registry
from millrace.compile.change.schema_change import Difference, differences
from millrace.compile.change.schemas import SCALARS, Schema, Shape, migrations_of, plain, renamed
from millrace.compile.topology import ComputationSpec, Topology
from millrace.dataflow.calls import PENDING

REFUSED: Final = "refused"
DROPPED: Final = "dropped"
MIGRATED: Final = "migrated"
RENAMED: Final = "renamed"
ADDED: Final = "added"
CHANGED: Final = "changed"
KEPT: Final = "kept"

#: In the order in which a plan tells them: what needs a decision comes first.
KINDS: Final = (REFUSED, DROPPED, MIGRATED, RENAMED, ADDED, CHANGED, KEPT)


class PartChange(msgspec.Struct, frozen=True):
    """What becomes of one part of a checkpoint, or of a pipeline.

    Attributes:
        kind: ``refused``, ``dropped``, ``migrated``, ``renamed``, ``added``, ``changed``
            (and nothing is lost) or ``kept``.
        where: Which part, as a path that a person can follow.
        why: What the difference is, or what it means.
        way: Of what is refused: what to do instead.
        between: Whether it may happen only where no epoch is unfinished.
    """

    kind: str
    where: str
    why: str
    way: str = ""
    between: bool = False

    def __str__(self) -> str:
        return f"{self.where}: {self.why}"

    def while_unfinished(self, epoch: int) -> PartChange:
        """Return what becomes of it while an epoch is unfinished."""
        if not self.between:
            return self
        return PartChange(
            REFUSED,
            self.where,
            f"{self.why}; and epoch {epoch} of this checkpoint is unfinished",
            "finish that epoch first: start the pipeline as it was, and end it with run.stop()",
        )


class ChangePlan(msgspec.Struct, frozen=True):
    """What a start of a pipeline would do with a checkpoint. ``print`` it.

    Attributes:
        pipeline: Name of the pipeline.
        epoch: The last epoch of the checkpoint that has completed; -1 if none has.
        changes: Part by part; what is refused comes first, what is kept last.
        under_way: An epoch that was begun after it and has not completed; None if there is none.
            The plan is of the checkpoint as ``epoch`` left it, and is the same once that epoch
            has completed.
        waiting: What a start would be refused for only until that epoch has completed.

    >>> plan = ChangePlan("shop", 4, (PartChange("added", "computation 'Ranks'", "begins empty"),))
    >>> print(plan)
    pipeline 'shop' on its checkpoint after epoch 4:
      added     computation 'Ranks': begins empty
    1 added. Nothing was written.
    """

    pipeline: str
    epoch: int
    changes: tuple[PartChange, ...]
    under_way: int | None = None
    waiting: tuple[PartChange, ...] = ()

    @property
    def refused(self) -> tuple[PartChange, ...]:
        """What a start would be refused for; empty if it would go on."""
        return self.of(REFUSED)

    def of(self, kind: str) -> tuple[PartChange, ...]:
        """Return the changes of a kind, in order."""
        return tuple(change for change in self.changes if change.kind == kind)

    def _repr_pretty_(self, printer: Any, _cycle: bool) -> None:
        """Be drawn in a notebook as it is printed."""
        printer.text(str(self))

    def __str__(self) -> str:
        after = f"after epoch {self.epoch}" if self.epoch >= 0 else "before its first epoch"
        lines = [f"pipeline {self.pipeline!r} on its checkpoint {after}:"]
        for change in self.changes:
            lines.append(f"  {change.kind:<9} {change}")
            if change.way:
                lines.append(f"  {'':<9} -> {change.way}")
        counted = ((len(self.of(kind)), kind) for kind in KINDS)
        told = ", ".join(f"{n} {kind}" for n, kind in counted if n) or "no part is known to it"
        if self.under_way is not None:
            lines.append(self._under_way())
        return "\n".join([*lines, f"{told}. Nothing was written."])

    def _under_way(self) -> str:
        warning = f"Epoch {self.under_way} is under way, and the plan is of what came before it."
        if not self.waiting:
            return warning
        parts = ", ".join(change.where for change in self.waiting)
        return (
            f"{warning} A start waits for it, because of {parts}: stop the run with `millrace "
            "stop`, which completes it; if no run is there, start the pipeline as it was, and "
            "stop that."
        )


def planned(pipeline: str, epoch: int, changes: Iterable[PartChange]) -> ChangePlan:
    """Return a plan of changes, in the order in which it tells them."""
    ordered = sorted(changes, key=lambda change: KINDS.index(change.kind))
    return ChangePlan(pipeline, epoch, tuple(ordered))


#: What is said of a part that only one of the two has.
GONE: Final = "in the checkpoint, gone from the pipeline"
NEW: Final = "new in the pipeline, unknown to the checkpoint"


def cell_changes(
    spec: ComputationSpec, known: Shape, stored: Schema, given: Schema, where: str
) -> Iterator[PartChange]:
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
            yield PartChange(ADDED, at, f"{NEW}; it is empty for every key", between=True)
        else:
            if cell in olds:
                yield PartChange(RENAMED, at, f"was {olds[cell]!r}", between=True)
            yield from _cell(cell, old, given[cell], at, pending.get(cell))


def _gone(cell: str, where: str, spec: ComputationSpec) -> PartChange:
    if cell in spec.evolution.dropped:
        return PartChange(DROPPED, where, "its rows go, of every key", between=True)
    return PartChange(
        REFUSED,
        where,
        GONE,
        f"to drop what it keeps, say so: p.add(..., dropped=[{cell!r}]). If it has another name "
        f"now, say which it had: mr.ValueState(..., was={cell!r})",
    )


def _cell(
    cell: str, old: Schema, new: Schema, where: str, migration: str | None
) -> Iterator[PartChange]:
    if old["cell"] != new["cell"] and not {old["cell"], new["cell"]} <= {*SCALARS}:
        yield PartChange(
            REFUSED,
            where,
            f"was {old['cell']}, is {new['cell']} now",
            f"give the new one another name, and drop the old: p.add(..., dropped=[{cell!r}])",
        )
        return
    changes = _differences(old, new, where)
    if migration is not None:
        told = "; ".join(difference.what for difference in changes)
        why = f"by {migration}, each value once{': ' * bool(told)}{told}"
        yield PartChange(MIGRATED, where, why, between=True)
        return
    way = (
        "make it a change that loses nothing (docs/changing.md has the table); or say what becomes "
        f"of its values: p.add(..., migrate={{{cell!r}: function}}), of a name that has not run yet"
    )
    for change in changes:
        if change.refused:
            yield PartChange(REFUSED, change.where, change.what, way)
        else:
            yield PartChange(CHANGED, change.where, change.what)


def _differences(old: Schema, new: Schema, where: str) -> list[Difference]:
    if old["cell"] != new["cell"]:
        return [Difference(where, f"was {old['cell']}, is {new['cell']} now")]
    changes = [*differences(old["format"], new["format"], where)]
    for part in ("add", "initial"):
        was, now = old.get(part), new.get(part)
        if plain(was) != plain(now):
            changes.append(
                Difference(f"{where}, {part}", f"was {as_text(was)}, is {as_text(now)} now")
            )
    return changes


def as_text(value: Any) -> str:
    """Return a value as a plan shows it."""
    return value if isinstance(value, str) else repr(value)


_FORMAT = "make it a change that loses nothing (docs/changing.md has the table), or leave it"


def changes(stored: Schema, topology: Topology, registry: Registry) -> list[PartChange]:
    """Return what becomes of each part of a checkpoint with a pipeline.

    Args:
        stored: The identity in the checkpoint.
        topology: Of the pipeline.
        registry: Of the checkpoint.
    """
    given = identity(topology)
    return [
        *_computations(stored["computations"], given["computations"], topology, registry),
        *_streams(stored["streams"], given["streams"]),
        *_injected(stored["injected"], given["injected"]),
    ]


def sink_changes(
    stored: Schema, topology: Topology, only: Container[str] | None = None
) -> list[Difference]:
    """Return what differs between the sinks' streams in a checkpoint and a pipeline's.

    Args:
        stored: In the checkpoint.
        topology: The pipeline.
        only: Streams to look at; None: all.
    """
    given = sunk(topology)
    if only is not None:
        stored = {name: stored[name] for name in stored if name in only}
        given = {name: given[name] for name in given if name in only}
    changes: list[Difference] = []
    for name, old, new in _both(stored, given):
        where = f"sink of stream {name!r}"
        if old is None or new is None:
            changes.append(Difference(where, GONE if new is None else NEW))
        else:
            changes += differences(old, new, where)
    return changes


def _computations(
    stored: Schema, given: Schema, topology: Topology, registry: Registry
) -> Iterator[PartChange]:
    for name, old, new in _both(stored, given):
        was = registry.called.get(name, name)
        title = topology.titles.get(name, was)
        where = f"computation {title!r}"
        if new is None:
            yield _removed(name, title, where, topology)
        elif name in registry.dropped:
            yield PartChange(
                REFUSED,
                where,
                "it was dropped from this checkpoint before, and its name is used up",
                'add it under another name: p.add(..., name="...")',
            )
        elif old is None:
            yield PartChange(
                ADDED,
                where,
                f"{NEW}; it begins empty with the next epoch, at the low watermark that its "
                "senders show by then",
                between=True,
            )
        else:
            changes = list(_computation(name, old, new, where, topology, registry))
            yield from changes
            if title != was:
                yield PartChange(RENAMED, where, f"was {was!r}; what it keeps stays")
            if not any(change.kind == REFUSED for change in changes):
                yield PartChange(KEPT, where, _kept(old))


def _removed(name: str, title: str, where: str, topology: Topology) -> PartChange:
    if name in topology.dropped:
        return PartChange(
            DROPPED, where, "its state and timers go, and its name is used up", between=True
        )
    return PartChange(
        REFUSED,
        where,
        GONE,
        f"to drop what it keeps, say so: p.remove({title!r}). If it has another name now, say "
        f"which it had: p.add(..., was={title!r})",
    )


def _kept(old: Schema) -> str:
    cells = len(old["state"])
    if cells:
        return f"{cells} state cell{'s' * (cells > 1)}, timers, low watermark"
    return "what it keeps, timers, low watermark"


def _computation(
    name: str, old: Schema, new: Schema, where: str, topology: Topology, registry: Registry
) -> Iterator[PartChange]:
    built_in = bool(old["settings"] or new["settings"])
    title = topology.titles[name]
    if new.get("drains", False) != old.get("drains", False):
        why = (
            "is drained: it gets no more records, its timers fire as before"
            if "drains" in new
            else "is not drained any more: it gets what comes from the next epoch on"
        )
        yield PartChange(CHANGED, where, why, between=True)
    calls = PENDING in old["state"]
    yield from _inputs(title, old["inputs"], new["inputs"], where, built_in=built_in, calls=calls)
    yield from _outputs(old["outputs"], new["outputs"], where)
    yield from cell_changes(
        topology.computation(name),
        registry.shapes.get(name, Shape()),
        old["state"],
        new["state"],
        where,
    )
    way = _under_a_name(title)
    for setting, before, other in _both(old["settings"], new["settings"]):
        yield from _text(before, other, f"{where}, {setting!r}", way)
    if old["kept as"] != new["kept as"]:
        yield PartChange(
            REFUSED,
            where,
            f"its windows are kept as {old['kept as']}, and would be as {new['kept as']} now, "
            "by its windows, trigger, lateness, output time and values",
            way,
        )


def _inputs(
    name: str, stored: Schema, given: Schema, where: str, *, built_in: bool, calls: bool
) -> Iterator[PartChange]:
    gone = sorted(stored.keys() - given.keys(), key=lambda route: _by_side(stored, route))
    new = sorted(given.keys() - stored.keys(), key=lambda route: _by_side(given, route))
    lasting = built_in or calls
    for route in sorted(stored.keys() & given.keys()):
        yield from _input(name, stored[route], given[route], f"{where}, input {route!r}", lasting)
    for old, other in zip(gone, new, strict=False):
        # Other steps on the way, or another stream in its place: state is under the same keys.
        yield from _input(
            name, stored[old], given[other], f"{where}, input {other!r} for {old!r}", lasting
        )
    if calls and gone and max(len(stored), len(given)) > 1:
        why = f"inputs {gone} are gone, and calls for their records may be pending"
        yield PartChange(REFUSED, where, why, _under_a_name(name))
    if built_in and len(gone) != len(new):
        yield PartChange(
            REFUSED, where, f"had {len(stored)} inputs, has {len(given)} now", _under_a_name(name)
        )
    for route in gone:
        why = f"{GONE}; what it left in state stays"
        yield PartChange(DROPPED, f"{where}, input {route!r}", why, between=True)
    for route in new:
        why = f"{NEW}; its records come from the next epoch on, each to the state of its key"
        yield PartChange(ADDED, f"{where}, input {route!r}", why, between=True)


def _by_side(inputs: Schema, route: str) -> tuple[int, str]:
    return inputs[route].get("side", 0), route


def _input(name: str, old: Schema, new: Schema, where: str, lasting: bool) -> Iterator[PartChange]:
    yield from _text(
        old["key"],
        new["key"],
        f"{where}, key",
        "state lies under the old keys: let the function keep its name if the keys are the same; "
        f"if not, {_under_a_name(name)}",
    )
    yield from _text(
        old.get("side"),
        new.get("side"),
        f"{where}, side",
        f"what is kept of one side would be taken for the other's: {_under_a_name(name)}",
    )
    # What a built-in computation keeps follows from its inputs, as do pending calls; what a user's
    # keeps besides, its cells say.
    yield from _formats(old["format"], new["format"], where, lasting=lasting)


def _outputs(stored: Schema, given: Schema, where: str) -> Iterator[PartChange]:
    for stream, old, new in _both(stored, given):
        at = f"{where}, output {stream!r}"
        if old is None or new is None:
            kind, why = (ADDED, NEW) if old is None else (DROPPED, GONE)
            yield PartChange(kind, at, why, between=True)
        else:
            yield from _formats(old, new, at, lasting=False)


def _formats(old: Schema, new: Schema, where: str, *, lasting: bool) -> Iterator[PartChange]:
    """Yield what differs in a format; of records, which no epoch leaves behind, anything may."""
    for change in differences(old, new, where):
        if not change.refused:
            yield PartChange(CHANGED, change.where, change.what)
        elif lasting:
            yield PartChange(REFUSED, change.where, change.what, _FORMAT)
        else:
            yield PartChange(
                CHANGED,
                change.where,
                f"{change.what}; no record of the old format is left between epochs",
                between=True,
            )


def _streams(stored: Schema, given: Schema) -> Iterator[PartChange]:
    """Yield by what named streams are fed otherwise; nothing is kept of them."""
    for name, old, new in _both(stored, given):
        where = f"stream {name!r}"
        if old is None or new is None:
            kind, why = (ADDED, NEW) if old is None else (DROPPED, GONE)
            yield PartChange(kind, where, why)
            continue
        for feeder in sorted({*old["fed by"]} ^ {*new["fed by"]}):
            gone = feeder in old["fed by"]
            yield PartChange(
                DROPPED if gone else ADDED,
                f"{where}, fed by {feeder!r}",
                GONE if gone else NEW,
                between=True,
            )


def _injected(stored: list[str], given: list[str]) -> Iterator[PartChange]:
    for name in sorted({*stored} ^ {*given}):
        where = f"injected stream {name!r}"
        if name in given:
            yield PartChange(ADDED, where, f"{NEW}; it is read from its beginning", between=True)
        else:
            why = f"{GONE}; how far it was read is kept where its source is an injector"
            yield PartChange(DROPPED, where, why, between=True)


def _under_a_name(name: str) -> str:
    return (
        f"drop what it keeps, p.remove({name!r}), and add it under another name; or leave it as it "
        "was"
    )


def _both(stored: Mapping[str, Any], given: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    for name in sorted({*stored, *given}):
        yield name, stored.get(name), given.get(name)


def _text(old: Any, new: Any, where: str, way: str) -> Iterator[PartChange]:
    if plain(old) != plain(new):
        yield PartChange(REFUSED, where, f"was {as_text(old)}, is {as_text(new)} now", way)
