"""Migration: what another pipeline wrote under a checkpoint, read as this one has it.

**Names** in entries of the epoch log are brought to those that the pipeline uses now. Of
computations, entries have the names by which the checkpoint knows them (``compile/identity.py``),
and people are told the pipeline's.

How far an injected stream was read, what was seen of its processes and the number in the ids of its
records are under the stream's name. Entries are read as if they had been written under the one of
now; they say the old one until the first epoch after the change, so the registry of the claim keeps
what was what.

**Rows** of a key interval are brought to the last shape of its computation's state. That is part of
the interval's first bundle after the change, and of its commit. So it happens once, for all rows of
the interval together, whatever dies meanwhile; and who reads a row never has to ask which shape it
has.

Source: docs/design/2026-11-22-state-that-changes-shape.md.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeVar

from msgspec.structs import replace
from sortedcontainers import SortedDict

from millrace.compile.schemas import Reshape, schema_of
from millrace.compile.state_values import reader
from millrace.compile.topology import ComputationSpec, Topology, injector_name
from millrace.model.errors import RAISED
from millrace.model.keys import decode_key
from millrace.model.record import DeadLetter
from millrace.store import OverView, View
from millrace.watermark.propagation import LowWatermarks
from millrace.watermark.report import Report
from millrace.windmill import rows
from millrace.windmill.bundle import Bundle
from millrace.windmill.epoch_log import LogTail
from millrace.windmill.manifest import Claim, Completion
from millrace.windmill.user_errors import Failures

_Value = TypeVar("_Value")


def titled(completion: Completion, called: Mapping[str, str]) -> Completion:
    """Return a completion under other names.

    Args:
        completion: As the log has it.
        called: Computation -> what the pipeline calls it, where that is another name.
    """
    if not called:
        return completion
    by_name = ("intervals", "numbers", "chains", "reports", "counters", "moved")
    members = {member: renamed(getattr(completion, member), called) for member in by_name}
    return replace(completion, after=_shown(completion.after, called), **members)


def titled_claim(claim: Claim) -> Claim:
    """Return a claim under what its pipeline calls its computations."""
    called = claim.registry.checked().called
    if not called:
        return claim
    return replace(
        claim,
        topology=claim.topology | {"computations": renamed(claim.topology["computations"], called)},
        senders={
            called.get(name, name): [called.get(sender, sender) for sender in senders]
            for name, senders in claim.senders.items()
        },
        registry=replace(
            claim.registry,
            computations=renamed(claim.registry.computations, called),
            cells=renamed(claim.registry.cells, called),
            shapes=renamed(claim.registry.shapes, called),
        ),
    )


def renamed(by_name: Mapping[str, _Value], called: Mapping[str, str]) -> dict[str, Any]:
    """Return a mapping by name under other names; who began with a name that is given gives way."""
    found = {name: value for name, value in by_name.items() if name not in called}
    return found | {called[name]: value for name, value in by_name.items() if name in called}


def _shown(known: LowWatermarks, called: Mapping[str, str]) -> LowWatermarks:
    return LowWatermarks(
        renamed(known.inputs, called),
        renamed(known.outputs, called),
        {p: _shown(of, called) for p, of in known.percentiles.items()},
    )


_BY_STREAM = ("sources", "places")


def read_as(end: LogTail, topology: Topology) -> tuple[LogTail, dict[str, str]]:
    """Return the end of a log under the names that a pipeline has for injected streams.

    Args:
        end: As the log has it.
        topology: The pipeline.

    Returns:
        The end, and what is renamed by this pipeline: old name -> the one of now.
    """
    claim = end.claim
    if claim is None:
        return end, {}
    known = claim.registry.read_as
    now = {spec.name: spec.injection for spec in topology.injected()}
    left = [name for name in claim.topology["injected"] if name not in now]
    fresh = dict[str, str]()
    for name, injection in now.items():
        if name in claim.topology["injected"] or injection is None:
            continue
        for earlier in (*injection.was, *(old for old, new in known.items() if old == name)):
            old = known[earlier] if earlier == name else earlier
            if old in left and old not in fresh:
                fresh[old] = name
                break
    names = {old: fresh.get(new, new) for old, new in known.items()} | fresh
    names = {old: new for old, new in names.items() if old not in now}
    if not names:
        return end, {}
    injected = sorted(fresh.get(name, name) for name in claim.topology["injected"])
    registry = replace(
        claim.registry, streams=renamed(claim.registry.streams, fresh), read_as=names
    )
    claim = replace(claim, topology=claim.topology | {"injected": injected}, registry=registry)
    said = [_completion(completion, names) for completion in end.completions]
    return dataclasses.replace(end, claim=claim, completions=said), fresh


def _completion(completion: Completion, names: Mapping[str, str]) -> Completion:
    senders = {injector_name(old): injector_name(new) for old, new in names.items()}
    members = {member: renamed(getattr(completion, member), names) for member in _BY_STREAM}
    return replace(
        completion,
        after=_watermarks(completion.after, senders),
        moved=renamed(completion.moved, senders),
        **members,
    )


def _watermarks(known: LowWatermarks, senders: Mapping[str, str]) -> LowWatermarks:
    return LowWatermarks(
        known.inputs,
        renamed(known.outputs, senders),
        {p: _watermarks(of, senders) for p, of in known.percentiles.items()},
    )


#: Told of a value that cannot be migrated: the key's part of a row, the cell, the value, the error.
Refused = Callable[[bytes, str, Any, BaseException], None]

_NOTHING: Final = Reshape(0, (), (), frozenset(), {})
_NO_ROWS: Final[dict[bytes, bytes | None]] = {}


class Reshaping:
    """Makes the rows of a computation's intervals anew, where they have not its last shape.

    Args:
        spec: The computation.
        set_aside: Takes a dead letter, and the key that it is about.
        letters: Whether what user code raises becomes dead letters.
    """

    def __init__(
        self,
        spec: ComputationSpec,
        set_aside: Callable[[DeadLetter, Any], None],
        *,
        letters: bool,
    ) -> None:
        self._failures, self._set_aside = Failures(spec.title, letters=letters), set_aside
        self._reshape: Reshape = spec.reshape or _NOTHING
        self._makers = {n: _Maker(spec, *how) for n, how in self._reshape.migrated.items()}

    def run(self, bundle: Bundle, view: View) -> tuple[dict[bytes, bytes | None], View]:
        """Return the rows of an interval that change, and a view in which they have.

        Args:
            bundle: The interval's bundle.
            view: The interval, as its last commit left it.

        Raises:
            UserCodeError: A migration raised, and no stream takes dead letters.
        """
        if bundle.position.report.version >= self._reshape.version:
            return _NO_ROWS, view

        def refused(key_row: bytes, cell: str, value: Any, error: BaseException) -> None:
            encoded = rows.key_in(key_row)
            key = None if encoded is None else decode_key(encoded)
            self._set_aside(self._failures.of_migration(bundle, key, error, cell, value), key)

        found: dict[bytes, bytes | None] = {}
        if self._reshape.before:
            found.update(self._values(view, refused))
        if self._reshape.gone or self._makers:
            found.update(self._entries(view, refused))
            found.update(self._blocks(view, refused))
        return found, OverView(view, SortedDict(found), view.standing)

    def reported(self, report: Report) -> Report:
        """Return an interval's report with the shape that its rows have after its bundle."""
        version = self._reshape.version
        return replace(report, version=version) if version else report

    def _values(self, view: View, refused: Refused) -> Iterator[tuple[bytes, bytes | None]]:
        before, after = self._reshape.before, self._reshape.after
        for row, data in rows.scan(view, rows.VALUES):
            parts = dict(zip(before, rows.unpack_values(data, len(before)), strict=True))
            for number, make in self._makers.items():
                if (part := parts.get(number)) is not None:
                    parts[number] = make(row[1:], part, refused)
            packed = rows.pack_values([parts.get(number) for number in after])
            if packed != data:
                yield row, packed

    def _entries(self, view: View, refused: Refused) -> Iterator[tuple[bytes, bytes | None]]:
        for row, data in rows.scan(view, rows.MAP):
            entry = rows.EntryRow.unpack(row, data)
            if entry.cell in self._reshape.gone:
                yield row, None
            elif entry.cell in self._makers:
                made = self._makers[entry.cell](entry.key_row, entry.data, refused)
                yield row, None if made is None else entry._replace(data=made).pack()[1]

    def _blocks(self, view: View, refused: Refused) -> Iterator[tuple[bytes, bytes | None]]:
        for row, data in rows.scan(view, rows.BAG):
            block = rows.BlockRow.unpack(row, data)
            if block.cell in self._reshape.gone:
                yield row, None
            elif block.cell in self._makers:
                make = self._makers[block.cell]
                made = [make(block.key_row, item, refused) for item in block.items]
                items = [item for item in made if item is not None]
                yield row, block._replace(items=items).pack()[1] if items else None


class _Maker:
    """Makes one cell's values anew."""

    def __init__(
        self,
        spec: ComputationSpec,
        cell: str,
        format: dict[str, Any],
        function: Callable[[Any], Any],
    ) -> None:
        coder = spec.cells[cell].coder
        self._cell, self._function, self._encode = cell, function, coder.encode
        same = schema_of(coder) == format
        self._decode: Callable[[bytes], Any] = coder.decode if same else reader(format)

    def __call__(self, key_row: bytes, data: bytes, refused: Refused) -> bytes | None:
        """Return a value's new bytes; None if there is none any more."""
        value = self._decode(data)
        try:
            made = self._function(value)
            return None if made is None else self._encode(made)
        except RAISED as error:  # the user's
            refused(key_row, self._cell, value, error)
            return None
