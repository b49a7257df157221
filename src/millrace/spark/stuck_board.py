"""Where stuck user code is written up, by the workers, and read, by the driver: the mailbox.

What a worker says holds for some time only, and is said again: a process that dies cannot take
back what it said.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from millrace.model.errors import StoreError
from millrace.runtime.stuck import Stuck
from millrace.store import Mailbox

_log = logging.getLogger("millrace")

_STUCK: Final = ".stuck"
#: What was said so long ago, and not again, was said by a process that is gone. A worker says it
#: every 15 seconds, and an object store may be slow.
_HOLDS_S: Final = 45.0


class Reporter:
    """Writes up the stuck code of one process: in its log, and in the checkpoint.

    Args:
        mailbox: Of the checkpoint.
    """

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox
        self._files: list[str] = []
        self._logged_s = 0.0

    def tell(self, stuck: Stuck) -> None:
        """Take a call that does not return; the log has it each time that it took twice as long."""
        if stuck.seconds >= 2 * self._logged_s:
            self._logged_s = stuck.seconds
            said = {"event": "stuck_call", **msgspec.structs.asdict(stuck)}
            _log.warning("%s\n%s", stuck, stuck.stack, extra={"millrace": said})
        name = f"{time.time_ns() // 1000:016d}-{uuid.uuid4().hex[:8]}{_STUCK}"
        earlier, self._files = self._files, [name]
        try:
            self._mailbox.put(name, msgspec.json.encode(stuck))
            self._mailbox.remove(earlier)
            self._mailbox.ring()
        except (StoreError, OSError) as error:
            _log.warning("it cannot be said in the checkpoint: %s", error)

    def over(self) -> None:
        """Take that it has returned."""
        _log.warning("what took so long has returned")
        self._logged_s = 0.0
        if self._files:
            said, self._files = self._files, []
            try:
                self._mailbox.remove(said)
                self._mailbox.ring()
            except (StoreError, OSError) as error:
                _log.warning("it cannot be taken back in the checkpoint: %s", error)


class Board:
    """What the workers of a run have written up.

    Args:
        mailbox: Of the checkpoint.
        clock: Returns seconds.
    """

    def __init__(self, mailbox: Mailbox, clock: Callable[[], float] = time.monotonic) -> None:
        self._mailbox = mailbox
        self._clock = clock
        self._found: dict[str, tuple[Stuck, float]] = {}
        self._begun = False

    def look(self, names: Sequence[str]) -> None:
        """Take what the mailbox has.

        Args:
            names: Of all its messages.
        """
        said = [name for name in names if name.endswith(_STUCK)]
        if not self._begun:
            # Said to an earlier run. Should its workers live, they say it again.
            self._begun = True
            self._mailbox.remove(said)
            return
        reports = dict[str, tuple[Stuck, float]]()
        for name in said:
            known = self._found.get(name)
            if known is None and (data := self._mailbox.read(name)) is not None:
                known = msgspec.json.decode(data, type=Stuck), self._clock()
            if known is not None:
                reports[name] = known
        self._found = reports

    def now(self) -> list[Stuck]:
        """Return what is stuck, the longest first, with how long it has been by now."""
        now = self._clock()
        current = [
            msgspec.structs.replace(stuck, seconds=stuck.seconds + now - since)
            for stuck, since in list(self._found.values())
            if now - since < _HOLDS_S
        ]
        return sorted(current, key=lambda stuck: -stuck.seconds)
