"""Columns as text for COPY: bytes in hexadecimal, whatever part of an array they are."""

import pyarrow as pa
import pytest

from millrace.connectors.postgres.text import _text

BYTES = pa.array([b"left out", b"\x00\xff", None, b"", b"a" * 300, b"left out"], pa.binary())


@pytest.mark.parametrize(
    "array",
    [BYTES.slice(1, 4), pa.array(BYTES.to_pylist()[1:5], pa.binary())],
    ids=["slice", "own"],
)
def test_bytes(array: pa.Array) -> None:
    assert _text(array, False).to_pylist() == ["\\x00ff", None, "\\x", "\\x" + "61" * 300]


def test_no_bytes() -> None:
    assert _text(pa.array([], pa.binary()), False).to_pylist() == []
    assert _text(pa.nulls(2, pa.binary()), False).to_pylist() == [None, None]
