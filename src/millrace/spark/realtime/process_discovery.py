"""Process discovery: which processes the injectors have now, asked beside the coordinator.

A broker that is away keeps whoever asks it waiting for a minute. Marks, and the end of a run, wait
for nobody: they go by what was there when it last answered.
"""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable

from millrace.runtime.realtime.incarnation_start import Processes

#: An answer that takes longer is for the next time.
_WAIT_S = 1.0


class ProcessDiscovery:
    """Knows the processes of a pipeline's injectors; see ``coordinator.Sources``.

    Args:
        look: Asks all of them, however long it takes.
        wait_s: How long to wait for an answer where an older one is there.

    >>> ProcessDiscovery(lambda: {"bids": ["bids-0"]}).processes()
    {'bids': ['bids-0']}
    """

    def __init__(self, look: Callable[[], Processes], wait_s: float = _WAIT_S) -> None:
        self._wait_s = wait_s
        self._known: Processes | None = None
        self._looking: _Looking | None = None
        self._asked: queue.SimpleQueue[_Looking | None] = queue.SimpleQueue()
        # A daemon: at the end of the program nobody waits for the broker either.
        thread = threading.Thread(
            target=_answer, args=(look, self._asked), name="millrace-discovery", daemon=True
        )
        thread.start()
        weakref.finalize(self, self._asked.put, None)

    def processes(self) -> Processes:
        """Return injected stream -> names of its processes: as they are now, or were lately.

        The first time it waits for as long as it takes.

        Raises:
            Exception: What an injector raised, now or since it was last asked.
        """
        if (looking := self._looking) is None:
            looking = self._looking = _Looking()
            self._asked.put(looking)
        if looking.done.wait(None if self._known is None else self._wait_s):
            self._looking = None
            if looking.error is not None:
                raise looking.error
            self._known = looking.found
        assert self._known is not None, "the first answer was waited for"
        return self._known


class _Looking:
    def __init__(self) -> None:
        self.done = threading.Event()
        self.found: Processes | None = None
        self.error: BaseException | None = None


def _answer(look: Callable[[], Processes], asked: queue.SimpleQueue[_Looking | None]) -> None:
    """Look whenever somebody asks: in one thread, as connections may be of who has made them."""
    while (looking := asked.get()) is not None:
        try:
            looking.found = look()
        except BaseException as error:  # noqa: BLE001  it belongs to whoever asks
            looking.error = error
        finally:
            looking.done.set()
