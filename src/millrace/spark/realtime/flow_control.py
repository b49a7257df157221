"""Flow control: how much a task takes at once, so that what is on its way to a task is soon done.

Between two tasks a number of packets are on their way before the sender has to wait, however large
they are, and as much waits in front of a task as it has room for. Where user code takes a
millisecond a record, packets of ten thousand records would be minutes ahead of it; so long a mark
would take to pass, and a stop.

So a turn of a task is over no more than it does soon; over no more than is worth it, since what a
key costs in a turn is small already where it has some records there; and over no more than gets
through soon, where it has to wait for room on the way. That is known when as many turns are over as
packets fit in between: what was sent before them has gone through since.

Source: Streaming Engine, on flow control; Flink's buffer debloating, which sizes buffers by what
goes through them; docs/design/2026-11-24-no-more-than-is-soon-done.md.
"""

from __future__ import annotations

from typing import Final, NamedTuple

#: Rows that an injector task takes at once, at first and at most.
_ROWS: Final = 100, 100_000
#: Bytes of packets that wait in front of a task, after which no more are read. A turn takes all
#: that waits: more of it makes larger bundles, which are cheaper, and longer turns.
_BYTES: Final = 4 << 10
BYTES_MOST: Final = 32 << 20
#: They become more than these only while a turn has fewer records of a key than so many, and less
#: again when it has more than twice those: what a key costs is little then, and what a turn is over
#: should stay near the processor.
_BYTES_ENOUGH: Final = 2 << 20
_A_KEY: Final = 8
#: What is taken at once should be done in so long, and what it sends be through in so long.
_SOON_S: Final = 0.5
_THROUGH_S: Final = 0.15
#: Where so many records a second are done, it may be longer: there a turn is cheaper the larger it
#: is, and what user code takes of it is little.
_QUICK: Final = 5_000
_QUICK_S: Final = 4.0
_QUICK_THROUGH_S: Final = 0.3
#: What there is at first is at most so many times the least.
_LESS: Final = 10
#: What one turn takes away at the most: it may have been an accident.
_SHRINKS: Final = 0.25
#: By so much it becomes more with a turn that is soon done, and with a round of turns.
_GROWS: Final = 1.3
_ROUND_GROWS: Final = 2.0
#: Turns of a round. About as many packets are on their way between two tasks, or some more where
#: they are small.
_ROUND: Final = 16
#: A sender that waits for less than so much of the time is not held up.
_HELD_UP: Final = 0.1


class TurnBudget(NamedTuple):
    """What a turn took.

    Attributes:
        records: That it was over.
        seconds: From its beginning to its end.
        waited_s: How much of that it waited for room on the way; None if it sent nothing.
        ended: When that was, by a clock of seconds.
        keys: That the records were of; of an injector task's 0.
    """

    records: int
    seconds: float
    waited_s: float | None
    ended: float
    keys: int

    @property
    def own_s(self) -> float:
        """How long it worked."""
        return self.seconds - (self.waited_s or 0.0)


class FlowControl:
    """Follows how long turns take, and over how much; of records, or of bytes.

    While there is room on the way, nobody knows how much gets through: so it becomes more with each
    round of turns, and no sooner, as what a round sends may be on its way until the end of the
    next. Where a sender is held up, as much got through in a round as it sent.

    Args:
        first: It begins so; it is never less than a tenth of it.
        most: It is never more.
        enough: Nor than this, where a turn has several records of each key.
        quick_s: In how long a task should do it that does records quickly.

    >>> rows = FlowControl(100, 1_000, 1_000, quick_s=0.5)
    >>> for n in range(16):
    ...     _ = rows.spent(100, TurnBudget(100, 0.01, 0.0, n / 50, 0))
    >>> rows.amount  # nothing waits, so it may be more
    130
    >>> for n in range(16):
    ...     _ = rows.spent(130, TurnBudget(130, 0.5, 0.49, 1 + n / 2, 0))
    >>> rows.amount  # 130 got through in 0.5 s
    39
    """

    def __init__(self, first: int, most: int, enough: int, *, quick_s: float) -> None:
        self._done = self._through = float(first)
        self._least = max(1, first // _LESS)
        self._most = most
        self._enough = enough
        self._quick_s = quick_s
        self._round: list[tuple[int, TurnBudget]] = []

    @classmethod
    def of_rows(cls) -> FlowControl:
        """Return that of an injector task."""
        first, most = _ROWS
        return cls(first, most, most, quick_s=_SOON_S)

    @classmethod
    def of_bytes(cls, most: int) -> FlowControl:
        """Return that of what waits in front of a task."""
        return cls(min(_BYTES, most), most, min(_BYTES_ENOUGH, most), quick_s=_QUICK_S)

    @property
    def amount(self) -> int:
        """What may be taken at once."""
        return int(min(self._done, self._through))

    def spent(self, amount: int, turn: TurnBudget) -> bool:
        """Take it that a turn was over so much; return whether the allowance changes.

        A turn over nothing, as when timers fire, says nothing of it; and of what is less than half
        of it, it says nothing that there was not more.

        Args:
            amount: How much.
            turn: What it took.
        """
        before = self.amount
        if not amount:
            return False
        within_s = self._quick_s if turn.records > _QUICK * turn.own_s else _SOON_S
        full = amount >= before // 2
        if turn.own_s > within_s:
            less = min(self._done, amount) * max(_SHRINKS, within_s / turn.own_s)
            self._done = max(self._least, less)
        elif full and turn.own_s < within_s / 2:
            most = self._most if turn.records < _A_KEY * turn.keys else self._enough
            self._done = max(self._done, min(most, before * _GROWS))
        if full and turn.records > 2 * _A_KEY * turn.keys:
            self._done = min(self._done, max(self._enough, self._done / _GROWS))
        if turn.waited_s is None:
            self._through = max(self._through, self._done)
        if full and turn.waited_s is not None:
            self._round.append((amount, turn))
        else:
            self._round.clear()
        if len(self._round) == _ROUND:
            self._through = min(self._most, max(self._least, self._gets_through(before)))
            self._round.clear()
        return self.amount != before

    def _gets_through(self, before: int) -> float:
        """Return how much gets through soon, after a round."""
        first, last = self._round[0][1], self._round[-1][1]
        took_s = last.ended - first.ended + first.seconds
        more = before * _ROUND_GROWS
        if sum(turn.waited_s or 0.0 for _, turn in self._round) <= _HELD_UP * took_s:
            return more
        quick = sum(turn.records for _, turn in self._round) > _QUICK * took_s
        through_s = _QUICK_THROUGH_S if quick else _THROUGH_S
        return min(more, sum(sent for sent, _ in self._round) / took_s * through_s)
