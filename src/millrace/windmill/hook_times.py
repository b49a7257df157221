"""Times of hooks: how long calls of user code take, a record or timer each, as a histogram.

Two looks at the clock a call would be a twentieth of what a short call costs. So of short calls
those of one bundle in 63 are timed, and stand for those of the bundles between; of long ones each
is. What stands around a hook, such as unpacking a pane, counts as its time; a call that raised is
not counted. Buckets are powers of two: what is said of a percentile is right within a factor of 2.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable
from itertools import accumulate
from math import frexp
from typing import Any, Final, TypeVar

import msgspec

from millrace.model.record import Record, Timer

Given = TypeVar("Given", Record, Timer)

#: Bundles between two that are timed. With them an odd number, or the same interval would be met
#: again and again: their number is a power of two.
_BETWEEN: Final = 62
#: Where calls take so long, on the average of a bundle, each one is timed.
_LONG_S: Final = 50e-6
#: What a small bundle takes that makes no calls, or hardly more.
_AROUND_S: Final = 500e-6

#: Calls below 2 ** -20 seconds, about a microsecond, count as of that; above 64 s, as of 128.
SHORTEST: Final = -20
LONGEST: Final = 7
_SHORTEST_S: Final = 2.0 ** (SHORTEST - 1)  # of nought there is no exponent


class HookTimes(msgspec.Struct, array_like=True, frozen=True):
    """How long calls took.

    Attributes:
        calls: Binary exponent of a time in seconds that they took less than, and at least half
            of -> how many they are, about.
        seconds: About how long they took together.

    >>> some = HookTimes({-10: 90, -3: 9, 2: 1}, 5.0)
    >>> some.percentiles()
    [0.0009765625, 0.125, 0.125]
    >>> some.then(HookTimes({2: 900}, 3000.0)).percentiles((50,))
    [4.0]
    """

    calls: dict[int, int] = {}
    seconds: float = 0.0

    def then(self, later: HookTimes) -> HookTimes:
        """Return these and later ones."""
        if not later.calls:
            return self
        if not self.calls:
            return later
        return HookTimes(Counter(self.calls) + Counter(later.calls), self.seconds + later.seconds)

    def percentiles(self, wanted: tuple[int, ...] = (50, 95, 99)) -> list[float]:
        """Return times in seconds that so many of 100 calls took less than; none without calls."""
        exponents = sorted(self.calls)
        until = list(accumulate(self.calls[exponent] for exponent in exponents))
        return [
            2.0 ** exponents[bisect_left(until, until[-1] * percent / 100)]
            for percent in wanted
            if until
        ]


NO_TIMES: Final = HookTimes()


class HookTimer:
    """Times the calls of a computation's hooks, bundle by bundle.

    Args:
        process_record: What is called with a record.
        process_timer: What is called with a timer.

    Attributes:
        process_record: The same, or what times it, as long as a bundle is timed.
        process_timer: Likewise.
    """

    def __init__(
        self, process_record: Callable[[Record], Any], process_timer: Callable[[Timer], Any]
    ) -> None:
        self._plain = process_record, process_timer
        self.process_record, self.process_timer = self._plain
        self._found: list[float] | None = None
        self._left = self._untimed = 0

    def begin(self, clock: Callable[[], float]) -> None:
        """Begin a bundle.

        Args:
            clock: Returns seconds, from any start.
        """
        if self._found is not None:
            self._found = None
            self.process_record, self.process_timer = self._plain  # also if the last one has failed
        if self._left:
            self._left -= 1
            return
        self._left = _BETWEEN
        found: list[float] = []
        self._found = found
        record, timer = self._plain
        self.process_record = _timed(record, clock, found.append)
        self.process_timer = _timed(timer, clock, found.append)

    def end(self, calls: int, seconds: float) -> HookTimes:
        """End a bundle; return what is known of its calls, and of those before it.

        Args:
            calls: How many were made in it.
            seconds: How long it took.
        """
        found = self._found
        if not found:
            self._untimed += calls
            # Of a bundle that was not timed it is known only with all that is done around its
            # calls. One without calls is not the one that is timed.
            if found is not None or seconds - _AROUND_S >= _LONG_S * calls:
                self._left = 0
            return NO_TIMES
        took = sum(found)
        if took >= _LONG_S * calls:
            self._left = 0
        each, self._untimed = divmod(self._untimed, len(found))
        counts: dict[int, int] = {}
        for one in found:
            exponent = min(frexp(max(one, _SHORTEST_S))[1], LONGEST)
            counts[exponent] = counts.get(exponent, 0) + each + 1
        return HookTimes(counts, took * (each + 1))


def _timed(
    hook: Callable[[Given], Any], clock: Callable[[], float], took: Callable[[float], None]
) -> Callable[[Given], Any]:
    def call(given: Given) -> Any:
        began = clock()
        returned = hook(given)
        took(clock() - began)
        return returned

    return call


_NO_HOOK: Callable[[Record], Any] = print
#: The code of what stands between the machine and a hook that is timed.
TIMED: Final = _timed(_NO_HOOK, float, print).__code__
