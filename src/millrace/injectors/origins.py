"""Origins: what a row of an injector was in its source, for the dead letter of one refused later.

A row carries none of it: few are refused, and each would pay. So the message is read once more.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import Any, NamedTuple

import pyarrow as pa

from millrace.injectors.injector import Injector


class Origin(NamedTuple):
    """What a row was.

    Attributes:
        offset: Of the row.
        place: Where it stands in its source, in words.
        raw: Its bytes as they came; None: a message without a value.
        raw_key: The bytes of its key as they came; None: there is none.
        row: The row that is made of it now. Rows are counted, and a message may have been compacted
            away since: so what makes another row is not what was refused.
    """

    offset: int
    place: str
    raw: bytes | None
    raw_key: bytes | None
    row: pa.RecordBatch


class NumberedInjector(Injector):
    """An injector whose offsets are the numbers of its rows, ascending and maybe with gaps.

    Its followers give rows these numbers, and what an epoch reads of a process is one piece.
    """

    @abstractmethod
    def origins(self, process: str, offset: Any, count: int) -> Iterable[Origin]:
        """Yield what the next rows of a process from an offset on were, in order.

        Called in a worker. What it raises is logged: the letters are without their origin then.

        Args:
            process: One of :meth:`processes`.
            offset: To begin at; None at the beginning.
            count: How many rows, all of which were read before.
        """
