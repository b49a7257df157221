"""Admission: which rows that arrived are records for which interval, each once.

In an epoch what arrives is behind a barrier: it is all there, and comes once. In real time it comes
in packets, some of it again, and what intervals have had is left out. There few rows are looked at
by Python, many by NumPy, with the same outcome.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from itertools import compress, groupby
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from millrace.compile.topology import ComputationSpec, Topology
from millrace.kernel import families, row_codec
from millrace.kernel.bundle import Bundle, KeyedRecords
from millrace.kernel.channels import (
    WEAK_PART,
    Channels,
    Consumed,
    Number,
    Sender,
    number_of,
    sender_of,
)
from millrace.kernel.ordering import Ints, coded, lasts
from millrace.kernel.record_ids import (
    FIRST_INJECTED,
    ROW_BITS,
    SourceIds,
    are_weak,
    cause_of,
    injected_count,
    is_weak,
    unseal,
)
from millrace.model.computation import AT_LEAST_ONCE
from millrace.model.keys import decode_key
from millrace.runtime import wire
from millrace.runtime.inbox import Inbox
from millrace.runtime.packets import NO_MARK, Packet, rows_of
from millrace.runtime.rows import EdgeSet, RowColumns, Rows
from millrace.watermark.intervals import IntervalMap


class Arrived(NamedTuple):
    """What came in a turn.

    Attributes:
        here: Rows for this level.
        passing: Rows for levels below.
        held: Rows for sinks that came after a mark which has not passed here yet.
        through: Edge -> sender -> how far it has come in the partials on that edge.
    """

    here: Rows
    passing: list[Rows]
    held: list[Rows]
    through: dict[int, dict[Sender, Number]]


class Demultiplexer:
    """Sorts what arrives for one task by where it goes.

    Args:
        topology: The pipeline.
        here: The computations of the task's level.
    """

    def __init__(self, topology: Topology, here: set[str]) -> None:
        self._here = EdgeSet(topology.edge_mask(here))
        self._to_sinks = EdgeSet(topology.edge_mask({None}))

    def sorted(self, packets: list[Packet], marked: set[int]) -> Arrived:
        """Return the rows of packets.

        What comes to a sink that is written by mark after a mark of its sender must not overtake
        that mark on its way to the last level.

        Args:
            packets: In the order of their arrival.
            marked: Senders whose mark has come that has not passed here yet; those of these
                packets are added.
        """
        here, passing, held = list[Rows](), list[Rows](), list[Rows]()
        for packet in packets:
            ahead = packet.sender in marked
            if packet.mark != NO_MARK:
                marked.add(packet.sender)  # it comes after the packet's own rows
            for some in rows_of(packet):
                local_rows, others = some.parted(self._here)
                if local_rows.count:
                    here.append(local_rows)
                if others.count and ahead:
                    to_sinks, others = others.parted(self._to_sinks)
                    if to_sinks.count:
                        held.append(to_sinks)
                if others.count:
                    passing.append(others)
        return Arrived(Rows.joined(here), passing, held, _through(packets))

    def passing(self, through: dict[int, dict[Sender, Number]]) -> dict[int, dict[Sender, Number]]:
        """Return those of partials on edges that lead to other levels."""
        return {edge: of for edge, of in through.items() if edge not in self._here.numbers}


def _through(packets: list[Packet]) -> dict[int, dict[Sender, Number]]:
    found: dict[int, dict[Sender, Number]] = {}
    for packet in packets:
        for edge, senders in packet.through.items():
            known = found.setdefault(edge, {})
            for who, part, origin, sequence in senders:
                number = max(known.get((who, part), (-1, -1)), (origin, sequence))
                known[who, part] = number
    return found


#: Edge -> sender -> how far it has come in the partials on that edge.
Through = Mapping[int, Mapping[Sender, Number]]

#: Of a record: its key's hash, the key, both halves of its id, which of the edges it came by, and
#: its place among the rows. They sort as records are worked on.
_Arrived = tuple[int, bytes, int, int, int, int]

_FIRST_ORIGIN = FIRST_INJECTED << 48
_NOTHING: Final[Consumed] = {}


class Admission(Protocol):
    """Takes the records for one computation, each once.

    Attributes:
        spec: The computation.
        intervals: Its interval map.
    """

    spec: ComputationSpec
    intervals: IntervalMap

    def records(
        self, rows: Rows, through: Through, inbox: Inbox | None, received: dict[str, int]
    ) -> Mapping[int, KeyedRecords]:
        """Return interval -> its records among some rows, in order and cut by key.

        Args:
            rows: On edges of this level.
            through: How far partials among them go.
            inbox: Of the turn, which reads rows that are many; None if they are few.
            received: Takes how many bytes there are in values that are few, by computation.
        """
        ...

    def consumed(self, bundles: Sequence[Bundle]) -> Consumed:
        """Return interval -> what its commit has to say of what it has consumed.

        Args:
            bundles: That are about to run.
        """
        ...


class EpochAdmission:
    """Takes the records that one computation gets in an epoch: all that arrived."""

    def __init__(self, spec: ComputationSpec, intervals: IntervalMap) -> None:
        self.spec = spec
        self.intervals = intervals

    def records(
        self, rows: Rows, through: Through, inbox: Inbox | None, received: dict[str, int]
    ) -> Mapping[int, KeyedRecords]:
        """Return interval -> its records; see :class:`Admission`."""
        assert inbox is not None, "rows of an epoch are many"
        table = rows.table()
        keyed = inbox.received(table, table.column("edge").to_numpy(), self.spec)
        return keyed.of_intervals(self.intervals)

    def consumed(self, bundles: Sequence[Bundle]) -> Consumed:
        """Return nothing: the epoch says it."""
        return _NOTHING


class ChannelAdmission:
    """Takes the records for one computation that its intervals have not consumed.

    Args:
        topology: The pipeline.
        spec: The computation.
        maps: Computation -> its interval map; of those that are not there, nothing is forgotten.
        load: Returns the rows of an interval's channels.
        input: (injected stream, process) -> the last of its records that the task has consumed;
            brought forward here.
        processes: Number of an injected stream -> those of its processes that are not forgotten; of
            those that are not there, nothing is forgotten.

    Attributes:
        spec: The computation.
        intervals: Its interval map.
        channels: Of the computation's intervals.
    """

    def __init__(
        self,
        topology: Topology,
        spec: ComputationSpec,
        maps: Mapping[str, IntervalMap],
        load: Callable[[int], Iterable[families.ChannelRow]],
        input: dict[tuple[int, int], int],
        processes: Mapping[int, Container[int]] = MappingProxyType({}),
    ) -> None:
        self.spec = spec
        self._processes = processes
        self.channels = Channels(weak=spec.guarantees.delivery is not AT_LEAST_ONCE)
        edges = [edge for edge in topology.edges if edge.computation == spec.name]
        self._edges = {edge.number: place for place, edge in enumerate(edges)}
        self._streams = [edge.stream for edge in edges]
        self._scopes = [edge.scope for edge in edges]
        self._slacks = {
            place: topology.streams[edge.stream].slacks
            for place, edge in enumerate(edges)
            if edge.identified
        }
        self._decode = [topology.streams[edge.stream].coder.decode for edge in edges]
        self._to_it = topology.edge_mask({spec.name})
        self.intervals = maps[spec.name]
        self._senders = {
            one.number: maps[one.name] for one in topology.computations if one.name in maps
        }
        self._ids = np.array([one.id for one in self.intervals.intervals], np.int64)
        self._load = load
        self._input = input

    def consumed(self, bundles: Sequence[Bundle]) -> Consumed:
        """Return interval -> rows of the channels that have moved; those of all are known then."""
        for bundle in bundles:
            self._know(bundle.interval.id)
        return self.channels.take()

    def _know(self, interval: int) -> None:
        """Have an interval's channels read, unless they are known."""
        if not self.channels.knows(interval):
            self.channels.load(interval, self._load(interval), self._is_complete)

    def _is_complete(self, sender: Sender) -> bool:
        """Return whether all of a sender is here.

        It is a key interval that was split or merged, or a process that has ended.
        """
        who, part = sender
        if who >= FIRST_INJECTED:
            processes = self._processes.get(who - FIRST_INJECTED)
            return processes is not None and part not in processes
        intervals = self._senders.get(who)
        return intervals is not None and not part & WEAK_PART and part not in intervals.places

    def records(
        self, rows: Rows, through: Through, inbox: Inbox | None, received: dict[str, int]
    ) -> dict[int, KeyedRecords]:
        """Return interval -> those records among some rows; see :class:`Admission`."""
        if rows.few is not None:
            return self._of_few(rows.few, received)
        assert inbox is not None, "many rows are read by an inbox"
        return self._of_many(rows.table(), through, inbox)

    def _of_few(self, few: RowColumns, received: dict[str, int]) -> dict[int, KeyedRecords]:
        edges, keys = self._edges, few.keys
        arrived: list[_Arrived] = [
            (hash, keys[n], origin, sequence, edges[edge], n)
            for n, (edge, hash, origin, sequence) in enumerate(
                zip(few.edges, few.hashes, few.origins, few.sequences, strict=True)
            )
            if edge in edges
        ]
        arrived.sort()
        values = few.values
        size = sum([len(values[n]) for *_, n in arrived])
        received[self.spec.name] = received.get(self.spec.name, 0) + size
        self._note_few(arrived)
        fresh, ends = list[_Arrived](), list[tuple[int, int]]()
        for place, of in groupby(arrived, self._place_of):
            interval, some = self.intervals.intervals[place].id, list(of)
            self._know(interval)
            ids = [(origin, sequence) for _, _, origin, sequence, _, _ in some]
            flags = self.channels.fresh_few(interval, ids)
            fresh += some if all(flags) else compress(some, flags)
            ends.append((interval, len(fresh)))
        if not fresh:
            return {}
        keyed, found, first = self._keyed(fresh, few), dict[int, KeyedRecords](), 0
        for interval, end in ends:
            last = bisect_left(keyed.cuts, end, first)
            if last > first:
                found[interval] = keyed.of_keys(first, last)
                first = last
        return found

    def _place_of(self, arrived: _Arrived) -> int:
        return self.intervals.place_of(arrived[0])

    def _keyed(self, arrived: list[_Arrived], few: RowColumns) -> KeyedRecords:
        """Return records, which are in order, by key."""
        starts, names, last = list[int](), list[tuple[int, bytes]](), None
        for n, row in enumerate(arrived):
            if (name := row[:2]) != last:
                last = name
                starts.append(n)
                names.append(name)
        encoded = [key for _, key in names]
        timestamps, decode = few.timestamps, self._decode
        _, _, origins, sequences, ways, positions = map(list, zip(*arrived, strict=True))
        values, ids = list(map(few.values.__getitem__, positions)), None
        if self._slacks:
            ids = self._unseal(values, ways, origins)
        if ids is not None:
            # From here on the id of a record is that of its source, as in a table.
            halves = ids.halves_over(np.array(origins, np.int64), np.array(sequences, np.int64))
            origins, sequences = (half.tolist() for half in halves)
        streams: list[str] | str
        if len(set(ways)) == 1:
            streams = self._streams[ways[0]]
            decoded = list(map(decode[ways[0]], values))
        else:
            streams = [self._streams[way] for way in ways]
            decoded = [decode[way](value) for way, value in zip(ways, values, strict=True)]
        return KeyedRecords(
            [row_codec.key_row(hash.to_bytes(row_codec.HASH_BYTES), key) for hash, key in names],
            encoded,
            list(map(decode_key, encoded)),
            decoded,
            list(map(timestamps.__getitem__, positions)),
            streams,
            origins,
            sequences,
            [*starts, len(arrived)],
            ids,
            again=lambda n: decode[ways[n]](values[n]),
        )

    def _unseal(self, values: list[bytes], ways: list[int], origins: list[int]) -> SourceIds | None:
        """Part values, in place, from the source ids before them; return the ids."""
        found: SourceIds | None = None
        for way, slacks in self._slacks.items():
            at = [n for n, one in enumerate(ways) if one == way]
            if not at:
                continue
            sealed, of = [values[n] for n in at], np.array([origins[n] for n in at], np.int64)
            plain, ids = unseal(self._scopes[way], sealed, of, slacks)
            for n, value in zip(at, plain, strict=True):
                values[n] = value
            found = SourceIds.none(len(values)) if found is None else found
            found.halves[at], found.slack_us[at] = ids.halves, ids.slack_us
        return found

    def _of_many(self, table: pa.Table, through: Through, inbox: Inbox) -> dict[int, KeyedRecords]:
        fresh = self._fresh(table, through)
        if not fresh.num_rows:
            return {}
        found = inbox.received(fresh, fresh.column("edge").to_numpy(), self.spec)
        return found.of_intervals(self.intervals)

    def _fresh(self, table: pa.Table, through: Through) -> pa.Table:
        """Return the computation's rows without those that its intervals have consumed."""
        edges = table.column("edge").to_numpy()
        lifted = (edges >= 0) & wire.are_lifted(edges)
        addressed = (edges >= 0) & self._to_it[np.maximum(wire.plain(edges), 0)]
        if not addressed.all():
            table = wire.where(table, addressed)
            edges, lifted = edges[addressed], lifted[addressed]
        if not table.num_rows:
            return table
        hashes = table.column("hash").to_numpy().view(np.uint64)
        indexes = self.intervals.locate(hashes)
        for place in np.flatnonzero(np.bincount(indexes)).tolist():
            self._know(int(self._ids[place]))
        owners = self._ids[indexes]
        if not lifted.all():
            # Nearly always there are no partials, and columns are looked at as they are.
            plain = ~lifted if lifted.any() else slice(None)
            origins = table.column("origin").to_numpy()[plain]
            sequences = table.column("sequence").to_numpy()[plain]
            self._note_causes(origins, sequences)
            fresh = self.channels.fresh(owners[plain], origins, sequences, self._note)
            if fresh is not None:
                kept = lifted.copy()
                kept[plain] = fresh
                table = wire.where(table, kept)
                edges, lifted, owners = edges[kept], lifted[kept], owners[kept]
        for edge in np.unique(wire.plain(edges[lifted])).tolist():
            far = through.get(edge, {})
            for sender, number in far.items():
                self._note(sender, number)
            for interval in np.unique(owners[lifted & (wire.plain(edges) == edge)]).tolist():
                self.channels.advance(interval, far)
        return table

    # -- how far the input was consumed ------------------------------------------------------------

    def _note_few(self, arrived: Iterable[_Arrived]) -> None:
        weak = self.channels.weak
        for _, _, origin, sequence, _, _ in arrived:
            if origin >= _FIRST_ORIGIN:
                self._note(sender_of(origin, sequence), number_of(origin, sequence))
            elif weak and is_weak(origin):
                self._note_cause(origin, sequence)

    def _note_cause(self, origin: int, sequence: int) -> None:
        """Note the record that a weak production was made of: it may be read again, too."""
        cause = cause_of(origin, sequence)
        self._note(sender_of(*cause), number_of(*cause))

    def _note_causes(self, origins: Ints, sequences: Ints) -> None:
        """Note the records that weak productions were made of: they may be read again, too."""
        if not self.channels.weak or int(origins.min()) >= _FIRST_ORIGIN:
            return
        weak = are_weak(origins)
        for origin, sequence in _lasts(origins[weak], sequences[weak]):
            self._note_cause(origin, sequence)

    def _note(self, sender: Sender, number: Number) -> None:
        who, process = sender
        if who >= FIRST_INJECTED:
            at, count = (who - FIRST_INJECTED, process), injected_count(number)
            self._input[at] = max(self._input.get(at, -1), count)


def _lasts(origins: Ints, sequences: Ints) -> Iterator[tuple[int, int]]:
    """Yield the last id of each sender."""
    senders, sender_of_each = coded((origins >> 48 << 31) | (sequences >> ROW_BITS))
    _, most, last = lasts(sender_of_each, len(senders), origins, sequences)
    yield from zip(most.tolist(), last.tolist(), strict=True)
