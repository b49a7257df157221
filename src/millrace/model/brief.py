"""Brief: what is said of a value where it is named and not handed on, in a bounded length.

A key may be of a megabyte. It goes as it is into a dead letter, which is data; into a log, a
status or an error goes how it begins.
"""

from __future__ import annotations

from typing import Any


def brief(value: Any, most: int = 400) -> str:
    """Return the repr of a value, cut.

    Args:
        value: Anything.
        most: Characters; by default five lines of a terminal, by which who knows it knows it.

    >>> brief("tea"), len(brief("x" * 1_000_000)), brief(b"x" * 1_000_000)[-5:]
    ("'tea'", 400, 'xx...')
    """
    # Of a long one only so much is written out: a status may name it once an epoch.
    long = isinstance(value, str | bytes) and len(value) > most
    text = repr(value[:most] if long else value)
    return f"{text[: most - 3]}..." if long or len(text) > most else text
