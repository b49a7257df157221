"""Partial: values of one key and window that were combined before they were grouped.

A sender may fold values before the shuffle (combiner lifting) and send one element for many. It
carries what triggers and output timestamps need of those it stands for.
"""

from __future__ import annotations

from typing import Any

import msgspec

from millrace.model.coder import coder_for
from millrace.model.pane import Window


class Partial(msgspec.Struct, frozen=True, array_like=True):
    """Several values of one key and window, as one element.

    Attributes:
        window: Of sessions, one that holds the windows of all; None if the windows of each are
            those of the record that the partial comes as.
        accumulator: The CombineFn's, of all values.
        elements: How many values.
        bytes: Their encoded size together; 0 if no trigger asks for it.
        earliest: The earliest of their timestamps.
        latest: The latest.
        retracted: How many of the values take an earlier one back.
    """

    window: Window | None
    accumulator: Any
    elements: int
    bytes: int
    earliest: int
    latest: int
    retracted: int = 0


class PartialCoder:
    """Encodes partials as msgpack, with the accumulator by its own type or coder.

    Args:
        accumulator: The accumulator's type or coder.
        type: Of the values that partials are made of.
    """

    def __init__(self, accumulator: Any = Any, type: Any = Any) -> None:
        self.accumulator = accumulator
        self.type = type
        self._coder = coder_for(accumulator)

    def encode(self, value: Any) -> bytes:
        """Return a partial as msgpack."""
        data = self._coder.encode(value.accumulator)
        return _encode(
            (
                value.window, data, value.elements, value.bytes, value.earliest, value.latest,
                value.retracted,
            )
        )  # fmt: skip

    def decode(self, data: bytes) -> Partial:
        """Return the partial."""
        window, accumulator, *rest = _decode(data)
        return Partial(window, self._coder.decode(accumulator), *rest)

    def describe(self) -> dict[str, Any]:
        """Return what a checkpoint knows it by."""
        return {"name": "partial", "accumulator": self._coder}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PartialCoder) and other._coder == self._coder

    def __hash__(self) -> int:
        return hash((PartialCoder, self._coder))

    def __repr__(self) -> str:
        return f"PartialCoder({self._coder!r})"


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[Window | None, bytes, int, int, int, int, int]).decode
