"""Output: one record as it left the pipeline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Output:
    """One record of a stream, as a sink would have received it.

    Attributes:
        key: The producer's key; None for a record that came straight from an injector.
        value: The value.
        timestamp: Event time in microseconds.
        pane: What a window's trigger emitted it as; None outside of windows.
    """

    key: Any
    value: Any
    timestamp: int
    pane: Any = None
