"""Updates: groupings that answer each element with a pane, folded for many keys at once.

``Repeat(AfterCount(1))`` in the global window is how a table is kept up to date: the last bid, the
top ten. Nothing else ever happens to such a window: it has no timer, holds nothing back, and is
never collected. So what a bundle does to its row is a loop, and the panes leave as columns.

Rows and panes are those of :class:`~millrace.dataflow.grouping.GroupByKeyAndWindow`, so the two
forms can take turns: what fails here runs there, where the record that is at fault is found.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from millrace.dataflow.aggregations.extremes import Top
from millrace.dataflow.columnar.chunks import Updates
from millrace.dataflow.grouping.window_state import Retractable, WindowRow
from millrace.dataflow.partials.partial import PartialCoder
from millrace.dataflow.windowing import AccumulationMode, OutputTime
from millrace.dataflow.windows.global_window import GlobalWindow
from millrace.model.coder import Coder
from millrace.model.copies import is_fixed
from millrace.model.pane import EARLY, Pane, PanedCoder, Window, encode_pane
from millrace.model.time import LATEST_RECORD

if TYPE_CHECKING:
    from millrace.dataflow.grouping.computation import GroupByKeyAndWindow


def updates_with_each(grouping: GroupByKeyAndWindow, coders: Sequence[Coder]) -> bool:
    """Return whether each element is answered with a pane, and nothing else ever happens.

    Args:
        grouping: Bound to its inputs.
        coders: Of the inputs.
    """
    return (
        grouping.with_each is not None
        and isinstance(grouping.windowing.window_fn, GlobalWindow)
        and grouping.combine.stable
        and not grouping.combine.checked
        and not any(isinstance(coder, PanedCoder | PartialCoder) for coder in coders)
    )


class KeyRecords(NamedTuple):
    """The records of one key.

    Attributes:
        encoded: The key, encoded.
        key: The key.
        hashed: Its hash.
        start: Position of the first record.
        stop: One past the last.
        stored: The row of the window; None if there is none yet.
    """

    encoded: bytes
    key: Any
    hashed: int
    start: int
    stop: int
    stored: bytes | None


class Updater:
    """Folds records into rows of windows, and makes their panes.

    Args:
        grouping: One of which :func:`updates_with_each` is true.
    """

    def __init__(self, grouping: GroupByKeyAndWindow) -> None:
        self._grouping = grouping
        self._coder = grouping.windows.coder
        how = grouping.windowing
        self._retracts = how.mode is AccumulationMode.ACCUMULATING_AND_RETRACTING
        self._discards = how.mode is AccumulationMode.DISCARDING
        self._output_time = how.output_time
        assert grouping.with_each is not None
        self._trigger = grouping.with_each.trigger
        kind = grouping.element_type
        fixed = isinstance(grouping.combine, Top) and is_fixed(kind)
        plain = grouping.key_fields is None and not self._retracts
        #: Whether results are lists of their own, of what nobody can change.
        self._own = fixed and plain
        #: Whether they are surely of the stream's format: elements have been read by their type.
        self._sure = self._own and grouping.format is Any

    def run(
        self,
        keys: Sequence[KeyRecords],
        values: Sequence[Any],
        timestamps: Sequence[int],
        low_watermark_us: int,
        wall_time_us: int,
    ) -> tuple[list[bytes], Updates]:
        """Return the row of each key's window, and the panes.

        Args:
            keys: Of the records.
            values: Of all records.
            timestamps: Likewise, microseconds.
            low_watermark_us: While they were on their way; below the end of time.
            wall_time_us: Of the bundle.

        Raises:
            Exception: Whatever user code and coders raise.
        """
        grouping, combine, window = self._grouping, self._grouping.combine, Window()
        pick, add, extract = grouping.pick, combine.add, combine.extract
        encode, decode, result = self._coder.encode, self._coder.decode, grouping.result_coder
        key_fields, retracts, discards = grouping.key_fields, self._retracts, self._discards
        earliest = self._output_time is OutputTime.EARLIEST
        least_us = 0
        if self._output_time is OutputTime.END_OF_WINDOW and low_watermark_us <= LATEST_RECORD:
            least_us = low_watermark_us
        updates = Updates(grouping.output, shared=not self._own, sure=self._sure)
        panes = _Panes(self._trigger, wall_time_us)
        rows: list[bytes] = []
        append_value, append_pane = updates.values.append, updates.panes.append
        append_tail, append_time = updates.tails.append, updates.timestamps.append
        for encoded, key, hashed, start, stop, stored in keys:
            row: WindowRow
            if stored is None:
                row = WindowRow(window, primed=True, accumulator=combine.create())
            else:
                row = decode(stored)
            count = 0
            for n in range(start, stop):
                at_us = timestamps[n]
                row.accumulator = add(row.accumulator, pick(values[n]))
                if at_us > row.latest:
                    row.latest = at_us
                for emitted in row.emitted:
                    pane = panes.retraction(emitted.pane)
                    append_value(result.decode(emitted.value))
                    append_pane(pane)
                    append_tail(encode_pane(pane))
                    append_time(emitted.timestamp)
                    count += 1
                value = extract(row.accumulator)
                if key_fields is not None:
                    value = key_fields.row(key, window, value)
                if not earliest:
                    at_us = row.latest if row.latest > least_us else least_us
                pane, tail = panes.update(row.panes)
                append_value(value)
                append_pane(pane)
                append_tail(tail)
                append_time(at_us)
                count += 1
                row.panes += 1
                if retracts:
                    row.emitted = [Retractable(result.encode(value), pane, at_us)]
                elif discards:
                    row.accumulator = combine.create()
            if not discards:
                row.size += stop - start
            rows.append(encode(row))
            if count == 1:
                updates.keys.append(encoded)
                updates.hashes.append(hashed)
            else:
                updates.keys += [encoded] * count
                updates.hashes += [hashed] * count
        return rows, updates


class _Panes:
    """Panes of a bundle: of those with one index there is one, encoded once."""

    def __init__(self, trigger: str, wall_time_us: int) -> None:
        self._trigger = trigger
        self._wall_time_us = wall_time_us
        self._known: dict[int, tuple[Pane, bytes]] = {}

    def update(self, index: int) -> tuple[Pane, bytes]:
        """Return the pane with an index, and its bytes."""
        known = self._known.get(index)
        if known is None:
            pane = Pane(
                Window(), index, EARLY, index == 0, False, False, self._wall_time_us, 0,
                self._trigger,
            )  # fmt: skip
            known = self._known[index] = pane, encode_pane(pane)
        return known

    def retraction(self, pane: Pane) -> Pane:
        """Return the pane that takes another back."""
        return msgspec.structs.replace(
            pane, retraction=True, production_time=self._wall_time_us, trigger=self._trigger
        )
