"""A broker followed as a task of the real-time plane does it: on and on."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

import millrace as mr
from millrace.connectors.kafka import source as kafka_injector
from millrace.injectors.advance import along
from millrace.injectors.follower import FetchedBatch, Follower
from millrace.injectors.offsets import SourceOffset, nothing_left
from millrace.model.errors import InputLost

PATIENCE_S = 60


def _values(n: int, first: int = 0) -> list[bytes]:
    return [json.dumps({"n": first + at}).encode() for at in range(n)]


def _until(follower: Follower, rows: int) -> list[FetchedBatch]:
    found, deadline = list[FetchedBatch](), time.monotonic() + PATIENCE_S
    while sum(one.rows.num_rows for one in found) < rows:
        assert time.monotonic() < deadline, f"{rows} rows did not come: {found}"
        found += follower.take(0.5)
    return found


def _numbered(taken: list[FetchedBatch]) -> dict[tuple[str, int], int]:
    found = {}
    for one in taken:
        count = one.rows.num_rows
        if not count:
            continue  # where it begins, or ends
        numbers = range(one.first, one.first + count) if one.first is not None else one.numbers
        for number, n in zip(numbers, one.rows.column("n").to_pylist(), strict=True):
            found[one.process, int(number)] = n
    return found


def _lost(follower: Follower, says: str) -> None:
    deadline = time.monotonic() + PATIENCE_S

    def read() -> None:
        while time.monotonic() < deadline:
            follower.take(0.5)

    with pytest.raises(InputLost, match=says):
        read()


@pytest.fixture
def follow(kafka: Any) -> Any:
    """Follows topics; what is open at the end is closed."""
    opened = list[Follower]()

    def opens(topic: str, places: dict[str, Any], most: int = 1000) -> Follower:
        follower = mr.sources.Kafka(kafka.servers, topic, schema="n long").follow(places, most=most)
        opened.append(follower)
        return follower

    yield opens
    for follower in opened:
        follower.close()


def test_rows_have_the_partition_s_numbers_wherever_it_is_taken_up(
    kafka: Any, follow: Callable[..., Follower]
) -> None:
    topic = kafka.topic("followed", 2)
    zero, one = f"{topic}-0", f"{topic}-1"
    kafka.send(topic, 0, *_values(500))
    kafka.send(topic, 1, *_values(300, 1000))
    kafka.truncate(topic, 1, 100)
    follower = follow(topic, {zero: None, one: None}, 64)

    begun = follower.take(0)
    assert {one.process: one.decided for one in begun} == {zero: [[0], None], one: [[100], None]}
    taken = _until(follower, 700)
    assert max(one.rows.num_rows for one in taken) <= 64
    assert _numbered(taken) == {(zero, n): n for n in range(500)} | {
        (one, n): 1000 + n for n in range(100, 300)
    }

    # A record that comes while it waits is there at once, not when the wait is over.
    kafka.send(topic, 0, *_values(1, 500))
    began = time.monotonic()
    assert _numbered(_until(follower, 1)) == {(zero, 500): 500}
    assert time.monotonic() - began < 0.4

    # Another takes up where one of the takes ended, and where it was decided to begin.
    middle = next(at for at in taken if at.process == zero).offset
    again = follow(topic, {zero: middle, one: along(None, [[[100], None]])}, 1000)
    assert _numbered(_until(again, 501 - middle + 200)) == {
        (zero, n): n for n in range(middle, 501)
    } | {(one, n): 1000 + n for n in range(100, 300)}

    # What is held does not come, and comes when it is not held any more.
    again.hold({zero})
    kafka.send(topic, 0, *_values(1, 501))
    kafka.send(topic, 1, *_values(1, 1300))
    assert _numbered(_until(again, 1)) == {(one, 300): 1300}
    again.hold(())
    assert _numbered(_until(again, 1)) == {(zero, 501): 501}


def test_a_topic_of_transactions_is_read_to_its_end(
    kafka: Any, follow: Callable[..., Follower]
) -> None:
    """An end of a transaction, and all of an aborted one, have offsets and no record."""
    topic = kafka.topic("transactions", 2)
    zero, one = f"{topic}-0", f"{topic}-1"
    kafka.transact(topic, 0, *_values(3), commit=True)
    kafka.transact(topic, 0, *_values(2, 50), commit=False)
    kafka.transact(topic, 1, *_values(2, 60), commit=False)
    follower = follow(topic, {zero: None, one: None})
    taken, deadline = list[FetchedBatch](), time.monotonic() + PATIENCE_S
    places = dict[str, SourceOffset]()
    injector = mr.sources.Kafka(kafka.servers, topic, schema="n long")
    while not nothing_left(injector, places):
        assert time.monotonic() < deadline, f"the end is not reached: {places}"
        taken += follower.take(0.5)
        places = {one.process: SourceOffset(0, one.offset) for one in taken}

    assert _numbered(taken) == {(zero, 0): 0, (zero, 1): 1, (zero, 2): 2}
    assert {name: place.offset for name, place in places.items()} == {zero: 7, one: 3}

    # Nor is anything lost when what has no record is removed.
    kafka.truncate(topic, 0, 7)
    kafka.transact(topic, 0, *_values(1, 70), commit=True)
    again = follow(topic, {zero: places[zero].offset})
    assert _numbered(_until(again, 1)) == {(zero, 7): 70}


def test_what_is_removed_before_it_is_read_is_said(
    kafka: Any, follow: Callable[..., Follower]
) -> None:
    topic = kafka.topic("removed", 1)
    kafka.send(topic, 0, *_values(10))
    kafka.truncate(topic, 0, 8)

    _lost(
        follow(topic, {f"{topic}-0": 5}), "read on at offset 5: .* begins at 8 now and ends at 10"
    )
    _lost(
        follow(topic, {f"{topic}-0": 12}), "read on at offset 12: .* begins at 8 now and ends at 10"
    )


def test_a_topic_that_is_deleted_is_said(kafka: Any, follow: Callable[..., Follower]) -> None:
    topic = kafka.topic("deleted", 1)
    kafka.send(topic, 0, *_values(3))
    follower = follow(topic, {f"{topic}-0": 0})
    _until(follower, 3)
    kafka.delete(topic)

    _lost(follower, f"topic '{topic}' is not there|cannot be read on at offset 3")


def test_a_topic_that_is_made_again_is_said(kafka: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it has more records by then than were read of the old one."""
    monkeypatch.setattr(kafka_injector, "_PARTITIONS_EVERY_S", 0.0)
    topic = kafka.topic("made-again", 1)
    kafka.send(topic, 0, *_values(3))
    injector = mr.sources.Kafka(kafka.servers, topic, schema="n long")
    assert injector.processes() == [f"{topic}-0"]
    assert injector.processes() == [f"{topic}-0"]
    kafka.delete(topic)
    kafka.make_again(topic)
    deadline = time.monotonic() + PATIENCE_S
    kafka.send(topic, 0, *_values(5))

    def ask() -> None:
        while time.monotonic() < deadline:
            injector.processes()

    with pytest.raises(InputLost, match=f"topic '{topic}' was deleted and made again"):
        ask()
