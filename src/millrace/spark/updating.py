"""Updating: a changed pipeline takes the place of one that runs, between two of its epochs.

The run ends with the epoch under way, and a run of the changed pipeline begins where it left off,
on the same session and with the same options; asked for in its program, or from any shell by the
checkpoint's mailbox. Spark cannot change the plan of a query that runs,
so it is another query. What cannot go on is found before anything is ended; and where the
changed pipeline does not start, the one that ran is started again.

Source: MillWheel, "Streams" (4.3): computations are added to and removed from a topology that runs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import msgspec

from millrace.compile.build import build
from millrace.model.errors import CheckpointMismatch, PipelineError, UpdateFailed
from millrace.model.pipeline import Declarations
from millrace.model.time import SECOND, Duration
from millrace.windmill.claims import plan_of
from millrace.windmill.epoch_log import end_of
from millrace.windmill.epochs import Epochs


class Wanted(msgspec.Struct, frozen=True):
    """What an update from outside is about, as its request says.

    Attributes:
        application: Names the changed pipeline, for the driver.
        options: Of the start, those that are to be others than before.
    """

    application: str
    options: dict[str, Any] = {}


class Running(Protocol):
    """A run, as far as it is to end."""

    def stop(self, timeout: Duration) -> None:
        """Finish the epoch under way, and end."""
        ...


@dataclass
class Started:
    """How a run was started, to start another in its place.

    Attributes:
        pipeline: That it runs.
        again: Starts a pipeline on the same checkpoint, with the same options but for those given.
        load: Imports a pipeline that is named, anew.
        heir: The run that took over because somebody outside asked for it; the program knows the
            one before.
    """

    pipeline: Declarations
    again: Callable[..., Any]
    load: Callable[[str], Declarations]
    heir: Any = None
    _turn: threading.Lock = field(default_factory=threading.Lock)
    _over: threading.Event = field(default_factory=threading.Event)
    _by: int | None = None
    _failed: UpdateFailed | None = None

    def update_from_outside(self, run: Running, epochs: Epochs, about: str) -> str:
        """Let the pipeline that a request names take over; return what to answer.

        Meanwhile, who waits for the run in its program waits for the other.
        """
        wanted = msgspec.json.decode(about, type=Wanted)
        pipeline = self.load(wanted.application)
        self._over.clear()
        self._by = threading.get_ident()
        try:
            self.heir = self.update(run, epochs, pipeline, 60 * SECOND, wanted.options)
        except UpdateFailed as failed:
            self.heir = failed.run
            self._failed = failed if failed.run is None else None
            raise
        finally:
            self._by = None
            self._over.set()
        return f"{wanted.application} has taken over"

    def settled(self) -> Any:
        """Return the heir, None if there is none; wait while one is taking over.

        Raises:
            UpdateFailed: None could, and the run has ended for it.
        """
        if self._by not in (None, threading.get_ident()):
            self._over.wait()
        if self._failed is not None:
            raise self._failed
        return self.heir

    def update(
        self,
        run: Running,
        epochs: Epochs,
        pipeline: Declarations,
        timeout: Duration,
        options: dict[str, Any],
    ) -> Any:
        """Let another pipeline take over; return its run. See ``Handle.update``."""
        if not self._turn.acquire(blocking=False):
            raise PipelineError(
                "this run is being updated, or has been. Update the run that update() returned."
            )
        try:
            self._check(epochs, pipeline)
        except BaseException:
            self._turn.release()
            raise
        run.stop(timeout)
        try:
            return self.again(pipeline, **options)
        except Exception as problem:
            raise self._back(problem) from problem

    def _check(self, epochs: Epochs, pipeline: Declarations) -> None:
        """Refuse what could not go on once the epoch under way is finished."""
        # As it will be then.
        end = replace(end_of(epochs.state.epochs), manifest=None)
        plan = plan_of(end, build(pipeline))
        if plan.refused:
            raise CheckpointMismatch(
                f"{plan}\nThe run goes on as it was. Mend what is refused as it says there."
            )

    def _back(self, problem: Exception) -> UpdateFailed:
        """Start the pipeline that ran again; return what to say."""
        try:
            run = self.again(self.pipeline)
        except Exception as another:  # noqa: BLE001  told, with the first
            return UpdateFailed(
                f"the changed pipeline could not be started: {problem}\nNor could the one that "
                f"ran: {another}\nNothing runs; nothing was lost."
            )
        return UpdateFailed(
            f"the changed pipeline could not be started: {problem}\nThe one that ran was started "
            "again: it is the `run` of this error.",
            run=run,
        )
