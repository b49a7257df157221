"""Blocks: machines that run the records of many keys at once.

What they cannot do, and what fails in them, runs key by key. The effects are the same: rows,
productions and counters. So a block that fails is cut in two, until a key stands alone, whose part
runs record by record.

Source: docs/design/2026-11-28-key-blocks.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from types import CodeType
from typing import Any

import numpy as np

from millrace.compile.topology import ComputationSpec, Topology
from millrace.dataflow.columnar.chunks import Updates
from millrace.dataflow.grouping import GroupByKeyAndWindow
from millrace.dataflow.grouping.updates import KeyRecords, Updater
from millrace.kernel import row_codec
from millrace.kernel.bundle import Bundle, KeyGroup
from millrace.kernel.families import map_prefix
from millrace.kernel.machine import CAUGHT, Machine, codes_of
from millrace.kernel.router import Router
from millrace.model.column_computation import ColumnComputation, KeyBlock
from millrace.model.errors import (
    InvariantViolation,
    LateProduction,
    PipelineError,
    StoreError,
    TimeLimitExceeded,
)
from millrace.model.keys import encode_key
from millrace.model.time import EARLIEST_RECORD, LATEST_RECORD, MAX_TIMESTAMP

#: A window without start and end is kept under nothing.
_ENTRY = encode_key(b"")


class BlockMachine(Machine):
    """Runs bundles of a computation of which ``spec.in_blocks`` is true."""

    @property
    def hooks(self) -> frozenset[CodeType]:
        """The code of what may be ended by an exception: then it runs key by key."""
        return super().hooks | codes_of(self._answer)

    def at_hand(self) -> str:
        """Return what runs, in words, while it runs. Any thread may ask."""
        if self.key_at_hand is None:
            return f"computation {self.spec.title!r}, many keys together"
        return super().at_hand()

    def _run_keys(
        self, bundle: Bundle, parts: list[KeyGroup], stored: Iterable[bytes | None]
    ) -> None:
        if self._is_plain(bundle, parts):
            self._run_together(bundle, parts, list(stored))
        else:
            super()._run_keys(bundle, parts, stored)

    def _is_plain(self, bundle: Bundle, parts: list[KeyGroup]) -> bool:
        """Return whether there are records, and there is nothing to do but with them."""
        return bool(parts) and all(due is None for *_, due in parts)

    def _run_together(
        self, bundle: Bundle, parts: list[KeyGroup], stored: list[bytes | None]
    ) -> None:
        """Run the parts of keys at once; if that fails in halves, at last a key by itself."""
        length = len(self._calls.productions)
        self._user.key = None
        try:
            written = self._answer(bundle, parts, stored)
        except CAUGHT as error:
            if isinstance(error, StoreError | InvariantViolation):
                raise
            self._calls.productions.truncate(length)
            # What takes too long is not run again in halves: each would take as long.
            if len(parts) == 1 or isinstance(error, TimeLimitExceeded):
                super()._run_keys(bundle, parts, stored)
                return
            half = len(parts) // 2
            self._run_together(bundle, parts[:half], stored[:half])
            self._run_together(bundle, parts[half:], stored[half:])
            return
        self._rows.mutations.update(written)
        self._note_late_records(bundle, parts)

    def _answer(
        self, bundle: Bundle, parts: list[KeyGroup], stored: list[bytes | None]
    ) -> Iterable[tuple[bytes, bytes | None]]:
        """Send what comes of the records of some keys; return the rows that change.

        Args:
            bundle: Of the records.
            parts: Of the keys, in order.
            stored: Of each key, the row of its values.
        """
        raise NotImplementedError

    def _note_late_records(self, bundle: Bundle, parts: list[KeyGroup]) -> None:
        timestamps, before_us = bundle.records.timestamps, bundle.attempt.arrival_watermark_us
        if min(timestamps[parts[0][3] : parts[-1][4]]) >= before_us:
            return
        for _, _, key, start, stop, _ in parts:
            for n in range(start, stop):
                if timestamps[n] < before_us:
                    self._user.key = key
                    self._note_late(bundle, n)


class UpdateMachine(BlockMachine):
    """Runs groupings that answer each element with a pane, in one loop."""

    def __init__(self, topology: Topology, spec: ComputationSpec, router: Router) -> None:
        super().__init__(topology, spec, router)
        grouping = spec.instance
        assert isinstance(grouping, GroupByKeyAndWindow), "only they are updated"
        self._updater = Updater(grouping)
        self._cell = row_codec.BYTE[spec.cell_numbers["windows"]]

    def _is_plain(self, bundle: Bundle, parts: list[KeyGroup]) -> bool:
        attempt = bundle.attempt
        return (
            not attempt.arrival_percentiles
            and attempt.arrival_watermark_us < MAX_TIMESTAMP
            and super()._is_plain(bundle, parts)
        )

    def _answer(
        self, bundle: Bundle, parts: list[KeyGroup], stored: list[bytes | None]
    ) -> Iterable[tuple[bytes, bytes | None]]:
        records, attempt, cell = bundle.records, bundle.attempt, self._cell
        named = [map_prefix(key_row, cell) + _ENTRY for key_row, *_ in parts]
        hashes = _hashes(parts)
        windows = self._rows.view.get_many(named)
        keys = [
            KeyRecords(encoded, key, hashed, start, stop, row)
            for (_, encoded, key, start, stop, _), hashed, row in zip(
                parts, hashes, windows, strict=True
            )
        ]
        written, updates = self._updater.run(
            keys, records.values, records.timestamps, attempt.arrival_watermark_us,
            attempt.wall_time_us,
        )  # fmt: skip
        self._router.send_updates(self._calls.productions, updates)
        return zip(named, written, strict=True)


class KeyBlockMachine(BlockMachine):
    """Runs computations over columns, all keys of a bundle in a block."""

    def __init__(self, topology: Topology, spec: ComputationSpec, router: Router) -> None:
        super().__init__(topology, spec, router)
        user = self._user
        assert isinstance(user, ColumnComputation), "only they have blocks"
        self._computation = user

    def _answer(
        self, bundle: Bundle, parts: list[KeyGroup], stored: list[bytes | None]
    ) -> Iterable[tuple[bytes, bytes | None]]:
        records, user, scalars = bundle.records, self._computation, self._cells.scalars
        before_us = user.low_watermark = bundle.attempt.arrival_watermark_us
        first, last = parts[0][3], parts[-1][4]
        counts = np.array([part[4] - part[3] for part in parts])
        timestamps = np.array(records.timestamps[first:last], dtype=np.int64)
        cells = {name: self._cells.by_name[name] for name in user.schema.cells}
        state: dict[str, list[Any]] = {name: [] for name in cells}
        for row in stored:
            if scalars is not None:
                scalars.begin(row)
            for name, cell in cells.items():
                state[name].append(cell.get())
        block = user.block(
            [part[2] for part in parts],
            np.repeat(np.arange(len(parts)), counts),
            timestamps,
            timestamps < before_us,
            list(islice(records.values, first, last)),
            state,
        )
        user.run_hook(block)
        self._send_block(block, parts)
        return self._changed(block, parts, stored).items()

    def _changed(
        self, block: KeyBlock, parts: list[KeyGroup], stored: list[bytes | None]
    ) -> dict[bytes, bytes | None]:
        """Return the rows of values that a block changes."""
        scalars, key_rows = self._cells.scalars, self._rows
        if scalars is None or not block.changed:
            return {}
        cells = [(self._cells.by_name[name], values) for name, values in block.changed.items()]
        before, key_rows.mutations = key_rows.mutations, {}
        try:
            for n, (part, row) in enumerate(zip(parts, stored, strict=True)):
                key_rows.key_row = part[0]
                scalars.begin(row)
                for cell, values in cells:
                    if values[n] is None:
                        cell.clear()
                    else:
                        cell.set(values[n])
                scalars.flush(key_rows)
            return key_rows.mutations
        finally:
            key_rows.mutations = before

    def _send_block(self, block: KeyBlock, parts: list[KeyGroup]) -> None:
        """Send what a block has produced."""
        floor_us = self._calls.floor_us
        encoded = [part[1] for part in parts]
        hashes = _hashes(parts)
        earliest_us = np.minimum.reduceat(block.timestamps, block.starts)
        for stream, values, key_of, at_us in block.produced:
            if stream not in self.spec.outputs:
                raise PipelineError(f"no output {stream!r}")  # said in full for one record
            if len(at_us) and not EARLIEST_RECORD <= at_us.min() <= at_us.max() <= LATEST_RECORD:
                raise PipelineError("no time of a record")  # likewise
            if ((at_us < floor_us) & (at_us < earliest_us[key_of])).any():
                raise LateProduction(stream)  # likewise
            positions = key_of.tolist()
            updates = Updates(
                stream,
                keys=[encoded[n] for n in positions],
                hashes=[hashes[n] for n in positions],
                values=values,
                timestamps=at_us.tolist(),
            )
            self._router.send_updates(self._calls.productions, updates)


def _hashes(parts: list[KeyGroup]) -> list[int]:
    """Return the hashes of keys."""
    hashes: list[int] = np.frombuffer(
        row_codec.hashes_in([part[0] for part in parts]), ">u8"
    ).tolist()
    return hashes
