"""Preparing a remap in the driver, beside the epochs: nothing is collected meanwhile."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from millrace.spark.housekeeping import Housekeeping
from millrace.windmill.preparing import Preparation

_log = logging.getLogger("millrace")


def read(preparation: Preparation, housekeeping: Housekeeping) -> None:
    """Read what a remap will need, in this thread; less of it if the run ends.

    Args:
        preparation: Of the remap.
        housekeeping: Of the run. What is read is no longer the last commit as epochs go on, and
            would be collected.
    """
    with housekeeping.held():
        preparation.read(lambda: not housekeeping.closed)


def in_a_thread(housekeeping: Housekeeping) -> Callable[[Preparation], None]:
    """Return what has a preparation read in a thread of its own, and returns at once."""

    def run(preparation: Preparation) -> None:
        try:
            read(preparation, housekeeping)
        except Exception:  # noqa: BLE001  the run reads what is missing, and says what is wrong with it
            _log.exception("the rows of a remap could not be read ahead")

    def beside(preparation: Preparation) -> None:
        threading.Thread(
            target=run, args=[preparation], name="millrace-preparing", daemon=True
        ).start()

    return beside
