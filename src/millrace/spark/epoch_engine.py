"""The engine of epochs: a pipeline as a Structured Streaming query, batch by batch."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # the name all of Spark's documentation uses

from millrace.balance.preparation import Preparation
from millrace.balance.transfer import remap
from millrace.compile.topology import Topology
from millrace.epochlog.entries import processes_of
from millrace.epochlog.run_log import RunLog
from millrace.injectors.advance import Backlog
from millrace.injectors.injector import Injector
from millrace.injectors.rate_limit import EVERYONE, Gate
from millrace.model.errors import CheckpointMismatch, MillraceError, PipelineError, RunFailed
from millrace.model.time import SECOND, Duration, duration_us
from millrace.runtime.epoch.driver import EpochDriver
from millrace.runtime.partials_stage import Payoff
from millrace.runtime.realtime.incarnation_start import from_live_tasks
from millrace.runtime.sink_contract import sinks_by_edge
from millrace.spark.engine import EFFECT_S, Engine, RemapResult, RunParts, Setup, ended
from millrace.spark.external import external
from millrace.spark.failure import failed
from millrace.spark.job import run_patiently
from millrace.spark.offset_files import (
    ProgressFiles,
    asking_spark,
    has_progress,
    progress_location,
)
from millrace.spark.parallelism import tasks_for
from millrace.spark.plan import SETTINGS
from millrace.spark.source import sources_of
from millrace.spark.split_settings import SplitSettings
from millrace.spark.ticks import Alarm, ticks

_log = logging.getLogger("millrace")

#: How often the query is looked at.
_LOOK_S: Final = 0.1
#: An epoch without data costs Spark a few tenths of a second, so an idle pipeline has one in ten
#: seconds; a due timer or a low watermark on the move does not wait for it.
_IDLE_US = 10 * SECOND
#: How often a query is begun again after its offsets collided with another driver's. A superseded
#: driver gets to write one batch's offsets, so each earlier driver that is alive costs one.
_COLLISIONS_MAX: Final = 5


class EpochEngine(Engine):
    """Runs epochs, which are Spark's batches.

    Args:
        parts: Of the run.
        start_query: Starts the query, whose batches call what it is given.
        progress_files: Spark's own, which it does not sync.
        alarm: Of the tick source.
        gates: Injected stream -> holds its processes back.
        splitting: The settings by which Spark cuts files.
    """

    plane: ClassVar[str] = "by epochs"

    def __init__(
        self,
        parts: RunParts,
        *,
        start_query: Callable[[Callable[[DataFrame, int], None]], Any],
        progress_files: ProgressFiles,
        alarm: Alarm,
        gates: Mapping[str, Gate],
        splitting: SplitSettings,
    ) -> None:
        super().__init__()
        self._topology = parts.topology
        self._epochs = parts.epochs
        self._publisher = parts.publisher
        self._clock = parts.clock
        self._plan = parts.plan
        self._start_query = start_query
        self._driver = EpochDriver(parts.topology, parts.epochs, parts.publisher, tasks=parts.tasks)
        self._progress_files = progress_files
        self._alarm = alarm
        self._gates = gates
        self._splitting = splitting
        self._attempts = parts.attempts
        self._balancer = parts.balancer()
        self._turn = threading.Lock()
        self._collisions = 0
        self._begun = 0
        self._idle = 0
        self._wanted = 0
        self._draining = False
        self._epoch_since: float | None = None
        self._stop_sent = threading.Event()
        self._payoff = Payoff()

    # -- the query ---------------------------------------------------------------------------------

    def launch(self) -> None:
        """Start the query."""
        self._hold_back()
        begun = self._epochs.open
        self._splitting.repeat({} if begun is None else begun.splitting)
        self._progress_files.begin()
        try:
            self.query = self._start_query(self.epoch)
        except BaseException:
            self._give_back()
            raise

    def watch(self) -> BaseException | None:
        """Wait until the query has ended; return why, or None if it was to."""
        try:
            while self.query.isActive:
                with self.news:
                    self.news.wait(_LOOK_S)
        except Exception as gone:  # noqa: BLE001  Spark was stopped, and with it what would answer
            self.run.error = self.run.error or gone  # who waits for the run says so
            return None
        if self.run.stopping or self._epochs.drained:
            return None
        failure: BaseException | None = self.query.exception()
        return self.run.error or failure

    def again(self, failure: BaseException) -> bool:
        """Return whether the query is begun again: one that collided with an earlier driver is.

        A driver that has been superseded finds out in its next epoch. By then its Spark has written
        that batch's offsets, perhaps between our Spark's look at them and its own put.
        """
        collided = "Multiple streaming" in str(self.query.exception())
        if not collided or self._collisions == _COLLISIONS_MAX or self._epochs.superseded():
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

    @property
    def under_way_s(self) -> float:
        """For how many seconds the epoch has been under way."""
        return time.monotonic() - (self._epoch_since or time.monotonic())

    # -- what the run asks -------------------------------------------------------------------------

    def process_available(self, timeout: Duration | None) -> bool:
        """Wait until all input that is there now is processed, and low watermarks stand still."""
        with self.news:
            # An epoch that Spark has planned already may have looked at the sources before now.
            wanted = self._wanted = self._begun + 2
            self._alarm.ring_in(0)
        self.run.wait_until(lambda: self._idle >= wanted, timeout)
        return self._idle >= wanted

    def end_input(self) -> None:
        """Have the next epoch be the last."""
        with self.news:
            self._draining = True
            self._alarm.ring_in(0)

    def stop(self, timeout: Duration) -> None:
        """Finish the epoch that is under way, or, after the timeout, roll it back."""
        finished = self._turn.acquire(timeout=duration_us(timeout) / SECOND)
        try:
            self._stop_sent.set()
            self.query.stop()
        finally:
            if finished:
                self._turn.release()

    def hold_back(self) -> None:
        """Close the gates of paused streams, and wait until epochs go by what was said.

        The one under way, and one planned, may not.
        """
        paused, _ = self._publisher.throttle.asked()
        for stream in paused:
            self._gates[stream].close_for(EVERYONE)
        with self.news:
            wanted = self._wanted = self._begun + 2
            self._alarm.ring_in(0)
            until = time.monotonic() + EFFECT_S
            while self.run.active and (self._begun < wanted or self._epoch_since is not None):
                left = until - time.monotonic()
                if left <= 0 or self._begun > wanted:
                    return
                self.news.wait(min(left, 0.1))

    def quiesced_epoch(self) -> tuple[int, str]:
        """Return the last epoch: between two of them nothing is under way, and none waits."""
        return self._epochs.completed, ""

    def remap(self, name: str, preparation: Preparation) -> RemapResult:
        """Read rows beside the epochs; split and merge key intervals between two of them."""
        epochs, beside = self._epochs, self.run.housekeeping
        while True:
            with self._turn:
                if self.run.stopping or not self.run.active:
                    raise ended()
                if preparation.is_near():
                    made = remap(epochs, preparation.remaps, ready=preparation.ready)[name]
                    beside.offer(epochs.collectable())
                    return RemapResult(len(made.intervals), epochs.completed)
            beside.prepare(preparation)

    # -- Spark's side ------------------------------------------------------------------------------

    def epoch(self, rows: DataFrame, number: int) -> None:
        """Run one epoch: Spark calls it for each batch, and again for one that it retries."""
        # Not just waiting for the turn: a stop may have it, and wait for this to end.
        while not self._turn.acquire(timeout=0.05):
            if self.run.stopping:
                raise _Stopped
        try:
            if self.run.stopping or self._epochs.drained:
                # To return would tell Spark that the batch is done.
                raise _Stopped
            self._epoch_since = time.monotonic()
            self._run_epoch(rows, number)
        except _Stopped:
            raise
        except MillraceError as error:
            self.run.fail(error)
            raise
        except BaseException as error:  # noqa: BLE001  # whatever it was, the run is over
            self.run.fail(failed(self._topology.name, error, rows.sparkSession))
            # Spark logs what is raised here with all that it came from.
            raise RunFailed(str(self.run.error)) from None
        finally:
            # An epoch that was begun before has been split; the next one's session is the user's.
            self._give_back()
            self._epoch_since = None
            self._turn.release()
            with self.news:
                self.news.notify_all()
        if self.run.stopping or self._epochs.drained:
            # Spark begins the next batch when this returns. Let the stop reach it first, or that
            # batch has to be refused, which Spark logs at length.
            self._stop_sent.wait(10)
            time.sleep(0.05)

    def _give_back(self) -> None:
        """Set the session as the user had it: sources are made, and what was begun is split."""
        self._splitting.give_back()
        self._progress_files.give_back()

    def _run_epoch(self, rows: DataFrame, number: int) -> None:
        epochs = self._epochs
        with self.news:
            self._begun += 1
            turn = self._begun
        started = time.perf_counter()
        number += epochs.base
        if turn == 1:
            # The batches' session is the query's own copy of the user's.
            for name, value in SETTINGS.items():
                rows.sparkSession.conf.set(name, value)
        self._progress_files.sync()
        lift = self._payoff.wanted()
        ran = self._driver.run(
            number,
            lambda manifest: run_patiently(
                self._plan,
                rows,
                manifest,
                self._topology.sinks,
                lift=lift,
                attempts=self._attempts,
            ),
            wall_time_us=self._clock(),
            draining=self._draining,
            splitting=self._splitting.settings(),
        )
        if ran is None:
            return
        report = ran.report
        read = {stream: stats.records for stream, stats in report.sources.items()}
        self._publisher.throttle.read(read, self._clock())
        self._payoff.seen(
            records=report.records, liftable=report.liftable, partials=report.partials
        )
        if self._balancer is not None and not epochs.drained:
            self._balancer.after_epoch(busy=bool(report.records))
        self.run.housekeeping.offer(epochs.collectable())
        self.run.measured(report, time.perf_counter() - started, ran.parts)
        settled = self._driver.settled(ran.manifest, self._hold_back())
        if report.is_quiet and settled:
            self._idle = turn
        self._set_alarm(settled)

    def _hold_back(self) -> dict[str, int]:
        """Let processes wait that are too far ahead; return what injectors publish now.

        Spark asks injectors after this how far an epoch reads.
        """
        published = self._driver.published(self._clock())
        for stream, gate in self._gates.items():
            processes = processes_of(self._epochs.sources)
            gate.close_for(self._publisher.waiting(stream, processes, published))
        return published

    def _set_alarm(self, settled: bool) -> None:
        # Under the lock of those who ask for an epoch, so that the later word is theirs.
        with self.news:
            if not settled or self._draining or self._idle < self._wanted:
                self._alarm.ring_in(0)
                return
            next_us = min(
                self._epochs.authority.next_wall_timer_us(),
                self._publisher.changes_us(),
                self._publisher.throttle.changes_us(),
            )
            self._alarm.ring_in(max(0, min(next_us - self._clock(), _IDLE_US)))


class _Stopped(Exception):
    """Tells Spark to give up a batch that a stopped run does not want to begin."""


class EpochSetup(Setup):
    """What epochs do otherwise on the way to a run: see :class:`~millrace.spark.engine.Setup`.

    Args:
        spark: A session.
        topology: Of the pipeline.
        checkpoint: A directory or URL.
        options: All :class:`~millrace.options.EpochOptions`.
        scratch: Directory of the run, which is made later.

    Raises:
        PipelineError: A source is bounded, or cannot make its records.
    """

    #: An epoch's commits are small beside what it costs.
    intervals_each: ClassVar[int] = 8

    def __init__(
        self,
        spark: SparkSession,
        topology: Topology,
        checkpoint: str,
        options: Mapping[str, Any],
        scratch: Path,
    ) -> None:
        super().__init__(spark, options, scratch)
        self._checkpoint = checkpoint
        self._offsets = ""
        self._gates = {
            spec.name: Gate(scratch / f"gate-{number}")
            for number, spec in enumerate(topology.injected())
        }
        self._begin = {
            stream: gate.path.with_suffix(".json") for stream, gate in self._gates.items()
        }
        self.fitting = tasks_for(spark)
        self.sources = sources_of(topology, self._read)
        bounded = [source.stream.name for source in self.sources if not source.is_streaming]
        if bounded:
            raise PipelineError(
                f"streams {bounded} have bounded sources, and start() runs streaming ones. Read "
                "them with spark.readStream, or run the pipeline with p.run_batch(spark)."
            )

    def _read(self, stream: str, injector: Injector) -> DataFrame:
        gate, begin = self._gates[stream], self._begin[stream]
        return external(self._spark, stream, injector, gate, tasks=self.fitting, begin=begin)

    def check(self, tasks: int) -> None:
        """Ask whether Spark can get to its own offsets at all."""
        chosen = self._options["spark_checkpoint"]
        has_progress(self._spark, progress_location(self._checkpoint, chosen))

    def check_claimed(self, epochs: RunLog) -> None:
        """Refuse a checkpoint whose half was lost."""
        chosen = self._options["spark_checkpoint"]
        self._offsets = progress_location(self._checkpoint, chosen, base=epochs.base)
        there = has_progress(self._spark, self._offsets)
        if epochs.completed >= epochs.base and not there:
            raise CheckpointMismatch(
                f"checkpoint {self._checkpoint!r} has {epochs.completed + 1} completed epochs, but "
                f"Spark's offsets, {self._offsets!r}, are gone. The sources would be read again "
                "from their beginning, and what they deliver would be taken for what was "
                "processed. Restore the directory, or start with a new checkpoint."
            )

    def take_over(self, epochs: RunLog) -> None:
        """Go on where live tasks ended."""
        from_live_tasks(epochs, sinks_by_edge(epochs.topology))

    def engine(self, parts: RunParts) -> EpochEngine:
        """Return what runs epochs."""
        spark, topology = self._spark, parts.topology
        alarm = Alarm(self._scratch / "alarm")
        alarm.ring_in(0)
        # A tick starts an epoch and has done its work: it has no row.
        nothing = ticks(spark, alarm).select(F.lit(None).alias("ts"))
        rows = parts.plan.rows().unionByName(nothing, allowMissingColumns=True)

        def start_query(epoch: Callable[[DataFrame, int], None]) -> Any:
            self._write_begin(parts.epochs)
            query = (
                rows.writeStream.queryName(f"millrace: {topology.name}")
                .foreachBatch(epoch)
                .option("checkpointLocation", self._offsets)
                .trigger(processingTime=self._options["trigger"])
            )
            return query.start()

        return EpochEngine(
            parts,
            start_query=start_query,
            progress_files=ProgressFiles(self._offsets, spark),
            alarm=alarm,
            gates=self._gates,
            splitting=SplitSettings(spark),
        )

    def _write_begin(self, epochs: RunLog) -> None:
        """Write where a new log of offsets begins, and on Spark before 4.2 the next query.

        A log begins anew after live tasks, and with other streams than before.
        """
        for stream, file in self._begin.items():
            places = epochs.places.get(stream, {})
            begin = {name: [one.offset, one.process_watermark_us] for name, one in places.items()}
            file.write_text(json.dumps(begin))
