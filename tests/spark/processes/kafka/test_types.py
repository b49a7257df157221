"""The matrix of types at a real Kafka broker; see ``properties/test_types.py``.

The messages that come in are those of another client, and those that go out are read by one. What
our own sink writes, our own source reads back.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kafka_doors
import matrix_page
import pytest
from doors_in import ALMOST
from doors_out import outcomes
from field_types import KINDS


@pytest.fixture(scope="module")
def topics(kafka: Any) -> Iterator[kafka_doors.Topics]:
    made = kafka_doors.Topics(kafka)
    made.send(kafka_doors.messages_in())
    yield made
    made.close()


def test_doors_in(topics: kafka_doors.Topics) -> None:
    kinds = (*KINDS, *ALMOST)
    cells = kafka_doors.in_threads(lambda kind: kafka_doors.kafka_in(topics.broker, kind), kinds)
    matrix_page.check("doors in", "Kafka, JSON", {kind.name: cells[kind.name] for kind in KINDS})
    matrix_page.check("almost", "Kafka, JSON", {kind.name: cells[kind.name] for kind in ALMOST})


def test_messages_without_a_schema(topics: kafka_doors.Topics) -> None:
    kinds = kafka_doors.MESSAGES
    cells = kafka_doors.in_threads(lambda kind: kafka_doors.message_in(topics.broker, kind), kinds)
    matrix_page.check("messages", "Kafka, no schema", cells)


@pytest.mark.parametrize("column", ["sinks.Kafka", "sinks.Kafka and back"])
def test_doors_out(topics: kafka_doors.Topics, column: str, tmp_path: Path) -> None:
    back = column == "sinks.Kafka and back"
    door = kafka_doors.round_trip(topics) if back else kafka_doors.out_door(topics)
    kinds = [kind for kind in KINDS if kind.ddl is not None or not back]
    cells = outcomes(door, kinds, tmp_path)
    cells |= {kind.name: [kafka_doors.NO_COLUMN] for kind in KINDS if kind not in kinds}
    matrix_page.check("doors out", column, {kind.name: cells[kind.name] for kind in KINDS})
