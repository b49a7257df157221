"""Routing: from a value produced on a stream to the rows that leave for its consumers.

Stateless steps run here, in the stage that feeds them (fusion), and every consumer's key is
extracted here, so that what is checkpointed with the commit is exactly what is sent: a replay needs
no user code.

Source: MillWheel, "Streams" (4.3), "Strong Productions" (6.1.2); docs/architecture.md.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from millrace.compile.topology import Edge, Topology, origin_of
from millrace.dataflow.columnar.chunks import Emitted, Updates
from millrace.kernel.record_ids import nth
from millrace.kernel.user_errors import opened
from millrace.model.coder import Coder, is_immutable
from millrace.model.copies import own_copy
from millrace.model.errors import RAISED, CoderError, PipelineError, brief_error
from millrace.model.keys import decode_key, encode_key, hash_key
from millrace.model.pane import Paned, PanedCoder, PanedExtractor, Window
from millrace.model.record import DeadLetter
from millrace.model.stream import ByKey, KeyExtractor, OfRecord, Spread, Step


class RowsBuilder:
    """Rows on their way to consumers, as columns of equal length.

    Attributes:
        edges: Number of the edge that each row travels.
        hashes: Unsigned hash of each key; 0 on the way to a sink.
        keys: Encoded keys; empty if there is none.
        values: Encoded values.
        timestamps: Event times in microseconds.
        causes: Id of the record that each was made of; None where nobody asks.
        ids: Both halves of the ids, if they have other ones than their commit gives them.
    """

    __slots__ = ("causes", "edges", "hashes", "ids", "keys", "timestamps", "values")

    def __init__(self) -> None:
        self.edges: list[int] = []
        self.hashes: list[int] = []
        self.keys: list[bytes] = []
        self.values: list[bytes] = []
        self.timestamps: list[int] = []
        self.causes: list[tuple[int, int]] | None = None
        self.ids: tuple[list[int], list[int]] | None = None

    def __len__(self) -> int:
        return len(self.edges)

    def extend(self, others: RowsBuilder) -> None:
        """Append rows that have neither causes nor ids of their own."""
        for name in ("edges", "hashes", "keys", "values", "timestamps"):
            getattr(self, name).extend(getattr(others, name))

    def truncate(self, length: int) -> None:
        """Take back everything after the first ``length`` rows."""
        for column in (self.edges, self.hashes, self.keys, self.values, self.timestamps):
            del column[length:]
        if self.causes is not None:
            del self.causes[length:]

    def caused_by(self, origin: int, sequence: int) -> None:
        """Record the cause of all rows added since the last call, if causes are recorded."""
        if self.causes is not None:
            self.causes += [(origin, sequence)] * (len(self.edges) - len(self.causes))

    def pack(self) -> bytes:
        """Return the rows as bytes, for the commit."""
        if not self.edges:
            return b""
        columns = (self.edges, self.hashes, self.keys, self.values, self.timestamps)
        return _encode(columns if self.ids is None else (*columns, *self.ids))

    @classmethod
    def unpack(cls, data: bytes) -> RowsBuilder:
        """Return the rows that :meth:`pack` made the bytes from."""
        builder = cls()
        if data:
            packed = _decode(data)
            builder.edges, builder.hashes, builder.keys = packed.edges, packed.hashes, packed.keys
            builder.values, builder.timestamps = packed.values, packed.timestamps
            if packed.origins:
                builder.ids = packed.origins, packed.sequences
        return builder


class _Packed(msgspec.Struct, array_like=True, gc=False):
    edges: list[int]
    hashes: list[int]
    keys: list[bytes]
    values: list[bytes]
    timestamps: list[int]
    origins: list[int] = []
    sequences: list[int] = []


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Packed).decode


class Route:
    """Everything that hangs on one stream, or a part of it."""

    __slots__ = ("coder", "edges", "name", "steps")

    def __init__(
        self,
        name: str,
        coder: Coder,
        edges: list[tuple[int, KeyExtractor | None]],
        steps: tuple[Step, ...],
    ) -> None:
        self.name = name
        self.coder = coder
        self.edges = edges
        #: With whether its function may change a value, whether other steps come after it, and
        #: whether what comes of it has the same bytes.
        self.steps = [(step, step.may_change, step is not steps[-1], False) for step in steps]

    def know(self, routes: Mapping[str, Route]) -> None:
        """Note which steps leave values, and so their bytes, as they are."""
        self.steps = [
            (
                step,
                may_change,
                more,
                step.keeps_values
                and routes[step.target].coder == self.coder
                and (not may_change or is_immutable(self.coder)),
            )
            for step, may_change, more, _ in self.steps
        ]


class Router:
    """Sends values down a topology's streams."""

    def __init__(self, topology: Topology) -> None:
        self._routes = {
            spec.name: Route(
                spec.name,
                spec.limited_coder,
                [(edge.number, edge.extractor) for edge in spec.edges],
                spec.steps,
            )
            for spec in topology.streams.values()
        }
        for route in self._routes.values():
            route.know(self._routes)
        self._identified = frozenset(e.number for e in topology.edges if e.identified)
        self._topology = topology
        self._ways: dict[tuple[str, str], Route] = {}
        # A key's productions come one after the other, and most keep the key: its bytes and hash
        # are made once. Keys cannot change, so the same object is the same key.
        self._kept: tuple[Any, bytes, int] = (self, b"", 0)

    def send(
        self,
        productions: RowsBuilder,
        stream: str,
        value: Any,
        timestamp_us: int,
        key: Any,
        *,
        shared: bool = True,
    ) -> None:
        """Append the rows that a value on a stream becomes.

        Args:
            productions: Where the rows go; unchanged if anything is refused.
            stream: A stream of the topology.
            value: Of the stream's format.
            timestamp_us: Event time.
            key: The producer's key; None at an injector.
            shared: Whether others have the value, so that no step may change it.

        Raises:
            CoderError: The value is not of the stream's format, or an extracted key cannot be one.
        """
        length = len(productions.edges)
        try:
            self._send(productions, self._routes[stream], value, timestamp_us, key, shared=shared)
        except BaseException:
            productions.truncate(length)
            raise

    def part(
        self, stream: str, part: Step | tuple[Edge, ...], extractor: KeyExtractor | None = None
    ) -> Route:
        """Return a step or some edges of a stream, for :meth:`send_on`.

        Args:
            stream: A stream of the topology.
            part: One of its steps, or some of its edges.
            extractor: Of the edges, in the place of their own.
        """
        whole = self._routes[stream]
        if isinstance(part, Step):
            route = Route(whole.name, whole.coder, [], (part,))
            route.know(self._routes)
            return route
        edges = [(edge.number, extractor or edge.extractor) for edge in part]
        return Route(whole.name, whole.coder, edges, ())

    def send_on(
        self, productions: RowsBuilder, route: Route, value: Any, timestamp_us: int, key: Any
    ) -> None:
        """Append the rows that a value becomes on a part of a stream; others have the value.

        Args:
            productions: Where the rows go; some may be there if anything is refused.
            route: As :meth:`part` returns it.
            value: Of the stream's format.
            timestamp_us: Event time.
            key: The producer's key.
        """
        self._send(productions, route, value, timestamp_us, key)

    def send_letter(
        self, productions: RowsBuilder, dead_letter: DeadLetter, timestamp_us: int
    ) -> None:
        """Append the rows of a dead letter's record: to whom it failed for, and to nobody else.

        One that failed before it came to a computation goes on by all edges and steps.

        Args:
            productions: Where the rows go; unchanged if anything is refused.
            dead_letter: The dead letter.
            timestamp_us: Event time.

        Raises:
            PipelineError: The pipeline has no such stream, or nobody it is for; or the record is
                not of the stream's format.
        """
        length = len(productions)
        way = self._ways.get((dead_letter.stream, dead_letter.computation))
        if way is None:
            way = self._way(dead_letter.stream, dead_letter.computation)
            self._ways[dead_letter.stream, dead_letter.computation] = way
        enclosed = opened(dead_letter.encoded)
        try:
            value = way.coder.decode(enclosed.value)
        except RAISED as error:
            raise CoderError(f"stream {way.name!r}: {brief_error(error)}") from error
        key = decode_key(enclosed.key) if enclosed.key else None
        try:
            self._send(productions, way, value, timestamp_us, key, shared=False)
        except BaseException:
            productions.truncate(length)
            raise

    def _way(self, stream: str, computation: str) -> Route:
        """Return where the dead letters of a stream go, of a computation or of none."""
        topology = self._topology
        name = next(
            (
                spec.name
                for spec in topology.streams.values()
                if stream == spec.name or (spec.injection and stream in spec.injection.was)
            ),
            None,
        )
        if not computation:
            if name is None:
                raise PipelineError(f"this pipeline has no stream {stream!r}")
            return self._routes[name]
        known = {
            spec.name
            for spec in topology.computations
            if computation == spec.title or computation in spec.evolution.was
        }
        inputs = {edge.stream for edge in topology.edges if edge.computation in known}
        if name not in inputs:
            # Steps have made-up names, and others since steps came or went.
            same = [each for each in inputs if origin_of(each) == origin_of(name or stream)]
            name = same[0] if len(same) == 1 else None
        if name is None:
            raise PipelineError(
                f"no computation {computation!r} of this pipeline reads stream {stream!r}"
            )
        edges = [
            # What the producer's key was, is in the letter as the consumer's.
            (edge.number, ByKey() if _by_producer(edge.extractor) else edge.extractor)
            for edge in topology.streams[name].edges
            if edge.computation in known
        ]
        whole = self._routes[name]
        return Route(whole.name, whole.coder, edges, ())

    def send_panes(self, productions: RowsBuilder, emitted: Emitted) -> None:
        """Append the rows of many panes, in whole columns where consumers keep the keys.

        Raises:
            CoderError: As :meth:`send`; then some rows may have been appended.
        """
        route = self._routes[emitted.stream]
        extractors = [extractor for _, extractor in route.edges if extractor is not None]
        coder = route.coder
        if route.steps or not isinstance(coder, PanedCoder) or not all(map(_keeps, extractors)):
            for encoded, paned, at_us in panes_of(emitted):
                self._send(productions, route, paned, at_us, decode_key(encoded))
            return
        try:
            data = coder.encode_panes(emitted.values, emitted.pane, emitted.windows)
        except CoderError as refused:
            raise CoderError(f"stream {emitted.stream!r}: {refused}") from None
        count = len(data)
        for number, extractor in route.edges:
            productions.edges += [number] * count
            productions.hashes += [0] * count if extractor is None else emitted.hashes
            productions.keys += emitted.keys
            productions.values += data
            productions.timestamps += emitted.timestamps

    def send_updates(self, productions: RowsBuilder, updates: Updates) -> None:
        """Append the rows of many values, in whole columns as far as steps make one of each.

        Raises:
            Exception: As :meth:`send`, or a step's; then some rows may have been appended.
        """
        route = self._routes[updates.stream]
        self._send_updates(productions, route, updates, updates.values, shared=updates.shared)

    def _send_updates(
        self,
        productions: RowsBuilder,
        route: Route,
        updates: Updates,
        values: Sequence[Any],
        *,
        shared: bool,
    ) -> None:
        coder, paned = route.coder, bool(updates.panes)
        if not (
            isinstance(coder, PanedCoder) is paned
            and all(extractor is None or _keeps(extractor) for _, extractor in route.edges)
            and all(_makes_one(step) for step, *_ in route.steps)
        ):
            if paned:
                values = list(map(Paned, values, updates.panes))
            for key, value, at_us in zip(updates.keys, values, updates.timestamps, strict=True):
                self._send(productions, route, value, at_us, decode_key(key), shared=shared)
            return
        if route.edges or not updates.sure or values is not updates.values:
            try:
                if isinstance(coder, PanedCoder):
                    data = coder.encode_with(values, updates.tails)
                else:
                    data = list(map(coder.encode, values))
            except CoderError as refused:
                raise CoderError(f"stream {route.name!r}: {refused}") from None
            for number, extractor in route.edges:
                productions.edges += [number] * len(data)
                productions.hashes += [0] * len(data) if extractor is None else updates.hashes
                productions.keys += updates.keys
                productions.values += data
                productions.timestamps += updates.timestamps
        for step, may_change, more, _ in route.steps:
            given, theirs = values, shared or more
            if theirs and may_change:
                given, theirs = list(map(own_copy, values)), False
            results = given if step.kind == "to" else list(map(step.function, given))
            self._send_updates(
                productions, self._routes[step.target], updates, results, shared=theirs
            )

    def send_injected(
        self,
        productions: RowsBuilder,
        stream: str,
        value: Any,
        timestamp_us: int,
        fingerprint: bytes | None,
    ) -> None:
        """Append the rows of a record from an injector; its id's fingerprint goes with them.

        Args:
            productions: Where the rows go; unchanged if anything is refused.
            stream: A stream of the topology.
            value: Of the stream's format.
            timestamp_us: Event time.
            fingerprint: Of the record's id; ``NO_FINGERPRINT`` if it has none; None if its injector
                has no ids.
        """
        length = len(productions.edges)
        self.send(productions, stream, value, timestamp_us, None, shared=False)
        if fingerprint is None:
            return
        sent: dict[int, int] = {}
        for n, edge in enumerate(productions.edges[length:], length):
            if edge in self._identified:
                nth_row = sent[edge] = sent.get(edge, -1) + 1
                productions.values[n] = nth(fingerprint, nth_row) + productions.values[n]

    def send_all(
        self,
        productions: RowsBuilder,
        stream: str,
        values: Sequence[Any],
        timestamps: Sequence[Any],
        fingerprints: Sequence[bytes | None] | None,
    ) -> bool:
        """Append the rows of many records from an injector, if each becomes one; return whether.

        What is not as it should be is left to :meth:`send_injected`, which can say at which record.

        Args:
            productions: Where the rows go; unchanged if False is returned.
            stream: A stream of the topology.
            values: Of the stream's format.
            timestamps: Event times in microseconds.
            fingerprints: As :meth:`send_injected` takes them.
        """
        route = self._routes[stream]
        if route.steps or len(route.edges) != 1:
            return False
        if fingerprints is not None and None in fingerprints:
            return False
        ((number, extractor),) = route.edges
        count, encode = len(values), route.coder.encode
        try:
            data = [encode(value) for value in values]
            if extractor is None:
                keys, hashes = [b""] * count, [0] * count
            elif type(extractor) is Spread:
                return False
            else:
                keys = [encode_key(extractor(value, None)) for value in values]
                hashes = [hash_key(key) for key in keys]
        except RAISED:
            return False
        if fingerprints is not None and number in self._identified:
            data = [
                (fingerprint or b"") + encoded
                for fingerprint, encoded in zip(fingerprints, data, strict=True)
            ]
        productions.edges += [number] * count
        productions.hashes += hashes
        productions.keys += keys
        productions.values += data
        productions.timestamps += timestamps
        return True

    def _send(
        self,
        productions: RowsBuilder,
        route: Route,
        value: Any,
        timestamp_us: int,
        key: Any,
        *,
        shared: bool = True,
        data: bytes | None = None,
    ) -> None:
        """Append the rows of a value; if it is shared, no step may change it, else the last may.

        ``data`` are its bytes, if they were made for the stream before.
        """
        stream = route.name
        try:
            if data is None:
                data = route.coder.encode(value)
        except CoderError as refused:
            raise CoderError(f"stream {stream!r}: {refused}") from None
        for number, extractor in route.edges:
            if extractor is None:
                encoded = b"" if key is None else encode_key(key)
                hashed = 0
            elif type(extractor) is ByKey:
                keys, encoded, hashed = self._kept
                if keys is not key:
                    encoded = self._extract(extractor, value, key, stream, data, timestamp_us)
                    hashed = hash_key(encoded)
                    self._kept = key, encoded, hashed
            else:
                encoded = self._extract(extractor, value, key, stream, data, timestamp_us)
                hashed = hash_key(encoded)
            productions.edges.append(number)
            productions.hashes.append(hashed)
            productions.keys.append(encoded)
            productions.values.append(data)
            productions.timestamps.append(timestamp_us)
        for step, may_change, more, same in route.steps:
            at_us, given, theirs = timestamp_us, value, shared or more
            if theirs and may_change:
                given, theirs = _own(value), False
            if step.backwards_us is not None:
                at_us = step.moved(given, key, timestamp_us)
            for result, made_key in step.apply(given, key, at_us):
                self._send(
                    productions,
                    self._routes[step.target],
                    result,
                    at_us,
                    made_key,
                    shared=theirs,
                    data=data if same else None,
                )

    @staticmethod
    def _extract(
        extractor: KeyExtractor, value: Any, key: Any, stream: str, data: bytes, timestamp_us: int
    ) -> bytes:
        try:
            extracted = extractor(value, key)
            if type(extractor) is Spread:
                extracted = (extractor.part_of(data, timestamp_us), extracted)
            return encode_key(extracted)
        except CoderError as refused:
            raise CoderError(f"{extractor!r} on stream {stream!r}: {refused}") from None


def _own(value: Any) -> Any:
    return Paned(own_copy(value.value), value.pane) if type(value) is Paned else own_copy(value)


def panes_of(emitted: Emitted) -> Iterator[tuple[bytes, Paned, int]]:
    """Yield the encoded key, value with its pane, and event time of each pane."""
    windows = emitted.windows or itertools.repeat(None, len(emitted.keys))
    for key, value, window, at_us in zip(
        emitted.keys, emitted.values, windows, emitted.timestamps, strict=True
    ):
        pane = emitted.pane
        if window is not None:
            pane = msgspec.structs.replace(pane, window=Window(*window))
        yield key, Paned(value, pane), at_us


def _makes_one(step: Step) -> bool:
    """Return whether a step makes one value of each, and looks at nothing else."""
    return step.kind == "to" or (step.kind == "map" and type(step.function) is not OfRecord)


def _keeps(extractor: KeyExtractor) -> bool:
    """Return whether an extractor keeps the producer's key."""
    plain = extractor.plain if isinstance(extractor, PanedExtractor) else extractor
    return isinstance(plain, ByKey)


def _by_producer(extractor: KeyExtractor | None) -> bool:
    """Return whether a key may be what the producer's was, or of what it had."""
    plain = extractor.plain if isinstance(extractor, Spread) else extractor
    plain = plain.plain if isinstance(plain, PanedExtractor) else plain
    return plain is not None and (isinstance(plain, ByKey) or plain.sees)


def sink_key(encoded: bytes) -> Any:
    """Return the key of a row that arrived at a sink; None if its producer had none."""
    return decode_key(encoded) if encoded else None
