"""Values of a schema registry, by the page's recipe: schemas over HTTP, each asked for once."""

from __future__ import annotations

import json
import re
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import millrace as mr

PAGE = Path(__file__).parents[4] / "docs/injectors.md"
SCHEMA = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "item", "type": "string"}],
}


class Registry:
    """Answers ``GET /schemas/ids/<n>`` as a schema registry does.

    Attributes:
        asked: The ids, in order.
        broken: Whether it answers with an error of its own.
    """

    def __init__(self, schemas: dict[int, Any]) -> None:
        self.asked: list[int] = []
        self.broken = False
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                number = int(self.path.rpartition("/")[2])
                registry.asked.append(number)
                found = number in schemas
                self.send_response(500 if registry.broken else 200 if found else 404)
                self.end_headers()
                if found:
                    self.wfile.write(json.dumps({"schema": json.dumps(schemas[number])}).encode())

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    @contextmanager
    def serving(self) -> Iterator[Registry]:
        """Answer, until the end."""
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()
        try:
            yield self
        finally:
            self.server.shutdown()
            self.server.server_close()


@pytest.fixture
def avro() -> Any:
    """The recipe's class."""
    blocks = re.findall(r"^```python external\n(.*?)^```", PAGE.read_text(), re.M | re.S)
    (block,) = [block for block in blocks if "class ConfluentAvro" in block]
    names: dict[str, Any] = {}
    exec(block.partition("\n\n\nsource =")[0], names)
    return names["ConfluentAvro"]


def _message(number: int, id: int, item: str) -> bytes:
    return struct.pack(">bI", 0, number) + bytes([id * 2, len(item) * 2]) + item.encode()


def test_values_of_a_registry_and_values_of_none(kafka: Any, avro: Any) -> None:
    topic = kafka.topic("orders", 1)
    bad = [_message(9, 1, "tea"), b"\x01" + _message(1, 1, "tea")[1:], b"\0\0", b'{"id": 1}']
    kafka.send(topic, 0, _message(1, 1, "tea"), *bad, _message(1, 2, "mate"))
    with Registry({1: SCHEMA}).serving() as registry:
        p = mr.Pipeline("orders")
        source = mr.sources.Kafka(
            kafka.servers,
            topic,
            schema="id long, item string, kafka_timestamp timestamp",
            parse=avro(registry.url),
        )
        orders = p.inject("orders", source, timestamp="kafka_timestamp")
        orders.map(lambda row: f"{row['id']} {row['item']}").to("items", str)
        p.sink("items", mr.sinks.Memory())
        p.dead_letter("rejects")
        with mr.testing.Harness(p) as h:
            h.poll("orders")  # where the partition begins
            # A registry in trouble makes no letters of messages that are right.
            registry.broken = True
            with pytest.raises(ConnectionError, match="schema registry"):
                h.poll("orders")
            assert h.outputs("rejects") == []
            registry.broken = False
            registry.asked.clear()
            while h.poll("orders"):
                pass

            assert [out.value for out in h.outputs("items")] == ["1 tea", "2 mate"]
            letters = [out.value for out in h.outputs("rejects")]
            assert [letter.raw for letter in letters] == bad
            reasons = ("no schema 9", "not in Confluent", "unpack_from", "not in Confluent")
            for letter, reason in zip(letters, reasons, strict=True):
                assert reason in letter.reason
            assert registry.asked.count(1) == 1
