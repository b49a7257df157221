"""The page's recipes for JSON Schema and Protobuf of a schema registry."""

import re
from pathlib import Path
from typing import Any

import pytest

protobuf = pytest.importorskip("google.protobuf")

PAGE = Path(__file__).parents[3] / "docs/injectors.md"


@pytest.fixture(scope="module")
def recipes() -> dict[str, Any]:
    blocks = re.findall(r"^```python external\n(.*?)^```", PAGE.read_text(), re.M | re.S)
    (block,) = [block for block in blocks if "class ConfluentProtobuf" in block]
    names: dict[str, Any] = {}
    exec(block, names)
    return names


def order_class() -> Any:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="orders.proto", syntax="proto3")
    order = file.message_type.add(name="Order")
    field = descriptor_pb2.FieldDescriptorProto
    order.field.add(name="id", number=1, type=field.TYPE_INT64, label=field.LABEL_OPTIONAL)
    order.field.add(name="item", number=2, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("Order"))


def test_json_behind_the_id_of_its_schema(recipes: dict[str, Any]) -> None:
    read = recipes["confluent_json"]

    assert read(b'\0\0\0\0\7{"id": 1, "item": "tea"}') == {"id": 1, "item": "tea"}
    for wrong in (b'{"id": 1}', b"\0\0\0\0\7{", b"\0"):
        with pytest.raises(ValueError):
            read(wrong)


def test_protobuf_behind_its_place_in_the_schema(recipes: dict[str, Any]) -> None:
    order = order_class()
    read = recipes["ConfluentProtobuf"](order)
    data = order(id=1, item="tea").SerializeToString()

    assert read(b"\0\0\0\0\7\0" + data) == {"id": 1, "item": "tea"}
    assert read(b"\0\0\0\0\7\0") == {"id": 0, "item": ""}
    for wrong in (data, b"\0\0\0\0\7\2\2" + data, b"\0"):
        with pytest.raises(ValueError, match="first message of a schema"):
            read(wrong)
    with pytest.raises(protobuf.message.DecodeError):
        read(b"\0\0\0\0\7\0" + data[:-1])
