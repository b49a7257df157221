"""Deduplication: records that an injector delivers again are dropped before user code sees them.

The ids of delivered records lie among the rows of their key interval, so a commit adds them in the
same atomic step as the state that their records changed, and a crash cannot part the two. An id is
scoped to the injector, to the consumer's input, and to the key that the consumer took from the
record: not to the steps on the way, which may change. It is kept until the low watermark has passed
the timestamp with which it came first, and the injector's slack. Whatever comes later is late: it
is delivered, as late records are, and marked so.

In front of the rows stands a Bloom filter, soft state of a process. It is behind the rows when
another process has worked on the interval, and is brought forward from them before it is asked: an
id that was committed is never missing in it. One that was not committed after all may be in it; the
rows decide.

Source: MillWheel, 6.1.1 (exactly-once delivery: ids in the commit, Bloom filter, garbage
collection, slack for injectors that deliver late); 6.2 ("exactly-once data is updated in this same
operation").

The Bloom filter in front of the store: "provably never seen before", for whole columns.

A blocked filter: an id sets five bits of one 64-bit word, so a look-up reads one word, and adding
or asking costs some 25 ns an id in NumPy. At sixteen bits an id, 1 of 230 ids never seen seems
seen, against 1 of 720 for five bits anywhere in the filter; a look-up in the store, which decides,
costs about as much as forty in the filter, so that is cheap enough.

Source: MillWheel, 6.1.1 ("we maintain a Bloom filter of known record fingerprints, to provide a
fast path for records that we have provably never seen before"); Putze, Sanders and Singler,
"Cache-, Hash- and Space-Efficient Bloom Filters" (2007).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from millrace.compile.topology import ComputationSpec
from millrace.kernel import families, row_codec
from millrace.kernel.bundle import Bundle, KeyedRecords, RecentIntervals
from millrace.kernel.machine import Effects
from millrace.model.time import MAX_TIMESTAMP
from millrace.store import View

Column = npt.NDArray[np.uint64]

BITS_PER_ID = 16
_BITS_SET = 5
_WORD_BITS = 64

#: Fewest ids that a filter is made for: half a kilobyte.
_CAPACITY_MIN = 256
#: How much larger the filter is that follows one that ran full.
_GROWTH = 4


class BloomFilter:
    """Ids that may have been added. Not one that was is ever denied.

    Args:
        capacity: How many ids it is made for. More can be added; it then errs more often.

    Attributes:
        capacity: The same, rounded up to what fills a power of two of words.
        count: How many were added.

    >>> seen = BloomFilter(1000)
    >>> ids = np.array([[1, 2], [3, 4]], dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    >>> seen.add(ids[:1])
    >>> seen.may_hold(ids).tolist()
    [True, False]
    """

    __slots__ = ("_shift", "_words", "capacity", "count")

    def __init__(self, capacity: int) -> None:
        bits = max(capacity, _CAPACITY_MIN) * BITS_PER_ID
        exponent = (-(-bits // _WORD_BITS) - 1).bit_length()
        self._words = np.zeros(1 << exponent, dtype=np.uint64)
        self._shift = np.uint64(64 - exponent)
        self.capacity = (_WORD_BITS << exponent) // BITS_PER_ID
        self.count = 0

    @property
    def bytes(self) -> int:
        """How much memory it takes."""
        return self._words.nbytes

    def add(self, ids: Column) -> None:
        """Add ids: one row of two random halves each."""
        np.bitwise_or.at(self._words, self._places(ids), _masks(ids))
        self.count += len(ids)

    def may_hold(self, ids: Column) -> npt.NDArray[np.bool_]:
        """Return for each id whether it may have been added."""
        masks = _masks(ids)
        may_hold: npt.NDArray[np.bool_] = (self._words[self._places(ids)] & masks) == masks
        return may_hold

    def _places(self, ids: Column) -> npt.NDArray[np.int64]:
        return (ids[:, 0] >> self._shift).astype(np.int64)


class RotatingFilter:
    """Bloom filters one after the other, so that what has expired leaves with the filter it is in.

    A new one is begun when the newest is full, or when what comes now expires a span later than
    what went into it first. One whose ids have all expired is dropped. So with ids coming at a
    steady rate and a span of a quarter of the slack about six exist, each with room for what the
    one before it got.

    Args:
        span_us: How far apart in expiry the ids of one filter may be.
        bytes_max: What all may take together. At this size the newest takes more ids than it is
            made for, and more look-ups than need be go to the store.
    """

    __slots__ = ("_bytes_max", "_filters", "_first_us", "_last_us", "_span_us")

    def __init__(self, span_us: int, bytes_max: int) -> None:
        self._span_us = span_us
        self._bytes_max = bytes_max
        self._filters: list[BloomFilter] = []
        self._first_us: list[int] = []
        self._last_us: list[int] = []

    def __len__(self) -> int:
        return len(self._filters)

    @property
    def bytes(self) -> int:
        """How much memory they take."""
        return sum(bloom.bytes for bloom in self._filters)

    @property
    def count(self) -> int:
        """How many ids are in them."""
        return sum(bloom.count for bloom in self._filters)

    def add(self, ids: Column, first_us: int, last_us: int) -> None:
        """Add ids that expire between two low watermarks, inclusive."""
        self._make_room(len(ids), first_us)
        self._filters[-1].add(ids)
        self._last_us[-1] = max(self._last_us[-1], last_us)

    def may_hold(self, ids: Column) -> npt.NDArray[np.bool_]:
        """Return for each id whether it may have been added."""
        may_hold = np.zeros(len(ids), dtype=np.bool_)
        for bloom in self._filters:
            may_hold |= bloom.may_hold(ids)
        return may_hold

    def expire(self, low_watermark_us: int) -> None:
        """Drop the filters in which every id has expired."""
        live = [n for n, last_us in enumerate(self._last_us) if last_us > low_watermark_us]
        if len(live) < len(self._filters):
            self._filters = [self._filters[n] for n in live]
            self._first_us = [self._first_us[n] for n in live]
            self._last_us = [self._last_us[n] for n in live]

    def _make_room(self, count: int, first_us: int) -> None:
        wanted = count
        if self._filters:
            newest = self._filters[-1]
            full = newest.count + count > newest.capacity
            if not full and first_us < self._first_us[-1] + self._span_us:
                return
            wanted = max(count, newest.count * (_GROWTH if full else 1))
        bloom = BloomFilter(wanted)
        while bloom.bytes + self.bytes > self._bytes_max and bloom.capacity > _CAPACITY_MIN:
            bloom = BloomFilter(bloom.capacity // 2)
        if self._filters and bloom.bytes + self.bytes > self._bytes_max:
            return
        self._filters.append(bloom)
        self._first_us.append(first_us)
        self._last_us.append(first_us)


def _masks(ids: Column) -> Column:
    """Return for each id a word with five of its bits set, as its second half says."""
    second, one, low = ids[:, 1], np.uint64(1), np.uint64(_WORD_BITS - 1)
    masks = one << (second & low)
    for n in range(1, _BITS_SET):
        masks |= one << ((second >> np.uint64(6 * n)) & low)
    return masks


#: Memory of the Bloom filters of one computation in one process: room for 10 to 30 million live ids
#: before look-ups in the store become more frequent.
FILTER_BYTES_MAX = 64 << 20

#: An odd number without a pattern, to spread the bits of a hash over a word.
_SPREAD = np.uint64(0x9E3779B97F4A7C15)


@dataclass(slots=True)
class Filtered:
    """What is left of a bundle.

    Attributes:
        records: Those to deliver.
        mutations: New ids, and what is left of those that have expired.
        duplicates: How many records were dropped.
        expires_us: The low watermark at which something of the ids will have to be collected.
    """

    records: KeyedRecords
    mutations: dict[bytes, bytes | None] = field(default_factory=dict)
    duplicates: int = 0
    expires_us: int = MAX_TIMESTAMP

    def complete(self, effects: Effects) -> None:
        """Add to a bundle's effects what became of ids."""
        effects.mutations.update(self.mutations)
        effects.counters.duplicates_filtered = self.duplicates
        if self.expires_us < MAX_TIMESTAMP:
            effects.report = replace(effects.report, ids_us=self.expires_us)


class Deduplicator:
    """Filters the bundles of one computation by source ids.

    Args:
        spec: The computation; it reads streams with source ids.
        filter_bytes_max: Memory of its Bloom filters.

    Attributes:
        lookups: How many ids were looked for in the rows, for lack of an answer from the filters.
    """

    def __init__(self, spec: ComputationSpec, filter_bytes_max: int = FILTER_BYTES_MAX) -> None:
        slacks = [us for by_stream in spec.slacks.values() for us in by_stream.values()]
        # Quarters: ids are kept for at most a quarter of the slack longer in the filter than in the
        # rows, and a look-up asks about six filters.
        self._span_us = max(1, max(slacks, default=0) // 4)
        self._bytes_max = filter_bytes_max
        self._filters = RecentIntervals[_IntervalFilter]()
        self.lookups = 0

    def run(self, bundle: Bundle, view: View) -> Filtered:
        """Return the records of a bundle that were not delivered before.

        Args:
            bundle: What arrived for one interval. Its position says when ids will have expired. Its
                attempt's low watermark says which expire now: they are collected, and an id that
                would expire by it is not kept. What expired by the one before is in no row.
            view: The interval's rows as of the last commit.
        """
        interval, records, attempt = bundle.interval.id, bundle.records, bundle.attempt
        interval_filter = self._filters.get(interval)
        if interval_filter is None:
            budget = self._bytes_max // max(1, attempt.intervals)
            interval_filter = _IntervalFilter(RotatingFilter(self._span_us, budget))
        self._filters.put(interval, interval_filter, attempt.intervals)
        filtered = Filtered(records)
        input_watermark_us = attempt.input_watermark_us
        if records.ids is not None and len(records.cuts) > 1:
            # Not by this epoch's low watermark: its rows are there still, for another attempt too.
            interval_filter.ids.expire(attempt.fired_watermark_us)
            interval_filter.catch_up(view)
            self._filter(filtered, interval_filter.ids, view, input_watermark_us)
        kept_until_us = bundle.position.report.ids_us
        if kept_until_us <= input_watermark_us:
            _collect(filtered, view, input_watermark_us)
        else:
            filtered.expires_us = min(filtered.expires_us, kept_until_us)
        return filtered

    def forget(self, interval: int) -> None:
        """Drop an interval's filters, which may have read of a damaged cache."""
        self._filters.pop(interval, None)

    def filter_bytes(self) -> int:
        """Return the memory of all Bloom filters."""
        return sum(interval_filter.ids.bytes for interval_filter in self._filters.values())

    def _filter(
        self, filtered: Filtered, seen: RotatingFilter, view: View, input_watermark_us: int
    ) -> None:
        ids = _BundleIds(filtered.records)
        fresh = ids.first_of_each()
        suspects = np.flatnonzero(seen.may_hold(ids.probes()) & ids.present & fresh).tolist()
        if suspects:
            self.lookups += len(suspects)
            suspects.sort(key=ids.rows.__getitem__)
            stored = view.get_many([ids.rows[n] for n in suspects])
            fresh[suspects] = [value is None for value in stored]
        ids.add_to(filtered, view.position + 1, fresh, input_watermark_us)
        dropped = len(fresh) - int(np.count_nonzero(fresh))
        if dropped:
            filtered.duplicates = dropped
            filtered.records = filtered.records.only(fresh)


def without_repeats(records: KeyedRecords) -> Filtered:
    """Return the records of a bundle that holds all there will ever be of its keys: a batch.

    Of those with one id, the first in order is left.
    """
    if records.ids is None or len(records.cuts) < 2:
        return Filtered(records)
    fresh = _BundleIds(records).first_of_each()
    dropped = len(fresh) - int(np.count_nonzero(fresh))
    if not dropped:
        return Filtered(records)
    return Filtered(records.only(fresh), duplicates=dropped)


class _BundleIds:
    """The source ids of a bundle's records, in several forms."""

    def __init__(self, records: KeyedRecords) -> None:
        assert records.ids is not None, "only bundles with source ids are looked at"
        first, last = records.cuts[0], records.cuts[-1]
        self._timestamps = records.timestamps[first:last]
        self._ids = records.ids.take(slice(first, last))
        self.present = self._ids.present()
        #: Rows without their letter: hash and id of every record, side by side.
        self.entries = families.id_entries(
            row_codec.hashes_in(records.key_rows), np.diff(records.cuts), self._ids.halves
        )
        self.rows = families.id_rows(self.entries.tobytes())

    def probes(self) -> npt.NDArray[np.uint64]:
        """Return what the Bloom filters are asked for."""
        return _probes(self.entries)

    def first_of_each(self) -> npt.NDArray[np.bool_]:
        """Return which records are the first with their id; true for those without one."""
        fresh = np.ones(len(self.rows), dtype=np.bool_)
        if len(set(self.rows)) == len(self.rows):
            return fresh
        met: set[bytes] = set()
        for n, (row, present) in enumerate(zip(self.rows, self.present.tolist(), strict=True)):
            if present:
                fresh[n] = row not in met
                met.add(row)
        return fresh

    def add_to(
        self,
        filtered: Filtered,
        number: int,
        fresh: npt.NDArray[np.bool_],
        input_watermark_us: int,
    ) -> None:
        """Add the rows of new ids to the mutations of commit ``number``."""
        times = np.array(self._timestamps, dtype=np.int64)
        expiries = self._ids.expiries_us(times)
        wanted = fresh & self.present & (expiries > input_watermark_us)
        if wanted.all():
            filtered.mutations.update(dict.fromkeys(self.rows, b""))
        else:
            positions = np.flatnonzero(wanted)
            names = self.rows
            filtered.mutations.update(dict.fromkeys([names[n] for n in positions.tolist()], b""))
        for expires_us in np.unique(expiries[wanted]).tolist():
            batch = self.entries[wanted & (expiries == expires_us)]
            filtered.mutations[families.id_batch_by_commit(number, expires_us)] = batch.tobytes()
            filtered.mutations[families.id_batch_by_expiry(expires_us, number)] = b""
            filtered.expires_us = min(filtered.expires_us, expires_us)


class _IntervalFilter:
    """The Bloom filters of one interval, and the commit up to which they know its ids."""

    __slots__ = ("ids", "position")

    def __init__(self, ids: RotatingFilter) -> None:
        self.ids = ids
        self.position = 0

    def catch_up(self, view: View) -> None:
        """Add the ids of commits that these filters have not seen: all that is kept, at first."""
        if self.position >= view.position:
            return
        start = families.id_batches_since(self.position + 1)
        number = 0
        batches: list[bytes] = []
        expiries: list[int] = []
        for row in view.scan(start, row_codec.after(families.IDS_BY_COMMIT)):
            batch = families.IdBatchRow.unpack(*row)
            if batch.number != number:
                self._add(batches, expiries)
                number, batches, expiries = batch.number, [], []
            batches.append(batch.entries)
            expiries.append(batch.expires_us)
        self._add(batches, expiries)
        self.position = view.position

    def _add(self, batches: list[bytes], expiries: list[int]) -> None:
        if batches:
            self.ids.add(
                _probes(families.entries_of(b"".join(batches))), min(expiries), max(expiries)
            )


def _collect(filtered: Filtered, view: View, input_watermark_us: int) -> None:
    """Delete the ids that have expired: what it costs depends on how many those are."""
    for row, value in row_codec.scan(view, families.IDS_BY_EXPIRY):
        expires_us, number = families.ExpiryRow.unpack(row, value)
        if expires_us > input_watermark_us:
            filtered.expires_us = min(filtered.expires_us, expires_us)
            break
        by_commit = families.id_batch_by_commit(number, expires_us)
        batch = view.get(by_commit)
        assert batch is not None, "a batch of ids is named by expiry and by commit, in one commit"
        filtered.mutations.update(dict.fromkeys(families.id_rows(batch)))
        filtered.mutations[by_commit] = filtered.mutations[row] = None


def _probes(entries: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint64]:
    """Return two random halves an entry: a key's hash, and an id, decide where it stands."""
    words = np.ascontiguousarray(entries).view(">u8").astype(np.uint64)
    probes = words[:, 1:].copy()
    probes[:, 0] ^= words[:, 0] * _SPREAD
    return probes
