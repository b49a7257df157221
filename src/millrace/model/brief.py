"""Brief: what is said of a value or an exception where it is named and not handed on.

It has a bounded length, can be encoded as UTF-8, and raises nothing, whatever the value's own
``__repr__`` or ``__str__`` do: what is told of a bad value must not be a second failure.
"""

from __future__ import annotations

import reprlib
import traceback
from typing import Any, Final

#: Characters of a key, value or reason in a dead letter or late record: each is some lines of a
#: log at least, and all of a letter together fit into the smallest message that a broker takes.
LETTER_MOST: Final = 10_000
#: Characters of a traceback in a dead letter.
TRACE_MOST: Final = 20_000

#: Millrace goes on after these, as after any exception of user code.
RAISED: Final = (Exception, SystemExit, GeneratorExit)

#: Of what is nested so deep that Python cannot write it, the outermost levels are written.
_OUTER = reprlib.Repr()
_OUTER.maxlevel = 20
_OUTER.maxstring = _OUTER.maxother = LETTER_MOST


def brief(value: Any, most: int = 400) -> str:
    """Return the repr of a value, cut.

    Args:
        value: Anything.
        most: Characters; by default five lines of a terminal, by which who knows it knows it.

    >>> brief("tea"), len(brief("x" * 1_000_000)), brief(b"x" * 1_000_000)[-5:]
    ("'tea'", 400, 'xx...')
    >>> deep = []
    >>> for _ in range(100_000):
    ...     deep = [deep]
    >>> brief(deep)
    '[[[[[[[[[[[[[[[[[[[[[...]]]]]]]]]]]]]]]]]]]]]'
    """
    # Of a long one only so much is written out: a status may name it once an epoch.
    long = isinstance(value, str | bytes) and len(value) > most
    try:
        text = repr(value[:most] if long else value)
    except RAISED as error:
        text, long = _unwritten(value, error), False
    text = encodable(text)
    return f"{text[: most - 3]}..." if long or len(text) > most else text


def brief_error(error: BaseException, most: int = LETTER_MOST) -> str:
    """Return the kind and the message of an exception, cut.

    >>> brief_error(KeyError("tea"))
    "KeyError: 'tea'"
    """
    try:
        text = f"{type(error).__name__}: {error}"
    except RAISED as another:
        text = f"{type(error).__name__}, of which str() raised {type(another).__name__}"
    return cut(encodable(text), most)


def brief_trace(error: BaseException, most: int = TRACE_MOST) -> str:
    """Return the traceback of an exception, its middle cut out."""
    try:
        text = "".join(traceback.format_exception(error))
    except RAISED as another:
        text = f"{type(error).__name__}, whose traceback raised {type(another).__name__}"
    return cut(encodable(text), most)


def cut(text: str, most: int) -> str:
    """Return a text of so many characters at most: its beginning and its end.

    >>> cut("abcdefghijklmnop", 11), cut("abc", 11)
    ('abc ... nop', 'abc')
    """
    if len(text) <= most:
        return text
    half = (most - 5) // 2
    return f"{text[:half]} ... {text[len(text) - half :]}"


def encodable(text: str) -> str:
    """Return a text with lone surrogates escaped, as no sink could write them."""
    if text.isascii():
        return text
    return text.encode("utf-8", "backslashreplace").decode()


def _unwritten(value: Any, error: BaseException) -> str:
    """Return what can be told of a value whose repr raises."""
    if isinstance(error, RecursionError) and type(value) in (list, dict, tuple, set, frozenset):
        try:
            return _OUTER.repr(value)
        except RAISED as another:
            error = another
    return f"<{type(value).__name__}, of which repr() raised {type(error).__name__}>"
