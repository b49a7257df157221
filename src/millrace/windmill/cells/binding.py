"""Binding: the cells that a computation declares, in its instance, with keys under them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from millrace.dataflow.side_stream import SIZES
from millrace.model.errors import InvariantViolation
from millrace.model.state import (
    BagState,
    CombiningState,
    MapState,
    SideInput,
    StateDescriptor,
    ValueState,
)
from millrace.windmill.cells.bags import BoundBag
from millrace.windmill.cells.expiring import ExpiringCombining, ExpiringMap, ExpiringValue, Keeping
from millrace.windmill.cells.maps import BoundMap
from millrace.windmill.cells.scalars import BoundCombining, BoundValue, Scalar, Scalars
from millrace.windmill.cells.sides import BoundSide
from millrace.windmill.timers import KeyRows, KeyTimers


class CellBinding:
    """The bound cells of a computation.

    Args:
        declared: Name -> cell.
        numbers: Name -> number, which rows of the cell carry.
        key_rows: Where the key at hand is read and written.
        timers: Of the key at hand.
        now_us: Clock -> the time of a write now; asked only where a cell expires.

    Attributes:
        by_name: Name -> bound cell, for the instance.
        scalars: The value and combining cells; None if there are none.
        collections: The others of a key.
        sides: The side inputs.
    """

    def __init__(
        self,
        declared: Mapping[str, StateDescriptor],
        numbers: Mapping[str, int],
        key_rows: KeyRows,
        timers: KeyTimers,
        now_us: Callable[[int], int],
    ) -> None:
        self.by_name: dict[str, Any] = {}
        self.scalars: Scalar | Scalars | None = None
        self.collections: list[BoundMap | BoundBag] = []
        self.sides: list[BoundSide] = []
        self._expiring: dict[int, ExpiringValue | ExpiringCombining | ExpiringMap] = {}
        self._verified: list[BoundValue | BoundCombining | BoundMap] = []
        scalars: list[BoundValue | BoundCombining] = []
        # By number, not by where the class declares them, so that moving a line does not move a
        # cell's state.
        for name, cell in sorted(declared.items(), key=lambda one: numbers[one[0]]):
            if isinstance(cell, SideInput):
                side = BoundSide(cell, numbers[name], numbers[SIZES], key_rows)
                self.sides.append(side)
                self.by_name[name] = side
                continue
            bound: BoundValue | BoundCombining | BoundMap | BoundBag
            expires = cell.expires is not None
            if isinstance(cell, CombiningState):
                bound = ExpiringCombining(cell) if expires else BoundCombining(cell)
                scalars.append(bound)
            elif isinstance(cell, ValueState):
                bound = ExpiringValue(cell) if expires else BoundValue(cell)
                scalars.append(bound)
            elif isinstance(cell, MapState):
                kind = ExpiringMap if expires else BoundMap
                self.collections.append(bound := kind(cell, numbers[name], key_rows))
            elif isinstance(cell, BagState):
                self.collections.append(bound := BoundBag(cell, numbers[name], key_rows))
            else:
                raise InvariantViolation(f"no binding for state cell {cell!r}")
            self.by_name[name] = bound
            if isinstance(bound, ExpiringValue | ExpiringCombining | ExpiringMap):
                assert cell.expires is not None
                bound.keeping = Keeping(cell.expires, numbers[name], timers, now_us)
                self._expiring[numbers[name]] = bound
            if not isinstance(bound, BoundBag):
                self._verified.append(bound)
        if scalars:
            self.scalars = Scalar(scalars[0]) if len(scalars) == 1 else Scalars(scalars)

    def expire(self, number: int, entry: bytes) -> None:
        """Forget what a cell keeps, or an entry of it, whose time has come."""
        # A cell that expired before the program was changed keeps what it has.
        if (cell := self._expiring.get(number)) is not None:
            cell.expire(entry)

    def verify(self) -> None:
        """Raise CoderError if something that user code left in a cell cannot be stored."""
        for cell in self._verified:
            cell.verify()
