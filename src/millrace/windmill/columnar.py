"""The machine of computations that work on whole bundles: chunks in the place of rows by key.

A chunk lies under the instant when it is wanted, and one timer waits for that instant, under a key
that stands for all keys of the interval. So all that is known of timers holds: they pin the low
watermark, they are reported, and what pins it can be explained.
"""

from __future__ import annotations

import itertools
from typing import Final

import numpy as np

from millrace.model.bundle import Columns, Emitted, Keyed
from millrace.model.errors import InvariantViolation
from millrace.model.keys import decode_key, encode_key
from millrace.model.pane import Paned
from millrace.model.record import DeadLetter, Timer
from millrace.model.time import EARLIEST_RECORD, LATEST_RECORD
from millrace.model.topology import ComputationSpec, Topology
from millrace.store import View
from millrace.windmill import rows
from millrace.windmill.arrivals import KeyedRecords
from millrace.windmill.machine import Machine
from millrace.windmill.routing import Router
from millrace.windmill.timers import due_timers
from millrace.windmill.work import Work

#: Stands for all keys of an interval.
ALL_KEYS: Final = encode_key("all keys")
#: A window that lives for very many bundles is read as a whole once in so many.
MERGE_EVERY: Final = 256
_ALL_KEYS_ROW: Final = rows.key_row(bytes(8), ALL_KEYS)


class ColumnarMachine(Machine):
    """Runs bundles of a computation with :class:`~millrace.model.bundle.Columns`."""

    def _run_bundles(self, work: Work, view: View) -> None:
        columns, records = self.spec.columns, work.records
        fresh = self._absorb(columns, work) if len(records.cuts) > 1 else {}
        timers, mutations = self._timers, self._rows.mutations
        self._rows.key_row = _ALL_KEYS_ROW
        due = {
            timer: setting for _, _, timer, setting in due_timers(view, 0, work.low_watermark_us)
        }
        timers.begin(due)
        for end_us in fresh:
            timers.set(encode_key(end_us), 0, (end_us, None, 100))
        fired = 0
        while (popped := timers.pop_due()) is not None:
            end_us = popped[0][0]
            chunks = []
            for row, chunk in view.scan(rows.chunks(end_us), rows.chunks(end_us + 1)):
                chunks.append(chunk)
                mutations[row] = None
            chunks += fresh.pop(end_us, [])
            if not chunks:
                raise InvariantViolation(f"{self.spec.name}: no chunks for the timer at {end_us}")
            self._send(work, columns.emit(end_us, chunks, work.wall_time_us))
            fired += 1
        if work.number % MERGE_EVERY == 0:
            self._merge(columns, view, fresh)
        for end_us, chunks in fresh.items():
            for n, chunk in enumerate(chunks):
                mutations[rows.chunk(end_us, work.number, n)] = chunk
        if timers.touched:
            timers.flush(ALL_KEYS)
        self._counters.timers = fired
        self._counters.keys = len(records.keys)

    def _merge(self, columns: Columns, view: View, fresh: dict[int, list[bytes]]) -> None:
        """Put the chunks of each instant that still waits together, with the bundle's own."""
        mutations = self._rows.mutations
        waiting: dict[int, list[tuple[bytes, bytes]]] = {}
        for row, chunk in view.scan(rows.CHUNKS, rows.after(rows.CHUNKS)):
            if row not in mutations:
                waiting.setdefault(rows.time_of(row[1:9]), []).append((row, chunk))
        for end_us, stored in waiting.items():
            mine = fresh.get(end_us, [])
            if len(stored) + len(mine) > 2:  # one for integers, one for floats
                fresh[end_us] = columns.merge([*(chunk for _, chunk in stored), *mine])
                mutations.update((row, None) for row, _ in stored)

    def _absorb(self, columns: Columns, work: Work) -> dict[int, list[bytes]]:
        """Return the chunks of the bundle's records; count, and set aside, as for every record."""
        records, counters = work.records, self._counters
        first = records.cuts[0]
        keyed = _keyed(records)
        before_us = work.low_watermark_before_us
        late = np.flatnonzero(np.array(keyed.timestamps, np.int64) < before_us)
        for n in late.tolist():
            self._user.key = records.keys[int(keyed.key_of[n])]
            self._note_late(work, first + n)
        absorbed = columns.absorb(keyed, before_us)
        for n, error in sorted(absorbed.refused.items()):
            key = records.keys[int(keyed.key_of[n])]
            self._set_aside(self._failures.of_record(work, key, error, first + n), key)
        for name, count in absorbed.counted.items():
            counters.counted[name] = counters.counted.get(name, 0) + count
        return absorbed.chunks

    def _send(self, work: Work, emitted: Emitted) -> None:
        """Send panes, all at once if nothing is wrong with any of them."""
        length = len(self._productions)
        try:
            self._router.send_panes(self._productions, emitted)
            return
        except Exception:  # noqa: BLE001  found again below, at its key
            self._productions.truncate(length)
        end_us = emitted.timestamp + 1
        for encoded, value in zip(emitted.keys, emitted.values, strict=True):
            key = decode_key(encoded)
            try:
                self._router.send(
                    self._productions, emitted.stream, Paned(value, emitted.pane),
                    emitted.timestamp, key,
                )  # fmt: skip
            except Exception as error:  # noqa: BLE001  steps are the user's
                timer = Timer(end_us, end_us)
                self._set_aside(self._failures.of_timer(work, key, error, timer), key)

    def _set_aside(self, letter: DeadLetter, key: object) -> None:
        at_us = max(EARLIEST_RECORD, min(letter.timestamp or 0, LATEST_RECORD))
        self._router.send(self._productions, str(self._dead_letters), letter, at_us, key)
        self._counters.dead_letters += 1


def _keyed(records: KeyedRecords) -> Keyed:
    """Return the records of an interval as columns of their own."""
    cuts = np.array(records.cuts)
    first, last = records.cuts[0], records.cuts[-1]
    return Keyed(
        records.encoded,
        np.frombuffer(b"".join(row[:8] for row in records.key_rows), ">u8").astype(np.uint64),
        np.repeat(np.arange(len(records.encoded)), np.diff(cuts)),
        list(itertools.islice(records.values, first, last)),
        records.timestamps[first:last],
    )


def machine_for(topology: Topology, spec: ComputationSpec, router: Router) -> Machine:
    """Return the machine of a computation."""
    kind = Machine if spec.columns is None else ColumnarMachine
    return kind(topology, spec, router)
