"""A run of the epoch plane: a pipeline as a Structured Streaming query, batch by batch."""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

from millrace.injectors.injector import Injector
from millrace.injectors.skew import Gate
from millrace.injectors.throttle import EVERYONE
from millrace.model.errors import MillraceError, PipelineError, RunFailed
from millrace.model.time import SECOND, Duration, duration_us
from millrace.plane.balancing import Balancing
from millrace.plane.epoch import EpochDriver
from millrace.plane.lifting import Payoff
from millrace.spark.failure import failed
from millrace.spark.handle import Handle
from millrace.spark.held import Held
from millrace.spark.job import run_patiently
from millrace.spark.plan import SETTINGS, StreamPlan
from millrace.spark.preparing import read
from millrace.spark.progress_files import ProgressFiles
from millrace.spark.remapping import Remade
from millrace.spark.sparks_backlog import asking_spark
from millrace.spark.splitting import Splitting
from millrace.spark.throttled import EFFECT_S, cannot_hold, check_rate
from millrace.spark.ticks import Alarm
from millrace.watermark.remap import Merge, Split
from millrace.windmill.preparing import Preparation
from millrace.windmill.source_stats import processes_of

_log = logging.getLogger("millrace")

#: An epoch without data costs Spark a few tenths of a second, so an idle pipeline has one in ten
#: seconds; a due timer or a low watermark on the move does not wait for it.
_IDLE_US = 10 * SECOND

#: Why a stream cannot be held back that no injector reads, and what to do.
_SPARKS = "is read by Spark, not Millrace (mr.Files, mr.Kafka and injectors of your own are)"

#: How often a query is begun again after its offsets collided with another driver's. A superseded
#: driver gets to write one batch's offsets, so each earlier driver that is alive costs one.
_COLLISIONS_MAX = 5


@dataclass(frozen=True)
class Parts(Held):
    """What a run is put together from.

    Attributes:
        plan: Makes the frames of epochs.
        progress_files: Spark's own, which it does not sync.
        alarm: Of the tick source.
        gates: Injected stream -> holds its processes back.
        scratch: Directory of this run alone, removed with it.
        splitting: The settings by which Spark cuts files.
        attempts: How often an epoch is tried in which worker processes die.
        balancing: Has key intervals follow the load, if they are to.
    """

    plan: StreamPlan
    progress_files: ProgressFiles
    alarm: Alarm
    gates: Mapping[str, Gate]
    scratch: Path
    splitting: Splitting
    attempts: int
    tasks: int
    balancing: Balancing | None = None


_OFFLINE = "millrace remap --stopped remaps a checkpoint that no run has."


class Run(Handle):
    """A run whose epochs are Spark's batches."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self.query: Any = None
        self._start_query: Callable[[], Any]
        self._collisions = 0
        self._backlog.add(asking_spark(parts.topology, lambda: self.query))
        self._plan = parts.plan
        self._driver = EpochDriver(parts.topology, parts.epochs, parts.publisher, tasks=parts.tasks)
        self._progress_files = parts.progress_files
        self._alarm = parts.alarm
        self._gates = parts.gates
        self._scratch = parts.scratch
        self._splitting = parts.splitting
        self._attempts = parts.attempts
        self._balancing = parts.balancing
        self._turn = threading.Lock()
        self._begun = 0
        self._idle = 0
        self._wanted = 0
        self._draining = False
        self._stop_sent = threading.Event()
        self._payoff = Payoff()

    def launch(self, start_query: Callable[[], Any]) -> None:
        """Start the query, and keep how: see :meth:`_active`."""
        self._start_query = start_query
        self._hold_back()
        begun = self._epochs.open
        self._splitting.repeat({} if begun is None else begun.splitting)
        try:
            self.query = start_query()
        except BaseException:
            self._splitting.give_back()
            raise
        self._begin_telling()

    # -- the user's side ---------------------------------------------------------------------------

    def _process_available(self, timeout: Duration | None) -> bool:
        """Wait until all input that is there now is processed, and low watermarks stand still."""
        with self._news:
            # An epoch that Spark has planned already may have looked at the sources before now.
            wanted = self._wanted = self._begun + 2
            self._alarm.ring_in(0)
        self._wait_until(lambda: self._idle >= wanted, timeout)
        return self._idle >= wanted

    def _drain(self, timeout: Duration | None) -> bool:
        """End the input: raise low watermarks to the end of time, fire what waits, and stop."""
        with self._news:
            self._draining = True
            self._alarm.ring_in(0)
        return self._wait_until(lambda: False, timeout)

    def _stop(self, timeout: Duration = 60 * SECOND) -> None:
        """Stop: finish the epoch that is under way, or, after the timeout, roll it back."""
        self._stopping = True
        finished = self._turn.acquire(timeout=duration_us(timeout) / SECOND)
        try:
            self._stop_sent.set()
            self.query.stop()
        finally:
            if finished:
                self._turn.release()
        self._close()

    def pause(self, stream: str) -> None:
        """Read nothing more of an injected stream."""
        gate = self._gate(stream)
        self._publisher.throttle.pause(stream)
        _log.info("stream %r is paused", stream)
        gate.close_for(EVERYONE)
        self._take_effect()

    def resume(self, stream: str) -> None:
        """Read an injected stream again."""
        self._gate(stream)
        self._publisher.throttle.resume(stream)
        self._take_effect()

    def limit_rate(self, stream: str, records_per_second: float) -> None:
        """Read of an injected stream so many records a second on the average."""
        self._gate(stream)
        check_rate(stream, records_per_second)
        self._publisher.throttle.limit(stream, records_per_second)
        self._take_effect()

    def _remapped(self, computation: str, remaps: Sequence[Split | Merge]) -> Remade:
        """Read rows beside the epochs; split and merge key intervals between two of them."""
        name = self._topology.name_of(computation)
        preparation = Preparation(self._epochs, {name: remaps})
        while True:
            with self._turn:
                if self._stopping or self._ended:
                    raise PipelineError(f"this run has ended; {_OFFLINE}")
                if preparation.is_near():
                    made = self._epochs.remap(preparation.remaps, ready=preparation.ready)[name]
                    self._housekeeping.offer(self._epochs.collectable())
                    return Remade(len(made.intervals), self._epochs.completed)
            read(preparation, self._housekeeping)

    def _gate(self, stream: str) -> Gate:
        spec = self._topology.streams.get(stream)
        injection = None if spec is None else spec.injection
        ours = [
            one.name
            for one in self._topology.injected()
            if one.injection is not None and isinstance(one.injection.source, Injector)
        ]
        if injection is None or stream not in ours:
            what = "is no injected stream" if injection is None else _SPARKS
            raise cannot_hold(stream, what, ours)
        return self._gates[stream]

    def _take_effect(self) -> None:
        """Wait until epochs go by what was said: the one under way, and one planned, may not."""
        with self._news:
            wanted = self._wanted = self._begun + 2
            self._alarm.ring_in(0)
            until = time.monotonic() + EFFECT_S
            while self._on() and (self._begun < wanted or self._epoch_since is not None):
                left = until - time.monotonic()
                if left <= 0 or self._begun > wanted:
                    return
                self._news.wait(min(left, 0.1))

    # -- Spark's side ------------------------------------------------------------------------------

    def epoch(self, rows: DataFrame, number: int) -> None:
        """Run one epoch: Spark calls it for each batch, and again for one that it retries."""
        # Not just waiting for the turn: a stop may have it, and wait for this to end.
        while not self._turn.acquire(timeout=0.05):
            if self._stopping:
                raise _Stopped
        try:
            if self._stopping or self._epochs.drained:
                # To return would tell Spark that the batch is done.
                raise _Stopped
            self._epoch_since = time.monotonic()
            self._run_epoch(rows, number)
        except _Stopped:
            raise
        except MillraceError as error:
            self._fail(error)
            raise
        except BaseException as error:  # noqa: BLE001  # whatever it was, the run is over
            self._fail(failed(self._topology.name, error, rows.sparkSession))
            # Spark logs what is raised here with all that it came from.
            raise RunFailed(str(self._error)) from None
        finally:
            # An epoch that was begun before has been split; the next one's session is the user's.
            self._splitting.give_back()
            self._epoch_since = None
            self._turn.release()
            with self._news:
                self._news.notify_all()
        if self._stopping or self._epochs.drained:
            # Spark begins the next batch when this returns. Let the stop reach it first, or that
            # batch has to be refused, which Spark logs at length.
            self._stop_sent.wait(10)
            time.sleep(0.05)

    def _fail(self, error: MillraceError) -> None:
        self._error = error
        if not self._waiting:
            headline = str(error).split("\n", 1)[0]
            _log.error("%s\nrun.wait() says the whole of it.", headline)

    def _run_epoch(self, rows: DataFrame, number: int) -> None:
        epochs = self._epochs
        with self._news:
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
        if self._balancing is not None and not epochs.drained:
            self._balancing.after_epoch(busy=bool(report.records))
        self._housekeeping.offer(epochs.collectable())
        self._measured(report, time.perf_counter() - started, ran.parts)
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
        with self._news:
            if not settled or self._draining or self._idle < self._wanted:
                self._alarm.ring_in(0)
                return
            next_us = min(
                self._epochs.authority.next_wall_timer_us(),
                self._publisher.changes_us(),
                self._publisher.throttle.changes_us(),
            )
            self._alarm.ring_in(max(0, min(next_us - self._clock(), _IDLE_US)))

    # -- the query ---------------------------------------------------------------------------------

    def _active(self) -> bool:
        """Return whether the query runs; one that collided with an earlier driver runs again.

        A driver that has been superseded finds out in its next epoch. By then its Spark has written
        that batch's offsets, perhaps between our Spark's look at them and its own put.
        """
        if self.query.isActive or self._stopping or self._epochs.drained:
            return bool(self.query.isActive)
        with self._news:
            if self.query.isActive:
                return True
            failure = self.query.exception()
            collided = "Multiple streaming" in str(failure)
            if not collided or self._collisions == _COLLISIONS_MAX or self._epochs.superseded():
                self._error = self._error or failure
                return False
            self._collisions += 1
            self._error = None
            self.query = self._start_query()
        return True

    def _on(self) -> bool:
        return bool(self.query.isActive)

    def _failure(self) -> BaseException | None:
        failure: BaseException | None = self.query.exception()
        return self._error if self._error is not None else failure

    def _close(self) -> None:
        super()._close()
        self._splitting.give_back()
        shutil.rmtree(self._scratch, ignore_errors=True)


class _Stopped(Exception):
    """Tells Spark to give up a batch that a stopped run does not want to begin."""
