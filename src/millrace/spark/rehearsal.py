"""A rehearsal: an epoch without records, run by a program that waits to take a pipeline over.

The first epochs of a program take seconds: Spark compiles what it makes of the plan, worker
processes are forked, and import the pipeline's modules. So a program that waits runs the plan of an
epoch, again and again, as Spark ends workers that had nothing to do for a minute. Its tasks are
those of the run, but what they see is an empty checkpoint in their memory. No entry is written, no
sink is called, and of sources only the names of their processes are asked.

Source: docs/design/2026-11-28-standby.md.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession

from millrace.epochlog.entries import Manifest
from millrace.injectors.injector import Injector
from millrace.spark.compat import close_session, interrupt_jobs, session_for_jobs, tag_jobs
from millrace.spark.job import rehearse
from millrace.spark.plan import SETTINGS, StreamPlan

#: Half of the time after which Spark ends a worker that has nothing to do.
_EVERY_S: Final = 30.0
#: So many at first, one after the other: the JVM compiles what it has run some times.
_AT_FIRST: Final = 3


class Rehearsal:
    """Epochs without records of one plan, each time in a thread; nobody waits for them.

    Args:
        plan: Of the run.
        manifest: Of the first epoch of an empty checkpoint.
        spark: The user's session.
        rows: Returns, in a session, for so many processes of injectors, rows of epochs, and the
            pieces of each partition, without a record: of each shape that epochs have.
        injectors: Whose processes are asked for, so that connections are there.

    Attributes:
        session: Of the jobs.
        ready: Whether the first are over.
        failure: Why one has failed; None if none has.
    """

    def __init__(
        self,
        plan: StreamPlan,
        manifest: Manifest,
        spark: SparkSession,
        rows: Callable[
            [SparkSession, int], Iterable[tuple[DataFrame, Sequence[Sequence[bytes]] | None]]
        ],
        injectors: Iterable[Injector],
    ) -> None:
        self.ready = False
        self.failure: Exception | None = None
        self._plan = plan
        self._manifest = manifest
        self._spark = spark
        self.session = session_for_jobs(spark, SETTINGS)
        self._rows = rows
        self._injectors = injectors
        self._tag = f"millrace-{uuid4().hex}"
        self._thread: threading.Thread | None = None
        self._due_s = 0.0
        self._over = False
        self._asking = threading.Lock()

    def repeat(self) -> None:
        """Begin another if it is time; return at once."""
        going = self._thread is not None and self._thread.is_alive()
        if going or self._over or time.monotonic() < self._due_s:
            return
        self._due_s = time.monotonic() + _EVERY_S
        self._thread = threading.Thread(target=self._run, name="millrace-rehearsal", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Begin no more, as a run begins: what is under way makes ready what that needs, too."""
        self._over = True
        with self._asking:  # not two threads at once ask an injector
            pass

    def end(self) -> None:
        """Begin no more, and end the job that is under way, if one is."""
        self._over = True
        if self._thread is not None and self._thread.is_alive():
            interrupt_jobs(self.session, self._tag)

    def wait(self) -> None:
        """Close the session; after :meth:`end`."""
        close_session(self.session, self._spark, release=True)

    def _run(self) -> None:
        try:
            tag_jobs(self.session, self._tag)
            with self._asking:
                asked = () if self._over else self._injectors
                processes = sum(len(list(injector.processes())) for injector in asked)
            for _ in range(1 if self.ready else _AT_FIRST):
                for rows, lots in self._rows(self.session, processes):
                    if self._over:
                        return
                    rehearse(self._plan, rows, self._manifest, lots=lots)
            self.ready = True
        except Exception as error:  # noqa: BLE001  without it the first epoch takes longer
            if not self._over:
                self.failure = error
