"""The handle of a run: what a user asks and tells it, whichever plane the run is on."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from millrace.compile.explanation import Explanation as PipelineExplanation
from millrace.dashboard import Dashboard
from millrace.injectors.waiting import Waiting, asking
from millrace.inspect import Explanation, explain_watermark
from millrace.model.errors import MillraceError, ZombieWriter
from millrace.model.pipeline import Declarations
from millrace.model.time import SECOND, Duration, duration_us
from millrace.plane.reports import TaskReport
from millrace.spark.calling import Calling
from millrace.spark.failure import failed
from millrace.spark.held import Held
from millrace.spark.keeping import Keeping
from millrace.spark.live_table import LiveTable
from millrace.spark.metrics.opentelemetry import observe
from millrace.spark.metrics.table import values
from millrace.spark.progress_display import ProgressDisplay
from millrace.spark.remapping import Remappable
from millrace.spark.requests import Listener, ask
from millrace.spark.signals import interrupted
from millrace.spark.status import Progress, Status
from millrace.spark.status_text import as_line
from millrace.spark.stuck_board import Board
from millrace.spark.throttled import Throttled
from millrace.spark.updating import Started
from millrace.store import location_of
from millrace.windmill.history import History

#: How often requests are looked for: in a directory that costs microseconds, in an object store a
#: request, of which so many are a third of a dollar in a month.
_LISTENED_S = 0.5
_LISTED_S = 5.0


class Handle(Throttled, Calling, Keeping, Remappable, ABC):
    """The handle of a running pipeline. Its methods may be called from any thread.

    ``wait``, ``process_available`` and ``drain`` also take Ctrl-C and SIGTERM when they are called
    in the main thread: both stop the run as :meth:`stop` does.

    Where a changed pipeline has taken over because ``millrace update`` asked for it, the handle is
    that of its run.
    """

    def __init__(self, held: Held) -> None:
        self._topology = held.topology
        self._epochs = held.epochs
        self._publisher = held.publisher
        self._housekeeping = held.housekeeping
        self._explanation = held.explanation
        self._clock = held.clock
        self._console = held.console
        self._backlog = Waiting(asking(held.topology, lambda: held.epochs.places))
        self._progress = Progress(held.topology.name, held.housekeeping, self._backlog)
        table = LiveTable(self._now).table
        self._display = ProgressDisplay(
            self._line, held.shown, table=table, going=self._goes_on,
            facts=lambda: values(self._now()),
        )  # fmt: skip
        self._scrapes = held.scrapes
        self._end_observing: Callable[[], object] = bool
        self._lines = held.lines
        self._news = threading.Condition()
        self._waiting = 0
        self._stopping = False
        self._interrupted = False
        self._error: BaseException | None = None
        self._ended = False
        self._epoch_since: float | None = None
        self.started: Started | None = None
        self._mailbox = held.mailbox
        self._board = Board(held.mailbox)
        self._listener = Listener(
            held.mailbox,
            held.epochs.generation,
            {
                "stop": lambda _: self._said_of(self.stop),
                "drain": lambda _: self._said_of(self.drain),
                "status": lambda _: str(self._now()),
                "update": self._update_from_outside,
                **self.holding_acts(held.publisher.throttle),
                **self.calling_acts(),
                **self.keeping_acts(),
                **self.remapping_acts(),
            },
            ended=lambda: self._status(active=False).state,
            epoch=lambda: self._epochs.completed,
            every_s=_LISTED_S if held.mailbox.far else _LISTENED_S,
            seen=self._board.look,
            outliving={"update", "remap", "savepoint", "snapshot"},
        )

    def wait(self, timeout: Duration | None = None) -> bool:
        """Wait until the run ends; return whether it has.

        Raises:
            RunFailed: It ended with an error; the cause is attached, and a log named.
        """
        return self._through(lambda run, left: run._wait_until(lambda: False, left), timeout)

    def process_available(self, timeout: Duration | None = None) -> bool:
        """Wait until all input that is there now is processed, and low watermarks stand still.

        Returns:
            Whether that is so; False if the time ran out or the run was stopped.

        Raises:
            RunFailed: The run ended with an error.
        """
        return self._through(lambda run, left: run._process_available(left), timeout)

    def drain(self, timeout: Duration | None = None) -> bool:
        """End the input: raise every low watermark to the end of time, fire what waits, and stop.

        What the sources have by then, but the run has not read, is not read any more; call
        :meth:`process_available` first to have it.

        Returns:
            Whether the run ended; False if the time ran out first.
        """
        return self._through(lambda run, left: run._drain(left), timeout)

    def stop(self, timeout: Duration = 60 * SECOND) -> None:
        """Stop: finish the epoch that is under way, or, after the timeout, roll it back.

        An epoch that is rolled back runs again when the pipeline is started with the same
        checkpoint; either way nothing is lost and nothing happens twice.
        """

        def stop(run: Handle, _left: object) -> bool:
            run._stop(timeout)
            return True

        self._through(stop, None)

    def update(
        self, pipeline: Declarations, *, timeout: Duration = 60 * SECOND, **options: Any
    ) -> Handle:
        """Let a changed pipeline take over between two epochs; return its run.

        This run finishes the epoch that is under way and ends, and the other begins with the next,
        on the same session and checkpoint: nothing is lost, and nothing happens twice. Between them
        is what a query of Spark takes to stop and to start. What may change, and where a
        computation that is new begins: docs/changing.md.

        Args:
            pipeline: The changed one; with sources and sinks of its own.
            timeout: See :meth:`stop`.
            options: Of :meth:`Pipeline.start`, those that are to be others than before.

        Raises:
            CheckpointMismatch: The pipeline cannot go on with the checkpoint; this run goes on.
            PipelineError: It cannot be built, and this run goes on; or the run was updated before.
            UpdateFailed: It could not be started. The pipeline that ran was started again: ``run``
                of the error.

        Source: MillWheel, "Streams" (4.3).
        """
        before = self._survivor()
        assert before.started is not None, "who starts a run says how"
        run: Handle = before.started.update(before, before._epochs, pipeline, timeout, options)
        return run

    def status(self) -> Status:
        """Return where the run stands. Print it; a notebook shows it as tables."""
        run = self._latest()
        return run._status(active=run._active())

    @property
    def metrics_port(self) -> int | None:
        """The port at which metrics are served, see ``start(metrics=)``; None if none is."""
        scrapes = self._latest()._scrapes
        return None if scrapes is None else scrapes.port

    def dashboard(
        self, port: int = 0, *, host: str = "127.0.0.1", token: str | None = None
    ) -> Dashboard:
        """Serve a page that shows the run, and return its server: ``url`` is where it is.

        It stays when the run has ended, until it is closed or the process ends. ``millrace
        dashboard CHECKPOINT`` serves the same from another process.

        Args:
            port: Of it; 0 for any that is free.
            host: The interface. On another than loopback it takes a token, to read as well.
            token: Who shows it may pause, stop and drain; without one the page only shows.

        Raises:
            PipelineError: The port is in use, the token has less than 16 characters, or Starlette
                and uvicorn are not installed (``pip install 'millrace-spark[dashboard]'``).
        """
        state = self._epochs.state

        def alive(generation: int) -> bool | None:
            run = self._latest()
            return None if generation != run._epochs.generation else not run._ended

        return Dashboard(
            state, location_of(state), ask, port=port, host=host, token=token, alive=alive
        )

    @property
    def history(self) -> History:
        """Where the low watermarks stood after each epoch of this process, for pictures."""
        return self._latest()._epochs.history

    def explain(self) -> PipelineExplanation:
        """Return how the pipeline runs, as :meth:`Pipeline.explain` does. Print it."""
        return self._latest()._explanation

    def explain_watermark(self, computation: str | None = None) -> Explanation:
        """Return why a low watermark is where it is, as of the last completed epoch.

        It walks back to the injector, timer or hold that pins it, and reads that key from the
        checkpoint. ``print`` it; ``millrace explain-watermark`` says the same without a run.

        Args:
            computation: Whose; by default the one that shows the lowest.

        Raises:
            PipelineError: No epoch has completed yet, or there is no such computation.
        """
        return explain_watermark(self._epochs.state, computation)

    # -- who took over -----------------------------------------------------------------------------

    def _update_from_outside(self, about: str) -> str:
        assert self.started is not None, "who starts a run says how"
        return self.started.update_from_outside(self, self._epochs, about)

    def _latest(self) -> Handle:
        """Return the run that took over last; this one if none did."""
        heir = None if self.started is None else self.started.heir
        return self if heir is None else heir._latest()

    def _that_runs(self) -> Handle:
        return self._latest()

    def _survivor(self) -> Handle:
        """Return it, once nobody is taking over."""
        heir = None if self.started is None else self.started.settled()
        return self if heir is None else heir._survivor()

    def _through(
        self, act: Callable[[Handle, Duration | None], bool], timeout: Duration | None
    ) -> bool:
        """Do something with the run, and with those that take over meanwhile."""
        until = None if timeout is None else time.monotonic() + duration_us(timeout) / SECOND
        run, left = self._survivor(), timeout
        while True:
            done = act(run, left)
            if (heir := run._survivor()) is run:
                return done
            run = heir
            left = None if until is None else max(0, int((until - time.monotonic()) * SECOND))

    # -- what the planes differ in -----------------------------------------------------------------

    @abstractmethod
    def _process_available(self, timeout: Duration | None) -> bool:
        """See :meth:`process_available`."""

    @abstractmethod
    def _drain(self, timeout: Duration | None) -> bool:
        """See :meth:`drain`."""

    @abstractmethod
    def _stop(self, timeout: Duration = 60 * SECOND) -> None:
        """See :meth:`stop`."""

    @abstractmethod
    def _active(self) -> bool:
        """Return whether the run goes on; begin it again if it should."""

    @abstractmethod
    def _on(self) -> bool:
        """Return whether the run goes on, and do nothing about it."""

    def _failure(self) -> BaseException | None:
        """Return why the run failed; None if it did not."""
        return self._error

    # -- waiting -----------------------------------------------------------------------------------

    def _wait_until(self, reached: Callable[[], bool], timeout: Duration | None) -> bool:
        """Wait for a condition, or the run's end; return whether the run has ended."""
        deadline = None if timeout is None else time.monotonic() + duration_us(timeout) / SECOND
        with interrupted(self._interrupt), self._awaited(), self._display.live():
            while self._active() and not reached():
                if self._interrupted or self._epochs.drained:
                    self._stop()
                    break
                if deadline is not None and time.monotonic() >= deadline:
                    return False
                with self._news:
                    self._news.wait(0.1)
        if not self._on():
            self._close()
            self._raise_failure()
        return not self._on()

    @contextmanager
    def _awaited(self) -> Iterator[None]:
        """Let a failure be told by who waits for it, and by nobody else."""
        with self._news:
            self._waiting += 1
        try:
            yield
        finally:
            with self._news:
                self._waiting -= 1

    def _interrupt(self) -> None:
        self._interrupted = True

    def _raise_failure(self) -> None:
        if self._stopping or self._epochs.drained:
            return
        cause = self._failure()
        if cause is None:
            return
        superseded = self._epochs.superseded()
        if superseded is not None and not isinstance(cause, ZombieWriter):
            # Whatever it stumbled over: a newer run's files, offsets, or tables.
            raise superseded from cause
        if isinstance(cause, MillraceError):
            raise cause
        raise failed(self._topology.name, cause, self._console.spark) from None

    def _close(self) -> None:
        self._console.end(failed=self._error is not None)
        self._ended = True
        self._display.finish()
        self._housekeeping.close()
        self._listener.close()
        self._lines.close()
        self._backlog.close()
        self._end_observing()
        if self._scrapes is not None:
            self._scrapes.close()

    def _said_of(self, end: Callable[[], object]) -> str:
        """End the run for somebody who asked for it elsewhere; return how it ended."""
        end()
        return self._status(active=False).state

    # -- progress ----------------------------------------------------------------------------------

    def _begin_telling(self) -> None:
        """Show progress, and answer those who ask for metrics or something else, from now on."""
        self._display.start()
        self._backlog.start()
        self._listener.start()
        self._end_observing = observe(self._now)
        if self._scrapes is not None:
            self._scrapes.serve(self._now)

    def _measured(
        self, report: TaskReport, seconds: float, parts: Mapping[str, float] | None = None
    ) -> None:
        """Take what tasks report of an epoch, or of a mark, and how long it and its parts took."""
        self._progress.add(report, seconds, parts)
        self._lines.add(self._status(active=True), self._clock())

    def _status(self, *, active: bool) -> Status:
        if self._epochs.drained:
            state = "drained"
        elif active:
            state = "running"
        else:
            state = "stopped" if self._stopping or self._error is None else "failed"
        stuck = self._board.now() if active else []
        return self._progress.status(self._epochs, self._publisher, state=state, stuck=stuck)

    def _now(self) -> Status:
        return self._status(active=not self._ended)

    def _line(self) -> str:
        """Return where the run stands in a line. Other threads draw it, so it asks nobody."""
        under_way = time.monotonic() - (self._epoch_since or time.monotonic())
        return as_line(self._now(), under_way=under_way)

    def _goes_on(self) -> bool:
        """Return whether the run goes on, for a thread that may outlive Spark."""
        try:
            self._ended = not self._active()
        except Exception:  # noqa: BLE001  Spark was stopped, and with it what would answer
            self._ended = True
        return not self._ended
