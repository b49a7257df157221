"""Nexmark's events as messages of a broker."""

from typing import Any

import msgspec
import pytest

from millrace_examples.nexmark import events, files


def test_events_come_into_a_topic_for_each_stream(kafka: Any) -> None:
    made = list(events.Generator(rate=100).events(100))
    for stream in events.FORMATS:
        kafka.topic(f"market-{stream}", 1)

    assert files.send(kafka.servers, made, prefix="market-") == 100

    for stream, of in events.FORMATS.items():
        values = [message.value() for message in kafka.messages(f"market-{stream}", 1)]
        found = [msgspec.json.decode(value, type=of) for value in values]
        assert found == [event for name, event in made if name == stream]


def test_a_broker_that_is_not_there_is_named() -> None:
    made = events.Generator().events(1)
    with pytest.raises(RuntimeError, match=r"localhost:1 did not take all of 1 events"):
        files.send("localhost:1", made, patience_s=1)
