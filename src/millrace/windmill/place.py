"""Place: how far a process of an injector was read, where Millrace itself keeps the offsets."""

from __future__ import annotations

from typing import Any

import msgspec


class Place(msgspec.Struct, frozen=True):
    """How far a process of an injector was read.

    Attributes:
        number: Of the process among those of its stream, from 0; it is never given again.
        offset: Where to go on reading; None at the beginning. Anything that JSON can say.
        count: The number of the next record: how many came before, or what the source says.
        promised_us: What the process has promised; None if nothing.
    """

    number: int
    offset: Any = None
    count: int = 0
    promised_us: int | None = None
