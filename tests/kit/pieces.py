"""The rows of the pieces that an epoch reads of an injector."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from millrace.injectors.columns import column_names
from millrace.injectors.injector import Injector
from millrace.injectors.offsets import Piece


def rows(injector: Injector, piece: Piece) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a piece: its values, its process, what that promises, and False.

    Punctuation follows the last, with True: a process without a record makes itself known by it.
    """
    width = len(column_names(injector.schema))
    if piece.between is not None:
        for row in injector.read(piece.process, *piece.between):
            assert len(row) == width
            yield (*row, piece.process, None, False)
    if piece.last:
        yield (*[None] * width, piece.process, piece.process_watermark_us, True)
