"""A run of the real-time plane: a query of live tasks, started again whenever one of them dies."""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from millrace.injectors.injector import Injector
from millrace.injectors.remaining import nothing_left
from millrace.injectors.throttle import Throttle
from millrace.model.errors import StoreError, ZombieWriter
from millrace.model.time import SECOND, Duration, duration_us
from millrace.plane.balancing import Balancing
from millrace.plane.realtime.coordinator import Coordinator, Marked, Where
from millrace.plane.realtime.handover import to_other_intervals
from millrace.plane.realtime.messages import Hello, TaskStatus
from millrace.spark.failure import CAREFULLY, failed, headline
from millrace.spark.handle import Handle
from millrace.spark.held import Held
from millrace.spark.preparing import read
from millrace.spark.realtime.balanced import Balanced
from millrace.spark.realtime.comeback import Comeback
from millrace.spark.realtime.conductor import Conductor
from millrace.spark.realtime.hang import TaskHung
from millrace.spark.realtime.line import Address, InTask, Switchboard
from millrace.spark.realtime.patience import Patience
from millrace.spark.realtime.process_id import ProcessId
from millrace.spark.realtime.rests import Rests
from millrace.spark.realtime.silence import Silence
from millrace.spark.remapping import Remade
from millrace.spark.status import Status
from millrace.spark.throttled import EFFECT_S, cannot_hold, check_rate
from millrace.watermark.remap import Merge, Split
from millrace.windmill.preparing import Preparation
from millrace.windmill.source_stats import processes_of

_log = logging.getLogger("millrace")

#: How often the query is looked at.
_LOOK_S = 0.1
#: How long Spark may take to end a query of which a task has failed.
_DYING_S = 1.0
#: How long an executor that was lost may take to be replaced, before the query is tried without.
_SLOTS_S = 30.0


@dataclass(frozen=True)
class LiveParts(Held):
    """What a run is put together from.

    Attributes:
        coordinate: Makes the coordinator, given what to call with each mark that is complete.
        board: Where the tasks call.
        start_query: Starts a query whose tasks call at an address; given, too, whether they are to
            look for user code that ends its process, and which processes they are to end that hang.
        roomy: Returns whether there are slots for all tasks, as far as it is known.
        tasks: Tasks a level.
        attempts: How often what the pipeline's own code raises is tried again in vain.
        hang_s: How long a task may do nothing, though it waits for nobody.
        scratch: Directory of this run alone, removed with it.
        balancing: Has key intervals follow the load, if they are to.
    """

    coordinate: Callable[[Callable[[Marked], None]], Coordinator]
    board: Switchboard
    start_query: Callable[[Address, bool, Sequence[ProcessId]], Any]
    roomy: Callable[[], bool]
    tasks: int
    attempts: int
    hang_s: float
    scratch: Path
    balancing: Balancing | None = None


class LiveRun(Handle):
    """A run whose tasks do not end; marks stand for epochs."""

    def __init__(self, parts: LiveParts) -> None:
        super().__init__(parts)
        self.query: Any = None
        self._parts = parts
        self._patience = Patience(parts.attempts)
        self._comeback = Comeback()
        self._rests = Rests(self._news)
        self._balanced = Balanced(parts.balancing, self._rests)
        self._marks = 0
        self._marked_at = time.monotonic()
        self._published: dict[str, int] | None = None
        self._settled = False
        self._giving_up = False
        self._over = threading.Event()
        levels = range(parts.topology.depth + 1)
        where = [(level, n) for level in levels for n in range(parts.tasks)]
        self._silence = Silence(len(where))
        self._until = ""
        self._coordinator = parts.coordinate(self._completed)
        self._conductor = Conductor(
            self._coordinator, parts.board, parts.clock, self._tell, where, parts.hang_s
        )
        self._hung: list[ProcessId] = []
        self._injectors = {
            spec.name: spec.injection.source
            for spec in parts.topology.injected()
            if spec.injection is not None and isinstance(spec.injection.source, Injector)
        }

    def launch(self) -> None:
        """Start the query, and see to it from now on."""
        try:
            self._start()
        except BaseException:
            self._conductor.close()
            raise
        threading.Thread(target=self._look_after, name="millrace-run", daemon=True).start()
        self._begin_telling()

    # -- the user's side ---------------------------------------------------------------------------

    def _process_available(self, timeout: Duration | None) -> bool:
        """Wait until all input that is there now is processed, and low watermarks stand still."""
        deadline = None if timeout is None else time.monotonic() + duration_us(timeout) / SECOND
        begun = self._marks
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            self._conductor.mark_soon()
            if not self._mark_reached(
                self._marks + 1, None if left is None else int(left * SECOND)
            ):
                return False
            # The first mark may have left before now; and low watermarks are compared with it.
            if self._marks >= begun + 2 and self._settled and self._nothing_there():
                return True

    @property
    def hosts(self) -> dict[Where, Hello]:
        """(level, number) of a task -> the process that it runs in."""
        return self._conductor.hosts

    def pause(self, stream: str) -> None:
        """Read nothing more of an injected stream."""
        self._hold_back(stream, lambda throttle: throttle.pause(stream))
        _log.info("stream %r is paused", stream)

    def resume(self, stream: str) -> None:
        """Read an injected stream again."""
        self._hold_back(stream, lambda throttle: throttle.resume(stream))

    def limit_rate(self, stream: str, records_per_second: float) -> None:
        """Read of an injected stream so many records a second on the average."""
        check_rate(stream, records_per_second)
        self._hold_back(stream, lambda throttle: throttle.limit(stream, records_per_second))

    def _remapped(self, computation: str, remaps: Sequence[Split | Merge]) -> Remade:
        """Read rows beside the tasks; split and merge key intervals while all rest."""
        name, epochs = self._topology.name_of(computation), self._epochs
        asked = Preparation(epochs, {name: remaps})
        if not asked.changes():  # and what cannot be is refused before anything stands still
            return Remade(len(epochs.positions.maps[name]), epochs.completed)

        def remap() -> tuple[int, int]:
            made = to_other_intervals(epochs, asked.remaps, ready=asked.ready)[name]
            self._housekeeping.offer(self._coordinator.collectable())
            return len(made.intervals), epochs.completed

        while not self._conductor.look(asked.is_near_a_mark):
            read(asked, self._housekeeping)
        found, pause = self._rests.ask(remap)
        return Remade(*found, pause)

    def _with_nothing_under_way(self) -> tuple[int, str]:
        return self._rests.ask(lambda: self._epochs.completed)

    def _hold_back(self, stream: str, change: Callable[[Throttle], None]) -> None:
        """Tell the tasks, and wait until a mark was passed after they knew."""
        if stream not in self._injectors:
            raise cannot_hold(stream, "is no injected stream", self._injectors)
        throttle = self._publisher.throttle
        change(throttle)
        self._conductor.hold(*throttle.asked())
        until, wanted = time.monotonic() + EFFECT_S, self._marks + 2
        while self._on() and self._marks < wanted and time.monotonic() < until:
            self._conductor.mark_soon()
            with self._news:
                self._news.wait(_LOOK_S)

    def _mark_reached(self, wanted: int, timeout_us: int | None) -> bool:
        self._wait_until(lambda: self._marks >= wanted, timeout_us)
        return self._marks >= wanted

    def _drain(self, timeout: Duration | None) -> bool:
        """End the input: raise low watermarks to the end of time, fire what waits, and stop."""
        self._conductor.end(draining=True)
        return self._wait_until(lambda: False, timeout)

    def _stop(self, timeout: Duration = 60 * SECOND) -> None:
        """Stop with a last mark, or, after the timeout, without one.

        What came after the last mark that is complete is taken up by the next run from journals and
        sources; either way nothing is lost and nothing happens twice.
        """
        self._stopping = True
        until = time.monotonic() + duration_us(timeout) / SECOND
        if self._conductor.session is not None:
            self._conductor.end()
            with self._news:
                while not self._over.is_set() and self._conductor.session is not None:
                    if self._conductor.ended or time.monotonic() >= until:
                        break
                    self._news.wait(_LOOK_S)
        self._giving_up = True
        self._tell()
        self._over.wait()
        self._close()

    # -- looking after the query -------------------------------------------------------------------

    def _start(self) -> None:
        self._silence.begins()
        self._until = "until Spark ran all tasks"
        careful = self._patience.tried_in_vain
        if careful:
            _log.warning("another session begins%s", CAREFULLY)
        self.query = self._parts.start_query(self._conductor.open(), careful, self._hung)

    def _look_after(self) -> None:
        try:
            while (failure := self._watched()) is not None and self._tried_again(failure):
                self._wait_for_slots()
                self._comeback.lap("until there were slots")
                if self._giving_up:
                    break
                self._start()
                self._comeback.lap("to start the query")
        except BaseException as error:  # noqa: BLE001  Spark was stopped, or cannot start a query
            self._fail(error)
        finally:
            self._conductor.close()
            self._over.set()
            self._rests.close()
            self._tell()

    def _tried_again(self, failure: BaseException) -> bool:
        """Wait as long as it takes after a failure; return whether a session is to follow.

        A run that was superseded takes from its successor no slots, and no time, for a session that
        cannot begin.
        """
        with suppress(StoreError):
            failure = self._epochs.superseded() or failure
        pause_s = self._patience.after(failure)
        if pause_s is None:
            self._fail(failure)
            return False
        _log.warning(
            "the session ended, and another begins in %.1f s: %s", pause_s, headline(failure)
        )
        self._pause(pause_s)
        self._comeback.lap("of pause")
        return not self._giving_up

    def _rested(self) -> bool:
        """Do what is to be done while nothing is under way; return whether a session follows.

        All tasks wait meanwhile. If one is lost, the query is started again when this is done.
        """
        self._comeback.lap("until all had passed a mark")
        if self._giving_up or not self._rests.wanted or self._epochs.drained:
            return False
        self._rests.do()
        self._comeback.lap("to do what was asked for")
        if self._stopping:
            return False
        self._until = "until all tasks had taken up what they had"
        self._silence.begins()
        self._conductor.go_on()
        return True

    def _watched(self) -> BaseException | None:
        """Wait until the query has failed, or the run ends; return why if another is to follow."""
        conductor, failure = self._conductor, None
        while not self._giving_up:
            if conductor.ended and not self._rested():
                break
            failure = conductor.failed or self._ended_query() or self._silent()
            if failure is not None:
                self._comeback.gone()
                if isinstance(failure, TaskHung):
                    self._end(failure.processes)
                break
            self._balanced.look()
            if self._rests.wanted:
                self._comeback.gone()
                conductor.rest()
            if conductor.session is not None:
                self._patience.begun()
                self._silence.begins()
                if not self._rests.wanted:
                    self._gone_on()
            with self._news:
                self._news.wait(_LOOK_S)
        if failure is not None:
            # Spark is about to find out; to stop the query meanwhile would take longer.
            until = time.monotonic() + _DYING_S
            while self.query.isActive and time.monotonic() < until:
                time.sleep(0.01)
        elif conductor.ended:
            conductor.halt()
        self.query.stop()
        self._comeback.lap("until all tasks had ended")
        return failure

    def _end(self, hung: Sequence[ProcessId]) -> None:
        """End processes that hang: those of this host now, others by the next task there."""
        for process in hung:
            process.kill()
        self._hung += hung

    def _gone_on(self) -> None:
        """Say how long the run was away, if it was."""
        away = self._comeback.back(self._until)
        if away is not None:
            _log.info("another session has begun, after %s", away)
            self._rests.back(away)
            self._balanced.back(self._comeback.seconds)

    def _ended_query(self) -> BaseException | None:
        if self.query.isActive:
            return None
        failure: BaseException | None = self.query.exception()
        return failure or RuntimeError("Spark has ended the query")

    def _silent(self) -> BaseException | None:
        """Return an error if no session has begun, as tasks have not called for too long."""
        if self._conductor.session is not None:
            return None
        return self._silence.too_long(self._conductor.absent())

    def _pause(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        with self._news:
            while not self._giving_up and (left := until - time.monotonic()) > 0:
                self._news.wait(left)

    def _wait_for_slots(self) -> None:
        """Wait while an executor that was lost is replaced; in the end Spark says what it lacks.

        Spark refuses a query without slots, after seconds of work that the new executor could use.
        """
        until = time.monotonic() + _SLOTS_S
        while not (self._giving_up or self._parts.roomy()) and time.monotonic() < until:
            self._pause(_LOOK_S)

    def _fail(self, error: BaseException) -> None:
        if isinstance(error.__cause__, InTask) and not isinstance(error, ZombieWriter):
            error = failed(self._topology.name, error, self._console.spark)
        self._error = error
        if not self._waiting:
            _log.error("%s\nrun.wait() says the whole of it.", headline(error))

    # -- marks -------------------------------------------------------------------------------------

    def _completed(self, marked: Marked) -> None:
        """Take a mark that is complete."""
        self._patience.well()
        now = time.monotonic()
        self._housekeeping.offer(self._coordinator.collectable())
        self._measured(marked.report, now - self._marked_at)
        self._marked_at = now
        if not self._coordinator.ended:
            self._balanced.marked(busy=bool(marked.report.records))
        published = dict(marked.manifest.injectors)
        self._settled = marked.report.is_quiet and published == self._published
        self._published = published
        self._marks += 1

    def _nothing_there(self) -> bool:
        """Return whether the sources have nothing that was not read when the last mark was made."""
        places, processes = self._epochs.places, processes_of(self._epochs.sources)
        return all(
            nothing_left(
                injector,
                places.get(stream, {}),
                self._publisher.waiting(stream, processes, self._published or {}),
            )
            for stream, injector in self._injectors.items()
        )

    # -- what the handle asks ----------------------------------------------------------------------

    def _active(self) -> bool:
        return not self._over.is_set()

    def _on(self) -> bool:
        return not self._over.is_set()

    def _failure(self) -> BaseException | None:
        return self._error

    def _status(self, *, active: bool) -> Status:
        """Return where the run stands: as of the last mark, but low watermarks as they are now."""
        status = super()._status(active=active)
        return replace(
            status,
            low_watermarks=live_low_watermarks(status, self._statuses(), self._parts.tasks),
            steps=self._conductor.steps.times() if active else {},
            strangers=self._parts.board.strangers,
        )

    def _statuses(self) -> list[TaskStatus]:
        return [] if self._conductor.session is None else list(self._coordinator.statuses.values())

    def _tell(self) -> None:
        with self._news:
            self._news.notify_all()

    def _close(self) -> None:
        super()._close()
        shutil.rmtree(self._parts.scratch, ignore_errors=True)


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
