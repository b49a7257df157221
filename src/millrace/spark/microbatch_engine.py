"""The engine of epochs that are Spark's micro-batches: for pipelines with a source of Spark's own.

Structured Streaming decides how far its sources are read, in an offset log of its own, and calls
``foreachBatch``. A tick source has it begin an epoch when no data does. Injectors beside such a
source are read as in driven epochs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, count
from typing import Any, ClassVar, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # the name all of Spark's documentation uses

from millrace.balance.task_count import TaskRange
from millrace.compile.topology import Topology
from millrace.epochlog.run_log import RunLog
from millrace.injectors.advance import Backlog
from millrace.injectors.offsets import Offsets, Piece
from millrace.model.errors import CheckpointMismatch, MillraceError, PipelineError, RunFailed
from millrace.model.time import MILLISECOND, SECOND, Duration, duration_us
from millrace.runtime.epoch.input import EpochInput
from millrace.spark.compat import is_stopped, set_if_allowed
from millrace.spark.engine import RunParts
from millrace.spark.epoch_engine import EpochEngine, EpochSetup, NotBegun
from millrace.spark.external import external_pieces, together
from millrace.spark.failure import failed
from millrace.spark.offset_files import (
    ProgressFiles,
    asking_spark,
    for_spark,
    has_progress,
    progress_location,
)
from millrace.spark.plan import SETTINGS, StreamPlan
from millrace.spark.realtime.standby import stop
from millrace.spark.split_settings import SplitSettings
from millrace.spark.ticks import Alarm, ticks

#: How often the query is looked at.
_LOOK_S: Final = 0.1
#: How often a query is begun again after its offsets collided with another driver's. A superseded
#: driver gets to write one batch's offsets, so each earlier driver that is alive costs one.
_COLLISIONS_MAX: Final = 5


class MicroBatchEngine(EpochEngine):
    """Runs epochs, which are Spark's batches.

    Args:
        parts: Of the run.
        input: What the driver reads of injectors.
        start_query: Starts the query, whose batches call what it is given.
        progress_files: Spark's own, which it does not sync.
        alarm: Of the tick source.
        splitting: The settings by which Spark cuts files.
        readers: How many tasks can read at once.
    """

    #: The next may have looked at Spark's sources already.
    turns_ahead: ClassVar[int] = 2

    def __init__(
        self,
        parts: RunParts,
        input: EpochInput,
        *,
        start_query: Callable[[Callable[[DataFrame, int], None]], Any],
        progress_files: ProgressFiles,
        alarm: Alarm,
        splitting: SplitSettings,
        readers: int,
    ) -> None:
        super().__init__(parts, input, parts.console.spark)
        self._start_query = start_query
        self._progress_files = progress_files
        self._alarm = alarm
        self._splitting = splitting
        self._readers = readers
        self._collisions = 0
        self._stop_sent = threading.Event()

    # -- the query ---------------------------------------------------------------------------------

    def launch(self) -> None:
        """Start the query."""
        begun = self._run_log.open
        self._splitting.repeat({} if begun is None else begun.splitting)
        self._progress_files.begin()
        try:
            self.query = self._start_query(self.epoch)
        except BaseException:
            self._give_back()
            raise

    def watch(self) -> BaseException | None:
        """Wait until the query has ended; return why, or None if it was to."""
        while not (stopped := is_stopped(self._session)) and self.query.isActive:
            self._look_for_news()
            with self.news:
                self.news.wait(_LOOK_S)
        if stopped:
            if not (self.run.stopping or self.run.error):
                gone = RuntimeError("the Spark session was stopped")
                self.run.fail(failed(self._topology.name, gone, self._session))
            return None
        if self.run.stopping or self._run_log.drained:
            return None
        failure: BaseException | None = self.query.exception()
        return self.run.error or failure

    def again(self, failure: BaseException) -> bool:
        """Return whether the query is begun again: one that collided with an earlier driver is.

        A driver that has been superseded finds out in its next epoch. By then its Spark has written
        that batch's offsets, perhaps between our Spark's look at them and its own put.
        """
        collided = "Multiple streaming" in str(self.query.exception())
        if not collided or self._collisions == _COLLISIONS_MAX or self._run_log.superseded():
            self.run.error = failure  # who waits for the run says so
            return False
        self._collisions += 1
        self.run.error = None
        return True

    def hang_up(self) -> None:
        """Give the session back what the query needed."""
        self._give_back()

    def backlog(self) -> Mapping[str, Callable[[], Backlog | None]]:
        """Return stream -> what asks Spark what waits in its source."""
        return asking_spark(self._topology, lambda: self.query)

    def _ring_in(self, delay_us: int) -> None:
        self._alarm.ring_in(delay_us)

    def _look_for_news(self) -> None:
        """Have an epoch begin if an injector has something; Spark asks its own sources alone."""
        if not self._input.streams or not self._turn.acquire(blocking=False):
            return
        try:
            if self._run_log.open is None and any(self._asked().values()):
                self._alarm.ring_in(0)
        except RunFailed as failure:
            self._ended_by(failure)
            self.query.stop()
        finally:
            self._turn.release()

    def stop(self, timeout: Duration) -> None:
        """Finish the epoch that is under way, or, after the timeout, roll it back."""
        until_s = time.monotonic() + duration_us(timeout) / SECOND
        finished = self._turn.acquire(timeout=duration_us(timeout) / SECOND)
        try:
            self._stop_sent.set()
            stop(self.query)
        finally:
            if finished:
                self._turn.release()
        while self.run.active and not self._gives_up_input(until_s):
            with self.news:
                if self.run.active:
                    self.news.wait(_LOOK_S)

    # -- Spark's side ------------------------------------------------------------------------------

    def epoch(self, rows: DataFrame, number: int) -> None:
        """Run one epoch: Spark calls it for each batch, and again for one that it retries.

        Raises:
            NotBegun: The run has been stopped. To return would tell Spark that the batch is done.
        """
        try:
            with self._one_turn():
                self._run_batch(rows, number)
        except (NotBegun, MillraceError):
            raise
        except BaseException:  # noqa: BLE001  # whatever it was, the run is over
            # Spark logs what is raised here with all that it came from.
            raise RunFailed(str(self.run.error)) from None
        finally:
            # An epoch that was begun before has been split; the next one's session is the user's.
            self._give_back()
        if self.run.stopping or self._run_log.drained:
            # Spark begins the next batch when this returns. Let the stop reach it first, or that
            # batch has to be refused, which Spark logs at length.
            self._stop_sent.wait(10)
            time.sleep(0.05)

    def _give_back(self) -> None:
        """Set the session as the user had it: sources are made, and what was begun is split."""
        self._splitting.give_back()
        self._progress_files.give_back()

    def _run_batch(self, rows: DataFrame, number: int) -> None:
        turn, session = self._begin_turn(), rows.sparkSession
        splitting = self._splitting.keep(self._check_stopped)
        if turn == 1:
            # The batches' session is the query's own copy of the user's.
            for name, value in SETTINGS.items():
                set_if_allowed(session, name, value)
        self._progress_files.sync()
        offsets: Mapping[str, Offsets] = {}
        if self._run_log.open is None:
            offsets = self._asked()

        def with_pieces(pieces: Mapping[str, Sequence[Piece]]) -> tuple[DataFrame, None]:
            if not self._input.streams:
                return rows, None
            return together([rows, external_pieces(session, pieces, tasks=self._readers)]), None

        self._run_epoch(
            turn,
            number + self._run_log.base,
            offsets,
            with_pieces,
            read_by_spark=True,
            splitting=splitting,
        )

    def _check_stopped(self) -> None:
        if self.run.stopping:
            raise NotBegun


class MicroBatchSetup(EpochSetup):
    """What micro-batches do otherwise on the way to a run: see :class:`EpochSetup`."""

    def _prepare(self, topology: Topology) -> None:
        super()._prepare(topology)
        self._offsets = ""
        bounded = [
            source.stream.name
            for source in self.sources
            if source.injector is None and not source.frame.isStreaming
        ]
        if bounded:
            raise PipelineError(
                f"streams {bounded} have bounded sources, and start() runs streaming ones. Read "
                "them with spark.readStream, or run the pipeline with p.run_batch(spark)."
            )

    @property
    def _interval(self) -> str:
        """Return how often Spark looks for data: Spark does not know all our names of units."""
        return f"{self._trigger_us // MILLISECOND} milliseconds"

    def check(self, tasks: int, allowed: TaskRange, *, slots_later: bool = False) -> None:
        """Ask whether Spark can get to its own offsets at all."""
        chosen = self._options["spark_checkpoint"]
        has_progress(self._spark, progress_location(self._checkpoint, chosen))

    def check_claimed(self, run_log: RunLog) -> None:
        """Refuse a checkpoint whose half was lost."""
        super().check_claimed(run_log)
        chosen = self._options["spark_checkpoint"]
        self._offsets = progress_location(self._checkpoint, chosen, base=run_log.base)
        there = has_progress(self._spark, self._offsets)
        if run_log.completed >= run_log.base and not there:
            raise CheckpointMismatch(
                f"checkpoint {self._checkpoint!r} has {run_log.completed + 1} completed epochs, "
                f"but Spark's offsets, {self._offsets!r}, are gone. The sources would be read "
                "again from their beginning, and what they deliver would be taken for what was "
                "processed. Restore the directory, or start with a new checkpoint."
            )

    def engine(self, parts: RunParts) -> MicroBatchEngine:
        """Return what runs epochs."""
        self.end_beside()  # the query has a session of its own
        spark, topology = self._spark, parts.topology
        alarm = Alarm(self._scratch / "alarm")
        alarm.ring_in(0)
        # A tick starts an epoch and has done its work: it has no row.
        nothing = ticks(spark, alarm).select(F.lit(None).alias("ts"))
        rows = together([*parts.plan.rows(), nothing])

        def start_query(epoch: Callable[[DataFrame, int], None]) -> Any:
            query = (
                rows.writeStream.queryName(free_name(spark, f"millrace: {topology.name}"))
                .foreachBatch(epoch)
                .option("checkpointLocation", for_spark(self._offsets))
                .trigger(processingTime=self._interval)
            )
            return query.start()

        return MicroBatchEngine(
            parts,
            EpochInput(parts.topology, self._injectors),
            start_query=start_query,
            progress_files=ProgressFiles(self._offsets, spark),
            alarm=alarm,
            splitting=SplitSettings(spark),
            readers=self.fitting,
        )

    def _no_rows(
        self, plan: StreamPlan, tasks: int, session: SparkSession, processes: int
    ) -> list[tuple[DataFrame, None]]:
        columns = [
            F.lit(None).cast(field.dataType).alias(field.name)
            for field in together(plan.rows()).schema.fields
        ]
        # What is filtered here is not known to be nothing: its tasks run.
        rows = session.range(0, tasks, 1, tasks).where("id < 0").select(columns)
        if self._injectors:
            rows = together([rows, external_pieces(session, {}, tasks=self.fitting)])
        return [(rows, None)]


def free_name(spark: SparkSession, name: str) -> str:
    """Return a name for a query that no other has in its session: Spark would refuse it."""
    taken = {query.name for query in spark.streams.active}
    names = chain([name], (f"{name} ({number})" for number in count(2)))
    return next(each for each in names if each not in taken)
