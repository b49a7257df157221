"""KeyRows: where the rows of the key at hand are read from, and what is written of them."""

from __future__ import annotations

from millrace.store import View


class KeyRows:
    """Where the current key's rows are read from and written to.

    Attributes:
        view: The interval's rows as of the last commit.
        mutations: Row -> new value or None, for the commit being made.
        key_row: The current key's part of a row.
        timed: The rows written that are ordered by time (timers and holds).
        freed: Those of them that were there before and are deleted.
        counts: Domain -> how many more timers are pending than before.
        number: The number of the commit being made.
        delta: Timestamp -> how many more timers and holds are pending there; None if not counted.
    """

    __slots__ = ("counts", "delta", "freed", "key_row", "mutations", "number", "timed", "view")

    def __init__(self) -> None:
        self.view: View = None  # type: ignore[assignment]  # set for every interval
        self.mutations: dict[bytes, bytes | None] = {}
        self.timed: list[bytes] = []
        self.freed: list[bytes] = []
        self.counts = [0, 0]
        self.key_row = b""
        self.number = 0
        self.delta: dict[int, int] | None = None
