"""The receive queue: all that reaches a task from outside, in the order of its arrival.

Packets come from the level before by way of Spark's iterator, messages from the coordinator by the
connection. A thread reads each, as either may keep silent for hours while the task has other things
to do. Packets that wait are bounded by their bytes, to those that the task can do soon: beyond it
the iterator is not read, and the tasks before are held up by full buffers, back to the injectors.
So where more comes than can be done a record, and a mark, wait at the source, and not here.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from millrace.plane.realtime.messages import ToTask
from millrace.spark.realtime.flow_control import BYTES_MOST, FlowControl, TurnBudget

_log = logging.getLogger("millrace")


@dataclass
class ReceivedPackets:
    """What has arrived.

    Attributes:
        packets: In order.
        messages: Of the coordinator, in order.
        ended: Whether the input has ended, or broken off: no packet will arrive any more.
    """

    packets: list[bytes] = field(default_factory=list)
    messages: list[ToTask] = field(default_factory=list)
    ended: bool = False


class ReceiveQueue:
    """Takes packets and messages in, for one thread to take out.

    Args:
        packets: Blocks until there is one.
        hear: Blocks until the coordinator says something; raises when it is gone.
        bytes_max: Of packets that wait; one more may be in the hand.
    """

    def __init__(
        self,
        packets: Iterable[bytes],
        hear: Callable[[], ToTask],
        bytes_max: int = BYTES_MOST,
    ) -> None:
        # Of the two numbers each is written by one thread, so no lock is needed.
        self._in = self._out = 0
        self._may_wait = FlowControl.of_bytes(bytes_max)
        self._room = threading.Event()
        self._arrived: queue.SimpleQueue[bytes | ToTask | BaseException | None] = (
            queue.SimpleQueue()
        )
        self._closed = False
        self._ended = False
        for work in (lambda: self._pump(packets), lambda: self._listen(hear)):
            threading.Thread(target=work, name="millrace-receive", daemon=True).start()

    def take(self, wait_s: float) -> ReceivedPackets:
        """Return all that is there; wait for something, if nothing is.

        Args:
            wait_s: How long.

        Raises:
            Exception: What listening ended with.
        """
        taken = ReceivedPackets(ended=self._ended)
        try:
            self._sort(self._arrived.get(wait_s > 0, wait_s), taken)
            # Of what arrives meanwhile nothing: it might never end.
            for _ in range(self._arrived.qsize()):
                self._sort(self._arrived.get_nowait(), taken)
        except queue.Empty:
            pass
        if self._in - self._out < self._may_wait.amount:
            self._room.set()
        return taken

    def done(self, size: int, turn: TurnBudget) -> None:
        """Take it that a turn was over packets of so many bytes, and what it took."""
        self._may_wait.spent(size, turn)

    def close(self) -> None:
        """Read no more."""
        self._closed = True
        self._room.set()

    def _sort(self, arrived: bytes | ToTask | BaseException | None, taken: ReceivedPackets) -> None:
        if isinstance(arrived, bytes):
            self._out += len(arrived)
            taken.packets.append(arrived)
        elif arrived is None:
            self._ended = taken.ended = True
        elif isinstance(arrived, BaseException):
            raise arrived
        else:
            taken.messages.append(arrived)

    def _pump(self, packets: Iterable[bytes]) -> None:
        try:
            for packet in packets:
                self._in += len(packet)
                self._arrived.put(packet)
                while self._in - self._out >= self._may_wait.amount and not self._closed:
                    self._room.clear()
                    # What was taken out between the two lines above has rung before.
                    if self._in - self._out >= self._may_wait.amount:
                        self._room.wait()
                if self._closed:
                    return
        except Exception as error:  # noqa: BLE001  who reads is Spark
            # Spark has hung up in the middle of something. It has its own account of why.
            _log.info("the input broke off: %s", error)
        self._arrived.put(None)

    def _listen(self, hear: Callable[[], ToTask]) -> None:
        try:
            while not self._closed:
                self._arrived.put(hear())
        except BaseException as error:  # noqa: BLE001  it belongs to the thread that takes
            if not self._closed:
                self._arrived.put(error)
