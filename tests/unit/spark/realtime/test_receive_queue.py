"""What reaches a task: in order, bounded by bytes, and with whatever ends it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator

import pytest

from millrace.runtime.realtime.messages import Mark, StopTask, ToTask
from millrace.spark.realtime.flow_control import TurnBudget
from millrace.spark.realtime.task_host import ReceivedPackets, ReceiveQueue


class Source:
    """Packets that a test hands over one by one, and how many were asked for."""

    def __init__(self) -> None:
        self._given: queue.SimpleQueue[bytes | Exception | None] = queue.SimpleQueue()
        self.asked = threading.Semaphore(0)

    def give(self, *packets: bytes | Exception | None) -> None:
        for packet in packets:
            self._given.put(packet)

    def __iter__(self) -> Iterator[bytes]:
        while True:
            self.asked.release()
            given = self._given.get()
            if given is None:
                return
            if isinstance(given, Exception):
                raise given
            yield given


def never() -> ToTask:
    threading.Event().wait()
    raise AssertionError("woken by nobody")


def everything(intake: ReceiveQueue, packets: int) -> ReceivedPackets:
    """Take until there are so many packets, or the input has ended."""
    found = ReceivedPackets()
    while len(found.packets) < packets and not found.ended:
        taken = intake.take(10)
        found.packets += taken.packets
        found.messages += taken.messages
        found.ended = taken.ended
    return found


def test_packets_come_in_order_and_then_the_end() -> None:
    intake = ReceiveQueue([b"a", b"bc", b"d"], never)
    assert everything(intake, 4) == ReceivedPackets([b"a", b"bc", b"d"], [], ended=True)
    assert intake.take(0) == ReceivedPackets(ended=True)


def test_nothing_is_waited_for_where_no_time_is_given() -> None:
    assert ReceiveQueue(Source(), never).take(0) == ReceivedPackets()


def test_what_the_coordinator_says_comes_by_the_same_door() -> None:
    said: list[ToTask] = [Mark(3), StopTask()]
    over = threading.Event()

    def hear() -> ToTask:
        if not said:
            over.wait()
        return said.pop(0)

    intake = ReceiveQueue(Source(), hear)
    heard: list[ToTask] = []
    while len(heard) < 2:
        heard += intake.take(10).messages
    assert heard == [Mark(3), StopTask()]


def test_a_line_that_breaks_is_told_where_things_are_taken() -> None:
    def broken() -> ToTask:
        raise ConnectionResetError("gone")

    with pytest.raises(ConnectionResetError, match="gone"):
        ReceiveQueue(Source(), broken).take(10)


def test_an_input_that_breaks_off_has_ended() -> None:
    source = Source()
    source.give(b"a", ConnectionResetError("gone"))
    assert everything(ReceiveQueue(source, never), 2) == ReceivedPackets([b"a"], [], ended=True)


def test_packets_that_wait_are_bounded_by_their_bytes() -> None:
    source = Source()
    intake = ReceiveQueue(source, never, bytes_max=10)
    source.give(b"12345", b"6789", b"10", b"11")
    for _ in range(3):
        assert source.asked.acquire(timeout=10)
    # The third fills it up, so a fourth is not asked for, until something is taken.
    assert not source.asked.acquire(timeout=0.05)
    assert everything(intake, 4).packets == [b"12345", b"6789", b"10", b"11"]
    assert source.asked.acquire(timeout=10)


def test_what_waits_is_what_the_task_can_do_in_some_seconds() -> None:
    source = Source()
    intake = ReceiveQueue(source, never)
    packet = bytes(2_500)
    source.give(*[packet] * 8)

    def read() -> int:
        """Return how many packets are asked for until there is no room."""
        count = 0
        while source.asked.acquire(timeout=0.2):
            count += 1
        return count

    def turns(count: int, packets: int, seconds: float) -> None:
        for _ in range(count):
            intake.done(packets * len(packet), TurnBudget(1, seconds, 0.0, 0.0, 1))

    found = [read()]  # 4 KB, at first
    turns(16, 2, 0.01)  # quickly done: it may be more
    everything(intake, 2)
    found.append(read())
    turns(1, 3, 40.0)  # far too long: it may be less than at first
    everything(intake, 3)
    found.append(read())
    assert found == [2, 3, 1]


def test_a_closed_intake_reads_no_more() -> None:
    source = Source()
    intake = ReceiveQueue(source, never, bytes_max=1)
    source.give(b"12", b"3")
    assert source.asked.acquire(timeout=10)
    intake.close()
    assert not source.asked.acquire(timeout=0.05)
