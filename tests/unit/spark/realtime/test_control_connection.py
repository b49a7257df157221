"""Lines between tasks and the driver, over the loopback."""

from __future__ import annotations

import dataclasses
import os
import pickle
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from millrace.model.errors import UserCodeError
from millrace.runtime.realtime.messages import (
    Hold,
    Mark,
    StopTask,
    TaskEnded,
    TaskReady,
    ToDriver,
    encode,
)
from millrace.spark.realtime.control_connection import (
    Address,
    ConnectionBroken,
    ControlConnection,
    InTask,
    Switchboard,
    packed_error,
)


@pytest.fixture
def board() -> Iterator[Switchboard]:
    made = Switchboard("127.0.0.1")
    yield made
    made.close()


def heard(board: Switchboard, count: int) -> list[tuple[tuple[int, int], ToDriver | None]]:
    found: list[tuple[tuple[int, int], ToDriver | None]] = []
    while len(found) < count:
        found += board.listen(10)
    return found


def test_both_sides_hear_what_the_other_says(board: Switchboard) -> None:
    address = board.open()
    one, two = ControlConnection(address), ControlConnection(address)
    one.say(TaskReady(0, 1))
    assert heard(board, 1) == [((0, 1), TaskReady(0, 1))]
    two.say(TaskReady(2, 0))
    assert heard(board, 1) == [((2, 0), TaskReady(2, 0))]
    board.tell((2, 0), Mark(7))
    board.tell((0, 1), StopTask())
    assert (one.hear(), two.hear()) == (StopTask(), Mark(7))
    one.say(TaskEnded(0, 1))
    assert heard(board, 1) == [((0, 1), TaskEnded(0, 1))]


def test_a_task_that_hangs_up_is_missed(board: Switchboard) -> None:
    line = ControlConnection(board.open())
    line.say(TaskReady(1, 1))
    line.close()
    assert heard(board, 2) == [((1, 1), TaskReady(1, 1)), ((1, 1), None)]
    board.tell((1, 1), StopTask())  # to nobody


def test_a_task_notices_that_the_driver_has_hung_up(board: Switchboard) -> None:
    line = ControlConnection(board.open())
    line.say(TaskReady(1, 1))
    heard(board, 1)
    board.hang_up()
    with pytest.raises(ConnectionBroken, match="the incarnation is over"):
        line.hear()
    assert board.listen(0.05) == []


def test_a_task_of_an_earlier_query_is_not_let_in(board: Switchboard) -> None:
    earlier, now = board.open(), board.open()
    with pytest.raises(ConnectionBroken):
        ControlConnection(earlier)
    with pytest.raises(ConnectionBroken, match="has started the query again"):
        ControlConnection(dataclasses.replace(now, key=earlier.key))
    line = ControlConnection(now)
    line.say(TaskReady(0, 0))
    assert heard(board, 1) == [((0, 0), TaskReady(0, 0))]


def test_what_a_task_of_an_earlier_query_has_said_is_not_heard_later(board: Switchboard) -> None:
    """It stands in the buffers of both ends when the query is started again."""
    earlier = ControlConnection(board.open())
    earlier.say(TaskReady(1, 0, "earlier"))
    assert heard(board, 1)
    earlier.say(TaskEnded(1, 0))
    earlier.say(TaskReady(1, 0, "earlier"))
    later = ControlConnection(board.open())
    later.say(TaskReady(1, 0, "later"))
    assert heard(board, 1) == [((1, 0), TaskReady(1, 0, "later"))]
    later.say(TaskEnded(1, 0))
    assert heard(board, 1) == [((1, 0), TaskEnded(1, 0))]


def test_what_was_heard_before_a_query_began_anew_is_known_to_be_stale(board: Switchboard) -> None:
    line = ControlConnection(board.open())
    line.say(TaskReady(1, 0))
    assert heard(board, 1)
    assert not board.stale
    board.open()
    assert board.stale
    board.listen(0)
    assert not board.stale


def test_a_driver_that_cannot_be_reached_is_named(board: Switchboard) -> None:
    address = board.open()
    board.close()
    with pytest.raises(ConnectionBroken, match=f"cannot be reached at 127.0.0.1:{address.port}"):
        ControlConnection(address)


def test_the_later_of_two_tasks_has_the_place(board: Switchboard) -> None:
    address = board.open()
    earlier, later = ControlConnection(address), ControlConnection(address)
    earlier.say(TaskReady(1, 0, "a"))
    heard(board, 1)
    later.say(TaskReady(1, 0, "b"))
    assert heard(board, 1) == [((1, 0), TaskReady(1, 0, "b"))]
    earlier.say(TaskEnded(1, 0))
    earlier.close()
    later.say(TaskEnded(1, 0, b"!"))
    assert heard(board, 1) == [((1, 0), TaskEnded(1, 0, b"!"))]


def test_listening_can_be_ended_from_outside(board: Switchboard) -> None:
    listening = threading.Thread(target=board.listen, args=(60,))
    listening.start()
    board.wake()
    listening.join(10)
    assert not listening.is_alive()


def in_time(act: Callable[[], object], seconds: float = 20) -> bool:
    """Whether something returns."""
    acting = threading.Thread(target=act, daemon=True)
    acting.start()
    acting.join(seconds)
    return not acting.is_alive()


def test_a_task_that_is_stopped_holds_up_nobody_who_tells_it_something(board: Switchboard) -> None:
    """It does not read, and the kernel's buffers are full after some megabytes."""
    address = board.open()
    stopped, other = ControlConnection(address), ControlConnection(address)
    stopped.say(TaskReady(1, 0))
    other.say(TaskReady(1, 1))
    heard(board, 2)
    word = Hold([f"stream {n}" for n in range(1000)], {})

    def tell() -> None:
        for _ in range(1000):
            board.tell((1, 0), word)

    assert in_time(tell)
    board.tell((1, 1), Mark(7))
    assert other.hear() == Mark(7)

    def listen() -> None:
        while board.listen(0.01) is not None and not done.is_set():
            pass

    # As soon as it goes on, it hears all of it, in order.
    done = threading.Event()
    listening = threading.Thread(target=listen)
    listening.start()
    board.tell((1, 0), Mark(8))
    assert [stopped.hear() for _ in range(1001)] == [word] * 1000 + [Mark(8)]
    done.set()
    listening.join()


def test_half_of_what_a_task_says_holds_up_nobody_who_listens(board: Switchboard) -> None:
    """It was stopped while it spoke, or its network was taken away."""
    address = board.open()
    stopped, other = ControlConnection(address), ControlConnection(address)
    stopped.say(TaskReady(1, 0))
    other.say(TaskReady(1, 1))
    heard(board, 2)
    long = encode(TaskEnded(1, 0, bytes(100_000)))
    with socket.socket(fileno=os.dup(stopped._connection.fileno())) as half:
        half.sendall(struct.pack("!i", len(long)) + long[:70_000])
        other.say(TaskEnded(1, 1))
        found: list[Any] = []
        assert in_time(lambda: found.extend(heard(board, 1)))
        assert found == [((1, 1), TaskEnded(1, 1))]
        half.sendall(long[70_000:])
    assert heard(board, 1) == [((1, 0), TaskEnded(1, 0, bytes(100_000)))]


#: What strangers send: nothing, another protocol, lengths that are none.
SENT = {
    "nothing": b"",
    "http": b"GET / HTTP/1.1\r\nHost: driver\r\n\r\n",
    "tls": bytes.fromhex("1603010200010001fc0303") + bytes(64),
    "random": bytes(range(256)),
    "huge": struct.pack("!iQ", -1, 1 << 62),
    "negative": struct.pack("!i", -7),
    "half": struct.pack("!i", 16) + b"12345",
    "wrong": struct.pack("!i", 16) + bytes(16),
    "pickle": struct.pack("!i", 8) + pickle.dumps(1)[:8],
}


def call(address: Address, sent: bytes = b"") -> socket.socket:
    called = socket.create_connection((address.host, address.port), 10)
    called.sendall(sent)
    return called


def is_hung_up_on(called: socket.socket) -> bool:
    """Whether the other side ends a connection; what it sends before does not count."""
    try:
        while called.recv(4096):
            pass
    except ConnectionResetError:
        pass
    except TimeoutError:
        return False
    return True


@pytest.mark.parametrize("sent", SENT.values(), ids=SENT.keys())
@pytest.mark.parametrize("closes", [False, True], ids=["stays", "closes"])
def test_a_stranger_is_hung_up_on_and_holds_up_no_task(sent: bytes, closes: bool) -> None:
    board = Switchboard("127.0.0.1", proof_s=0.3)
    address = board.open()
    strangers = [call(address, sent) for _ in range(3)]
    if closes:
        for stranger in strangers:
            stranger.close()
    line = ControlConnection(address)  # though they came before
    line.say(TaskReady(0, 1))
    assert heard(board, 1) == [((0, 1), TaskReady(0, 1))]
    assert closes or all(map(is_hung_up_on, strangers))
    for stranger in strangers:
        stranger.close()
    late = ControlConnection(address)
    late.say(TaskReady(1, 0))
    assert heard(board, 1) == [((1, 0), TaskReady(1, 0))]
    line.close(), late.close(), board.close()


def test_strangers_are_counted_and_logged_once_in_a_while(
    caplog: pytest.LogCaptureFixture,
) -> None:
    board = Switchboard("127.0.0.1", proof_s=0.3)
    address = board.open()
    strangers = [call(address, SENT["http"]) for _ in range(5)]
    assert all(map(is_hung_up_on, strangers))
    for stranger in strangers:
        stranger.close()
    for thread in threading.enumerate():
        if thread.name == "millrace-connection-proof":
            thread.join(10)
    assert board.strangers == 5
    board.close()
    assert len(caplog.records) == 1
    assert "did not prove the key" in caplog.text


def test_more_strangers_than_may_prove_themselves_at_once_only_delay_a_task() -> None:
    board = Switchboard("127.0.0.1", proof_s=0.3)
    address = board.open()
    strangers = [call(address) for _ in range(100)]
    line = ControlConnection(address)
    line.say(TaskReady(0, 0))
    assert heard(board, 1) == [((0, 0), TaskReady(0, 0))]
    for stranger in strangers:
        stranger.close()
    line.close(), board.close()


class Odd(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} {two}")


def test_an_error_keeps_its_type_and_its_traceback() -> None:
    def user_code() -> None:
        raise UserCodeError("Counter, key 'a'")

    with pytest.raises(UserCodeError) as raised:
        user_code()
    found = pickle.loads(packed_error(raised.value))
    assert type(found) is UserCodeError
    assert str(found) == "Counter, key 'a'"
    assert isinstance(found.__cause__, InTask)
    assert "in user_code" in str(found.__cause__)


def test_an_error_that_cannot_be_pickled_is_told_by_its_name() -> None:
    found = pickle.loads(packed_error(Odd(1, 2)))
    assert str(found) == "Odd: 1 2"
