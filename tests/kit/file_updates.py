"""Files that a test changes while a run reads them."""

from __future__ import annotations

from pathlib import Path


def replace(file: Path, text: str) -> None:
    """Write a file that an injector may read at any moment: it finds the text before, or this."""
    aside = file.with_suffix(".new")
    aside.write_text(text)
    aside.replace(file)
