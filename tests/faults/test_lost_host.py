"""A host is gone without a word: no process on it closed its connections."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import hosts
import pytest
from hosts import Host, Hosts

from millrace.runtime.realtime.messages import StopTask, TaskReady
from millrace.spark.realtime import control_connection
from millrace.spark.realtime.control_connection import Address, ControlConnection, Switchboard

WHERE = (1, 0)


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Hosts]:
    if missing := hosts.missing():
        pytest.skip(f"there are no hosts: {missing}")
    made = Hosts(tmp_path, ["worker"])
    yield made
    made.close()


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give up a host after two seconds."""
    for name in ("_SILENCE_S", "_ASKED_S", "_ASKED"):
        monkeypatch.setattr(control_connection, name, 1)


def call(host: Host, address: Address) -> ControlConnection:
    """Return a connection to the driver from a host."""
    made: list[ControlConnection] = []

    def connect() -> None:
        # The namespace is that of the thread, and of the sockets that it makes.
        with Path(f"/var/run/netns/{host.space}").open() as space:
            assert ctypes.CDLL(None).setns(space.fileno(), 0) == 0
        made.append(ControlConnection(address))

    thread = threading.Thread(target=connect)
    thread.start()
    thread.join()
    return made[0]


def heard(board: Switchboard, seconds: float) -> list[object]:
    """Return what the board hears next, in so many seconds at most."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := board.listen(0.1):
            return [(where, type(message)) for where, message in found]
    return []


@pytest.mark.usefixtures("soon")
def test_a_host_that_is_off_is_missed_though_something_is_on_its_way_to_it(network: Hosts) -> None:
    board = Switchboard(network.outside)
    host = network["worker"]
    task = call(host, board.open())
    task.say(TaskReady(*WHERE))
    assert heard(board, 5) == [(WHERE, TaskReady)]

    host.switch_off()
    board.tell(WHERE, StopTask())

    assert heard(board, 5) == [(WHERE, type(None))]
    task.close()
    board.close()
