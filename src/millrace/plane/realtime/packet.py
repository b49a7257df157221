"""Packets of the real-time plane: what one task sends to one task of the next level, at once.

They are numbered by sender and receiver, so that the order on which exactly-once rests is checked
and not assumed. A packet that would be too large is cut, and the parts but the last say that more
follows: a receiver takes them together.

Source: docs/design/2026-11-22-the-real-time-plane.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.ipc as ipc

from millrace.model.errors import InvariantViolation
from millrace.plane.handful import Handful
from millrace.plane.packet import parts_by_task
from millrace.plane.realtime.telling import ALONE_US, Telling
from millrace.plane.realtime.terse import LeftOut, Terse
from millrace.watermark.propagation import Message
from millrace.windmill.channels import Number, Sender

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

_NOTHING: Final[Mapping[int, Handful]] = {}


class Rows(msgspec.Struct, array_like=True):
    """Rows in a packet.

    Attributes:
        stream: Batches of one schema, as an Arrow stream.
        left_out: What the rows of its one batch have besides; None if nothing.
    """

    stream: bytes
    left_out: LeftOut | None = None


_NO_ROWS: Final[list[list[Rows]]] = [[]]


class Packet(msgspec.Struct, array_like=True):
    """What one task sends to one task of the next level at once, in this order.

    Attributes:
        session: Of both.
        sender: Number of the task that sends.
        number: 1, 2, 3 ... between these two tasks in this session.
        rows: Rows of the wire, in order.
        few: A handful besides, after them: of no sender the rows before some of ``rows``.
        through: How far senders have come in the partials among them.
        message: Low watermarks that hold when the rows have been taken; None if as before.
        mark: The mark that comes after all of this; NO_MARK if none.
        more: Whether the next packet of this sender belongs to this one.
        draining: Whether the mark ends the input.
        last: Whether nothing but this mark's work follows in the session.
    """

    session: int
    sender: int
    number: int
    rows: list[Rows] = []
    few: Handful | None = None
    through: Through = {}
    message: Message | None = None
    mark: int = NO_MARK
    more: bool = False
    draining: bool = False
    last: bool = False


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Packet).decode


def batches_of(packet: Packet) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a packet."""
    for rows in packet.rows:
        for batch in ipc.open_stream(rows.stream, options=_ALIGNED):
            yield batch if rows.left_out is None else rows.left_out.put_back(batch)


class Pipes:
    """The packets that one task sends.

    Args:
        session: The session.
        sender: Number of the task.
        receivers: How many tasks the next level has; 0 if it is the last.
        tell_us: How long a task that gets no rows waits for low watermarks.
    """

    def __init__(
        self, session: int, sender: int, receivers: int, *, tell_us: int = ALONE_US
    ) -> None:
        self._session = session
        self._sender = sender
        self._numbers = [0] * receivers
        self._telling = Telling(receivers, alone_us=tell_us)

    @property
    def wake_us(self) -> int:
        """When there is word for the next level, though nothing else leaves."""
        return self._telling.wake_us

    def send(
        self,
        batches: Iterable[pa.RecordBatch],
        few: Mapping[int, Handful] = _NOTHING,
        *,
        through: Mapping[int, Mapping[Sender, Number]] | None = None,
        message: Message,
        wall_us: int,
        mark: int = NO_MARK,
        draining: bool = False,
        last: bool = False,
    ) -> Iterator[tuple[int, bytes]]:
        """Yield what goes to each task: rows that name it, and what it is told.

        Args:
            batches: Rows of the wire.
            few: Task -> rows besides, after them: of no sender those before some of the batches.
            through: Edge -> how far senders have come in the partials among them.
            message: Low watermarks that hold when the rows have been taken.
            wall_us: What time it is.
            mark: The mark that comes after all of this, for all tasks; NO_MARK if none.
            draining: Whether the mark ends the input.
            last: Whether nothing but this mark's work follows in the session.
        """
        by_task: dict[int, list[pa.RecordBatch]] = {}
        for batch in batches:
            for pid, rows in parts_by_task(batch):
                by_task.setdefault(pid, []).append(rows)
        rows_for = {*by_task, *few}
        told = self._telling.tell(message, wall_us, rows_for, everyone=mark != NO_MARK)
        far = {
            edge: [(*sender, *number) for sender, number in of.items()]
            for edge, of in (through or {}).items()
        }
        for pid in sorted(rows_for | told):
            cuts = list(_cut(by_task[pid])) if pid in by_task else _NO_ROWS
            for n, rows in enumerate(cuts, 1):
                self._numbers[pid] += 1
                packet = Packet(self._session, self._sender, self._numbers[pid], rows)
                if n == len(cuts):
                    packet.few = few.get(pid)
                    packet.through = far if rows else {}
                    packet.message = message if pid in told else None
                    packet.mark, packet.draining, packet.last = mark, draining, last
                else:
                    packet.more = True
                yield pid, _encode(packet)


class Received:
    """The packets that one task gets: whole ones, in order, each sender's checked.

    Args:
        session: The session.
        where: The task, for messages.
        senders: How many tasks the level before has.
    """

    def __init__(self, session: int, where: str, senders: int) -> None:
        self._session = session
        self._where = where
        self._numbers = [0] * senders
        self._parts: list[list[Packet]] = [[] for _ in range(senders)]

    def take(self, packets: Iterable[bytes]) -> Iterator[Packet]:
        """Yield packets as they are complete.

        Those of a session before are passed over: tasks that began anew in their places may find
        some on the way, and what counts of them is sent again.

        Raises:
            InvariantViolation: One is missing, or comes twice, or is of a later session.
        """
        for data in packets:
            packet = _decode(data)
            if packet.session < self._session:
                continue
            if packet.session > self._session:
                raise InvariantViolation(
                    f"{self._where}: a packet of session {packet.session} arrived in session "
                    f"{self._session}, from task {packet.sender} of the level before."
                )
            expected = self._numbers[packet.sender] + 1
            if packet.number != expected:
                raise InvariantViolation(
                    f"{self._where}: packet {packet.number} of task {packet.sender} of the level "
                    f"before arrived where {expected} was expected. Order between two tasks is "
                    "what exactly-once rests on, so this session ends; nothing was lost."
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


def _cut(batches: Sequence[pa.RecordBatch]) -> Iterator[list[Rows]]:
    """Yield the rows of one packet after another."""
    open_: list[Terse] = []
    size = count = 0
    for batch in batches:
        for part in _parts(Terse.of(batch)):
            size += part.rows.nbytes
            count += part.rows.num_rows
            if open_ and (size > _PACKET or count > _ROWS):
                yield _streams(open_)
                open_, size, count = [], part.rows.nbytes, part.rows.num_rows
            open_.append(part)
    yield _streams(open_)


def _parts(terse: Terse) -> Iterator[Terse]:
    rows = terse.rows
    count = max(1, -(-rows.nbytes // _PACKET), -(-rows.num_rows // _ROWS))
    step = max(1, -(-rows.num_rows // count))
    for first in range(0, rows.num_rows, step):
        yield terse.slice(first, step)


def _streams(parts: Sequence[Terse]) -> list[Rows]:
    """Return rows as Arrow streams, one for each run of batches of one schema."""
    streams: list[Rows] = []
    n = 0
    while n < len(parts):
        first = parts[n]
        schema = first.rows.schema
        sink = pa.BufferOutputStream()
        with ipc.new_stream(sink, schema, options=_ONE_THREAD) as stream:
            while n < len(parts) and parts[n].goes_with(first):
                stream.write_batch(parts[n].rows)
                n += 1
        streams.append(Rows(sink.getvalue().to_pybytes(), first.left_out))
    return streams
