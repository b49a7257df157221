"""Allowance: how much a task takes at once, so that what is on its way to a task is soon done.

Between two tasks a number of packets are on their way before the sender has to wait, however large
they are, and as much waits in front of a task as it has room for. Where user code takes a
millisecond a record, packets of ten thousand records would be minutes ahead of it; so long a mark
would take to pass, and a stop. So a task takes little at first, a little more each time that all it
takes is soon done and sent, and less when sending holds it up, or its own work takes long.

Source: Streaming Engine, on flow control; Flink's buffer debloating, which does it for buffers;
docs/design/2026-11-24-no-more-than-is-soon-done.md.
"""

from __future__ import annotations

from typing import Final

#: What one turn takes away at the most: it may have been an accident.
_SHRINKS: Final = 0.25


class Allowance:
    """Follows how long turns take, and over how much.

    Args:
        least: It is never less, and begins so.
        most: It is never more.
        seconds: What is taken at once should be done and sent in so long.
        grows: By so much at a time.

    Attributes:
        amount: What may be taken at once.

    >>> rows = Allowance(100, 1_000, seconds=0.1, grows=1.1)
    >>> [rows.spent(100, s) for s in (0.01, 0.01, 0.2, 0.07)], rows.spent(5, 0.01), rows.amount
    ([True, True, True, False], False, 100)
    >>> rows.spent(100, 0.01), rows.spent(0, 60.0), rows.amount
    (True, False, 111)
    """

    def __init__(self, least: int, most: int, *, seconds: float, grows: float) -> None:
        self.amount = least
        self._least = least
        self._most = most
        self._seconds = seconds
        self._grows = grows

    def spent(self, amount: int, seconds: float) -> bool:
        """Take it that a turn over so much took so long; return whether the allowance changes.

        A turn over nothing, as when timers fire, says nothing of it.
        """
        before = self.amount
        if amount and seconds > self._seconds:
            less = max(_SHRINKS, self._seconds / seconds)
            self.amount = max(self._least, int(min(before, amount) * less))
        elif amount >= before // 2 and seconds < self._seconds / 2:
            # Of what is less than half of it, it says nothing that there was not more.
            self.amount = min(self._most, int(before * self._grows) + 1)
        return self.amount != before
