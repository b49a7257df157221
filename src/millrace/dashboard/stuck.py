"""User code that hangs, as the workers of a run have written it up in the checkpoint's mailbox."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

import msgspec

from millrace.dashboard.plain import cut
from millrace.plane.stuck import Stuck
from millrace.store import Mailbox

_SUFFIX: Final = ".stuck"
#: A worker says it every 15 seconds, and who has not said it again for so long is gone.
_HOLDS_US: Final = 60_000_000


def stuck_in(
    mailbox: Mailbox, clock: Callable[[], int] = lambda: time.time_ns() // 1000
) -> list[dict[str, Any]]:
    """Return what is stuck by now, the longest first.

    Args:
        mailbox: Of the checkpoint.
        clock: Returns microseconds since 1970.
    """
    now, found = clock(), list[dict[str, Any]]()
    for name in mailbox.names():
        said, digits = name.endswith(_SUFFIX), name.partition("-")[0]
        if not said or not digits.isdecimal() or now - int(digits) > _HOLDS_US:
            continue
        data = mailbox.read(name)
        if data is None:
            continue  # it has returned
        try:
            stuck = msgspec.json.decode(data, type=Stuck)
        except msgspec.MsgspecError:
            continue
        found.append(
            {
                "computation": cut(stuck.computation),
                "key": cut(stuck.key),
                "of": cut(stuck.of),
                "where": cut(stuck.where),
                # As of a second: what is sent changes no more often than what it says.
                "since": int(digits) // 1000 - round(stuck.seconds * 1000),
                "stack": stuck.stack[-8_000:],
            }
        )
    return sorted(found, key=lambda one: float(one["since"]))
