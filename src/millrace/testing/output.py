"""Output: one record as it left the pipeline."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Output:
    """One record of a stream, as a sink would have received it.

    Attributes:
        key: The producer's key; None for a record that came straight from an injector.
        value: The value.
        timestamp: Event time in microseconds.
        pane: What a window's trigger emitted it as; None outside of windows.
        id: What a sink would have got as ``_id``: 16 bytes, unique, the same on every attempt. Two
            outputs that differ in nothing else are equal.
    """

    key: Any
    value: Any
    timestamp: int
    pane: Any = None
    id: bytes = field(default=b"", compare=False, repr=False)
