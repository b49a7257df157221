"""Bound: what all cells with a key under them share."""

from __future__ import annotations

from typing import Any

from millrace.model.errors import AccumulatorRefused, CoderError, brief
from millrace.model.keys import decode_key
from millrace.model.state import StateDescriptor


class Bound(StateDescriptor):
    """A cell bound to a machine: a copy of its declaration."""

    def _encoded(self, value: Any, entry: bytes | None = None) -> bytes:
        """Return a value's bytes, or say which cell, and which encoded entry of it, refuses it."""
        try:
            return self.coder.encode(value)
        except AccumulatorRefused:
            raise  # It says where; the cell and its entries are nothing that a user knows.
        except CoderError as refused:
            where = "" if entry is None else f"[{brief(decode_key(entry), 120)}]"
            raise CoderError(f"{self.owner}.{self.name}{where}: {refused}") from None
