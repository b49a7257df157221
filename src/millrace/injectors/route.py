"""Route: what was decided to be read of a process, and how far it was read.

An injector says how far to read; what it says depends on the moment at which it is asked. Records
have numbers in the order in which they are read. So after a failure the same steps must be read
again, and not one large step in which the records may stand in another order: an offset that is
kept in the middle of a step names the steps to its end.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from millrace.model.errors import WatermarkRegression

#: The one key of an offset within a step. No injector's own offset has it.
_WITHIN: Final = "millrace-within"


class Step(NamedTuple):
    """One advance of a process, as it was decided.

    Attributes:
        end: The offset to which it reads.
        claim_us: What the process promises there; None: nothing.
    """

    end: Any
    claim_us: int | None


class Route(NamedTuple):
    """Where a process stands.

    Attributes:
        start: An offset of the injector.
        steps: What was decided to be read from there on, and was not read to its end.
        rows: How many rows of the first step were read.
    """

    start: Any
    steps: tuple[Step, ...] = ()
    rows: int = 0

    @classmethod
    def of(cls, offset: Any) -> Route:
        """Return the route that an offset stands for.

        >>> Route.of(7)
        Route(start=7, steps=(), rows=0)
        >>> Route.of(Route(7, (Step(9, None),), 1).offset)
        Route(start=7, steps=(Step(end=9, claim_us=None),), rows=1)
        """
        if not isinstance(offset, dict) or offset.keys() != {_WITHIN}:
            return cls(offset)
        start, steps, rows = offset[_WITHIN]
        return cls(start, tuple(Step(*step) for step in steps), rows)

    @property
    def offset(self) -> Any:
        """What stands for it: the injector's own offset where nothing is left of a step."""
        if not self.steps:
            return self.start
        return {_WITHIN: [self.start, [list(step) for step in self.steps], self.rows]}

    def decided(self, step: Step) -> Route:
        """Return it with another step."""
        return self._replace(steps=(*self.steps, step))

    def read(self, rows: int) -> Route:
        """Return it when so many more rows of the first step were read."""
        return self._replace(rows=self.rows + rows)

    def done(self) -> Route:
        """Return it when the first step was read to its end."""
        return Route(self.steps[0].end, self.steps[1:])


def along(offset: Any, decided: Iterable[Any]) -> Any:
    """Return an offset with what was decided after it.

    Args:
        offset: Where a process stood.
        decided: :attr:`~millrace.injectors.follower.Taken.decided` of what was taken after it, in
            order.

    >>> along(7, [[9, None], [12, 5]])
    {'millrace-within': [7, [[9, None], [12, 5]], 0]}
    >>> along(7, [])
    7
    """
    route = Route.of(offset)
    for step in decided:
        route = route.decided(Step(*step))
    return route.offset


def promise(who: str, process: str, claim_us: int | None, before_us: int | None) -> int | None:
    """Return what a process has promised, given what it says now and what it had promised.

    Raises:
        WatermarkRegression: It says less than before.
    """
    if claim_us is None or before_us is None or claim_us >= before_us:
        return before_us if claim_us is None else claim_us
    raise WatermarkRegression(
        f"{who}: process {process!r} reported {claim_us} us after {before_us} us; low watermarks "
        "never move back. Report the minimum over unread input, or deliver the record as late."
    )
