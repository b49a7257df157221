"""The watcher: follows a checkpoint while somebody looks, and has what the page shows.

One thread reads, however many look, and what it keeps is bounded: a page may stay open for a week.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import msgspec

from millrace.dashboard.graph import graph_of, lit_by
from millrace.dashboard.heat import heat_of
from millrace.dashboard.measured import (
    backlog_in,
    calls_in,
    epochs_by_part,
    hottest_in,
    interval_shares,
)
from millrace.dashboard.panes import groupings
from millrace.dashboard.plain import millis, without_secrets
from millrace.dashboard.points import Points
from millrace.dashboard.pulse import Pulse
from millrace.dashboard.stuck import stuck_in
from millrace.inspect import Checkpoint, explain_watermark, read_latest
from millrace.model.errors import MillraceError
from millrace.model.time import MIN_TIMESTAMP
from millrace.store import HardState, LocalHardState

_log = logging.getLogger("millrace")

T = TypeVar("T")

#: How often it looks: in a directory, and in an object store, where a look costs requests.
_EVERY_S: Final = 1.0
_LISTED_S: Final = 5.0
#: What a look costs is at most this share of the time.
_SHARE: Final = 0.1
#: After so long without anybody who looks, it looks no more.
_ALONE_S: Final = 20.0


class Watcher:
    """Follows one checkpoint.

    Args:
        state: The checkpoint.
        location: Where it is, as it was given.
        pulse: Says whether its run goes on.

    Attributes:
        version: Grows with each change of :attr:`now`.
        now: What the page shows, as JSON.
    """

    def __init__(self, state: HardState, location: str, pulse: Pulse) -> None:
        self.version = 0
        self.now = b"{}"
        self._state = state
        self._location = without_secrets(location)
        self._pulse = pulse
        self._points = Points()
        self._said: dict[str, Any] = {}
        self._culprit: dict[str, Any] | None = None
        self._culprit_of: int | None = None
        self._culprit_again = 0.0
        self._lock = threading.Lock()
        self._wanted = 0.0
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def want(self) -> None:
        """Say that somebody looks; it goes on looking for some time from now."""
        self._wanted = time.monotonic()
        with self._lock:
            if self._thread is not None or self._closed.is_set():
                return
            self._thread = threading.Thread(
                target=self._follow, name="millrace-dashboard", daemon=True
            )
            self._thread.start()

    def ended(self, generation: int) -> None:
        """Take that a run has said of itself that it has ended."""
        self._pulse.ended(generation)

    def close(self) -> None:
        """Look no more."""
        self._closed.set()

    def look(self) -> None:
        """Look once."""
        with self._lock:
            try:
                said = read_latest(self._state, self._read)
            except (MillraceError, OSError) as error:
                said = {**self._unread(), "state": "unreadable", "said": str(error)}
            self._tell(said)

    def history(self) -> dict[str, Any]:
        """Return the points so far, and how long epochs took."""
        with self._lock:
            self._points.follow(self._state.epochs)
            return {**self._points.columns(), "parts": epochs_by_part(self._state)}

    def heat(self, computation: str) -> dict[str, Any]:
        """Return the heat map of a computation.

        Raises:
            PipelineError: There is no such computation.
        """

        def read(checkpoint: Checkpoint) -> dict[str, Any]:
            found = checkpoint[computation]
            self._points.follow(self._state.epochs)
            points = self._points.points
            newest_us = points[-1].newest_us if points else MIN_TIMESTAMP
            shares = interval_shares(self._state, computation)
            if shares:
                percent = {id: 100 * share for id, share in shares.items()}
                return heat_of(found.intervals, percent, "% of the time in user code", newest_us)
            commits = self._points.commits(computation)
            return heat_of(found.intervals, commits, "commits in the last minute", newest_us)

        with self._lock:
            return self.latest(read)

    def latest(self, read: Callable[[Checkpoint], T]) -> T:
        """Return what is read of the checkpoint as it is."""
        return read_latest(self._state, read)

    def _follow(self) -> None:
        every = _EVERY_S if isinstance(self._state, LocalHardState) else _LISTED_S
        while not self._closed.is_set():
            begun = time.thread_time()
            try:
                self.look()
            except Exception:  # noqa: BLE001  the next look may go well
                _log.exception("the dashboard cannot follow %s", self._location)
            spent = time.thread_time() - begun
            self._closed.wait(max(every, spent / _SHARE))
            with self._lock:
                if time.monotonic() - self._wanted > _ALONE_S:
                    self._thread = None
                    return

    def _tell(self, said: dict[str, Any]) -> None:
        if said != self._said:
            self._said = said
            self.now = msgspec.json.encode(said)
            self.version += 1

    def _unread(self) -> dict[str, Any]:
        """Return what there is to show where nothing can be read: what was, if anything."""
        nothing: dict[str, Any] = {
            "pipeline": getattr(getattr(self._state, "form", None), "pipeline", ""),
            "checkpoint": self._location,
            "generation": 0,
            "epoch": -1,
            "wall": None,
            "unfinished": None,
            "totals": {},
            "graph": {"nodes": [], "edges": []},
            "culprit": None,
            "stuck": [],
            "hot": [],
            "calls": [],
            "groupings": [],
        }
        return nothing | self._said

    def _read(self, checkpoint: Checkpoint) -> dict[str, Any]:
        overview = checkpoint.overview
        self._points.follow(self._state.epochs)
        state = self._pulse.state(overview)
        stuck = stuck_in(self._state.mailbox) if state == "running" else []
        by_computation: dict[str, int] = {}
        for one in stuck:
            name = one["computation"]
            by_computation[name] = by_computation.get(name, 0) + 1
        backlog = backlog_in(self._state)
        graph = graph_of(checkpoint, self._points, by_computation, backlog)
        return {
            **self._unread(),
            "state": state,
            "said": "",
            "generation": overview.generation,
            "epoch": overview.epoch,
            "wall": millis(overview.wall_time),
            "unfinished": overview.unfinished,
            "totals": _totals(graph, len(stuck)),
            "graph": graph,
            "culprit": self._explained(checkpoint),
            "stuck": stuck,
            "hot": hottest_in(self._state),
            "calls": calls_in(self._state),
            "groupings": groupings(checkpoint),
        }

    def _explained(self, checkpoint: Checkpoint) -> dict[str, Any] | None:
        """Return what pins the watermark; not again at once where finding it took long."""
        now = time.monotonic()
        if checkpoint.epoch == self._culprit_of or now < self._culprit_again:
            return self._culprit
        if checkpoint.epoch < 0:
            return None
        begun = time.thread_time()
        try:
            self._culprit = lit_by(explain_watermark(self._state))
        except MillraceError as error:
            self._culprit = {
                "kind": "", "node": "", "way": [], "at": None, "unmoved": None,
                "lines": [str(error)],
            }  # fmt: skip
        self._culprit_of = checkpoint.epoch
        self._culprit_again = now + (time.thread_time() - begun) / _SHARE
        return self._culprit


def _totals(graph: Mapping[str, Any], stuck: int) -> dict[str, Any]:
    """Return the numbers at the head of the page."""
    nodes = graph["nodes"]
    read = [node for node in nodes if node["kind"] == "injector"]
    worked = [node for node in nodes if node["kind"] == "computation"]
    rates = [node["rate"] for node in read if node["rate"] is not None]
    lags = [node["lag"] for node in worked if node["lag"] is not None]
    return {
        "rate": sum(rates) if rates else None,
        "injected": sum(node["count"] for node in read),
        "lag": max(lags, default=None),
        "late": sum(node["late"] for node in worked),
        "dead": sum(node["dead"] for node in (*read, *worked)),
        "stuck": stuck,
    }
