"""Approximate Distinct and Quantiles, by Apache DataSketches: bounded memory for any number.

Both are deterministic: the same values in the same order give the same sketch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import xxhash

from millrace.dataflow.aggregations.collections import shares
from millrace.dataflow.aggregations.combine_fn import CombineFn
from millrace.dataflow.aggregations.numeric import number
from millrace.model.equality import canonical
from millrace.model.errors import PipelineError

#: 2^12 registers: 2 kB at most, and a relative error of 1.6% (one standard deviation).
_HLL_LG_K = 12

#: About 4 kB; ranks are within some 0.5% in the middle, and much closer at both ends.
_TDIGEST_K = 200


class _Sketch(CombineFn):
    """A sketch, of which values are added one by one."""

    def vector(self, values: Any) -> str:
        """Return why values are not combined beforehand."""
        return f"the estimate of {self!r} depends on what was merged with what"


class ApproximateDistinct(_Sketch):
    """About how many different values there are, by HyperLogLog, in 2 kB.

    >>> from millrace.dataflow.aggregations import combine
    >>> combine(ApproximateDistinct(), ["a", "b", "a"])
    2
    """

    def create(self) -> Any:
        """Return the sketch of no values."""
        return _library().hll_sketch(_HLL_LG_K)

    def add(self, accumulator: Any, value: Any) -> Any:
        """Add a value, by the hash of its canonical bytes."""
        hashed = xxhash.xxh64_intdigest(canonical(value))
        accumulator.update(hashed - (1 << 64) if hashed >> 63 else hashed)
        return accumulator

    def merge(self, accumulator: Any, other: Any) -> Any:
        """Return the sketch of both."""
        union = _library().hll_union(_HLL_LG_K)
        union.update(accumulator)
        union.update(other)
        return union.get_result()

    def extract(self, accumulator: Any) -> int:
        """Return the estimate, rounded."""
        return int(accumulator.get_estimate() + 0.5)

    def accumulator_type(self, value: Any) -> Any:
        """Return the sketch's coder."""
        return SketchCoder("hll_sketch")

    def result_type(self, value: Any) -> Any:
        """Return int."""
        return int


class ApproximateQuantiles(_Sketch):
    """About the quantiles, by a t-digest, in some 4 kB.

    Args:
        at: Shares, from 0 (the smallest value) to 1 (the largest); those two are exact.

    >>> from millrace.dataflow.aggregations import combine
    >>> combine(ApproximateQuantiles([0, 0.5, 1]), [7, 1, 3, 5, 4])
    [1.0, 4.0, 7.0]
    """

    def __init__(self, at: Sequence[float]) -> None:
        self.at = shares(at)

    def create(self) -> Any:
        """Return the digest of no values."""
        return _library().tdigest_double(_TDIGEST_K)

    def add(self, accumulator: Any, value: Any) -> Any:
        """Add a value."""
        accumulator.update(float(number(value, "quantiles")))
        return accumulator

    def merge(self, accumulator: Any, other: Any) -> Any:
        """Return the digest of both."""
        accumulator.merge(other)
        return accumulator

    def extract(self, accumulator: Any) -> list[float | None]:
        """Return the quantiles; None for each of no values."""
        if accumulator.is_empty():
            return [None for _ in self.at]
        return [accumulator.get_quantile(q) for q in self.at]

    def accumulator_type(self, value: Any) -> Any:
        """Return the digest's coder."""
        return SketchCoder("tdigest_double")

    def result_type(self, value: Any) -> Any:
        """Return the type of the list."""
        return list[float | None]


class SketchCoder:
    """Encodes a sketch as the library's own portable bytes.

    Args:
        kind: Name of its class.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def encode(self, value: Any) -> bytes:
        """Return the sketch as bytes."""
        compact = getattr(value, "serialize_compact", None)
        return bytes(compact() if compact is not None else value.serialize())

    def decode(self, data: bytes) -> Any:
        """Return the sketch."""
        return getattr(_library(), self.kind).deserialize(data)

    def describe(self) -> dict[str, Any]:
        """Return what a checkpoint knows it by."""
        return {"name": "sketch", "kind": self.kind}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SketchCoder) and other.kind == self.kind

    def __hash__(self) -> int:
        return hash((SketchCoder, self.kind))

    def __repr__(self) -> str:
        return f"SketchCoder({self.kind!r})"


def _library() -> Any:
    # Only when it is used: it is an extra.
    try:
        import datasketches
    except ImportError as missing:
        raise PipelineError(
            "approximate aggregations are made with Apache DataSketches: "
            'pip install "millrace-spark[sketches]".'
        ) from missing
    return datasketches
