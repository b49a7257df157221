"""What a computation that works on whole bundles is given, and what it gives back.

Such a computation keeps no cells: a bundle leaves chunks of bytes behind, each with the instant
when it is wanted again. Built-in computations only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

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


class Stored(NamedTuple):
    """A chunk in the store: its row, the instant when it is wanted, and what it says."""

    row: bytes
    at_us: int
    chunk: bytes


@dataclass(frozen=True)
class ColumnarBundle:
    """A bundle of one key interval.

    Attributes:
        records: What arrived; None if nothing did.
        number: Of the commit that it will be.
        arrival_watermark_us: While the records were on their way.
        input_watermark_us: Now that they are here.
        wall_time_us: Of the epoch.
        stored: The chunks wanted until an instant, that included, in that order.
    """

    records: Keyed | None
    number: int
    arrival_watermark_us: int
    input_watermark_us: int
    wall_time_us: int
    stored: Callable[[int], Iterable[Stored]]


@dataclass(frozen=True)
class Emitted:
    """Panes that differ in key and value, and perhaps in window.

    Attributes:
        stream: Where they go.
        keys: Encoded; this and the next by pane.
        hashes: Of the keys.
        values: The results.
        pane: Of all of them, but for the window where those have their own.
        windows: (start, end) of each; None if all have that of the pane.
        timestamps: Event times, microseconds.
    """

    stream: str
    keys: list[bytes]
    hashes: list[int]
    values: Sequence[Any]
    pane: Pane
    windows: list[tuple[int, int]] | None
    timestamps: list[int]


@dataclass
class Done:
    """What becomes of a bundle.

    Attributes:
        emitted: Panes, in order.
        removed: Rows of chunks that are not needed any more.
        added: Instant -> chunks that are wanted then; after the low watermark.
        refused: Position of a record -> why it was not taken.
        failed: Key, instant and reason of what could not be kept any more.
        counted: Counters.
    """

    emitted: list[Emitted] = field(default_factory=list)
    removed: list[bytes] = field(default_factory=list)
    added: dict[int, list[bytes]] = field(default_factory=dict)
    refused: dict[int, BaseException] = field(default_factory=dict)
    failed: list[tuple[bytes, int, Exception]] = field(default_factory=list)
    counted: dict[str, int] = field(default_factory=dict)


class Columnar(Protocol):
    """A computation that works on whole bundles."""

    def run(self, bundle: ColumnarBundle) -> Done:
        """Return what becomes of a bundle. Every chunk that is due must be among the removed."""

    def pending(self, chunks: Iterable[tuple[int, bytes]]) -> Mapping[int, int]:
        """Return how many keys wait for an instant, by instant, each for each window of its own.

        Args:
            chunks: All there are: when each is wanted, and what it says.
        """
