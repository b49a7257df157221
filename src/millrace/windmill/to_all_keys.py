"""Signals to every key: records of a bundle that each key of the interval is to be given.

They come once to an interval, as rows of side inputs do, and are records of every key that has
windows, or elements in the same bundle. So they cost what those keys cost, and keys that are not
there yet have nothing that could fire.

Source: Dataflow patent, "any other relevant external signals (data injection requests ...)".
"""

from __future__ import annotations

import bisect
from collections.abc import Collection, Iterator

from msgspec.structs import replace

from millrace.compile.topology import ComputationSpec
from millrace.model.keys import decode_key
from millrace.model.side_input import SideInput
from millrace.store import View
from millrace.windmill import rows
from millrace.windmill.all_keys import ALL_KEYS_ROW
from millrace.windmill.arrivals import KeyedRecords
from millrace.windmill.bundle import Bundle, Signal
from millrace.windmill.counters import Counters
from millrace.windmill.parts import Part

#: Counter of keys that have windows and were not told, for they are too long to stand in a row.
UNTOLD = "signals_untold"


def signal_streams(spec: ComputationSpec) -> frozenset[str]:
    """Return the streams whose records are for every key; rows of side inputs are for none."""
    everywhere = {stream for stream, taken in spec.beside.items() if taken.everywhere}
    tables = (cell for cell in spec.cells.values() if isinstance(cell, SideInput))
    return frozenset(everywhere.difference(table.stream for table in tables))


def signals_in(records: KeyedRecords, streams: Collection[str]) -> list[Signal]:
    """Return the signals among the records of an interval, in order."""
    return [
        (records.timestamps[n], records.values[n], records.stream_of(n), records.origins[n],
         records.sequences[n])
        for n in range(records.cuts[0], records.cuts[-1])
        if records.stream_of(n) in streams
    ]  # fmt: skip


def told(
    bundle: Bundle, parts: list[Part], view: View, streams: Collection[str], counters: Counters
) -> tuple[Bundle, list[Part]]:
    """Return a bundle and parts in which the signals are records of each key, after its others.

    In a batch, where they are in order of time, they come after what is not later.

    Args:
        bundle: The bundle.
        parts: Of each key.
        view: The rows of its interval, as they were before it.
        streams: As :func:`signal_streams` has them.
        counters: Takes :data:`UNTOLD`.
    """
    records, before = bundle.records, bundle.signals
    signals = [*(before or ()), *signals_in(records, streams)] if streams else []
    if not signals:
        return bundle, parts
    by_key: dict[bytes, Part] = {
        part[0]: part
        for part in parts
        if part[3] == part[4] or records.stream_of(part[3]) not in streams
    }
    for key_row in _with_windows(view):
        if key_row in by_key:
            continue
        encoded = rows.key_in(key_row)
        if encoded is None:
            counters.counted[UNTOLD] = counters.counted.get(UNTOLD, 0) + 1
            continue
        by_key[key_row] = key_row, encoded, decode_key(encoded), 0, 0, None
    made, found = list[Signal](), list[Part]()
    for key_row, encoded, key, start, stop, due in (by_key[row] for row in sorted(by_key)):
        first = len(made)
        made += [
            (records.timestamps[n], records.values[n], records.stream_of(n), records.origins[n],
             records.sequences[n])
            for n in range(start, stop)
        ]  # fmt: skip
        for signal in signals:
            at = len(made)
            if before is not None:
                at = bisect.bisect_right(made, signal[0], lo=first, key=_time)
            made.insert(at, signal)
        found.append((key_row, encoded, key, first, len(made), due))
    columns = [list(column) for column in zip(*made, strict=True)] or [[], [], [], [], []]
    timestamps, values, of, origins, sequences = columns
    spread = KeyedRecords(
        [part[0] for part in found],
        [part[1] for part in found],
        [part[2] for part in found],
        values,
        timestamps,
        of,
        origins,
        sequences,
        [0, *(part[4] for part in found)],
    )
    return replace(bundle, records=spread), found


def _with_windows(view: View) -> Iterator[bytes]:
    """Yield the keys that have entries in maps, which windows are, as rows name them."""
    last = ALL_KEYS_ROW
    for row, _ in rows.scan(view, rows.MAP):
        key_row = rows.key_row_at(row, 1)
        if key_row not in (last, ALL_KEYS_ROW):
            yield key_row
        last = key_row


def _time(signal: Signal) -> int:
    return signal[0]
