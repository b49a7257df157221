"""Run end: what a run leaves in its checkpoint's mailbox when it ends in order.

So who asks later is told that it was stopped, and not that nobody answers. A run that dies leaves
nothing.
"""

from __future__ import annotations

from typing import Final

import msgspec

from millrace.model.time import format_timestamp
from millrace.store import Mailbox

#: Letters sort behind the digits that requests begin with, of which old ones are removed.
_PREFIX: Final = "ended-"


class RunEnd(msgspec.Struct, frozen=True):
    """How a run ended.

    Attributes:
        state: ``stopped``, by request, ``drained`` or ``failed``.
        epoch: The last that it completed; -1 if none was.
        at_us: When, by the driver's clock.

    >>> print(RunEnd("stopped", 7, 0))
    The run was stopped at 1970-01-01T00:00:00Z by request, after epoch 7.
    """

    state: str
    epoch: int
    at_us: int

    def __str__(self) -> str:
        how = {
            "stopped": "The run was stopped at {} by request",
            "drained": "The run was drained at {}",
        }.get(self.state, "The run failed at {}")
        after = f"after epoch {self.epoch}" if self.epoch >= 0 else "before its first epoch"
        return f"{how.format(format_timestamp(self.at_us))}, {after}."


def leave_run_end(mailbox: Mailbox, generation: int, end: RunEnd) -> None:
    """Say in a mailbox how a run ended; what earlier runs left there is removed."""
    name = f"{_PREFIX}{generation}"
    mailbox.put(name, msgspec.json.encode(end))
    mailbox.remove(n for n in mailbox.names() if n.startswith(_PREFIX) and n != name)


def run_end(mailbox: Mailbox, generation: int) -> RunEnd | None:
    """Return how a run ended, if it ended in order and said so."""
    data = mailbox.read(f"{_PREFIX}{generation}")
    return None if data is None else msgspec.json.decode(data, type=RunEnd)
