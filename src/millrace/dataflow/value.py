"""Value: an object that is equal by its arguments, and whose repr is the call that made it.

Windows, triggers and aggregations are values: a checkpoint knows them by their text, so that must
be the same in every process. Durations that they are made with are checked where they are written.
"""

from __future__ import annotations

import re
from typing import Any

from millrace.model.errors import PipelineError
from millrace.model.time import MAX_TIMESTAMP, Duration, duration_us

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


class Value:
    """Equality, hash and text of a class by its attributes, in order."""

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    def __hash__(self) -> int:
        return hash((type(self), *(text(value) for value in vars(self).values())))

    def __repr__(self) -> str:
        public = (value for name, value in vars(self).items() if not name.startswith("_"))
        return f"{type(self).__name__}({', '.join(map(text, public))})"


def text(value: Any) -> str:
    """Return a value as text that is the same in every process: functions go by their names.

    >>> text(3), text(text), text(object())
    ('3', 'text', '<object object>')
    """
    if callable(value) and hasattr(value, "__qualname__"):
        return str(value.__qualname__)
    return _ADDRESS.sub("", repr(value))


def last_word(kind: type, one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    """Return whether a class defines ``one`` of its methods no further up than the ``other``.

    A class that defines how it does a thing one by one anew inherits the way to do many at once of
    something else.

    >>> class A:
    ...     def many(self): ...
    >>> class B(A):
    ...     def one(self): ...
    >>> last_word(A, ("many",), ("one",)), last_word(B, ("many",), ("one",))
    (True, False)
    """
    for base in kind.__mro__:
        if any(name in vars(base) for name in one):
            return True
        if any(name in vars(base) for name in other):
            return False
    return False


def positive_us(duration: Duration, where: str) -> int:
    """Return a duration above zero in microseconds.

    Args:
        duration: As given.
        where: The call and argument, for the message.

    Raises:
        PipelineError: Zero, negative, longer than half of all time, or no duration.

    >>> positive_us("1 s", "Sessions(gap)")
    1000000
    """
    us = duration_us(duration, where)
    if us > MAX_TIMESTAMP // 2:
        # What begins at the time of a record and lasts so long ends at a time that there is.
        raise PipelineError(
            f"{where}: {duration!r} is longer than 73,000 years, of which no end would come."
        )
    if us == 0:
        raise PipelineError(f'{where}: {duration!r} is no time at all. Expected more, as "5 min".')
    return us
