"""A run: its parts, the thread that looks after its tasks, how it is waited for, and how it ends.

All of that is one for both planes. What differs is how tasks are launched, brought to rest, drained
and stopped: that an :class:`Engine` knows.

Ctrl-C and SIGTERM stop a run, in place of the program that waits for it.
"""

from __future__ import annotations

import logging
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from math import inf
from typing import Any, Final, NamedTuple

from millrace.balance.preparation import Preparation
from millrace.compile.topology import Topology
from millrace.dataflow.triggers.signal import called
from millrace.injectors.injector import Injector
from millrace.injectors.rate_limit import Throttle, publish_held
from millrace.injectors.signal_injector import BacklogProbe, asking, put_call
from millrace.inspect import add_savepoint, check_savepoint, savepoints
from millrace.model.errors import (
    MillraceError,
    NotKept,
    PipelineError,
    StoreError,
    ZombieWriter,
    message_of,
)
from millrace.model.time import SECOND, Duration, duration_us
from millrace.runtime.reports import TaskReport
from millrace.spark.asks import Listener, RunRequests, acts_of
from millrace.spark.engine import Engine, RemapResult, RunParts
from millrace.spark.failure import failed, headline
from millrace.spark.metrics.opentelemetry import observe
from millrace.spark.metrics.prometheus import Scrapes
from millrace.spark.metrics.table import values
from millrace.spark.progress_display import LiveTable, ProgressDisplay
from millrace.spark.status import Progress, Status
from millrace.spark.status_text import as_line
from millrace.spark.stuck_board import Board
from millrace.store import location_of
from millrace.watermark.map_change import Merge, Split

_log = logging.getLogger("millrace")

#: How often requests are looked for: in a directory that costs microseconds, in an object store a
#: request, of which so many are half a dollar in a month.
_NEAR_S: Final = 0.5
_FAR_S: Final = 2.0
#: Why a stream cannot be held back that no injector reads, and what to do.
_SPARKS: Final = (
    "is read by Spark, not Millrace "
    "(mr.sources.Files, mr.sources.Kafka and injectors of your own are)"
)


class KeptSavepoint(NamedTuple):
    """What was kept of a checkpoint.

    Attributes:
        name: Of the savepoint.
        epoch: After which the checkpoint was so.
        pause: How long the run stood still for it, in words; "" if it did not.
    """

    name: str
    epoch: int
    pause: str = ""


class Run:
    """A run of a pipeline, on an engine.

    Args:
        parts: That every run has.
        engine: Of the plane.

    Attributes:
        news: Notified when something may have changed that somebody waits for.
        stopping: Whether it was stopped.
        handed_over: Whether that was so that another can take its place.
        error: Why it failed.
        updating: Held by who has another pipeline take its place, for ever.
    """

    def __init__(self, parts: RunParts, engine: Engine) -> None:
        self.parts = parts
        self.topology = parts.topology
        self.run_log = parts.run_log
        self.publisher = parts.publisher
        self.housekeeping = parts.housekeeping
        self.engine = engine
        self.news = engine.news
        self.stopping = False
        self.handed_over = False
        self.error: BaseException | None = None
        self.updating = threading.Lock()
        self._over = threading.Event()
        self._waiting = 0
        self._interrupted = False
        self._scrapes = parts.scrapes
        self._backlog = BacklogProbe(asking(parts.topology, lambda: parts.run_log.source_offsets))
        self._progress = Progress(parts.topology.name, parts.housekeeping, self._backlog)
        self._display = ProgressDisplay(
            self._line,
            parts.progress_target,
            table=LiveTable(self.status).table,
            going=lambda: self.active,
            facts=lambda: values(self.status()),
        )
        self._board = Board(parts.mailbox)
        self._listener: Listener | None = None
        self._end_observing: Callable[[], object] = bool
        engine.run = self

    # -- its beginning -----------------------------------------------------------------------------

    def launch(self) -> None:
        """Start the tasks, and see to them from now on."""
        try:
            self.engine.launch()
        except BaseException:
            self.engine.hang_up()
            raise
        self._backlog.add(self.engine.backlog())
        if self.publisher.throttle.descriptions():  # it takes over from a run that was asked
            self._publish_held()
        threading.Thread(target=self._look_after, name="millrace-run", daemon=True).start()

    def publish(
        self, update: Callable[[str, Mapping[str, Any]], str], requests: RunRequests
    ) -> None:
        """Show progress, and answer those who ask for metrics or something else, from now on.

        Args:
            update: Has the application that a request names take the place of this one, with other
                options; returns for how long nothing was under way.
            requests: To this run, and to those that it took over from.
        """
        self._listener = Listener(
            self.parts.mailbox,
            self.run_log.generation,
            acts_of(self, update),
            ended=lambda: self.status(active=False).state,
            epoch=lambda: self.run_log.completed,
            every_s=_FAR_S if self.parts.mailbox.far else _NEAR_S,
            seen=self._listed,
            requests=requests,
            handed_over=lambda: self.handed_over and not self.run_log.drained,
        )
        self._display.start()
        self._backlog.start()
        self._listener.start()
        self._end_observing = observe(self.status)
        if self._scrapes is not None:
            self._scrapes.serve(self.status)

    def _look_after(self) -> None:
        engine = self.engine
        try:
            while (failure := engine.watch()) is not None and engine.again(failure):
                engine.launch()
        except BaseException as error:  # noqa: BLE001  Spark was stopped, or cannot start a query
            self.fail(error)
        finally:
            engine.hang_up()
            self._give_back_lease()
            self._over.set()
            self.tell()

    def _listed(self, names: Sequence[str]) -> None:
        """Take the names of what is in the mailbox."""
        self._board.look(names)
        if self.active and self.run_log.superseded() is not None:
            self.engine.end_if_superseded()

    # -- what its engine tells it ------------------------------------------------------------------

    def tell(self) -> None:
        """Wake those who wait for something."""
        with self.news:
            self.news.notify_all()

    def fail(self, error: BaseException) -> None:
        """Record the error that ends the run; log it unless a caller waits, who gets it raised."""
        self.error = error
        if not self._waiting:
            _log.error("%s\nrun.wait() says the whole of it.", headline(error))

    def give_up(self) -> None:
        """Take the run for ended, while the thread that looks after it is held up in user code."""
        self._over.set()
        self.tell()

    def measured(
        self, report: TaskReport, seconds: float, parts: Mapping[str, float] | None = None
    ) -> None:
        """Take what tasks report of an epoch, or of a mark, and how long it and its parts took."""
        self._progress.add(report, seconds, parts)
        self.parts.lines.add(self.status(active=True), self.parts.clock())

    # -- where it stands ---------------------------------------------------------------------------

    @property
    def active(self) -> bool:
        """Whether it goes on."""
        return not self._over.is_set()

    def status(self, *, active: bool | None = None) -> Status:
        """Return where the run stands.

        Args:
            active: Whether it goes on; by default as far as is known.
        """
        active = self.active if active is None else active
        if self.run_log.drained:
            state = "drained"
        elif active:
            state = "running"
        else:
            state = "stopped" if self.stopping or self.error is None else "failed"
        stuck = self._board.now() if active else []
        status = self._progress.status(
            self.run_log, self.parts.loads, self.publisher, state=state, stuck=stuck
        )
        return self.engine.add_to(status, active=active)

    def _line(self) -> str:
        """Return where the run stands in a line. Other threads draw it, so it asks nobody."""
        return as_line(self.status(), under_way=self.engine.under_way_s)

    # -- what may be done with it ------------------------------------------------------------------

    def drain(self, timeout: Duration | None) -> bool:
        """End the input; return whether the run has ended."""
        self.engine.end_input()
        return self.wait_until(lambda: False, timeout)

    def stop(self, timeout: Duration = 60 * SECOND) -> None:
        """Finish what is under way, or, after the timeout, leave it to the next run; and end."""
        self.stopping = True
        self.engine.stop(timeout)
        self.tell()
        self._over.wait()
        self.close()

    def pause(self, stream: str) -> None:
        """Read nothing more of an injected stream."""
        self._hold(stream, lambda throttle: throttle.pause(stream))
        _log.info("stream %r is paused", stream)

    def resume(self, stream: str) -> None:
        """Read an injected stream again, as it comes."""
        self._hold(stream, lambda throttle: throttle.resume(stream))

    def limit_rate(self, stream: str, records_per_second: float) -> None:
        """Read of an injected stream so many records a second on the average."""
        check_rate(stream, records_per_second)
        self._hold(stream, lambda throttle: throttle.limit(stream, records_per_second))

    def _hold(self, stream: str, change: Callable[[Throttle], None]) -> None:
        """Change what a stream is held back by, and wait until tasks go by it."""
        check_holdable(self.topology, stream)
        change(self.publisher.throttle)
        self._publish_held()
        self.engine.hold_back()

    def _publish_held(self) -> None:
        """Say in the checkpoint what is held back, for who asks why a low watermark is low."""
        held = self.publisher.throttle.descriptions()
        try:
            publish_held(self.parts.mailbox, self.run_log.generation, held)
        except (StoreError, OSError) as error:
            _log.warning("explain-watermark does not know of it: %s", message_of(error))

    def fire(self, name: str, keys: Iterable[Any]) -> None:
        """Have triggers fire, for some keys or for all."""
        put_call(self.parts.mailbox, *called(name, keys, self.topology.streams))

    def waiting_records(self) -> int | None:
        """Return how many records wait in sources, of streams that are not held back.

        Returns:
            None if no source can tell.
        """
        paused, limited = self.publisher.throttle.asked()
        waiting = [
            backlog.records
            for stream, backlog in self._backlog.now().items()
            if backlog.records is not None and stream not in paused and stream not in limited
        ]
        return sum(waiting) if waiting else None

    def remap(self, computation: str, remaps: Sequence[Split | Merge]) -> RemapResult:
        """Read rows beside the run; split and merge key intervals while nothing is under way."""
        name = self.topology.name_of(computation)
        result = self.engine.remap(name, Preparation(self.run_log, {name: remaps}))
        _log.info("%r has %d key intervals", computation, result.intervals)
        return result

    def keep(self, name: str | None) -> KeptSavepoint:
        """Keep the checkpoint under a name; None for that of its epoch."""
        checkpoint = location_of(self.run_log.state)
        if name is not None:
            check_savepoint(checkpoint, name)
        with self.housekeeping.held():
            epoch, pause = self.engine.quiesced_epoch()
            if epoch < 0:
                raise NotKept("no epoch has completed yet: there is nothing to keep.")
            savepoint = KeptSavepoint(name or f"epoch-{epoch}", epoch, pause)
            if name is not None or savepoint.name not in savepoints(checkpoint):
                add_savepoint(checkpoint, savepoint.name, epoch=epoch)
        return savepoint

    def leave_scrapes(self) -> Scrapes | None:
        """Return what answers Prometheus; it is that of the run which goes on in its place.

        None: nothing does, or this run has ended, and it with it.
        """
        scrapes, self._scrapes = self._scrapes, None
        return scrapes

    # -- its end -----------------------------------------------------------------------------------

    def wait_until(self, reached: Callable[[], bool], timeout: Duration | None) -> bool:
        """Wait for a condition, or the run's end; return whether the run has ended.

        Raises:
            RunFailed: It ended with an error.
        """
        deadline = None if timeout is None else time.monotonic() + duration_us(timeout) / SECOND
        with interrupted(self._interrupt), self._awaited(), self._display.live():
            while self.active and not reached():
                if self._interrupted or self.run_log.drained:
                    self.stop()
                    break
                if deadline is not None and time.monotonic() >= deadline:
                    return False
                with self.news:
                    self.news.wait(0.1)
        if not self.active:
            self.close()
            self._raise_failure()
        return not self.active

    @contextmanager
    def _awaited(self) -> Iterator[None]:
        """Let a failure be told by who waits for it, and by nobody else."""
        with self.news:
            self._waiting += 1
        try:
            yield
        finally:
            with self.news:
                self._waiting -= 1

    def _interrupt(self) -> None:
        self._interrupted = True

    def _raise_failure(self) -> None:
        cause = self.error
        if self.stopping or self.run_log.drained or cause is None:
            return
        superseded = None
        with suppress(StoreError):  # who cannot know says what has happened here
            superseded = self.run_log.superseded()
        if superseded is not None and not isinstance(cause, ZombieWriter):
            # Whatever it stumbled over: a newer run's files, offsets, or tables.
            raise superseded from cause
        if isinstance(cause, MillraceError):
            raise cause
        raise failed(self.topology.name, cause, self.parts.console.spark) from None

    def _give_back_lease(self) -> None:
        """Let those who wait for the lease know that this has ended, unless another run has it."""
        if self.parts.lease is not None and (not self.handed_over or self.run_log.drained):
            self.parts.lease.release(self.error)

    def close(self) -> None:
        """Release the run's resources; its last status remains readable."""
        self.parts.console.end(failed=self.error is not None)
        self._display.finish()
        self.housekeeping.close()
        if self._listener is not None:
            self._listener.close()
        self.parts.lines.close()
        self._give_back_lease()
        self._backlog.close()
        self._end_observing()
        scrapes = self.leave_scrapes()
        if scrapes is not None:
            scrapes.close()
        shutil.rmtree(self.parts.scratch, ignore_errors=True)


def check_holdable(topology: Topology, stream: str) -> None:
    """Raise if a stream cannot be held back: it is none, or no injector reads it."""
    injected = {spec.name: spec.injection for spec in topology.injected()}
    ours = [
        name
        for name, injection in injected.items()
        if injection is not None and isinstance(injection.source, Injector)
    ]
    if stream not in ours:
        why = _SPARKS if injected.get(stream) is not None else "is no injected stream"
        raise PipelineError(
            f"stream {stream!r} {why}, so it cannot be held back. Those that can: "
            f"{', '.join(ours) or 'none'}."
        )


def check_rate(stream: str, records_per_second: float) -> None:
    """Raise if that is no rate."""
    if not 0 < records_per_second < inf:
        raise PipelineError(
            f"limit_rate({stream!r}, {records_per_second!r}): expected a number of records a "
            "second above 0. To read none of it, pause it."
        )


@contextmanager
def interrupted(interrupt: Callable[[], None]) -> Iterator[None]:
    """Call a function at Ctrl-C and SIGTERM; does nothing outside of the main thread.

    Args:
        interrupt: Called within a signal handler: it may set a flag, and not much more.

    Raises:
        KeyboardInterrupt: At Ctrl-C, when the function was called already: who asks twice does not
            want to wait for what goes on in order.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    called = False

    def handle(number: int, _: object) -> None:
        nonlocal called
        if called and number == signal.SIGINT:
            raise KeyboardInterrupt
        called = True
        interrupt()
        _log.warning("stopping, once what is under way is done; Ctrl-C again ends at once")

    earlier = {
        number: signal.signal(number, handle)
        for number in (signal.SIGINT, signal.SIGTERM)
        # None is a handler in C, of a program that embeds Python: it could not be set again.
        if signal.getsignal(number) is not None
    }
    try:
        yield
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)
