"""Points: what is kept of each epoch that was seen, for lines over time and for rates."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, Final

import msgspec

from millrace.dashboard.plain import millis
from millrace.epochlog.entries import Claim, Completion, decode_entry
from millrace.epochlog.renames import renamed
from millrace.model.errors import StoreError
from millrace.model.time import MIN_TIMESTAMP, SECOND
from millrace.store import EpochLog

#: A chart has some thousand pixels to the side. Beyond, every other of the older half goes.
_POINTS_MAX: Final = 1_024
#: As many lines as can be told apart.
_LINES_MAX: Final = 6
#: Over so long a rate is taken: long enough to read, short enough to follow.
_RATE_US: Final = 30 * SECOND
#: A chart of rates has so many steps at most, and none is shorter than a second.
_STEPS_MAX: Final = 240
#: Over so long the commits of key intervals are counted.
_LOAD_US: Final = 60 * SECOND


class Point(msgspec.Struct, frozen=True):
    """What an epoch left. Times in microseconds.

    Attributes:
        epoch: Its number.
        wall_us: Its clock.
        newest_us: The latest event time read so far, of all streams.
        inputs: Computation -> low watermark of its input.
        records: Computation -> records delivered since the beginning.
        productions: Computation -> rows sent since the beginning.
        injected: Stream -> records read since the beginning.
        late: Late records since the beginning, over all computations.
    """

    epoch: int
    wall_us: int
    newest_us: int
    inputs: dict[str, int]
    records: dict[str, int]
    productions: dict[str, int]
    injected: dict[str, int]
    late: int

    @classmethod
    def of(cls, done: Completion) -> Point:
        """Return what is kept of a completed epoch."""
        counters = done.counters
        return cls(
            epoch=done.epoch,
            wall_us=done.wall_time_us,
            newest_us=max(
                (source.newest_us for source in done.sources.values()), default=MIN_TIMESTAMP
            ),
            inputs=dict(done.after.inputs),
            records={name: counted.records for name, counted in counters.items()},
            productions={name: counted.productions for name, counted in counters.items()},
            injected={
                name: source.records for name, source in done.sources.items() if source.records
            },
            late=sum(counted.late for counted in counters.values()),
        )


class Points:
    """Follows an epoch log, and keeps a bounded number of points of it.

    Points have the names that the log has; what is asked of them is under those of the pipeline.

    Attributes:
        points: In order.
    """

    points: list[Point]
    _next: int

    def __init__(self) -> None:
        self._computations: Mapping[str, str] = {}
        self._streams: Mapping[str, str] = {}
        self._forget()

    def follow(self, log: EpochLog, claim: Claim | None = None) -> None:
        """Take the epochs that have completed since the last time, but for what cannot be read.

        Args:
            log: The epoch log.
            claim: The last one, by which what it names is called; None: as before.
        """
        if claim is not None:
            registry = claim.registry.checked()
            self._computations, self._streams = registry.called, registry.read_as
        last = log.last()
        if last + 1 < self._next:  # another checkpoint stands there now
            self._forget()
        number = max(1, self._next, log.first())
        while number <= last:
            try:
                data = log.read(number)
                entry = None if data is None else decode_entry(data)
            except (StoreError, msgspec.MsgspecError):
                entry = None  # a line has a gap there; who needs the entry says what is wrong
            if isinstance(entry, Completion):
                self._add(entry)
            number += 1
        self._next = number

    def rate(self, column: str, name: str) -> float | None:
        """Return how many a second there were of late; None before there are two epochs.

        Args:
            column: ``records``, ``productions`` or ``injected``.
            name: The computation, or the stream.
        """
        if len(self.points) < 2:
            return None
        last = self.points[-1]
        first = next(p for p in self.points if last.wall_us - p.wall_us <= _RATE_US)
        first = self.points[-2] if first is last else first
        seconds = (last.wall_us - first.wall_us) / SECOND
        if seconds <= 0:
            return None
        now, then = self._by_name(last, column), self._by_name(first, column)
        return max(0, now.get(name, 0) - then.get(name, 0)) / seconds

    def commits(self, computation: str) -> dict[int, int]:
        """Return how many commits each key interval made in the last minute of the run's clock."""
        titles = self._computations.items()
        known = next((name for name, title in titles if title == computation), computation)
        before = self._before.get(known, {})
        return {
            interval: number - before.get(interval, 0)
            for interval, number in self._now.get(known, {}).items()
            if number > before.get(interval, 0)
        }

    def columns(self) -> dict[str, Any]:
        """Return the points as columns, for charts: of many computations, those furthest behind."""
        rows = [self._by_name(point, "inputs") for point in self.points]
        inputs = rows[-1] if rows else {}
        names = sorted(sorted(inputs, key=inputs.__getitem__)[:_LINES_MAX])
        return {
            "others": len(inputs) - len(names),
            "epoch": [point.epoch for point in self.points],
            "wall": [millis(point.wall_us) for point in self.points],
            "newest": [millis(point.newest_us) for point in self.points],
            "low": {name: [millis(row.get(name)) for row in rows] for name in names},
            "late": [point.late for point in self.points],
            "injected": [sum(point.injected.values()) for point in self.points],
        }

    def throughput(self) -> dict[str, Any]:
        """Return records read a second over time, by stream: of many, those read most."""
        steps = self._steps()
        rows = [(step.wall_us, self._by_name(step, "injected")) for step in steps]
        last = rows[-1][1] if rows else {}
        names = sorted(sorted(last, key=lambda name: -last[name])[:_LINES_MAX])
        pairs = list(pairwise(rows))
        return {
            "others": len(last) - len(names),
            "wall": [millis(wall_us) for _, (wall_us, _) in pairs],
            "read": {
                name: [
                    max(0, now.get(name, 0) - then.get(name, 0)) * SECOND / (to_us - from_us)
                    for (from_us, then), (to_us, now) in pairs
                ]
                for name in names
            },
        }

    def _by_name(self, point: Point, column: str) -> Mapping[str, int]:
        """Return what a point has of each computation or stream, under its name of now."""
        known: Mapping[str, int] = getattr(point, column)
        names = self._streams if column == "injected" else self._computations
        return renamed(known, names) if names else known

    def _steps(self) -> list[Point]:
        """Return points far enough apart for a rate between them, the last among them."""
        if not self.points:
            return []
        least_us = max(SECOND, (self.points[-1].wall_us - self.points[0].wall_us) // _STEPS_MAX)
        points = [self.points[-1]]
        for point in reversed(self.points):
            if points[-1].wall_us - point.wall_us >= least_us:
                points.append(point)
        return points[::-1]

    def _add(self, done: Completion) -> None:
        self.points.append(Point.of(done))
        if len(self.points) > _POINTS_MAX:
            half = len(self.points) // 2
            self.points[:half] = self.points[:half:2]
        for name, numbers in done.numbers.items():
            if not self._recent:  # what stood before the first epoch that is there
                self._before.setdefault(name, {}).update(numbers)
            self._now.setdefault(name, {}).update(numbers)
        self._recent.append((done.wall_time_us, done.numbers))
        while done.wall_time_us - self._recent[0][0] > _LOAD_US:
            for name, numbers in self._recent.popleft()[1].items():
                self._before.setdefault(name, {}).update(numbers)

    def _forget(self) -> None:
        self.points = []
        self._next = 0
        # What each recent epoch changed of commit numbers, and how they stood before these.
        self._recent: deque[tuple[int, dict[str, dict[int, int]]]] = deque()
        self._before: dict[str, dict[int, int]] = {}
        self._now: dict[str, dict[int, int]] = {}
