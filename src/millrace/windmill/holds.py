"""The hold of one key: an instant before which the low watermark must not pass, by user code."""

from __future__ import annotations

from millrace.windmill import rows
from millrace.windmill.key_rows import KeyRows


class KeyHold:
    """The hold of the current key.

    Attributes:
        changed: What user code has set it to, None in it for no hold; None if it set nothing.
    """

    __slots__ = ("_rows", "changed")

    def __init__(self, key_rows: KeyRows) -> None:
        self._rows = key_rows
        self.changed: tuple[int | None] | None = None

    def flush(self, key: bytes) -> None:
        """Write what changed."""
        assert self.changed is not None, "called for a key whose hold changed"
        [at_us] = self.changed
        mutations, key_row = self._rows.mutations, self._rows.key_row
        by_key = rows.HOLD_BY_KEY + key_row
        found, delta = self._rows.view.get(by_key), self._rows.delta
        if delta is not None:
            for held_us, count in (
                (None if found is None else rows.time_of(found), -1),
                (at_us, 1),
            ):
                if held_us is not None:
                    delta[held_us] = delta.get(held_us, 0) + count
        if found is not None:
            held = rows.key_hold(rows.time_of(found), key_row)
            mutations[held] = None
            self._rows.freed.append(held)
            mutations[by_key] = None
        if at_us is not None:
            mutations[by_key] = rows.time8(at_us)
            by_time = rows.key_hold(at_us, key_row)
            mutations[by_time] = key
            self._rows.timed.append(by_time)
