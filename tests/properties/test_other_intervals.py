"""A pipeline whose key intervals are divided and brought together between epochs: same outputs.

MillWheel 7.1: intervals split and merge; 7.2: no low watermark passes a hole in the map.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import pytest
from hypothesis import event, example, given, settings
from hypothesis import strategies as st

import millrace as mr
from millrace.balance import transfer
from millrace.balance.transfer import resized
from millrace.model.errors import MillraceError
from millrace.store import MemoryCaches, open_location
from millrace.testing.invariants import check_interval, check_low_watermarks
from millrace.watermark.intervals import IntervalMap
from tests.everything import Everything
from tests.live import Feeds, InEpochs, Kept, Live

KEYS = 7
ROWS = 48


class Event(msgspec.Struct):
    key: int
    at: int
    n: int


class Later(Everything):
    later_us = 9 * mr.SECOND


def rows() -> list[tuple[int, int, int]]:
    """Records of a few keys, a little out of order; each third is delivered twice."""
    found = []
    for n in range(ROWS):
        one = (n * 5 % KEYS, (n + n * 7 % 3) * 1_000_000, n)
        found += [one, one] if n % 3 == 0 else [one]
    return found


class Life:
    """A life of the pipeline: a run by epochs over a checkpoint on disk, in this process."""

    def __init__(self, path: Path) -> None:
        self.sinks = {name: Kept() for name in ("said", "counted", "visits", "early")}
        p = mr.Pipeline("shop")
        events = p.inject(
            "events",
            Feeds("key long, at long, n long", {"p0": rows()}),
            timestamp="at",
            low_watermark=mr.BoundedDelay("4 s"),
            format=Event,
            id="n",
            slack=20 * mr.SECOND,
        )
        p.add(Later)
        by, tens = events.key_by("key"), mr.FixedWindows(10 * mr.SECOND)
        by.window(tens).count().to("counted")
        by.window(mr.Sessions(6 * mr.SECOND)).sum("n").to("visits")
        by.window(tens, trigger=mr.Repeat(mr.AfterCount(2))).count().to("early")
        for name, sink in self.sinks.items():
            p.sink(name, sink)
        state: Any = open_location(path, pipeline="shop")
        self.live = Live(p, tasks=1, state=state, intervals=4)
        self.epochs = InEpochs(self.live)

    def epoch(self, limit: int, *, draining: bool = False) -> None:
        self.live.feed(limit)
        self.epochs.run(self.live.clock_us, draining=draining)

    def rows(self) -> Counter[tuple[str, str]]:
        return Counter(
            (name, repr(row["value"])) for name, kept in self.sinks.items() for row in kept.rows
        )

    def check(self) -> None:
        run_log = self.epochs.run_log
        for spec in self.live.topology.computations:
            for one in run_log.positions.maps[spec.name].intervals:
                report = run_log.authority.bulletins[spec.name].report(one.id)
                assert report is not None
                low_us = run_log.authority.low_watermarks.inputs[spec.name]
                check_interval(self.live.state, MemoryCaches(), spec, one.id, report, low_us)


def outputs(remaps: list[tuple[int, int | None]]) -> Counter[tuple[str, str]]:
    """Return what comes out where, before some epochs, the intervals become another number."""
    found = Counter[tuple[str, str]]()
    # No power fails here, and waiting for the disk would be most of the time.
    with tempfile.TemporaryDirectory() as folder, mock.patch("os.fsync"):
        at = Path(folder) / "0"
        life = Life(at)
        limit = 0
        for n, (more, intervals) in enumerate(remaps, 1):
            if intervals is not None and limit:
                found += life.rows()
                before = life.epochs.run_log.authority.low_watermarks
                maps = dict(life.epochs.run_log.positions.maps)
                mr.ops.copy_checkpoint(at, at := Path(folder) / str(n), intervals=intervals)
                life = Life(at)
                life.check()
                after = life.epochs.run_log
                check_low_watermarks(before, after.authority.low_watermarks)
                for name, known in after.positions.maps.items():
                    assert len(known) == intervals
                    kept = {*known.intervals} & {*maps[name].intervals}
                    fresh = min({one.id for one in {*known.intervals} - kept}, default=1 << 30)
                    assert fresh > max(one.id for one in maps[name].intervals)
            limit += more
            life.epoch(limit)
        life.epoch(1_000)
        life.epoch(1_000, draining=True)
        life.check()
        return found + life.rows()


@settings(max_examples=6, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(3, 20), st.sampled_from([None, 1, 2, 8, 32])), min_size=2, max_size=5
    )
)
@example([(30, None), (10, 16), (10, 1), (10, 4)])
def test_no_division_of_key_intervals_changes_an_output(
    remaps: list[tuple[int, int | None]],
) -> None:
    # Early panes and what a bag has at a timer depend on what came in an epoch: the same ones.
    plain = outputs([(more, None) for more, _ in remaps])
    event(f"{sum(1 for _, intervals in remaps if intervals)} times")
    assert outputs(remaps) == plain
    assert {name for name, _ in plain} == {"said", "counted", "visits", "early"}


OF_RANGE, TOGETHER = transfer.of_range, transfer.together


def without(letters: str) -> Any:
    """Return a division that forgets families of rows."""

    def of_range(pairs: Iterable[transfer.Pair], *how: Any) -> Iterator[transfer.Pair]:
        found = OF_RANGE(pairs, *how)
        return (pair for pair in found if pair[0][:1] not in letters.encode())

    return of_range


def whole(pairs: Iterable[transfer.Pair], *_: Any) -> Iterable[transfer.Pair]:
    """Give every child all that its parent has."""
    return pairs


def of_another_range(
    pairs: Iterable[transfer.Pair], start: int, end: int, cut: Any
) -> Iterator[transfer.Pair]:
    """Read ids of deduplication of the range beside."""
    for pair in pairs:
        at = (0, 1 << 64) if pair[0][:1] == b"I" else (start, end)
        yield from OF_RANGE([pair], *at, cut)


def one_of_two(parts: Iterable[Iterable[transfer.Pair]]) -> list[transfer.Pair]:
    """Take the timers of the first parent alone."""
    first, *others = map(list, parts)
    left = [[pair for pair in part if pair[0][:1] not in (b"T", b"U")] for part in others]
    return TOGETHER([first, *left])


@pytest.mark.parametrize(
    ("name", "bug"),
    [
        ("of_range", without("H")),
        ("of_range", without("TU")),
        ("of_range", without("IJ")),
        ("of_range", without("B")),
        ("of_range", without("C")),
        ("of_range", whole),
        ("of_range", of_another_range),
        ("together", one_of_two),
    ],
    ids=["holds", "timers", "ids", "bags", "chunks", "whole", "ids of another range", "a parent"],
)
def test_a_division_that_forgets_something_is_found(
    name: str, bug: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = outputs([(30, None), (10, None)])
    monkeypatch.setattr(transfer, name, bug)
    try:
        found = outputs([(30, None), (10, 1 if name == "together" else 8)])
    except MillraceError:
        return
    assert found != plain


@given(st.lists(st.sampled_from([1, 2, 4, 16]), min_size=1, max_size=6))
def test_ids_of_intervals_are_never_used_again(counts: list[int]) -> None:
    known = IntervalMap.uniform(4)
    ever = {one.id: one for one in known.intervals}
    for count in counts:
        known = resized(known, count, first_id=1 + max(ever))
        for one in known.intervals:
            assert ever.setdefault(one.id, one) == one
        assert len(known) == count
