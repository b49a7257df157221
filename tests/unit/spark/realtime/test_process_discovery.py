"""The lookout: nobody waits for a broker that is away."""

from __future__ import annotations

import gc
import queue
import threading

import pytest

from millrace.runtime.realtime.incarnation_start import Processes
from millrace.spark.realtime.process_discovery import ProcessDiscovery


class Broker:
    """Answers when it is given an answer."""

    def __init__(self) -> None:
        self.answers: queue.SimpleQueue[Processes | Exception] = queue.SimpleQueue()
        self.answered = threading.Semaphore(0)

    def look(self) -> Processes:
        answer = self.answers.get()
        try:
            if isinstance(answer, Exception):
                raise answer
            return answer
        finally:
            self.answered.release()


@pytest.fixture
def broker() -> Broker:
    return Broker()


def test_one_that_answers_is_believed(broker: Broker) -> None:
    lookout = ProcessDiscovery(broker.look, wait_s=60)
    for partitions in ["a-0"], ["a-0", "a-1"]:
        broker.answers.put({"a": partitions})
        assert lookout.processes() == {"a": partitions}


def test_one_that_is_away_holds_nobody_up_and_is_asked_once(broker: Broker) -> None:
    lookout = ProcessDiscovery(broker.look, wait_s=0)
    broker.answers.put({"a": ["a-0"]})
    assert lookout.processes() == {"a": ["a-0"]}
    broker.answered.acquire()
    for _ in range(3):
        assert lookout.processes() == {"a": ["a-0"]}
    assert broker.answers.empty()
    broker.answers.put({"a": ["a-0", "a-1"]})  # it is back
    broker.answered.acquire()
    while lookout.processes() == {"a": ["a-0"]}:
        broker.answers.put({"a": ["a-0", "a-1"]})  # for when it was asked once more
    assert lookout.processes() == {"a": ["a-0", "a-1"]}


def test_what_it_raises_reaches_who_asks_next(broker: Broker) -> None:
    lookout = ProcessDiscovery(broker.look, wait_s=60)
    broker.answers.put({"a": []})
    lookout.processes()
    broker.answers.put(ConnectionError("no broker"))
    with pytest.raises(ConnectionError, match="no broker"):
        lookout.processes()
    broker.answers.put({"a": ["a-0"]})
    assert lookout.processes() == {"a": ["a-0"]}


def test_one_thread_asks_for_as_long_as_somebody_wants_to_know() -> None:
    """A connection of SQLite, say, is of the thread that has made it."""
    threads = set[threading.Thread]()

    def look() -> Processes:
        threads.add(threading.current_thread())
        return {}

    lookout = ProcessDiscovery(look, wait_s=60)
    for _ in range(3):
        lookout.processes()
    (thread,) = threads
    assert thread.is_alive()
    del lookout
    gc.collect()
    thread.join(10)
    assert not thread.is_alive()
