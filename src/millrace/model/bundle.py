"""What a computation that works on whole bundles is given, and what it gives back.

Such a computation keeps no cells: a bundle leaves chunks of bytes behind, each with the time when
it is wanted again. Built-in computations only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from millrace.model.pane import Pane


@dataclass(frozen=True)
class Keyed:
    """The records of a bundle, as columns.

    Attributes:
        keys: The keys, encoded.
        hashes: Of the keys.
        key_of: Of each record, the position of its key; ascending.
        values: Of each record.
        timestamps: Of each record, microseconds.
    """

    keys: Sequence[bytes]
    hashes: npt.NDArray[np.uint64]
    key_of: npt.NDArray[np.int64]
    values: Sequence[Any]
    timestamps: Sequence[int]


@dataclass(frozen=True)
class Absorbed:
    """What became of a bundle's records.

    Attributes:
        chunks: Instant -> chunks that are wanted when the low watermark is there.
        refused: Position of a record -> why it was not taken.
        counted: Counters.
    """

    chunks: dict[int, list[bytes]]
    refused: dict[int, Exception]
    counted: dict[str, int]


@dataclass(frozen=True)
class Emitted:
    """Panes of one window.

    Attributes:
        stream: Where they go.
        keys: Encoded, as the next by pane.
        hashes: Of the keys.
        values: The results.
        pane: Of all of them.
        timestamp: Event time of all of them, microseconds.
    """

    stream: str
    keys: list[bytes]
    hashes: list[int]
    values: list[Any]
    pane: Pane
    timestamp: int


class Columns(Protocol):
    """A computation that works on whole bundles."""

    def absorb(self, records: Keyed, low_watermark_us: int) -> Absorbed:
        """Return what becomes of a bundle's records."""

    def merge(self, chunks: Sequence[bytes]) -> list[bytes]:
        """Return fewer chunks that say the same as these, all of one instant."""

    def emit(self, end_us: int, chunks: Sequence[bytes], wall_time_us: int) -> Emitted:
        """Return what becomes of the chunks for an instant."""
