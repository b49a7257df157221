"""The operator of computations that make calls: it gives them the cell of what is pending."""

from __future__ import annotations

import copy
from collections.abc import Mapping

from millrace.dataflow.calls import PENDING, CallEach
from millrace.dataflow.joins.join_state import KeptCoder
from millrace.dataflow.operator import Operator
from millrace.model.async_computation import AsyncComputation
from millrace.model.coder import Coder
from millrace.model.computation import Computation
from millrace.model.state import MapState


class CallOperator(Operator):
    """The operator of computations that make calls: it gives them their hidden cell."""

    def bound(self, formats: Mapping[str, Coder], *, unbounded: bool) -> Computation:
        """Return the computation with a cell for what is pending."""
        made = copy.copy(super().bound(formats, unbounded=unbounded))
        vars(made)[PENDING] = MapState(KeptCoder(tuple[str, bytes, int, bool, int, int]))
        if isinstance(made, CallEach):
            made.derive(formats)
        return made

    def described(self) -> list[str]:
        """Return how calls are made."""
        computation = self._computation
        assert isinstance(computation, AsyncComputation)
        batch = "" if computation.batch is None else f", {computation.batch!r}"
        return [f"calls  {computation.calls!r}{batch}"]
