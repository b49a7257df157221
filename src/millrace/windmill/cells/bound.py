"""Bound: what all cells with a key under them share."""

from __future__ import annotations

from typing import Any

from millrace.model.errors import AccumulatorRefused, CoderError
from millrace.model.state import StateDescriptor


class Bound(StateDescriptor):
    """A cell bound to a machine: a copy of its declaration."""

    def _encoded(self, value: Any, where: str = "") -> bytes:
        """Return a value's bytes, or say which cell refuses it."""
        try:
            return self.coder.encode(value)
        except AccumulatorRefused:
            raise  # It says where; the cell and its entries are nothing that a user knows.
        except CoderError as refused:
            raise CoderError(f"{self.owner}.{self.name}{where}: {refused}") from None
