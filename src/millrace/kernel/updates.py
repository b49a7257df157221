"""The machine of groupings that answer each element: all keys of a bundle in one loop.

What it cannot do, and what fails in it, runs key by key. The effects are the same: rows,
productions and counters.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import repeat
from types import CodeType

import numpy as np

from millrace.compile.topology import ComputationSpec, Topology
from millrace.dataflow.grouping import GroupByKeyAndWindow
from millrace.dataflow.grouping.updates import KeyRecords, Updater
from millrace.kernel import rows
from millrace.kernel.bundle import Bundle, KeyGroup
from millrace.kernel.machine import CAUGHT, Machine, codes_of
from millrace.kernel.router import Router
from millrace.kernel.rows import map_prefix
from millrace.model.errors import InvariantViolation, StoreError, TimeLimitExceeded
from millrace.model.keys import encode_key
from millrace.model.time import MAX_TIMESTAMP

#: A window without start and end is kept under nothing.
_ENTRY = encode_key(b"")


class UpdateMachine(Machine):
    """Runs bundles of a grouping of which ``spec.updates`` is true."""

    def __init__(self, topology: Topology, spec: ComputationSpec, router: Router) -> None:
        super().__init__(topology, spec, router)
        grouping = spec.instance
        assert isinstance(grouping, GroupByKeyAndWindow), "only they are updated"
        self._updater = Updater(grouping)
        self._cell = rows.BYTE[spec.cell_numbers["windows"]]

    @property
    def hooks(self) -> frozenset[CodeType]:
        """The code of what may be ended by an exception: then it runs key by key."""
        return super().hooks | codes_of(self._answer)

    def _run_keys(
        self, bundle: Bundle, parts: list[KeyGroup], stored: Iterable[bytes | None]
    ) -> None:
        attempt = bundle.attempt
        if (
            attempt.arrival_percentiles
            or attempt.arrival_watermark_us >= MAX_TIMESTAMP
            or any(due is not None for *_, due in parts)
        ):
            super()._run_keys(bundle, parts, stored)
        else:
            self._run_together(bundle, parts)

    def _run_together(self, bundle: Bundle, parts: list[KeyGroup]) -> None:
        """Run the parts of keys at once; if that fails in halves, at last a key by itself."""
        length = len(self._calls.productions)
        try:
            written = self._answer(bundle, parts)
        except CAUGHT as error:
            if isinstance(error, StoreError | InvariantViolation):
                raise
            self._calls.productions.truncate(length)
            # What takes too long is not run again in halves: each would take as long.
            if len(parts) == 1 or isinstance(error, TimeLimitExceeded):
                super()._run_keys(bundle, parts, repeat(None, len(parts)))
                return
            half = len(parts) // 2
            self._run_together(bundle, parts[:half])
            self._run_together(bundle, parts[half:])
            return
        self._rows.mutations.update(written)
        self._note_late_records(bundle, parts)

    def _answer(self, bundle: Bundle, parts: list[KeyGroup]) -> Iterable[tuple[bytes, bytes]]:
        """Send the panes of some keys; return the rows of their windows."""
        records, attempt, cell = bundle.records, bundle.attempt, self._cell
        named = [map_prefix(key_row, cell) + _ENTRY for key_row, *_ in parts]
        hashes = np.frombuffer(rows.hashes_in([part[0] for part in parts]), ">u8").tolist()
        stored = self._rows.view.get_many(named)
        keys = [
            KeyRecords(encoded, key, hashed, start, stop, row)
            for (_, encoded, key, start, stop, _), hashed, row in zip(
                parts, hashes, stored, strict=True
            )
        ]
        written, updates = self._updater.run(
            keys, records.values, records.timestamps, attempt.arrival_watermark_us,
            attempt.wall_time_us,
        )  # fmt: skip
        self._router.send_updates(self._calls.productions, updates)
        return zip(named, written, strict=True)

    def _note_late_records(self, bundle: Bundle, parts: list[KeyGroup]) -> None:
        timestamps, before_us = bundle.records.timestamps, bundle.attempt.arrival_watermark_us
        for _, _, key, start, stop, _ in parts:
            for n in range(start, stop):
                if timestamps[n] < before_us:
                    self._user.key = key
                    self._note_late(bundle, n)
