"""What joins by nearness in time, by expiry and for ever come to, from their definition alone.

Nothing here is taken from the code that it judges: every pair of values of one key is looked at.

Source: docs/how-to/join-two-streams.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, NamedTuple

from millrace.model.time import SECOND
from simulation.definitions import Element, Wrong

LEFT, RIGHT = "left", "right"


class Pair(NamedTuple):
    """A pair that a sink got, in the order of emission.

    Attributes:
        key: Its key.
        left: The value of the left side; None without one.
        right: That of the right side.
        at: Event time.
        retraction: Whether it takes one before it back.
    """

    key: Any
    left: Any
    right: Any
    at: int
    retraction: bool


@dataclass(frozen=True)
class Near:
    """A join by its definition.

    Attributes:
        kind: ``inner``, ``left`` or ``outer``.
        first: How far a right value's time lies from the left one's at least; None: no limit.
        end: How far it lies at most, and one more.
        lateness: How long after it could meet nothing any more a value is taken.
        at_once: Whether a value without a partner is said at once, and taken back with the first.
    """

    kind: str
    first: int | None
    end: int | None
    lateness: int
    at_once: bool

    def check(self, said: Iterable[tuple[str, Element]], pairs: Iterable[Pair], lost: int) -> None:
        """Raise Wrong if the pairs that stand are not those of the values.

        Args:
            said: Side and value, by arrival.
            pairs: By emission.
            lost: How many values were counted as too late.
        """
        sides: dict[str, list[Element]] = {LEFT: [], RIGHT: []}
        late = 0
        for side, element in said:
            if self._forgotten(side, element):
                late += 1
            else:
                sides[side].append(element)
        if late != lost:
            raise Wrong(f"{lost} values were counted as dropped, and {late} came too late")
        current: Counter[tuple[Any, ...]] = Counter()
        for key, left, right, at, retraction in pairs:
            what = key, left, right, at
            if retraction and not current[what]:
                raise Wrong(f"{what} was taken back, and was not there")
            current[what] += -1 if retraction else 1
        wanted = self._pairs(sides[LEFT], sides[RIGHT])
        if +current != wanted:
            raise Wrong(f"too many: {+current - wanted}, missing: {wanted - +current}")

    def _forgotten(self, side: str, element: Element) -> bool:
        """Return whether what a value could meet on the other side is forgotten already."""
        limit = self.first if side == LEFT else self.end
        return limit is not None and element.at < element.low_watermark - self.lateness

    def _pairs(
        self, lefts: Sequence[Element], rights: Sequence[Element]
    ) -> Counter[tuple[Any, ...]]:
        found: Counter[tuple[Any, ...]] = Counter()
        met: dict[str, set[int]] = {LEFT: set(), RIGHT: set()}
        for n, left in enumerate(lefts):
            for m, right in enumerate(rights):
                if left.key == right.key and self._meet(right.at - left.at):
                    found[left.key, left.value, right.value, max(left.at, right.at)] += 1
                    met[LEFT].add(n)
                    met[RIGHT].add(m)
        if self.kind != "inner":
            for n, one in enumerate(lefts):
                if n not in met[LEFT]:
                    wait = 0 if self.end is None else self.end - 1
                    found[one.key, one.value, None, self._alone(one.at, wait)] += 1
        if self.kind == "outer":
            for m, one in enumerate(rights):
                if m not in met[RIGHT]:
                    wait = 0 if self.first is None else -self.first
                    found[one.key, None, one.value, self._alone(one.at, wait)] += 1
        return found

    def _meet(self, apart: int) -> bool:
        return (self.first is None or self.first <= apart) and (
            self.end is None or apart < self.end
        )

    def _alone(self, at: int, wait: int) -> int:
        """Return the time of a value without a partner: when that is known, or its own."""
        return at if self.at_once else max(at, at + wait)


def near(random: Random, *, drops: bool, far_us: int) -> tuple[str, dict[str, Any], Near]:
    """Return which values are joined, how that is said to a pipeline, and what it means.

    Args:
        random: Chooses.
        drops: Whether values may be too late, and are dropped then.
        far_us: No value is later than that.
    """
    kind = random.choice(("inner", "left", "outer"))
    lateness = random.choice((0, 8 * SECOND)) if drops else far_us
    if random.random() < 0.2:
        return kind, {}, Near(kind, None, None, 0, at_once=True)
    late = {"allowed_lateness": lateness}
    if random.random() < 0.4:
        kept = random.choice((6, 25)) * SECOND
        return (
            kind,
            {"expires": kept, **late},
            Near(kind, 1 - kept, kept, lateness, at_once=True),
        )
    first, end = random.choice(((-5, 10), (-20, 1), (3, 25)))
    first, end = first * SECOND, end * SECOND
    return kind, {"within": (first, end), **late}, Near(kind, first, end, lateness, at_once=False)
