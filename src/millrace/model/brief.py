"""Brief: what is said of a value where it is named and not handed on, in a bounded length.

A key may be of a megabyte. It goes as it is into a dead letter, which is data; into a log, a
status or an error goes how it begins.
"""

from __future__ import annotations

from typing import Any, Final

#: Five lines of a terminal: who knows the value knows it by that.
_BRIEF_MAX: Final = 400


def brief(value: Any) -> str:
    """Return the repr of a value, cut.

    >>> brief("tea"), len(brief("x" * 1_000_000)), brief(b"x" * 1_000_000)[-5:]
    ("'tea'", 400, 'xx...')
    """
    # Of a long one only so much is written out: a status may name it once an epoch.
    if isinstance(value, str | bytes) and len(value) > _BRIEF_MAX:
        return repr(value[:_BRIEF_MAX])[: _BRIEF_MAX - 3] + "..."
    text = repr(value)
    return text if len(text) <= _BRIEF_MAX else text[: _BRIEF_MAX - 3] + "..."
