"""Advances: what was decided to be read of a process, and how far it was read.

An injector says how far to read; what it says depends on the moment at which it is asked. Records
have numbers in the order in which they are read. So after a failure the same advances must be read
again, and not one large one in which the records may stand in another order: an offset that is kept
in the middle of an advance names how far that goes.

Backlog: what waits in a source, and was not read yet.

Source: MillWheel, "Injector and Low Watermark API" (5.2): an injector knows what it has not read.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from millrace.model.errors import PipelineError, WatermarkRegression, brief
from millrace.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP

#: The one key of an offset within an advance. No injector's own offset has it.
_WITHIN: Final = "millrace-within"


class Advance(NamedTuple):
    """How far a process of an injector has come.

    Attributes:
        offset: Where the next epoch begins; anything that JSON can say.
        low_watermark: What the process promises once everything before the offset was read:
            nothing before this time will follow, in microseconds. None: nothing new to promise.
    """

    offset: Any
    low_watermark: int | None = None


class Advances(NamedTuple):
    """Where a process stands.

    Attributes:
        start: An offset of the injector.
        ahead: What was decided to be read from there on, and was not read to its end.
        rows: How many rows of the first of them were read.
    """

    start: Any
    ahead: tuple[Advance, ...] = ()
    rows: int = 0

    @classmethod
    def of(cls, offset: Any) -> Advances:
        """Decode an offset.

        >>> Advances.of(7)
        Advances(start=7, ahead=(), rows=0)
        >>> Advances.of(Advances(7, (Advance(9),), 1).offset)
        Advances(start=7, ahead=(Advance(offset=9, low_watermark=None),), rows=1)
        """
        if not isinstance(offset, dict) or offset.keys() != {_WITHIN}:
            return cls(offset)
        start, ahead, rows = offset[_WITHIN]
        return cls(start, tuple(Advance(*one) for one in ahead), rows)

    @property
    def offset(self) -> Any:
        """What stands for it: the injector's own offset where nothing is left of an advance."""
        if not self.ahead:
            return self.start
        return {_WITHIN: [self.start, [list(one) for one in self.ahead], self.rows]}

    def decided(self, advance: Advance) -> Advances:
        """Return it with another advance."""
        return self._replace(ahead=(*self.ahead, Advance(*advance)))

    @property
    def last(self) -> Any:
        """The offset to which it was decided to read."""
        return self.ahead[-1].offset if self.ahead else self.start

    def read(self, rows: int) -> Advances:
        """Return it when so many more rows of the first advance were read."""
        return self._replace(rows=self.rows + rows)

    def done(self) -> Advances:
        """Return it when the first advance was read to its end."""
        return Advances(self.ahead[0].offset, self.ahead[1:])


def is_within(offset: Any) -> bool:
    """Return whether an offset is within an advance.

    >>> is_within(7), is_within(along(7, [decision(7, Advance(9))]))
    (False, True)
    """
    return bool(Advances.of(offset).ahead)


def decision(before: Any, advance: Advance) -> Any:
    """Return what has to be kept of an advance, given the offset before it.

    An offset may say much that stays as it was, such as which files there are.
    """
    return [_change(before, advance.offset), advance.low_watermark]


def along(offset: Any, decided: Iterable[Any]) -> Any:
    """Return an offset with what was decided after it.

    Args:
        offset: Where a process stood.
        decided: :func:`decision` of each advance after it, in order.

    >>> advances = Advance({"a": 9, "b": 1}), Advance({"a": 9, "b": 2}, 5)
    >>> decided = [decision(None, advances[0]), decision(advances[0].offset, advances[1])]
    >>> decided[1]
    [[{'b': [2]}, []], 5]
    >>> along(None, decided)
    {'millrace-within': [None, [[{'a': 9, 'b': 1}, None], [{'a': 9, 'b': 2}, 5]], 0]}
    >>> along(7, [])
    7
    """
    advances = Advances.of(offset)
    for change, low_watermark in decided:
        advances = advances.decided(Advance(_changed(advances.last, change), low_watermark))
    return advances.offset


def _change(before: Any, after: Any) -> list[Any]:
    """Return what makes one value of another: it alone, or what has changed in it and is gone."""
    if not isinstance(before, dict) or not isinstance(after, dict):
        return [after]
    changed = {
        name: _change(before.get(name), value)
        for name, value in after.items()
        if name not in before or before[name] != value
    }
    return [changed, [name for name in before if name not in after]]


def _changed(before: Any, change: list[Any]) -> Any:
    if len(change) == 1:
        return change[0]
    changed, gone = change
    made = {name: value for name, value in before.items() if name not in gone}
    return made | {name: _changed(made.get(name), of) for name, of in changed.items()}


def process_watermark(
    who: str, process: str, reported_us: int | None, before_us: int | None
) -> int | None:
    """Return the low watermark of a process, from its new report and the one before.

    A time beyond either end of time is clamped to that end.

    Raises:
        WatermarkRegression: The new report is below the one before.
        PipelineError: The report is no time.

    >>> process_watermark("injector", "a", 1 << 70, None) == MAX_TIMESTAMP
    True
    """
    if reported_us is not None:
        try:
            reported_us = max(MIN_TIMESTAMP, min(operator.index(reported_us), MAX_TIMESTAMP))
        except TypeError:
            raise PipelineError(
                f"{who}: process {process!r} reported the low watermark {brief(reported_us)}. "
                "Expected microseconds since 1970 as an int, or None for nothing new."
            ) from None
    if reported_us is None or before_us is None or reported_us >= before_us:
        return before_us if reported_us is None else reported_us
    raise WatermarkRegression(
        f"{who}: process {process!r} reported {reported_us} us after {before_us} us; low "
        "watermarks never move back. Report the minimum over unread input, or deliver the record "
        "as late."
    )


class Backlog(NamedTuple):
    """What waits in a source and was not read yet; about, and of none of it more than it knows.

    Attributes:
        records: How many records; None if the source cannot tell.
        files: How many files of which something was not read; None where there are none to count.
        size: How many bytes, as they lie there; None if the source cannot tell.

    >>> Backlog.together([Backlog(records=5), Backlog(records=2, size=80)])
    Backlog(records=7, files=None, size=None)
    """

    records: int | None = None
    files: int | None = None
    size: int | None = None

    @classmethod
    def together(cls, parts: Iterable[Backlog]) -> Backlog:
        """Return what several processes have together; what one cannot tell, all cannot."""
        return cls(*map(_sum, zip(*parts, strict=True)))


def _sum(values: tuple[int | None, ...]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None
