"""The watcher: follows a checkpoint while somebody looks, and has what the page shows.

One thread reads, however many look, and what it keeps is bounded: a page may stay open for a week.

The heat map: key intervals by load and by lag, put together until a page can show them.

User code that hangs, as the workers of a run have written it up in the checkpoint's mailbox.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

from millrace.dashboard.graph import dead_letters_in, graph_of, lit_by
from millrace.dashboard.metrics_file import (
    backlog_in,
    calls_in,
    hottest_in,
    interval_shares,
    over_time,
    services_in,
)
from millrace.dashboard.panes import groupings
from millrace.dashboard.plain import behind, cut, millis, typed, without_secrets
from millrace.dashboard.points import Points
from millrace.dashboard.pulse import Pulse
from millrace.injectors.rate_limit import held_in
from millrace.inspect import Checkpoint, Interval, explain_watermark, read_latest
from millrace.model.errors import MillraceError
from millrace.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP
from millrace.runtime.stuck import Stuck
from millrace.store import HardState, LocalHardState, Mailbox

_SUFFIX: Final = ".stuck"
#: A worker says it every 15 seconds, and who has not said it again for so long is gone.
_HOLDS_US: Final = 60_000_000


def stuck_in(
    mailbox: Mailbox, clock: Callable[[], int] = lambda: time.time_ns() // 1000
) -> list[dict[str, Any]]:
    """Return what is stuck by now, the longest first.

    Args:
        mailbox: Of the checkpoint.
        clock: Returns microseconds since 1970.
    """
    now, rows = clock(), list[dict[str, Any]]()
    for name in mailbox.names():
        said, digits = name.endswith(_SUFFIX), name.partition("-")[0]
        if not said or not digits.isdecimal() or now - int(digits) > _HOLDS_US:
            continue
        data = mailbox.read(name)
        if data is None:
            continue  # it has returned
        try:
            stuck = msgspec.json.decode(data, type=Stuck)
        except msgspec.MsgspecError:
            continue
        rows.append(
            {
                "computation": cut(stuck.computation),
                "key": cut(stuck.key),
                "typed": typed(stuck.key),
                "of": cut(stuck.of),
                "waits": cut(stuck.waits),
                "where": cut(stuck.where),
                # As of a second: what is sent changes no more often than what it says.
                "since": int(digits) // 1000 - round(stuck.seconds * 1000),
                "stack": stuck.stack[-8_000:],
            }
        )
    return sorted(rows, key=lambda item: float(item["since"]))


#: A cell of the map is some ten pixels wide, and a laptop's page some thousand.
CELLS: Final = 768


def heat_of(
    intervals: Sequence[Interval], load: Mapping[int, float], unit: str, newest_us: int
) -> dict[str, Any]:
    """Return neighbouring key intervals as cells, in the order of their hashes.

    Args:
        intervals: Of a computation, by hash.
        load: Interval id -> its load; without those that have none.
        unit: Of the load, for people.
        newest_us: The latest event time read.

    Returns:
        ``intervals``, how many there are; ``each``, how many one cell holds at most; and columns
        with a value a cell: ``first`` and ``last`` id, the sum of ``load``, in ``unit``, and
        ``lag`` in seconds, that of the oldest pending work, None where nothing is pending.

    >>> from millrace.watermark.report import Report
    >>> halves = [
    ...     Interval(id=n, start=n, end=n + 1, commit=1, chain=0, report=Report(hold_us=n * 10**6))
    ...     for n in (1, 2)
    ... ]
    >>> (
    ...     heat_of(halves, {2: 5}, "commits", 4_000_000)["load"],
    ...     heat_of(halves, {}, "%", 4_000_000)["lag"],
    ... )
    ([0, 5], [3.0, 2.0])
    """
    each = -(-len(intervals) // CELLS) or 1
    cells = [intervals[at : at + each] for at in range(0, len(intervals), each)]
    return {
        "intervals": len(intervals),
        "each": each,
        "first": [cell[0].id for cell in cells],
        "last": [cell[-1].id for cell in cells],
        "unit": unit,
        "load": [round(sum(load.get(interval.id, 0) for interval in cell), 1) for cell in cells],
        "lag": [_lag(cell, newest_us) for cell in cells],
    }


def _lag(cell: Sequence[Interval], newest_us: int) -> float | None:
    oldest_us = min(
        (interval.report.oldest_work_us() for interval in cell if interval.report is not None),
        default=MAX_TIMESTAMP,
    )
    return None if oldest_us >= MAX_TIMESTAMP else behind(oldest_us, newest_us)


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
        self._last_sent: dict[str, Any] = {}
        self._culprit: dict[str, Any] | None = None
        self._culprit_of: tuple[int, dict[str, str]] | None = None
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
        """Return what charts over time are of: the points so far, and what epochs measured."""
        with self._lock:
            self._points.follow(self._state.epochs)
            return {
                **self._points.columns(),
                "throughput": self._points.throughput(),
                **over_time(self._state),
            }

    def heat(self, computation: str) -> dict[str, Any]:
        """Return the heat map of a computation.

        Raises:
            PipelineError: There is no such computation.
        """

        def read(checkpoint: Checkpoint) -> dict[str, Any]:
            inspection = checkpoint[computation]
            self._points.follow(self._state.epochs, checkpoint.ended.claim)
            points = self._points.points
            newest_us = points[-1].newest_us if points else MIN_TIMESTAMP
            shares = interval_shares(self._state, computation)
            if shares:
                percent = {id: 100 * share for id, share in shares.items()}
                return heat_of(
                    inspection.intervals, percent, "% of the time in user code", newest_us
                )
            commits = self._points.commits(computation)
            return heat_of(inspection.intervals, commits, "commits in the last minute", newest_us)

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
        if said != self._last_sent:
            self._last_sent = said
            self.now = msgspec.json.encode(said)
            self.version += 1

    def _unread(self) -> dict[str, Any]:
        """Return what there is to show where nothing can be read: what was, if anything."""
        nothing: dict[str, Any] = {
            "pipeline": getattr(getattr(self._state, "format", None), "pipeline", ""),
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
            "services": [],
            "groupings": [],
            "letters": [],
        }
        return nothing | self._last_sent

    def _read(self, checkpoint: Checkpoint) -> dict[str, Any]:
        overview = checkpoint.overview
        self._points.follow(self._state.epochs, checkpoint.ended.claim)
        state = self._pulse.state(overview)
        stuck = stuck_in(self._state.mailbox) if state == "running" else []
        by_computation: dict[str, int] = {}
        for task in stuck:
            name = task["computation"]
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
            "services": services_in(self._state),
            "groupings": groupings(checkpoint),
            "letters": dead_letters_in(overview),
        }

    def _explained(self, checkpoint: Checkpoint) -> dict[str, Any] | None:
        """Return what pins the watermark; not again at once where finding it took long."""
        now, generation = time.monotonic(), checkpoint.overview.generation
        about = checkpoint.epoch, held_in(self._state.mailbox, generation)
        if about == self._culprit_of or now < self._culprit_again:
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
        self._culprit_of = about
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
