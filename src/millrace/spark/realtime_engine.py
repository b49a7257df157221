"""The engine of real time: a query of live tasks, started again whenever one of them dies."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Final

from pyspark.sql import SparkSession

from millrace.balance.preparation import Preparation
from millrace.balance.task_count import LiveTaskCount
from millrace.epochlog.entries import processes_of
from millrace.injectors.injector import Injector
from millrace.injectors.offsets import nothing_left
from millrace.model.errors import PipelineError, StoreError, UpdateFailed, ZombieWriter
from millrace.model.time import SECOND, Duration, duration_us
from millrace.runtime.realtime.coordinator import Coordinator, Marked, TaskKey
from millrace.runtime.realtime.incarnation_start import to_other_intervals
from millrace.runtime.realtime.messages import TaskReady, TaskStatus
from millrace.spark.engine import (
    EFFECT_S,
    Engine,
    RemapResult,
    RunParts,
    Successor,
    UpdateResult,
    ended,
)
from millrace.spark.external import injectors_of
from millrace.spark.failure import CAREFULLY, cannot_run_workers, failed, headline
from millrace.spark.realtime.control_connection import Address, InTask, Switchboard
from millrace.spark.realtime.control_loop import ControlLoop
from millrace.spark.realtime.failover import Failover, end_failed
from millrace.spark.realtime.liveness import TaskHung
from millrace.spark.realtime.process_id import ProcessId
from millrace.spark.realtime.quiesce import Quiesce, RealtimeBalancer
from millrace.spark.realtime.retry_policy import Downtime, RetryPolicy, StartTimeout
from millrace.spark.realtime.standby import Standby
from millrace.spark.run import Run
from millrace.spark.status import Status

_log = logging.getLogger("millrace")

#: How often the query is looked at.
_LOOK_S = 0.1
#: How often the query of a changed pipeline is started beside a run: what is lost may be a worker.
_TRIES = 2
#: How long who has updated a run waits for the first incarnation, to say how long it took.
_GOING_ON_S: Final = 60.0
#: Why a change takes seconds.
_NO_ROOM: Final = (
    "%d slots would be needed to start the changed pipeline beside this run, and they are not "
    "there: the run is stopped, and the other started, which takes Spark seconds"
)
#: Why there are as many tasks as before.
_NO_OTHERS: Final = (
    "the load wants another number of tasks a level than %d, but there are no slots to start them "
    "beside those that work; docs/how-to/size-a-cluster.md says how many are needed"
)
#: How long an executor that was lost may take to be replaced, before the query is tried without.
_SLOTS_S = 30.0


class RealtimeEngine(Engine):
    """Runs live tasks, in a query that is started again whenever one of them dies.

    Args:
        parts: Of the run.
        spark: The user's session, for the log of a failure.
        coordinate: Makes the coordinator, given what to call with each mark that is complete.
        board: Makes a place where the tasks of a query call.
        start_query: Starts a query whose tasks call at an address; given, too, whether they are to
            look for user code that ends its process, and which processes they are to end that hang.
        roomy: Returns whether there are slots for so many tasks, as far as it is known.
        standby: Whether a second query waits, started, to take over from one that fails.
        close: Closes the sessions of all queries, given whether the run has failed.
        beside: A query of its tasks that was started already; None if none was.
    """

    plane: ClassVar[str] = "in real time"

    def __init__(
        self,
        parts: RunParts,
        *,
        spark: SparkSession,
        coordinate: Callable[[Callable[[Marked], None]], Coordinator],
        board: Callable[[], Switchboard],
        start_query: Callable[[Address, bool, Sequence[ProcessId]], Any],
        roomy: Callable[[int], bool],
        standby: bool,
        close: Callable[[bool], None],
        beside: Standby | None = None,
    ) -> None:
        super().__init__()
        topology, tasks = parts.topology, parts.tasks
        self._topology = topology
        self._run_log = parts.run_log
        self._publisher = parts.publisher
        self._spark = spark
        self._start_query = start_query
        self._roomy = roomy
        self._close = close
        self._tasks = tasks
        self._allowed = parts.allowed
        self._task_count = LiveTaskCount(parts.allowed, tasks)
        self._make_board = board
        self._failover = Failover(standby, self._stand_by, self._has_room_for_standby, beside)
        self._went_on: UpdateResult | None = None
        self._no_others_logged = False
        self._retry_policy = RetryPolicy(parts.attempts)
        self._quiesce = Quiesce(self.news)
        # What remaps does so at a rest.
        balancer = parts.balancer(is_near=Preparation.is_near_a_mark, remap=to_other_intervals)
        self._balancer = RealtimeBalancer(balancer, self._quiesce)
        self._marks = 0
        self._marked_at = time.monotonic()
        self._published: dict[str, int] | None = None
        self._settled = False
        self._giving_up = False
        self._where = [(level, n) for level in range(topology.depth + 1) for n in range(tasks)]
        self._start_timeout = StartTimeout(len(self._where))
        self._until = ""
        self._coordinator = coordinate(self._completed)
        self._control_loop = ControlLoop(
            self._coordinator, board(), parts.clock, self._tell, self._where, parts.limits.hung_s
        )
        self._control_loop.hold(*self._publisher.throttle.asked())
        self._hung: list[ProcessId] = []

    # -- what the run asks -------------------------------------------------------------------------

    def process_available(self, timeout: Duration | None) -> bool:
        """Wait until all input that is there now is processed, and low watermarks stand still."""
        deadline = None if timeout is None else time.monotonic() + duration_us(timeout) / SECOND
        begun = self._marks
        # The coordinator asks copies of its own, maybe now.
        injectors = injectors_of(self._topology)
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            self._control_loop.mark_soon()
            if not self._mark_reached(
                self._marks + 1, None if left is None else int(left * SECOND)
            ):
                return False
            # The first mark may have left before now; and low watermarks are compared with it.
            if self._marks >= begun + 2 and self._settled and self._nothing_there(injectors):
                return True

    def hosts(self) -> Mapping[TaskKey, TaskReady]:
        """Return (level, number) of a task -> the process that it runs in."""
        return self._control_loop.hosts

    def remap(self, name: str, preparation: Preparation) -> RemapResult:
        """Read rows beside the tasks; split and merge key intervals while all rest."""
        run_log, beside = self._run_log, self.run.housekeeping
        if not preparation.changes():  # and what cannot be is refused before anything stands still
            return RemapResult(len(run_log.positions.maps[name]), run_log.completed)

        def work() -> tuple[int, int]:
            made = to_other_intervals(run_log, preparation.remaps, ready=preparation.ready)[name]
            beside.offer(self._coordinator.collectable())
            return len(made.intervals), run_log.completed

        while not self._control_loop.look(preparation.is_near_a_mark):
            beside.prepare(preparation)
        (intervals, epoch), pause = self._quiesce.ask(work)
        return RemapResult(intervals, epoch, pause)

    def quiesced_epoch(self) -> tuple[int, str]:
        """Have all tasks rest at a mark, and go on; return its epoch, and the pause."""
        return self._quiesce.ask(lambda: self._run_log.completed)

    def end_if_superseded(self) -> None:
        """Have a mark made: that of a run which was superseded is refused, and ends it."""
        self._control_loop.mark_soon()

    def hold_back(self) -> None:
        """Tell the tasks, and wait until a mark was passed after they knew."""
        self._control_loop.hold(*self._publisher.throttle.asked())
        until, wanted = time.monotonic() + EFFECT_S, self._marks + 2
        while self.run.active and self._marks < wanted and time.monotonic() < until:
            self._control_loop.mark_soon()
            with self.news:
                self.news.wait(_LOOK_S)

    def _mark_reached(self, wanted: int, timeout_us: int | None) -> bool:
        self.run.wait_until(lambda: self._marks >= wanted, timeout_us)
        return self._marks >= wanted

    def end_input(self) -> None:
        """Have a last mark made at the end of time."""
        self._control_loop.end(draining=True)

    def stop(self, timeout: Duration) -> None:
        """Stop with a last mark, or, after the timeout, without one.

        What came after the last mark that is complete is taken up by the next run from segments and
        sources; either way nothing is lost and nothing happens twice.
        """
        until = time.monotonic() + duration_us(timeout) / SECOND
        if self._control_loop.incarnation is not None:
            self._control_loop.end()
            with self.news:
                while self.run.active and self._control_loop.incarnation is not None:
                    if self._control_loop.ended or time.monotonic() >= until:
                        break
                    self.news.wait(_LOOK_S)
        self._giving_up = True

    # -- another pipeline in its place -------------------------------------------------------------

    def hand_over(self, successor: Successor, timeout: Duration) -> Run:
        """Start the other's query beside this one, which ends at a mark when all tasks are there.

        What goes wrong before the checkpoint is claimed leaves this run as it was. After that the
        other goes on, whatever becomes of its tasks.
        """
        taken = len(self._where) + successor.slots
        if successor.slots and self.run.active:
            if self._roomy(taken):
                heir = self._hand_over_beside(successor, duration_us(timeout) / SECOND)
                if heir is not None:
                    self.run.stop(timeout)
                    return heir
            elif not successor.optional:
                _log.warning(_NO_ROOM, taken + 1)
        if successor.optional:
            raise UpdateFailed("the run goes on as it was, with as many tasks as it had.")
        return super().hand_over(successor, timeout)

    def _hand_over_beside(self, successor: Successor, within_s: float) -> Run | None:
        """Return the run of the other; None if it cannot be started beside this one."""
        failure: BaseException | None = None
        try:
            with self._failover.making_way():
                for _ in range(_TRIES):
                    self._wait_for_way()
                    beside = successor.stand_by(self._tell)
                    try:
                        failure = self._waited_for(beside)
                        if isinstance(failure, PipelineError):
                            _log.warning("%s\nThe run is stopped, and the other started.", failure)
                            return None
                        if failure is not None:
                            continue
                        work = partial(self._succeed, successor, beside)
                        heir, _ = self._quiesce.ask(work, within_s, goes_on=successor.optional)
                        if heir is not None:
                            return heir
                        failure = beside.failure
                    except TimeoutError:
                        _log.warning("not all tasks have passed a mark in %g s", within_s)
                        return None
                    finally:
                        beside.end()
        except BaseException:
            if self.run.handed_over:
                self.run.stop()
            raise
        said = "a task of it was lost" if failure is None else headline(failure)
        raise UpdateFailed(
            "the query of the changed pipeline was started beside this run, and has failed; so "
            f"often it was tried: {_TRIES}. {said}\nThe run goes on as it was, and is the `run` of "
            "this error."
        )

    def _wait_for_way(self) -> None:
        """Wait until the standby is gone, whose slots are needed."""
        with self.news:
            while self.run.active and not self._failover.gone:
                self.news.wait(_LOOK_S)

    def _waited_for(self, beside: Standby) -> BaseException | None:
        """Wait until a query is ready; return why it is not, a PipelineError if that took long."""
        timeout = StartTimeout(len(beside.where))
        timeout.begins()
        with self.news:
            while not beside.ready:
                failure = beside.failure or timeout.too_long(beside.absent())
                if failure is not None:
                    return failure
                if not self.run.active:
                    raise ended()
                self.news.wait(_LOOK_S)
        return None

    def _succeed(self, successor: Successor, beside: Standby) -> Run | None:
        """Let the other go on, while all tasks wait; return None if its tasks are there no more."""
        if not beside.ready:
            return None
        downtime, self.downtime = self.downtime, Downtime()
        return self._make_way(successor, downtime)

    def went_on(self) -> UpdateResult:
        """Wait for the first incarnation, and return for how long there was none."""
        until = time.monotonic() + _GOING_ON_S
        with self.news:
            while self.run.active and self._went_on is None and time.monotonic() < until:
                self.news.wait(_LOOK_S)
        return self._went_on or UpdateResult("", 0.0)

    # -- looking after the query -------------------------------------------------------------------

    def launch(self) -> None:
        """Start a query, unless one is there whose tasks wait."""
        self._start_timeout.begins()
        if self._takes_over:
            heir = self._failover.take()
            self._control_loop.take_over(heir.board, heir.take())
            self.query = heir.query
            self._until = f"until {heir.title} had taken up what there was"
            return
        self._failover.give_up()
        self._until = "until Spark ran all tasks"
        careful = self._retry_policy.tried_in_vain
        if careful:
            _log.warning("another incarnation begins%s", CAREFULLY)
        self.query = self._start_query(self._control_loop.open(), careful, self._hung)
        self.downtime.lap("to start the query")

    def again(self, failure: BaseException) -> bool:
        """Wait until there is another try, and slots for it; return whether there is one."""
        goes_on = self._tried_again(failure)
        if goes_on and self._takes_over:
            self._failover.leave(self.query)
            return True
        end_failed(self.query)
        self._failover.give_up()
        self.downtime.lap("until all tasks had ended")
        if goes_on:
            self._wait_for_slots()
            self.downtime.lap("until there were slots")
        return goes_on and not self._giving_up

    def hang_up(self) -> None:
        """Hang up on all tasks, and do nothing more at a rest."""
        self._control_loop.close()
        self._quiesce.close()
        self._failover.close()
        self._close(self.run.error is not None)

    def _tried_again(self, failure: BaseException) -> bool:
        """Wait as long as it takes after a failure; return whether an incarnation is to follow.

        A run that was superseded takes from its successor no slots, and no time, for an incarnation
        that cannot begin.
        """
        with suppress(StoreError):
            failure = self._run_log.superseded() or failure
        pause_s = self._retry_policy.after(failure)
        if pause_s is None:
            self._fail(failure)
            return False
        if self._takes_over:
            _log.warning("the incarnation ended, and the standby takes over: %s", headline(failure))
            return not self._giving_up
        _log.warning(
            "the incarnation ended, and another begins in %.1f s: %s", pause_s, headline(failure)
        )
        self._pause(pause_s)
        self.downtime.lap("of pause")
        return not self._giving_up

    def _rested(self) -> bool:
        """Do what is to be done while nothing is under way; return whether an incarnation follows.

        All tasks wait meanwhile. If one is lost, the query is started again when this is done.
        """
        self.downtime.lap("until all had passed a mark")
        if self._giving_up or not self._quiesce.wanted or self._run_log.drained:
            return False
        self._quiesce.do()
        self.downtime.lap("to do what was asked for")
        if self.run.stopping:
            return False
        self._until = "until all tasks had taken up what they had"
        self._start_timeout.begins()
        self._control_loop.go_on()
        return True

    def watch(self) -> BaseException | None:
        """Wait until the query has failed, or the run ends; return why if another is to follow."""
        control_loop, failure = self._control_loop, None
        while not self._giving_up:
            if control_loop.ended and not self._rested():
                break
            failure = control_loop.failed or self._ended_query() or self._silent()
            if failure is not None:
                self.downtime.gone()
                if isinstance(failure, TaskHung):
                    self._end(failure.processes)
                break
            self._balancer.look()
            if self._quiesce.wanted:
                self.downtime.gone()
                control_loop.rest()
            if control_loop.incarnation is not None:
                self._retry_policy.begun()
                self._start_timeout.begins()
                if not self._quiesce.wanted:
                    self._gone_on()
                self._failover.look()
                self._see_to_tasks()
            with self.news:
                self.news.wait(_LOOK_S)
        if failure is None:
            if self._failover.standby is not None:
                self._failover.standby.end()
            if control_loop.ended:
                control_loop.halt()
            self.query.stop()
            self.downtime.lap("until all tasks had ended")
        return failure

    def _end(self, hung: Sequence[ProcessId]) -> None:
        """End processes that hang: those of this host now, others by the next task there."""
        self._hung += hung
        killed = [process.kill() for process in hung]
        if not all(killed):
            self._failover.give_up()  # whose tasks do not know of them

    # -- the number of tasks ----------------------------------------------------------------------

    def _see_to_tasks(self) -> None:
        """Have others take over if there are to be more tasks, or fewer."""
        if not self._allowed.follows_load:
            return
        statuses = self._statuses()
        wanted = self._task_count.look(
            time.monotonic(),
            {(status.level, status.task): status.busy_s for status in statuses},
            records=sum(status.records for status in statuses if status.level == 0),
            done=sum(status.records + status.commits for status in statuses),
            waiting=self.run.waiting_records(),
        )
        if wanted is None:
            return
        # Whatever comes of it, nothing is asked for again until tasks were watched for a while.
        self._task_count = LiveTaskCount(self._allowed, self._tasks)
        while wanted not in (0, self._tasks) and not self._fit_beside(wanted):
            wanted -= 1
        if wanted >= self._allowed.least and wanted != self._tasks:
            self.scale(wanted)
        elif not self._no_others_logged:
            self._no_others_logged = True
            _log.warning(_NO_OTHERS, self._tasks)

    def _fit_beside(self, tasks: int) -> bool:
        """Return whether there are slots for so many tasks a level beside those that work.

        And later for their standby, whose slots they have meanwhile.
        """
        slots = tasks * (self._topology.depth + 1)
        return self._roomy(max(len(self._where) + slots, slots * (1 + self._failover.wanted)))

    # -- the standby -------------------------------------------------------------------------------

    @property
    def _takes_over(self) -> bool:
        """Whether the tasks of the standby are to go on.

        They were not made to look for user code that ends its process.
        """
        return self._failover.ready and not self._retry_policy.tried_in_vain

    def _stand_by(self) -> Standby:
        """Start a query whose tasks wait."""
        hung = tuple(self._hung)
        return Standby(
            self._make_board(),
            lambda address: self._start_query(address, False, hung),
            self._where,
            self._tell,
        )

    def _has_room_for_standby(self) -> bool:
        return self._roomy(2 * len(self._where))

    def _gone_on(self) -> None:
        """Say how long the run was away, if it was."""
        away = self.downtime.back(self._until)
        if away is not None:
            self._went_on = self._went_on or UpdateResult(away, self.downtime.seconds)
            _log.info("another incarnation has begun, after %s", away)
            self._quiesce.back(away)
            self._balancer.back(self.downtime.seconds)

    def _ended_query(self) -> BaseException | None:
        if self.query.isActive:
            return None
        failure: BaseException | None = self.query.exception()
        return failure or RuntimeError("Spark has ended the query")

    def _silent(self) -> BaseException | None:
        """Return an error if no incarnation has begun, as tasks have not called for too long."""
        if self._control_loop.incarnation is not None:
            return None
        return self._start_timeout.too_long(self._control_loop.absent())

    def _pause(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        with self.news:
            while not self._giving_up and (left := until - time.monotonic()) > 0:
                self.news.wait(left)

    def _wait_for_slots(self) -> None:
        """Wait while an executor that was lost is replaced; in the end Spark says what it lacks.

        Spark refuses a query without slots, after seconds of work that the new executor could use.
        """
        until = time.monotonic() + _SLOTS_S
        while not (self._giving_up or self._roomy(len(self._where))) and time.monotonic() < until:
            self._pause(_LOOK_S)

    def _fail(self, error: BaseException) -> None:
        if (said := cannot_run_workers(error)) is not None:
            error = said
        elif isinstance(error.__cause__, InTask) and not isinstance(error, ZombieWriter):
            error = failed(self._topology.name, error, self._spark)
        self.run.fail(error)

    # -- marks -------------------------------------------------------------------------------------

    def _completed(self, marked: Marked) -> None:
        """Take a mark that is complete."""
        self._retry_policy.well()
        now = time.monotonic()
        self.run.housekeeping.offer(self._coordinator.collectable())
        self.run.measured(marked.report, now - self._marked_at)
        self._marked_at = now
        if not self._coordinator.ended:
            self._balancer.marked(busy=bool(marked.report.records))
        published = dict(marked.manifest.injectors)
        self._settled = marked.report.is_quiet and published == self._published
        self._published = published
        self._marks += 1

    def _nothing_there(self, injectors: Mapping[str, Injector]) -> bool:
        """Return whether the sources have nothing that was not read when the last mark was made."""
        places, processes = self._run_log.source_offsets, processes_of(self._run_log.sources)
        return all(
            nothing_left(
                injector,
                places.get(stream, {}),
                self._publisher.waiting(stream, processes, self._published or {}),
            )
            for stream, injector in injectors.items()
        )

    def add_to(self, status: Status, *, active: bool) -> Status:
        """Return a status as of the last mark, but with low watermarks as they are now."""
        return replace(
            status,
            low_watermarks=live_low_watermarks(status, self._statuses(), self._tasks),
            tasks=self._tasks,
            steps=self._control_loop.steps.times() if active else {},
            standby=self._failover.state if active else "",
            strangers=self._control_loop.strangers,
        )

    def _statuses(self) -> list[TaskStatus]:
        return (
            []
            if self._control_loop.incarnation is None
            else list(self._coordinator.statuses.values())
        )

    def _tell(self) -> None:
        with self.news:
            self.news.notify_all()


def live_low_watermarks(
    status: Status, statuses: Iterable[TaskStatus], tasks: int
) -> dict[str, int]:
    """Return computation -> low watermark of its input: what all of its tasks have sent by now.

    Args:
        status: As of the last mark; nothing is below it.
        statuses: The last of each task.
        tasks: How many there are of a level.
    """
    inputs: dict[str, list[int]] = {}
    for one in statuses:
        for name, us in one.inputs.items() if one.level else ():
            inputs.setdefault(name, []).append(us)
    return {
        name: max(us, min(known)) if len(known := inputs.get(name, [])) == tasks else us
        for name, us in status.low_watermarks.items()
    }
