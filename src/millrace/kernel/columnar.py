"""The machine of computations that work on whole bundles: chunks in the place of rows by key.

A chunk lies under the instant when it is wanted, and one timer waits for that instant, under a key
that stands for all keys of the interval. So all that is known of timers holds: they pin the low
watermark, they are reported, and what pins it can be explained.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import msgspec
import numpy as np

from millrace.compile.topology import ComputationSpec, Topology
from millrace.dataflow.columnar.chunks import ColumnarBundle, Emitted, Keyed, Stored
from millrace.kernel import families, row_codec, timer_families
from millrace.kernel.blocks import KeyBlockMachine, UpdateMachine
from millrace.kernel.bundle import Bundle, KeyedRecords
from millrace.kernel.machine import Around, Machine
from millrace.kernel.router import Router, panes_of
from millrace.kernel.row_codec import ALL_KEYS, ALL_KEYS_ROW
from millrace.model.column_computation import ColumnComputation
from millrace.model.errors import RAISED, InvariantViolation
from millrace.model.keys import decode_key, encode_key
from millrace.model.record import Timer
from millrace.model.time import MAX_TIMESTAMP
from millrace.store import View
from millrace.watermark.percentiles import Outstanding
from millrace.watermark.report import Report


class ColumnarMachine(Machine):
    """Runs bundles of a computation with :class:`~millrace.dataflow.columnar.chunks.Columnar`."""

    def at_hand(self) -> str:
        """Return what runs, in words, while it runs. Any thread may ask."""
        return f"computation {self.spec.title!r}, all keys of an interval together"

    def _run_bundle(self, bundle: Bundle, view: View) -> None:
        records, counters = bundle.records, self._counters
        first = records.cuts[0]
        self._rows.delta = None  # what waits are keys, see _report, and not the timers for them all
        keyed = _keyed(records) if len(records.cuts) > 1 else None
        if keyed is not None:
            self._note_all_late(bundle, keyed)
        done = self.spec.columnar.run(
            ColumnarBundle(
                keyed,
                bundle.number,
                bundle.attempt.arrival_watermark_us,
                bundle.attempt.input_watermark_us,
                bundle.attempt.wall_time_us,
                lambda until_us: _stored(view, until_us),
            )
        )
        for n, error in sorted(done.refused.items()):
            assert keyed is not None, "only records can be refused"
            key = records.keys[int(keyed.key_of[n])]
            self._set_aside(self._failures.of_record(bundle, key, error, first + n), key)
        counters.counted.update(done.counted)
        for emitted in done.emitted:
            self._send(bundle, emitted)
        mutations = self._rows.mutations
        mutations.update((row, None) for row in done.removed)
        for at_us, chunks in done.added.items():
            for n, chunk in enumerate(chunks):
                mutations[families.chunk(at_us, bundle.number, n)] = chunk
        counters.timers = self._wait(bundle, view, list(done.added))
        counters.keys = len(records.keys)

    def _report(self, bundle: Bundle, view: View) -> Report:
        """Return what pins the low watermark, with how many keys wait for what, if that is asked.

        As if each had a timer of its own. It takes a look at all chunks, whoever they are of.
        """
        report = super()._report(bundle, view)
        if not self.spec.counted:
            return report
        mutations = self._rows.mutations
        left = [
            (stored.at_us, stored.chunk)
            for stored in _stored(view, MAX_TIMESTAMP)
            if stored.row not in mutations
        ]
        left += [
            (families.chunk_instant(row), chunk)
            for row, chunk in mutations.items()
            if chunk is not None and row.startswith(families.CHUNKS)
        ]
        waiting = Outstanding().changed(self.spec.columnar.pending(left))
        return msgspec.structs.replace(report, outstanding=waiting)

    def _wait(self, bundle: Bundle, view: View, instants: list[int]) -> int:
        """Set timers for chunks; return how many timers were due."""
        due = {
            timer: setting
            for _, _, timer, setting in timer_families.due_timers(
                view, 0, bundle.attempt.input_watermark_us
            )
        }
        if min(instants, default=MAX_TIMESTAMP + 1) <= bundle.attempt.input_watermark_us:
            raise InvariantViolation(f"{self.spec.name}: a chunk that is due was not used")
        timers = self._timers
        self._rows.key_row = ALL_KEYS_ROW
        timers.begin(due)
        for at_us in instants:
            timers.set(encode_key(at_us), 0, (at_us, None, 100))
        while timers.pop_due() is not None:
            pass
        if timers.touched:
            timers.flush(ALL_KEYS)
        return len(due)

    def _note_all_late(self, bundle: Bundle, keyed: Keyed) -> None:
        late = np.array(keyed.timestamps, np.int64) < bundle.attempt.arrival_watermark_us
        for n in np.flatnonzero(late).tolist():
            self._user.key = bundle.records.keys[int(keyed.key_of[n])]
            self._note_late(bundle, bundle.records.cuts[0] + n)

    def _send(self, bundle: Bundle, emitted: Emitted) -> None:
        """Send panes, all at once if nothing is wrong with any of them."""
        length = len(self._calls.productions)
        try:
            self._router.send_panes(self._calls.productions, emitted)
            return
        except RAISED:  # found again below, at its key
            self._calls.productions.truncate(length)
        for encoded, paned, at_us in panes_of(emitted):
            key = decode_key(encoded)
            try:
                self._router.send(self._calls.productions, emitted.stream, paned, at_us, key)
            except RAISED as error:  # steps are the user's
                timer = Timer(at_us + 1, at_us + 1)
                self._set_aside(self._failures.of_timer(bundle, key, error, timer), key)


def _stored(view: View, until_us: int) -> Iterator[Stored]:
    stop = (
        row_codec.after(families.CHUNKS)
        if until_us >= MAX_TIMESTAMP
        else families.chunks(until_us + 1)
    )
    for row, chunk in view.scan(families.CHUNKS, stop):
        yield Stored(row, families.chunk_instant(row), chunk)


def _keyed(records: KeyedRecords) -> Keyed:
    """Return the records of an interval as columns of their own."""
    cuts = np.array(records.cuts)
    first, last = records.cuts[0], records.cuts[-1]
    return Keyed(
        records.encoded,
        np.frombuffer(row_codec.hashes_in(records.key_rows), ">u8").astype(np.uint64),
        np.repeat(np.arange(len(records.encoded)), np.diff(cuts)),
        list(itertools.islice(records.values, first, last)),
        records.timestamps[first:last],
    )


def machine_for(
    topology: Topology,
    spec: ComputationSpec,
    router: Router,
    *,
    causes: bool = False,
    around: Around | None = None,
) -> Machine:
    """Return the machine of a computation; only where it works key by key it makes single calls."""
    if spec.columnar is not None:
        return ColumnarMachine(topology, spec, router)
    if spec.in_blocks and not causes and around is None:
        if isinstance(spec.instance, ColumnComputation):
            return KeyBlockMachine(topology, spec, router)
        return UpdateMachine(topology, spec, router)
    return Machine(topology, spec, router, causes=causes, around=around)
