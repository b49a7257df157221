"""Binding: the cells that a computation declares, in its instance, with keys under them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from millrace.model.errors import InvariantViolation
from millrace.model.state import BagState, CombiningState, MapState, StateDescriptor, ValueState
from millrace.windmill.cells.bags import BoundBag
from millrace.windmill.cells.maps import BoundMap
from millrace.windmill.cells.scalars import BoundCombining, BoundValue, Scalar, Scalars
from millrace.windmill.key_rows import KeyRows


class Cells:
    """The bound cells of a computation.

    Args:
        declared: Name -> cell.
        numbers: Name -> number, which rows of the cell carry.
        key_rows: Where the key at hand is read and written.

    Attributes:
        by_name: Name -> bound cell, for the instance.
        scalars: The value and combining cells; None if there are none.
        collections: The others.
    """

    def __init__(
        self,
        declared: Mapping[str, StateDescriptor],
        numbers: Mapping[str, int],
        key_rows: KeyRows,
    ) -> None:
        self.by_name: dict[str, Any] = {}
        self.scalars: Scalar | Scalars | None = None
        self.collections: list[BoundMap | BoundBag] = []
        self._verified: list[BoundValue | BoundCombining | BoundMap] = []
        scalars: list[BoundValue | BoundCombining] = []
        # By number, not by where the class declares them, so that moving a line does not move a
        # cell's state.
        for name, cell in sorted(declared.items(), key=lambda one: numbers[one[0]]):
            bound: BoundValue | BoundCombining | BoundMap | BoundBag
            if isinstance(cell, CombiningState):
                scalars.append(bound := BoundCombining(cell))
            elif isinstance(cell, ValueState):
                scalars.append(bound := BoundValue(cell))
            elif isinstance(cell, MapState):
                self.collections.append(bound := BoundMap(cell, numbers[name], key_rows))
            elif isinstance(cell, BagState):
                self.collections.append(bound := BoundBag(cell, numbers[name], key_rows))
            else:
                raise InvariantViolation(f"no binding for state cell {cell!r}")
            self.by_name[name] = bound
            if not isinstance(bound, BoundBag):
                self._verified.append(bound)
        if scalars:
            self.scalars = Scalar(scalars[0]) if len(scalars) == 1 else Scalars(scalars)

    def verify(self) -> None:
        """Raise CoderError if something that user code left in a cell cannot be stored."""
        for cell in self._verified:
            cell.verify()
