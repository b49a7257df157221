"""The input's files as Millrace reads them itself, in the batches that everyone else gets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import millrace as mr


class FileBatches(mr.sources.Files):
    """Reads Parquet files in order of their names, so many an epoch.

    Args:
        path: The folder.
        schema: The columns that are read.
        files: How many files an epoch.
    """

    def __init__(self, path: Path, *, schema: str, files: int) -> None:
        # One byte of room is one file, of one row group. All are as old, so names say the order.
        super().__init__(path, schema=schema, created=_zero, bytes_per_epoch=1)
        self._files = files

    def advance(self, process: str, offset: Any) -> mr.sources.Advance:
        """Return how far so many files are."""
        advance = mr.sources.Advance(offset)
        for _ in range(self._files):
            advance = super().advance(process, advance.offset)
        return advance


def _zero(_: Path) -> int:
    return 0
