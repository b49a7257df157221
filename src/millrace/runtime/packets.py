"""Packets: what one task sends to one task of the next level at once.

To an engine a row is a row: it is copied, hashed and written for itself, and handed to Python and
back. So what a Python stage sends to one task travels as few rows of two columns, the task and a
packet.

In an epoch a packet is bare: an Arrow stream of some megabytes at the most, of rows of the same
columns. Low watermarks are rows of their own among them, as the exchange is the barrier: they are
those of the whole epoch, and come in any order.

In real time a packet holds rows, low watermarks and a mark, in this order. They are numbered by
sender and receiver, so that the order on which exactly-once rests is checked and not assumed. A
packet that would be too large is cut, and the parts but the last say that more follows: a receiver
takes them together. A packet costs a hand-over to Spark and a turn of its receiver, however little
is in it. So low watermarks travel along with rows, where they cost nothing, and by themselves only
to tasks that have received none for a while.

Source: MillWheel 4.5; docs/design/2026-11-22-the-real-time-plane.md.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.ipc as ipc
from msgspec.structs import replace

from millrace.kernel.channels import Number, Sender
from millrace.model.errors import InvariantViolation
from millrace.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP, is_over
from millrace.runtime.packet_codec import LeftOut, Terse
from millrace.runtime.rows import RowColumns, Rows
from millrace.runtime.wire import parts_by_task
from millrace.watermark.propagation import Message

#: A task that gets no rows is told no more often than this.
ALONE_US = 15_000
#: One that gets rows is told with them, no more often than this: it costs the receiver to hear it.
WITH_ROWS_US = 2_000


class Telling:
    """Throttles messages to the tasks of the next level: the last one sent to each, and when.

    Args:
        receivers: How many tasks the next level has; 0 if this is the last.
        alone_us: How long a task that gets no rows waits for word.
        with_rows_us: How long one waits that gets rows.

    Attributes:
        wake_us: When a task wants to be told what it was not told yet.

    >>> moved = [Message({"injector:orders": us}, {}, {}) for us in (1, 2)]
    >>> telling = Telling(2)
    >>> telling.tell(moved[0], 0, {0}, everyone=False)  # nobody has heard anything yet
    {0, 1}
    >>> telling.tell(moved[1], 5_000, {0}, everyone=False), telling.wake_us
    ({0}, 15000)
    >>> telling.tell(moved[1], 15_000, (), everyone=False)
    {1}
    """

    def __init__(
        self, receivers: int, *, alone_us: int = ALONE_US, with_rows_us: int = WITH_ROWS_US
    ) -> None:
        self._alone_us = alone_us
        self._with_rows_us = min(with_rows_us, alone_us)
        self._last_sent: list[Message | None] = [None] * receivers
        self._sent_us = [MIN_TIMESTAMP] * receivers
        self.wake_us = MAX_TIMESTAMP

    def tell(
        self, message: Message, wall_us: int, rows_for: Collection[int], *, everyone: bool
    ) -> set[int]:
        """Return which tasks are told a message now; take it that they are.

        Args:
            message: What is to be told now.
            wall_us: What time it is.
            rows_for: Tasks that get rows anyway.
            everyone: Whether all are told, as with a mark, or where records are counted in it.
        """
        tasks: set[int] = set()
        everyone = everyone or bool(message.ahead)
        lasting = replace(message, ahead={}) if message.ahead else message
        self.wake_us = MAX_TIMESTAMP
        for task, told in enumerate(self._last_sent):
            if not everyone:
                if told is lasting or told == lasting:
                    continue
                after_us = self._with_rows_us if task in rows_for else self._alone_us
                if not is_over(after_us, self._sent_us[task], wall_us):
                    self.wake_us = min(self.wake_us, self._sent_us[task] + self._alone_us)
                    continue
            tasks.add(task)
            self._last_sent[task], self._sent_us[task] = lasting, wall_us
        return tasks


#: Says that no mark is in a packet; marks are epochs, from 0.
NO_MARK: Final = -1

#: Bytes of rows after which a packet is cut. The JVM copies it several times, and an array of half
#: a region of its heap, which are of 2 MiB with 4 GiB, is no longer made where others are.
_PACKET: Final = 960 << 10
#: Rows after which it is, however short they are: some packets are always on their way to a task,
#: and user code may take long for each row.
_ROWS: Final = 1 << 15

_ALIGNED: Final = ipc.IpcReadOptions(ensure_alignment=ipc.Alignment.DataTypeSpecific)
_ONE_THREAD: Final = ipc.IpcWriteOptions(use_threads=False)

#: Edge -> sender -> the last of its numbers that partials on that edge stand for.
Through = dict[int, list[tuple[int, int, int, int]]]


class RowStream(msgspec.Struct, array_like=True, tag=0):
    """Many rows in a packet.

    Attributes:
        stream: Batches of one schema, as an Arrow stream.
        left_out: What the rows of its one batch have besides; None if nothing.
    """

    stream: bytes
    left_out: LeftOut | None = None


#: Rows in a packet: many, or few.
PackedRows = RowStream | RowColumns

_NO_ROWS: Final[list[list[PackedRows]]] = [[]]


class Packet(msgspec.Struct, array_like=True):
    """What one task sends to one task of the next level at once, in this order.

    Attributes:
        incarnation: Of both.
        sender: Number of the task that sends.
        number: 1, 2, 3 ... between these two tasks in this incarnation.
        rows: Rows on edges, in order.
        through: How far senders have come in the partials among them.
        message: Low watermarks that hold when the rows have been taken; None if as before.
        mark: The mark that comes after all of this; NO_MARK if none.
        more: Whether the next packet of this sender belongs to this one.
        draining: Whether the mark ends the input.
        last: Whether nothing but this mark's work follows in the incarnation.
    """

    incarnation: int
    sender: int
    number: int
    rows: list[PackedRows] = []
    through: Through = {}
    message: Message | None = None
    mark: int = NO_MARK
    more: bool = False
    draining: bool = False
    last: bool = False


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Packet).decode


def rows_of(packet: Packet) -> Iterator[Rows]:
    """Yield the rows of a packet, in order."""
    for packed in packet.rows:
        if isinstance(packed, RowColumns):
            yield Rows(packed)
            continue
        for batch in ipc.open_stream(packed.stream, options=_ALIGNED):
            left_out = packed.left_out
            yield Rows(batch if left_out is None else left_out.put_back(batch))


class Pipes:
    """The packets that one task sends.

    Args:
        incarnation: The incarnation.
        sender: Number of the task.
        receivers: How many tasks the next level has; 0 if it is the last.
        tell_us: How long a task that gets no rows waits for low watermarks.
    """

    def __init__(
        self, incarnation: int, sender: int, receivers: int, *, tell_us: int = ALONE_US
    ) -> None:
        self._incarnation = incarnation
        self._sender = sender
        self._numbers = [0] * receivers
        self._telling = Telling(receivers, alone_us=tell_us)

    @property
    def wake_us(self) -> int:
        """When there is word for the next level, though nothing else leaves."""
        return self._telling.wake_us

    def send(
        self,
        rows: Iterable[Rows],
        *,
        through: Mapping[int, Mapping[Sender, Number]] | None = None,
        message: Message,
        wall_us: int,
        mark: int = NO_MARK,
        draining: bool = False,
        last: bool = False,
    ) -> Iterator[tuple[int, bytes]]:
        """Yield (task, packet): the task's rows, and the message if one is due.

        Args:
            rows: On edges, those of a sender in order.
            through: Edge -> how far senders have come in the partials among them.
            message: Low watermarks that hold when the rows have been taken.
            wall_us: What time it is.
            mark: The mark that comes after all of this, for all tasks; NO_MARK if none.
            draining: Whether the mark ends the input.
            last: Whether nothing but this mark's work follows in the incarnation.
        """
        by_task: dict[int, list[Rows]] = {}
        for some in rows:
            for task, part in some.by_task():
                by_task.setdefault(task, []).append(part)
        told = self._telling.tell(message, wall_us, by_task.keys(), everyone=mark != NO_MARK)
        far = {
            edge: [(*sender, *number) for sender, number in numbers.items()]
            for edge, numbers in (through or {}).items()
        }
        for task in sorted(by_task.keys() | told):
            cuts = list(_cut(by_task[task])) if task in by_task else _NO_ROWS
            for n, packed in enumerate(cuts, 1):
                self._numbers[task] += 1
                packet = Packet(self._incarnation, self._sender, self._numbers[task], packed)
                if n == len(cuts):
                    packet.through = far if packed else {}
                    packet.message = message if task in told else None
                    packet.mark, packet.draining, packet.last = mark, draining, last
                else:
                    packet.more = True
                yield task, _encode(packet)


class Received:
    """The packets that one task gets: whole ones, in order, each sender's checked.

    Args:
        incarnation: The incarnation.
        where: The task, for messages.
        senders: How many tasks the level before has.
    """

    def __init__(self, incarnation: int, where: str, senders: int) -> None:
        self._incarnation = incarnation
        self._where = where
        self._numbers = [0] * senders
        self._parts: list[list[Packet]] = [[] for _ in range(senders)]

    def take(self, packets: Iterable[bytes]) -> Iterator[Packet]:
        """Yield packets as they are complete.

        Those of an incarnation before are passed over: tasks that began anew in their places may
        find some on the way, and what counts of them is sent again.

        Raises:
            InvariantViolation: One is missing, or comes twice, or is of a later incarnation.
        """
        for data in packets:
            packet = _decode(data)
            if packet.incarnation < self._incarnation:
                continue
            if packet.incarnation > self._incarnation:
                raise InvariantViolation(
                    f"{self._where}: a packet of incarnation {packet.incarnation} arrived in "
                    f"incarnation {self._incarnation}, from task {packet.sender} of the level "
                    "before."
                )
            expected = self._numbers[packet.sender] + 1
            if packet.number != expected:
                raise InvariantViolation(
                    f"{self._where}: packet {packet.number} of task {packet.sender} of the level "
                    f"before arrived where {expected} was expected. Order between two tasks is "
                    "what exactly-once rests on, so this incarnation ends; nothing was lost."
                )
            self._numbers[packet.sender] = expected
            parts = self._parts[packet.sender]
            if packet.more:
                parts.append(packet)
                continue
            if parts:
                packet.rows = [rows for part in (*parts, packet) for rows in part.rows]
                parts.clear()
            yield packet


def _cut(rows: Sequence[Rows]) -> Iterator[list[PackedRows]]:
    """Yield the rows of one packet after another."""
    if len(rows) == 1 and (few := rows[0].few) is not None:
        yield [few]  # of nearly every turn
        return
    open_: list[Terse | RowColumns] = []
    size = count = 0
    for part in itertools.chain.from_iterable(map(_parts, rows)):
        nbytes, length = part.nbytes, len(part)
        if open_ and (size + nbytes > _PACKET or count + length > _ROWS):
            yield _packed(open_)
            open_, size, count = [], 0, 0
        size, count = size + nbytes, count + length
        open_.append(part)
    yield _packed(open_)


def _parts(rows: Rows) -> Iterator[Terse | RowColumns]:
    if rows.few is not None:
        yield rows.few
        return
    terse = Terse.of(rows.batch())
    count = max(1, -(-terse.nbytes // _PACKET), -(-len(terse) // _ROWS))
    step = max(1, -(-len(terse) // count))
    for first in range(0, len(terse), step):
        yield terse.slice(first, step)


def _packed(parts: Sequence[Terse | RowColumns]) -> list[PackedRows]:
    """Return rows as they are, if few, and as Arrow streams, one for a run of one schema."""
    packed: list[PackedRows] = []
    n = 0
    while n < len(parts):
        first = parts[n]
        if isinstance(first, RowColumns):
            packed.append(first)
            n += 1
            continue
        sink = pa.BufferOutputStream()
        with ipc.new_stream(sink, first.rows.schema, options=_ONE_THREAD) as stream:
            while n < len(parts) and first.goes_with(part := parts[n]):
                assert isinstance(part, Terse), "no other goes with one"
                stream.write_batch(part.rows)
                n += 1
        packed.append(RowStream(sink.getvalue().to_pybytes(), first.left_out))
    return packed


PACKET_SCHEMA: Final = pa.schema([("pid", pa.int32()), ("packet", pa.binary())])
PACKET_DDL: Final = "pid int, packet binary"

#: Bytes after which a packet is closed. A larger one saves nothing more, and an engine keeps whole
#: rows in memory.
_EPOCH_PACKET: Final = 2 << 20
#: Bytes of all packets that are being filled, after which all are closed.
_WAITING: Final = 64 << 20

# A packet begins anywhere in the row that it came in, and NumPy is slow over what is not aligned.


def packed(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield rows that name a task (``pid``) as packets, those for one task in their order.

    >>> rows = pa.RecordBatch.from_pydict({"pid": pa.array([1, 0, 1], pa.int32()), "n": [5, 6, 7]})
    >>> packets = list(packed([rows]))
    >>> [batch.column("pid").to_pylist() for batch in packets]
    [[0, 1]]
    >>> [batch.column("n").to_pylist() for batch in unpacked(packets)]
    [[6], [5, 7]]
    """
    filling = _Filling()
    for batch in batches:
        for pid, rows in parts_by_task(batch):
            for part in _parts_of_epoch(rows):
                filling.add(pid, part)
        if filling.closed:
            yield filling.take()
    filling.close()
    if filling.closed:
        yield filling.take()


def unpacked(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows in packets; rows that are in none as they came."""
    for batch in batches:
        if "packet" not in batch.schema.names:
            yield batch
            continue
        for packet in batch.column("packet"):
            yield from ipc.open_stream(packet.as_buffer(), options=_ALIGNED)


class _Filling:
    """The packets that are being filled, and those that are closed."""

    def __init__(self) -> None:
        self._open: dict[tuple[int, Any], list[pa.RecordBatch]] = {}
        self._bytes: dict[tuple[int, Any], int] = {}
        self._waiting = 0
        self.closed: list[tuple[int, pa.Buffer]] = []

    def add(self, pid: int, rows: pa.RecordBatch) -> None:
        """Put rows into the packet of a task."""
        here, size = (pid, rows.schema), rows.nbytes
        if self._bytes.get(here, 0) + size > _EPOCH_PACKET:
            self._close(here)
        self._open.setdefault(here, []).append(rows)
        self._bytes[here] = self._bytes.get(here, 0) + size
        self._waiting += size
        if self._waiting > _WAITING:
            self.close()

    def close(self) -> None:
        """Close all packets."""
        for here in list(self._open):
            self._close(here)

    def take(self) -> pa.RecordBatch:
        """Return the packets that are closed, as rows."""
        pids, packets = zip(*self.closed, strict=True)
        self.closed = []
        data = pa.array([packet.to_pybytes() for packet in packets], pa.binary())
        return pa.RecordBatch.from_arrays([pa.array(pids, pa.int32()), data], schema=PACKET_SCHEMA)

    def _close(self, here: tuple[int, Any]) -> None:
        rows = self._open.pop(here, None)
        if rows is None:
            return
        self._waiting -= self._bytes.pop(here)
        sink = pa.BufferOutputStream()
        with ipc.new_stream(sink, here[1], options=_ONE_THREAD) as stream:
            for batch in rows:
                stream.write_batch(batch)
        self.closed.append((here[0], sink.getvalue()))


def _parts_of_epoch(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield rows in parts that fit into a packet each; a row that does not is one by itself."""
    size = rows.nbytes
    if size <= _EPOCH_PACKET or rows.num_rows == 1:
        yield rows
        return
    half = rows.num_rows // 2
    yield from _parts_of_epoch(rows.slice(0, half))
    yield from _parts_of_epoch(rows.slice(half))
