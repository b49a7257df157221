"""Part: one of several aggregates that are computed in one pass."""

from __future__ import annotations

from typing import Any, NamedTuple

import pyarrow as pa

from millrace.dataflow.aggregations.combine_fn import CombineFn
from millrace.dataflow.aggregations.vector import Mask, Vector, VectorFold, vector_of


class Part(NamedTuple):
    """One of several aggregates.

    Attributes:
        name: Of its result.
        combine: How.
        source: Where in the tuple its value is; None if it only counts.
        condition: Where in the tuple it says whether the element counts; None if all do.
        about: What it aggregates, as text.
    """

    name: str
    combine: CombineFn
    source: int | None
    condition: int | None
    about: str = ""

    @property
    def fold(self) -> VectorFold:
        """The aggregate, where it is known to be one of numbers."""
        assert isinstance(self.combine, VectorFold)
        return self.combine

    def present(self, values: pa.Array) -> Mask | None:
        """Return which elements count; None: all."""
        if self.condition is None:
            return None
        found: Mask = values.field(self.condition).to_numpy(zero_copy_only=False)
        return found.astype(bool)

    @property
    def vector(self) -> Vector:
        """The vector form of the aggregate, where it is known to have one."""
        found = vector_of(self.combine, Any)
        assert not isinstance(found, str), found
        return found
