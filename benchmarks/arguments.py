"""Types of command-line arguments: several values with commas between them."""

from __future__ import annotations

import argparse
from collections.abc import Callable


def integers(text: str) -> list[int]:
    """Return the numbers of ``1,20``."""
    return [int(part) for part in text.split(",")]


def among(*known: str) -> Callable[[str], list[str]]:
    """Return a parser of some of the names, with commas between them."""

    def parse(text: str) -> list[str]:
        names = text.split(",")
        if unknown := set(names) - set(known):
            raise argparse.ArgumentTypeError(
                f"there is no {', '.join(sorted(unknown))}; there are {', '.join(known)}"
            )
        return names

    return parse
