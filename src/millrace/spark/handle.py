"""The handle of a run: the user's methods to wait for, query, control and stop it, on both planes.

An update replaces the running pipeline by a changed one, between two epochs or at a mark. The new
run continues from the checkpoint, on the same session and with the same options. It is requested in
the program, or from any shell through the checkpoint's mailbox. Spark cannot change the plan of a
running query, so the new run is another query, started beside the first if there are slots. A
change that is incompatible is refused before anything ends. If the changed pipeline does not start,
the first run continues, or is started again.

Source: MillWheel, "Streams" (4.3): computations are added to and removed from a topology that runs.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from millrace.compile.build import build
from millrace.compile.explanation import PipelineExplanation as PipelineExplanation
from millrace.dashboard import Dashboard
from millrace.epochlog.claims import plan_of
from millrace.epochlog.history import WatermarkHistory
from millrace.epochlog.reader import end_of
from millrace.epochlog.run_log import RunLog
from millrace.inspect import WatermarkExplanation, explain_watermark
from millrace.model.declarations import Declarations
from millrace.model.errors import (
    CheckpointMismatch,
    DamagedStore,
    MillraceError,
    PipelineError,
    StoreError,
    UpdateFailed,
    ZombieWriter,
)
from millrace.model.time import SECOND, Duration, duration_us
from millrace.spark.asks import RunRequests, ask
from millrace.spark.engine import Successor, UpdateResult
from millrace.spark.progress_display import LiveCell
from millrace.spark.realtime.retry_policy import RetryPolicy
from millrace.spark.run import Run
from millrace.spark.status import Status
from millrace.store import location_of
from millrace.watermark.map_change import Merge, Split

_log = logging.getLogger("millrace")

#: What a disk or a server refuses now, and perhaps not later.
_REFUSED = (StoreError, OSError)


class Starter(Protocol):
    """How a run was started, to start another in its place."""

    def run(self, pipeline: Declarations, *, again: bool = False) -> Run:
        """Return a run of a pipeline, with its tasks started.

        Args:
            pipeline: The pipeline.
            again: Whether it is to go on with the checkpoint only if this program, or another that
                a changed starter of it started, was the last to claim it.

        Raises:
            ZombieWriter: Another was.
        """
        ...

    def successor(self, pipeline: Declarations, before: Run) -> Successor:
        """Return the pipeline that will continue where a run ends, built and checked.

        Raises:
            PipelineError: It cannot run.
        """
        ...

    def load(self, application: str) -> Declarations:
        """Import a pipeline that is named, anew."""
        ...

    def changed(self, options: Mapping[str, Any]) -> Starter:
        """Return how to start with other options.

        Raises:
            PipelineError: One is no option of the plane.
        """
        ...

    def scaled(self, tasks: int) -> Starter:
        """Return how to start with so many tasks a level."""
        ...


class Handle:
    """The handle of a running pipeline. Its methods may be called from any thread.

    ``wait``, ``process_available`` and ``drain`` also take Ctrl-C and SIGTERM when they are called
    in the main thread: both stop the run as :meth:`stop` does.

    After ``millrace update`` has let a changed pipeline take over, the handle is that of the new
    run.
    """

    _run: Run
    _pipeline: Declarations
    _starter: Starter

    def __init__(self) -> None:
        # Held by the thread that has another run take over.
        self._taking_over = threading.RLock()
        self._lost: MillraceError | None = None
        self._stopped = threading.Event()
        self._updated: UpdateResult | None = None
        self._requests = RunRequests()
        self._cell = LiveCell(self.status, self._goes_on)

    def _begin(self, pipeline: Declarations, starter: Starter, *, again: bool = False) -> None:
        """Start a run, of which this is the handle from now on."""
        self._have(starter.run(pipeline, again=again), pipeline, starter)

    def _have(self, run: Run, pipeline: Declarations, starter: Starter) -> None:
        self._run, self._pipeline, self._starter = run, pipeline, starter
        run.engine.scale = partial(self._scale, run)
        run.publish(self._update_from_outside, self._requests)

    def wait(self, timeout: Duration | None = None) -> bool:
        """Wait until the run ends; return whether it has.

        Raises:
            RunFailed: It ended with an error; the cause is attached, and a log named.
        """
        return self._through(lambda run, left: run.wait_until(lambda: False, left), timeout)

    def process_available(self, timeout: Duration | None = None) -> bool:
        """Wait until all input that exists now is processed and low watermarks no longer move.

        Returns:
            Whether that is so; False if the time ran out or the run was stopped.

        Raises:
            RunFailed: The run ended with an error.
        """
        return self._through(lambda run, left: run.engine.process_available(left), timeout)

    def drain(self, timeout: Duration | None = None) -> bool:
        """End the input: raise low watermarks to the end of time, fire pending timers, and stop.

        Input that the run has not read by then is never read; call :meth:`process_available` first
        to process it.

        Returns:
            Whether the run ended; False if the time ran out first.
        """
        return self._through(lambda run, left: run.drain(left), timeout)

    def stop(self, timeout: Duration = 60 * SECOND) -> None:
        """Stop: finish the epoch that is under way, or, after the timeout, roll it back.

        An epoch that is rolled back runs again when the pipeline is started with the same
        checkpoint; either way nothing is lost and nothing happens twice. In real time a last mark
        is made; if it does not complete, the next run recovers all later work from segments and
        sources.
        """

        def stop(run: Run, _left: object) -> bool:
            run.stop(timeout)
            return True

        self._stopped.set()
        self._through(stop, None)

    # -- another pipeline in its place -------------------------------------------------------------

    def update(
        self, pipeline: Declarations, *, timeout: Duration = 60 * SECOND, **options: Any
    ) -> Handle:
        """Let a changed pipeline take over between two epochs; return its run.

        This run finishes the epoch that is under way and ends, and the other begins with the next,
        on the same session and checkpoint: nothing is lost, and nothing happens twice. In real time
        all tasks of the other are started beside those of this run, if there are slots for both,
        and take over at a mark, within tenths of a second; :attr:`updated` says how long that was.
        What may change, and where a computation that is new begins: docs/changing.md.

        Args:
            pipeline: The changed one; with sources and sinks of its own.
            timeout: See :meth:`stop`.
            options: Options of :meth:`Pipeline.start` to change.

        Raises:
            CheckpointMismatch: The pipeline does not fit the checkpoint; this run continues.
            PipelineError: It cannot be built, or an option is unknown, and this run continues; or
                the run was updated before.
            UpdateFailed: It could not be started. The earlier pipeline continues, or was started
                again: ``run`` of the error.
            ZombieWriter: Another run has claimed the checkpoint since, and continues it.

        Source: MillWheel, "Streams" (4.3).
        """
        self._that_stays()
        heir = Handle()
        self._hand_over(heir, pipeline, self._starter.changed(options), timeout)
        return heir

    @property
    def updated(self) -> UpdateResult | None:
        """How the run took over from another by an update; None if it was started.

        ``pause`` says for how long no record was taken, by part, and ``seconds`` as a number.
        """
        return self._updated

    def _update_from_outside(self, application: str, options: Mapping[str, Any]) -> str:
        """Let an application that a request names take over; who waits for the run waits for it.

        Returns:
            For how long nothing was under way, in words.
        """
        pipeline = self._starter.load(application)
        with self._taking_over:
            try:
                self._hand_over(self, pipeline, self._starter.changed(options), 60 * SECOND)
            except UpdateFailed as failed:
                self._lost = failed if failed.run is None else None
                raise
        return "" if self._updated is None else self._updated.pause

    def _scale(self, run: Run, tasks: int) -> threading.Thread:
        """Have so many tasks a level take over from a run, whose engine asks for it and goes on.

        Returns:
            Who does it. What goes wrong is in the log, and the run goes on as it was.
        """

        def scale() -> None:
            with self._taking_over:
                if self._run is not run or run.stopping or not run.active:
                    return
                _log.info("tasks a level: %d are to take over", tasks)
                try:
                    self._hand_over(self, self._pipeline, self._starter.scaled(tasks), 60 * SECOND)
                except Exception as problem:  # noqa: BLE001  nobody has asked for it who is told
                    if run.run_log.drained:
                        return
                    if isinstance(problem, UpdateFailed) and problem.run is None:
                        self._lost = problem
                    _log.warning("there are not %d tasks a level now: %s", tasks, problem)

        doing = threading.Thread(target=scale, name="millrace-tasks", daemon=True)
        doing.start()
        return doing

    def _hand_over(
        self, heir: Handle, pipeline: Declarations, starter: Starter, timeout: Duration
    ) -> None:
        """Have a run of another pipeline go on, or this one again, under a handle."""
        run = self._run
        if not run.updating.acquire(blocking=False):
            raise PipelineError(
                "this run is being updated, or has been. Update the run that update() returned."
            )
        try:
            _check_change(run.run_log, pipeline)
            successor = starter.successor(pipeline, run)
        except BaseException:
            run.updating.release()
            raise
        heir._requests = self._requests
        try:
            begun = run.engine.hand_over(successor, timeout)
        except Exception as problem:
            if run.handed_over and not run.run_log.drained:
                raise self._back(heir, problem) from problem
            successor.close()
            run.updating.release()
            if isinstance(problem, UpdateFailed):
                problem.run = self
            raise
        heir._have(begun, pipeline, starter)
        heir._updated = begun.engine.went_on()

    def _back(self, heir: Handle, problem: Exception) -> UpdateFailed:
        """Start the pipeline that ran again; return what to say.

        A checkpoint that refuses it is waited for, as by a run, until the handle is stopped.

        Raises:
            ZombieWriter: Another program has claimed the checkpoint, and nothing is started.
        """
        retries = RetryPolicy(attempts=1)
        retries.well()
        while True:
            try:
                heir._begin(self._pipeline, self._starter, again=True)
            except ZombieWriter as superseded:
                self._lost = superseded  # who waits for the run is told
                raise
            except Exception as another:  # noqa: BLE001  told, with the first
                refused = isinstance(another, _REFUSED) and not isinstance(another, DamagedStore)
                pause = retries.after(another) if refused else None
                if pause is None or self._stopped.wait(pause):
                    return UpdateFailed(
                        f"the changed pipeline could not be started: {problem}\nNor could the one "
                        f"that ran: {another}\nNothing runs; nothing was lost."
                    )
                _log.warning("the pipeline that ran is to be started again: %s", another)
                continue
            return UpdateFailed(
                f"the changed pipeline could not be started: {problem}\nThe one that ran was "
                "started again: it is the `run` of this error.",
                run=heir,
            )

    def _that_stays(self) -> Run:
        """Return the run, once nobody is taking over.

        Raises:
            UpdateFailed: None could, and the run has ended for it.
            ZombieWriter: The same, as another run has claimed the checkpoint.
        """
        with self._taking_over:
            if self._lost is not None:
                raise self._lost
            return self._run

    def _through(
        self, act: Callable[[Run, Duration | None], bool], timeout: Duration | None
    ) -> bool:
        """Do something with the run, and with those that take over meanwhile."""
        until = None if timeout is None else time.monotonic() + duration_us(timeout) / SECOND
        run, left = self._that_stays(), timeout
        while True:
            done = act(run, left)
            if (heir := self._that_stays()) is run:
                return done
            run = heir
            left = None if until is None else max(0, int((until - time.monotonic()) * SECOND))

    # -- holding streams back ----------------------------------------------------------------------

    def pause(self, stream: str) -> None:
        """Pause reading of an injected stream; its records stay at the source.

        It returns when no epoch, or in real time no task, reads the stream any more. Low watermarks
        wait, too. The pause ends with the run: the next one reads again.

        Args:
            stream: One that an :class:`~millrace.sources.Injector` reads, such as
                ``mr.sources.Kafka``.

        Raises:
            PipelineError: There is no such stream, or Spark reads it.
        """
        self._hold(lambda run: run.pause(stream))

    def resume(self, stream: str) -> None:
        """Read an injected stream again, without a limit; see :meth:`pause`."""
        self._hold(lambda run: run.resume(stream))

    def limit_rate(self, stream: str, records_per_second: float) -> None:
        """Limit an injected stream to an average of records a second; see :meth:`pause`.

        An epoch, or in real time a turn of a task, reads as many records as without a limit. Those
        after it read none until the average is back at the rate.
        """
        self._hold(lambda run: run.limit_rate(stream, records_per_second))

    def _hold(self, hold: Callable[[Run], None]) -> None:
        """Hold a stream of the run back, or no more, and of those that take over meanwhile.

        A run that has claimed the checkpoint does not hear any more what the one before is told.
        """
        run = self._run
        hold(run)
        while run.handed_over and (heir := self._that_stays()) is not run:
            run = heir
            hold(run)

    # -- what may be done beside it ----------------------------------------------------------------

    def fire(self, name: str, *keys: Any) -> None:
        """Fire the triggers ``mr.OnCall(name)``, for some keys or for all.

        The call is durable when this returns. The next epoch or turn carries it out, once; if the
        run ends before, the next run does. The panes contain all records that the run had read.

        Args:
            name: Name of the triggers.
            keys: Keys whose windows fire; by default all.

        Raises:
            PipelineError: No trigger has that name.
            CoderError: A value cannot be a key.
            StoreError: The checkpoint cannot be written.
        """
        self._that_stays().fire(name, keys)

    def remap(self, computation: str, remaps: Sequence[Split | Merge]) -> int:
        """Split and merge key intervals of a computation, between two epochs; return how many.

        The rows of the intervals are read beside the run. The run then pauses while later commits
        are applied and the new intervals are written. Cells, timers, holds, ids and windows move
        with their keys; no low watermark changes. ``mr.ops.open_checkpoint(path)`` lists the
        intervals, as ``[computation].intervals``. In real time all tasks wait for it at a mark: the
        run pauses for some tenths of a second.

        Args:
            computation: As the pipeline calls it.
            remaps: :class:`~millrace.ops.Split` and :class:`~millrace.ops.Merge`; no interval is
                in two.

        Returns:
            How many key intervals the computation has now.

        Raises:
            PipelineError: There is no such computation or interval, another remap took one while
                rows were read, no epoch has completed yet, or the run has ended; nothing has
                changed.
            CheckpointMismatch: Intervals that are to be one differ in what they keep for all keys.

        Source: MillWheel, "Architecture" (7.1); docs/changing.md.
        """
        return self._run.remap(computation, remaps).intervals

    def savepoint(self, name: str) -> int:
        """Keep the checkpoint after the last completed epoch under a name; return the epoch.

        It is :func:`~millrace.ops.add_savepoint` beside the run: epochs continue, and collection
        waits. In real time all tasks wait at a mark for about a tenth of a second, and the copy is
        made beside them. :func:`~millrace.ops.copy_checkpoint` makes a checkpoint of it for a new
        run.

        Args:
            name: Letters, digits, ``_``, ``-`` and ``.``; not the name of another savepoint.

        Raises:
            PipelineError: That cannot be a name.
            CheckpointMismatch: There is one of that name.
            NotKept: No epoch has completed yet.
            CheckpointUnwritable: The savepoint cannot be written; the run goes on.
        """
        return self._run.keep(name).epoch

    def snapshot(self) -> str:
        """Make a :meth:`savepoint` named after its epoch; return the name, such as ``epoch-41``."""
        return self._run.keep(None).name

    # -- looking at it -----------------------------------------------------------------------------

    def status(self) -> Status:
        """Return where the run stands. Print it; a notebook shows it as tables."""
        return self._run.status()

    def _ipython_display_(self) -> None:
        """Show where the run stands in a cell of a notebook, which is drawn again as it goes on."""
        self._cell.show()

    def _goes_on(self) -> bool:
        with self._taking_over:  # a changed pipeline may take the run's place now
            return self._run.active

    @property
    def metrics_port(self) -> int | None:
        """The port at which metrics are served, see ``start(metrics=)``; None if none is."""
        scrapes = self._run.parts.scrapes
        return None if scrapes is None else scrapes.port

    @property
    def query(self) -> Any:
        """Spark's own streaming query that runs the tasks now; another one after a failure.

        None by epochs where Millrace reads all sources itself: then there is none.
        """
        return self._run.engine.query

    @property
    def hosts(self) -> Mapping[tuple[int, int], Any]:
        """(Level, number) of a task -> the process that it runs in, in real time.

        Raises:
            PipelineError: The run is by epochs, whose tasks stay in no process.
        """
        return self._run.engine.hosts()

    def dashboard(
        self, port: int = 0, *, host: str = "127.0.0.1", token: str | None = None
    ) -> Dashboard:
        """Serve a page that shows the run, and return its server: ``url`` is where it is.

        It stays when the run has ended, until it is closed or the process ends. ``millrace
        dashboard CHECKPOINT`` serves the same from another process.

        Args:
            port: Port of the server; 0 chooses a free one.
            host: The interface. Any but loopback needs a token, for reading too.
            token: Allows its bearer to pause, stop and drain; without one the page is read-only.

        Raises:
            PipelineError: The port is in use, the token has less than 16 characters, or Starlette
                and uvicorn are not installed (``pip install 'millrace-spark[dashboard]'``).
        """
        state = self._run.run_log.state

        def alive(generation: int) -> bool | None:
            run = self._run
            return None if generation != run.run_log.generation else run.active

        return Dashboard(
            state, location_of(state), ask, port=port, host=host, token=token, alive=alive
        )

    @property
    def history(self) -> WatermarkHistory:
        """The low watermarks after each epoch of this process, for plots."""
        return self._run.run_log.history

    def explain(self) -> PipelineExplanation:
        """Return how the pipeline runs, as :meth:`Pipeline.explain` does. Print it."""
        return self._run.parts.explanation

    def explain_watermark(self, computation: str | None = None) -> WatermarkExplanation:
        """Return why a low watermark is where it is, as of the last completed epoch.

        It walks back to the injector, timer or hold that pins it, and reads that key from the
        checkpoint. ``print`` it; ``millrace explain-watermark`` says the same without a run.

        Args:
            computation: Its name; by default the one with the lowest output watermark.

        Raises:
            PipelineError: No epoch has completed yet, or there is no such computation.
        """
        return explain_watermark(self._run.run_log.state, computation)


def _check_change(run_log: RunLog, pipeline: Declarations) -> None:
    """Refuse what could not go on once the epoch under way is finished."""
    plan = plan_of(end_of(run_log.state.epochs), build(pipeline), between=True)
    if plan.refused:
        raise CheckpointMismatch(
            f"{plan}\nThe run goes on as it was. Mend what is refused as it says there."
        )
