"""The engine of epochs that the driver begins itself: each is a batch job, or none.

For pipelines whose sources are all injectors: how far an epoch reads the driver decides, and writes
into its manifest. There is no streaming query, and no log but Millrace's. Where nothing was read
and nothing is due, an epoch completes without a job.

Source: docs/design/2026-11-28-driven-epochs.md.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import ClassVar, Final
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession

from millrace.balance.task_count import TaskRange
from millrace.injectors.offsets import Piece
from millrace.model.errors import RunFailed
from millrace.model.time import SECOND, Duration, duration_us
from millrace.runtime.epoch.input import EpochInput, lots_of
from millrace.spark.compat import (
    close_session,
    interrupt_jobs,
    share_views,
    tag_jobs,
)
from millrace.spark.engine import RunParts, Successor
from millrace.spark.epoch_engine import EpochEngine, EpochSetup, NotBegun
from millrace.spark.plan import StreamPlan
from millrace.spark.realtime.retry_policy import Downtime
from millrace.spark.run import Run

#: Injectors are asked for news at least so often, whatever ``trigger=`` says.
_LEAST_LOOK_S: Final = 0.001
#: How often the session is asked something: one of Connect expires when it is idle, by default for
#: an hour, and epochs without a job do not use it.
_USED_EVERY_S: Final = 60.0


class DrivenEngine(EpochEngine):
    """Runs epochs in the thread that looks after the run.

    Args:
        parts: Of the run.
        input: What the driver reads of injectors.
        session: Of the run alone, in which its jobs run.
        spark: The user's, of which that was made.
        look_s: How often injectors are asked for news.
        readers: How many tasks can read at once.
    """

    #: A turn asks the sources itself, when it has begun.
    turns_ahead: ClassVar[int] = 1

    def __init__(
        self,
        parts: RunParts,
        input: EpochInput,
        *,
        session: SparkSession,
        spark: SparkSession,
        look_s: float,
        readers: int,
    ) -> None:
        super().__init__(parts, input, session)
        self._spark = spark
        self._look_s = look_s
        self._readers = readers
        self._due_at = 0.0
        self._used_at = time.monotonic()
        self._tag = f"millrace-{uuid4().hex}"
        # Held by who asks the session in another thread, and by who closes it.
        self._asking = threading.Lock()
        self._closed = False

    def launch(self) -> None:
        """Do nothing: :meth:`watch` runs the epochs."""

    def watch(self) -> BaseException | None:
        """Run epochs; return why they have ended, or None if they were to."""
        tag_jobs(self._session, self._tag)
        try:
            while not self.run.stopping and not self._run_log.drained:
                if not self._epoch():
                    self._wait()
                self._use_session()
        except NotBegun:
            return None
        except Exception as failure:  # noqa: BLE001  whatever it was, the run is over
            # What was interrupted is no failure: the next run takes the epoch over.
            return None if self.run.stopping else self.run.error or failure
        return None

    def again(self, failure: BaseException) -> bool:
        """Return that epochs do not go on: what may be tried again was."""
        self.run.error = self.run.error or failure
        return False

    def hand_over(self, successor: Successor, timeout: Duration) -> Run:
        """Have the other go on when the epoch under way is finished: there is no query to end."""
        if not self._turn.acquire(timeout=duration_us(timeout) / SECOND):
            return super().hand_over(successor, timeout)
        try:
            beside = self.run.active and not self.run.stopping and self._run_log.open is None
            if beside:
                downtime = Downtime()
                downtime.gone()
                heir = self._make_way(successor, downtime)
        finally:
            self._turn.release()
            if self.run.handed_over:
                self.run.stop(timeout)
        return heir if beside else super().hand_over(successor, timeout)

    def hang_up(self) -> None:
        """Close the session."""
        with self._asking:
            if self._closed:
                return
            self._closed = True
            close_session(self._session, self._spark, release=self.run.error is None)

    def stop(self, timeout: Duration) -> None:
        """Finish the epoch that is under way, or, after the timeout, roll it back."""
        until_s = time.monotonic() + duration_us(timeout) / SECOND
        while self.run.active:
            if time.monotonic() >= until_s:
                if self._gives_up_input(until_s):
                    return
                with self._asking:
                    if self._closed:
                        return
                    # Between two jobs of an epoch there is nothing to interrupt.
                    interrupt_jobs(self._session, self._tag)
            with self.news:
                self.news.notify_all()  # who waits for the next look at the sources
                if self.run.active:
                    self.news.wait(0.1)

    def _ring_in(self, delay_us: int) -> None:
        self._due_at = time.monotonic() + delay_us / SECOND
        self.news.notify_all()

    def _use_session(self) -> None:
        """Ask the session something, so that it stays."""
        if time.monotonic() >= self._used_at + _USED_EVERY_S:
            self._session.conf.get("spark.app.name")
            self._used_at = time.monotonic()

    def _wait(self) -> None:
        """Wait for the next look at the sources, or until an epoch is due."""
        with self.news:
            left = min(self._look_s, self._due_at - time.monotonic())
            if left > 0 and not self.run.stopping:
                self.news.wait(left)

    def _epoch(self) -> bool:
        """Run an epoch if there is a reason for one; return whether there was."""
        turn, run_log = self._begin_turn(), self._run_log
        due = run_log.open is not None or time.monotonic() >= self._due_at
        asked_us = None if run_log.open is not None or self._draining else self._clock()
        try:
            offsets = self._input.unmoved() if asked_us is None else self._asked()
        except RunFailed as failure:
            self._ended_by(failure)
            raise
        if not any(offsets.values()):
            if not due:
                return False
            if asked_us is not None:
                # A low watermark that goes by the clock moves with this epoch, not two later.
                self._publisher.read_until(asked_us)
        number = run_log.completed + 1
        with self._one_turn():
            self._run_epoch(
                turn, number, offsets, self._rows, read_by_spark=False, asked_us=asked_us
            )
        return True

    def _rows(self, pieces: Mapping[str, Sequence[Piece]]) -> tuple[DataFrame, list[list[bytes]]]:
        """Return a row a task of the first stage, and the pieces of each."""
        tasks, readers = self._driver.tasks, self._readers
        # Where so little is expected that tasks are fewer, so are readers.
        lots = lots_of(pieces, min(tasks, readers) if self._task_count.follows_load else readers)
        if tasks == 1:
            lots = lots or [[]]  # of no row Spark makes no partition, and no task of a level
        return self._session.range(0, len(lots), 1, max(1, len(lots))), lots


class DrivenSetup(EpochSetup):
    """What driven epochs do otherwise on the way to a run: see :class:`EpochSetup`."""

    def check(self, tasks: int, allowed: TaskRange, *, slots_later: bool = False) -> None:
        """Refuse nothing: any number of tasks can run, one after the other."""

    def engine(self, parts: RunParts) -> DrivenEngine:
        """Return what runs epochs."""
        session = self._session_of_run()
        if len(parts.plan.written) < len(parts.topology.sinks):
            share_views(self._spark, session)  # a sink gets a DataFrame, and may join it with one
        return DrivenEngine(
            parts,
            EpochInput(parts.topology, self._injectors),
            session=session,
            spark=self._spark,
            look_s=max(_LEAST_LOOK_S, self._trigger_us / SECOND),
            readers=self.fitting,
        )

    def _no_rows(
        self, plan: StreamPlan, tasks: int, session: SparkSession, processes: int
    ) -> list[tuple[DataFrame, list[list[bytes]]]]:
        # As many at once as there will be, so that each has a worker process. With one reader in
        # front of one task there is no shuffle.
        most = min(max(tasks, processes), self.fitting)
        shapes = {most, 1} if tasks == 1 else {most}
        return [
            (session.range(0, readers, 1, readers), [[] for _ in range(readers)])
            for readers in sorted(shapes, reverse=True)
        ]
