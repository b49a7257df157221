"""Telling: which tasks of the next level are told of low watermarks now.

A packet costs a hand-over to Spark and a turn of who gets it, however little is in it. So word goes
along with rows, where it costs nothing, and by itself only to tasks that have had none for a while.

Source: MillWheel 4.5.
"""

from __future__ import annotations

from collections.abc import Collection

from msgspec.structs import replace

from millrace.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP, is_over
from millrace.watermark.propagation import Message

#: A task that gets no rows is told no more often than this.
ALONE_US = 15_000
#: One that gets rows is told with them, no more often than this: it costs the receiver to hear it.
WITH_ROWS_US = 2_000


class Telling:
    """What each task of the next level was told last, and when it is to be told more.

    Args:
        receivers: How many tasks the next level has; 0 if this is the last.
        alone_us: How long a task that gets no rows waits for word.
        with_rows_us: How long one waits that gets rows.

    Attributes:
        wake_us: When a task wants to be told what it was not told yet.

    >>> moved = [Message({"injector:orders": us}, {}, {}) for us in (1, 2)]
    >>> telling = Telling(2)
    >>> telling.tell(moved[0], 0, {0}, everyone=False)  # nobody has heard anything yet
    {0, 1}
    >>> telling.tell(moved[1], 5_000, {0}, everyone=False), telling.wake_us
    ({0}, 15000)
    >>> telling.tell(moved[1], 15_000, (), everyone=False)
    {1}
    """

    def __init__(
        self, receivers: int, *, alone_us: int = ALONE_US, with_rows_us: int = WITH_ROWS_US
    ) -> None:
        self._alone_us = alone_us
        self._with_rows_us = min(with_rows_us, alone_us)
        self._told: list[Message | None] = [None] * receivers
        self._told_us = [MIN_TIMESTAMP] * receivers
        self.wake_us = MAX_TIMESTAMP

    def tell(
        self, message: Message, wall_us: int, rows_for: Collection[int], *, everyone: bool
    ) -> set[int]:
        """Return which tasks are told a message now; take it that they are.

        Args:
            message: What is to be told now.
            wall_us: What time it is.
            rows_for: Tasks that get rows anyway.
            everyone: Whether all are told, as with a mark, or where records are counted in it.
        """
        found: set[int] = set()
        everyone = everyone or bool(message.ahead)
        lasting = replace(message, ahead={}) if message.ahead else message
        self.wake_us = MAX_TIMESTAMP
        for task, told in enumerate(self._told):
            if not everyone:
                if told is lasting or told == lasting:
                    continue
                after_us = self._with_rows_us if task in rows_for else self._alone_us
                if not is_over(after_us, self._told_us[task], wall_us):
                    self.wake_us = min(self.wake_us, self._told_us[task] + self._alone_us)
                    continue
            found.add(task)
            self._told[task], self._told_us[task] = lasting, wall_us
        return found
