"""The host of a task: the loop in a worker process that lets a live task have its turns.

Where an incarnation ends and the run rests, the task is closed and another made in its place, which
waits for the next incarnation; what reads packets and messages stays.

The *backoff* is how long a task waits after a turn before it begins the next. What comes meanwhile
shares the next turn, and its packets. So a busy machine is kept from turns that are ever smaller
and cost the more a record; a task that had nothing to do begins at once.

The *receive queue* has all that reaches a task from outside, in the order of its arrival. Packets
come from the level before by way of Spark's iterator, messages from the coordinator by the
connection. A thread reads each, as either may keep silent for hours while the task has other things
to do. Packets that wait are bounded by their bytes, to those that the task can do soon: beyond it
the iterator is not read, and the tasks before are held up by full buffers, back to the injectors.
So where more comes than can be done a record, and a mark, wait at the source, and not here.

Source: docs/design/2026-11-22-the-real-time-plane.md, "Tasks"; 2026-11-23-a-rest-in-real-time.md.
"""

from __future__ import annotations

import logging
import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field
from math import inf
from typing import Final, Protocol

from millrace.model.errors import MillraceError
from millrace.runtime.realtime.messages import (
    At,
    RenewTask,
    StartTask,
    StatusQuery,
    StopTask,
    Take,
    TaskEnded,
    TaskReady,
    ToDriver,
    ToTask,
)
from millrace.runtime.realtime.task import LiveTask, Sent
from millrace.runtime.stuck import Standstill
from millrace.spark.clock import now_us
from millrace.spark.realtime.control_connection import ConnectionBroken, packed_error
from millrace.spark.realtime.flow_control import BYTES_MOST, FlowControl, TurnBudget
from millrace.spark.realtime.latency import StepTimer
from millrace.spark.realtime.process_id import ProcessId

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


class _Ring:
    """Arrives where somebody rings."""


_RING: Final = _Ring()


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
        self._arrived: queue.SimpleQueue[bytes | ToTask | BaseException | _Ring | None] = (
            queue.SimpleQueue()
        )
        self._closed = False
        self._ended = False
        for work in (lambda: self._pump(packets), lambda: self._listen(hear)):
            threading.Thread(target=work, name="millrace-receive", daemon=True).start()

    def ring(self) -> None:
        """Have a :meth:`take` that waits return. Any thread may call it."""
        self._arrived.put(_RING)

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

    def _sort(
        self, arrived: bytes | ToTask | BaseException | _Ring | None, taken: ReceivedPackets
    ) -> None:
        if isinstance(arrived, bytes):
            self._out += len(arrived)
            taken.packets.append(arrived)
        elif isinstance(arrived, _Ring):
            pass
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


#: As many times a turn's CPU time, and so long at the most.
_TIMES: Final = 1.0
_MOST_S: Final = 0.002
#: An injector task waits longer, as long as turn and pause together take no longer than this. Each
#: of its turns makes one of the tasks after it, and they are done with it when the next comes.
_INJECTOR_TIMES: Final = 4.0
_CYCLE_S: Final = 0.01
#: After so many turns that found input some pauses are short, or until a turn waits for it. What
#: is late by less than the time between two inputs has then caught up.
_UNKNOWN_MOST: Final = 8
_PROBES: Final = 2


class Backoff:
    """The pauses of one task.

    An injector task makes the longer pause only where input comes at least twice in it. Otherwise
    no turn would be the larger for it, and the task would be late for a source that has something
    every few milliseconds: again and again, where turn and pause take as long as that. How often
    input comes is known of turns that had to wait for it, so now and then pauses are short.

    Args:
        level: The task's.

    >>> backoff = Backoff(1)
    >>> [backoff.after(ms / 1e3, 0.0, 0.0, ms / 1e3) * 1e3 for ms in (0.5, 50)]
    [0.5, 2.0]
    """

    def __init__(self, level: int) -> None:
        self._injects = not level
        self._ended_s = -inf
        self._unknown = 0

    def after(self, spent_s: float, began_s: float, waited_s: float, ended_s: float) -> float:
        """Return how long to pause after a turn, in seconds.

        Args:
            spent_s: The turn's CPU time, but for waiting.
            began_s: When it began, by any clock.
            waited_s: How long it waited for input then; 0 if there was some, or none is read.
            ended_s: When it ended, by the same clock.

        >>> backoff = Backoff(0)
        >>> backoff.after(0.0005, 0.0, 0.0, 0.001)  # there was something
        0.002
        >>> backoff.after(0.0005, 0.003, 0.002, 0.006)  # it came 4 ms after the end of the last
        0.0005
        >>> backoff.after(0.0005, 0.0065, 0.0004, 0.0075)  # 0.9 ms
        0.002
        """
        before_s, self._ended_s = self._ended_s, ended_s
        if self._injects:
            longer_s = min(_INJECTOR_TIMES * spent_s, max(_CYCLE_S - spent_s, _MOST_S))
            if waited_s:
                self._unknown = 0
                longer = began_s + waited_s - before_s < longer_s / 2
            else:
                self._unknown += 1
                longer = self._unknown % (_UNKNOWN_MOST + _PROBES) < _UNKNOWN_MOST
            if longer:
                return longer_s
        return min(_TIMES * spent_s, _MOST_S)


#: How long a level task sleeps at the most when nothing arrives.
_SLEEP_S = 0.5
#: How long an injector task may wait for input. A mark, or the end of Spark's batch, waits for it.
_INPUT_S = 0.02
#: What a turn sends within so long leaves at once, up to so many bytes: to hand something over to
#: Spark costs more than one packet more in it.
_TOGETHER_S = 0.0005
_TOGETHER_BYTES = 1 << 18
#: How long a task whose input has ended waits for word that the incarnation is over.
_PARTING_S = 0.1
#: How long a task waits, when its incarnation is over, for Spark to end it.
_LINGER_S = 20.0


class Speaking(Protocol):
    """A task's connection to the coordinator."""

    def say(self, message: ToDriver) -> None:
        """Send a message."""
        ...

    def hear(self) -> ToTask:
        """Wait for a message."""
        ...


class IncarnationOver(MillraceError):
    """The coordinator has ended the incarnation, and Spark has not ended the task since."""


def hosted(
    make: Callable[[], LiveTask],
    connection: Speaking,
    packets: Iterable[bytes],
    steps: StepTimer,
    clock: Callable[[], int] = now_us,
) -> Generator[list[Sent], None, bool]:
    """Run a task, one incarnation after another, until input ends or it is halted; yield packets.

    Args:
        make: Makes the task anew for each incarnation.
        connection: To the coordinator.
        packets: What the level before sends; of an injector task nothing ever comes, but the end.
        steps: Times it; knows when packets arrived, all that come.
        clock: Wall-clock microseconds since 1970.

    Returns:
        Whether it was halted, and Spark has ended it since.

    Raises:
        ConnectionBroken: The driver is gone.
        Exception: Whatever the task raises; the coordinator has been told.
    """
    task = make()
    still = Standstill(threading.get_ident(), hosted.__code__, _WAITS)
    queue = ReceiveQueue(packets, lambda: _hear(lambda: task, connection, still))
    me = socket.gethostname(), os.getpid(), str(ProcessId.of(os.getpid()))
    try:
        left: list[bytes] = []
        while True:
            connection.say(TaskReady(task.level, task.number, *me))
            loop = _Loop(task, connection, queue, steps, left, clock, still)
            yield from loop.run()
            if not loop.goes_on:
                break
            # Before another says that it is there: then the next incarnation seals segments.
            task.close()
            task, left = make(), loop.packets
        connection.say(TaskEnded(task.level, task.number))
        return loop.halted
    except ConnectionBroken:
        raise
    except Exception as error:
        connection.say(TaskEnded(task.level, task.number, packed_error(error)))
        raise
    finally:
        queue.close()
        task.close()


def _hear(now: Callable[[], LiveTask], connection: Speaking, still: Standstill) -> ToTask:
    """Wait for a message to the task; answer those to its host, whatever the task is doing."""
    while isinstance(message := connection.hear(), StatusQuery):
        connection.say(_at(now(), still))
    return message


def _at(task: LiveTask, still: Standstill) -> At:
    """Return what a task is doing, and whether it moves."""
    sight = still.look()
    if sight is None:
        return At(task.level, task.number, "")
    activity = ", ".join(filter(None, (task.at_hand(), sight.given))) or sight.place
    return At(task.level, task.number, activity, task.is_outside(), sight.moves)


class _Loop:
    """One incarnation of a task.

    Args:
        task: The task.
        connection: To the coordinator.
        queue: Of all incarnations.
        steps: Of all incarnations.
        packets: What had arrived when the incarnation before ended; the task passes it over.
        clock: Wall-clock microseconds since 1970.
        still: Keeps nothing of a turn beyond its end.

    Attributes:
        packets: What has arrived, and was not begun.
        halted: Whether it was told that no incarnation follows.
    """

    def __init__(
        self,
        task: LiveTask,
        connection: Speaking,
        queue: ReceiveQueue,
        steps: StepTimer,
        packets: list[bytes],
        clock: Callable[[], int],
        still: Standstill,
    ) -> None:
        self._task = task
        self._connection = connection
        self._queue = queue
        self._steps = steps
        self._clock = clock
        self._still = still
        self.packets = packets
        self._rows = FlowControl.of_rows()
        self._backoff = Backoff(task.level)
        self._early: list[ToTask] = []
        self._ended = False
        self._not_before = 0.0
        self._rested = False
        self.halted = False

    @property
    def goes_on(self) -> bool:
        """Whether another incarnation follows in the same place; not where the input has ended."""
        return self._rested and not (self._ended or self.halted)

    @property
    def _over(self) -> bool:
        return self._rested or self.halted

    def run(self) -> Iterator[list[Sent]]:
        start = self._start()
        if start is None:
            return
        self._task.ring = self._queue.ring
        yield from _together(self._task.start(start, self._clock()))
        if not self._task.level:
            self._task.tell(Take(self._rows.amount))
        self._speak()
        for message in self._early:
            self._tell(message)
        stats = self._task.stats
        while not self._over:
            if not self._ended:
                self._gather()
            if self._over:
                break
            last = self._ended
            began_s, waited_s = time.monotonic(), stats.waited_s
            cpu_s = time.thread_time() - stats.waited_cpu_s
            yield from self._turn()
            spent_s = time.thread_time() - stats.waited_cpu_s - cpu_s
            waited_s, ended_s = stats.waited_s - waited_s, time.monotonic()
            self._not_before = ended_s + self._backoff.after(spent_s, began_s, waited_s, ended_s)
            self._still.forget()
            if last:
                break
        if not self.goes_on:
            self._part()

    def _turn(self) -> Iterator[list[Sent]]:
        packets, self.packets = self.packets, []
        stats = self._task.stats
        busy_s, records, keys = stats.busy_s, stats.records, stats.keys
        something = bool(packets)
        if packets:
            self._steps.begun(len(packets))
            self._task.receive(packets)
        waited_s: float | None = None
        for together in self._sent():
            something = True
            asked = time.perf_counter()
            yield together
            waited_s = (waited_s or 0.0) + time.perf_counter() - asked
        if something:
            spent_s = stats.busy_s - busy_s
            self._steps.ended(spent_s)
            records, keys = stats.records - records, stats.keys - keys
            turn = TurnBudget(records, spent_s, waited_s, time.perf_counter(), keys)
            self._done(packets, turn)
        if (latencies := self._steps.due_report(self._task.level, self._task.number)) is not None:
            self._connection.say(latencies)
        self._speak()

    def _sent(self) -> Iterator[list[Sent]]:
        """Have the task make a turn; yield what it sends, none of it later than it may leave."""
        yield from _together(self._task.turn(self._clock(), _INPUT_S))
        yield from _together(self._task.after_turn())

    def _done(self, packets: list[bytes], turn: TurnBudget) -> None:
        """Have what is taken at once follow what a turn took."""
        if self._task.level:
            self._queue.done(sum(map(len, packets)), turn)
        elif self._rows.spent(turn.records, turn):
            self._task.tell(Take(self._rows.amount))

    def _start(self) -> StartTask | None:
        """Wait for the incarnation to begin; return None if it does not, or input ends before."""
        while not (self._ended or self._over):
            taken = self._queue.take(_SLEEP_S)
            # A task that has begun may be heard before we are told to begin.
            self.packets += taken.packets
            self._ended = taken.ended
            for n, message in enumerate(taken.messages):
                if isinstance(message, StartTask):
                    # What came with it is for a task that has begun.
                    self._early = taken.messages[n + 1 :]
                    return message
                self._tell(message)
        if not self.goes_on:
            self._part()
        return None

    def _gather(self) -> None:
        """Wait for something to do, and take what comes before it may be done."""
        if self._task.level:
            self._take(self._may_sleep_s())
        pause_s = self._not_before - time.monotonic()
        if pause_s > 0 and not (self._ended or self._over):
            time.sleep(pause_s)
        self._take(0.0)

    def _take(self, wait_s: float) -> None:
        taken = self._queue.take(wait_s)
        self.packets += taken.packets
        self._ended = taken.ended
        for message in taken.messages:
            self._tell(message)

    def _tell(self, message: ToTask) -> None:
        if isinstance(message, StopTask):
            self.halted = True
        elif isinstance(message, RenewTask):
            self._rested = True
        else:
            self._task.tell(message)

    def _may_sleep_s(self) -> float:
        if self.packets:
            return 0.0
        return min(max(0.0, (self._task.wake_us - self._clock()) / 1e6), _SLEEP_S)

    def _speak(self) -> None:
        said = self._task.outgoing
        if said:
            for message in said:
                self._connection.say(message)
            said.clear()

    def _part(self) -> None:
        """Wait for Spark to end a task whose incarnation is over, or be told so after its end.

        Spark keeps one waiting that returns early, and logs what one raises. Where the input has
        ended first, the incarnation is over if Spark has hung up, and not if its batch has ended.
        """
        until = time.monotonic() + (_PARTING_S if self._ended else _LINGER_S)
        while not (self._ended and self.halted):
            left_s = until - time.monotonic()
            if left_s <= 0 and self._ended:
                return
            if left_s <= 0:
                raise IncarnationOver(
                    f"level {self._task.level}, task {self._task.number}: its incarnation is over, "
                    "and Spark has not ended the task since."
                )
            try:
                self._take(min(left_s, 0.1))
            except ConnectionBroken:
                self.halted = self._ended = True


def _together(sent: Iterable[Sent]) -> Iterator[list[Sent]]:
    """Yield what leaves in one go together."""
    waiting: list[Sent] = []
    since = size = 0.0
    for message in sent:
        if not waiting:
            since, size = time.perf_counter(), 0
        waiting.append(message)
        size += len(message[1])
        if size > _TOGETHER_BYTES or time.perf_counter() - since > _TOGETHER_S:
            yield waiting
            waiting = []
    if waiting:
        yield waiting


#: A task that is there waits for work, and is not at a standstill.
_WAITS: Final = frozenset(code.__code__ for code in (_Loop._start, _Loop._gather, _Loop._part))
