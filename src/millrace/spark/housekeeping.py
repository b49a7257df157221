"""Collection beside the epochs: one thread in the driver, which may fail without harm."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from millrace.balance.preparation import Preparation
from millrace.model.errors import StoreError
from millrace.store import Collectable, Collected, Collector, HardState

_log = logging.getLogger(__name__)

# Each round lists what there is: on an object store, a request for each thousand commits. What
# ten seconds add is small beside what is kept.
_PERIOD_SECONDS = 10.0


class Housekeeping:
    """Collects a checkpoint while a run goes on.

    Attributes:
        collected: What was removed.
        failed: Rounds that ended with an error, each of which is logged.
        closed: Whether it was stopped.
    """

    def __init__(self, state: HardState) -> None:
        self._collector = Collector(state)
        self._changed = threading.Condition()
        self._turn = threading.Lock()
        self._offered: Collectable | None = None
        self.closed = False
        self._thread: threading.Thread | None = None
        self.collected = Collected()
        self.failed = 0

    def offer(self, collectable: Collectable) -> None:
        """Say what lies behind the last completed epoch. Returns at once."""
        with self._changed:
            self._offered = collectable
            if self._thread is None and not self.closed:
                self._thread = threading.Thread(
                    target=self._run, name="millrace-collection", daemon=True
                )
                self._thread.start()
            self._changed.notify_all()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Suspend collection within the block, for a reader of an epoch that is not the last."""
        with self._turn:
            yield

    def prepare(self, preparation: Preparation) -> None:
        """Read what a remap will need, in this thread; less of it if the run ends.

        What is read is no longer the last commit as epochs go on, and would be collected.
        """
        with self.held():
            preparation.read(lambda: not self.closed)

    def prepare_beside(self, preparation: Preparation) -> None:
        """Do as :meth:`prepare` in a thread of its own, and return at once."""

        def run() -> None:
            try:
                self.prepare(preparation)
            except Exception:  # noqa: BLE001  the run reads what is missing, and says what is wrong with it
                _log.exception("the rows of a remap could not be read ahead")

        threading.Thread(target=run, name="millrace-preparing", daemon=True).start()

    def close(self, timeout: float = 5.0) -> None:
        """Stop, after the round under way; what it leaves, the next run collects."""
        with self._changed:
            self.closed = True
            self._changed.notify_all()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self.closed or self._offered is not None)
                if self.closed:
                    return
                offered, self._offered = self._offered, None
            assert offered is not None, "waited for"
            self._collect(offered)
            with self._changed:
                if self._changed.wait_for(lambda: self.closed, _PERIOD_SECONDS):
                    return

    def _collect(self, offered: Collectable) -> None:
        try:
            with self._turn:
                self.collected.add(self._collector.collect(offered))
        except (StoreError, OSError) as error:
            self.failed += 1
            _log.warning("old commits could not be collected; it is tried again: %s", error)
        except Exception:  # noqa: BLE001  nor may a collection end the run
            self.failed += 1
            _log.exception("old commits could not be collected; it is tried again")
