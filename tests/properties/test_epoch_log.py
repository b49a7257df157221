"""Entries that say what changed, folded, are what one would know who kept everything whole.

Epochs change some intervals, drivers die anywhere, entries are collected, and processes that run
tasks see some manifests and miss others.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

import millrace as mr
from millrace.compile.topology import Topology
from millrace.epochlog.entries import Completion, Manifest
from millrace.epochlog.positions import Followed, Positions
from millrace.epochlog.reader import completion_of, latest
from millrace.epochlog.run_log import RunLog
from millrace.kernel.bundle import Position
from millrace.kernel.results import Counters, IntervalResult
from millrace.model.time import MAX_TIMESTAMP
from millrace.store import MemoryHardState
from millrace.watermark.report import NOTHING_PENDING, Report

INTERVALS = 8
NAMES = ("Above", "Below")
Kept = dict[tuple[str, int], Position]


def _topology() -> Topology:
    class Above(mr.Computation):
        inputs = {"events": mr.by_key()}
        outputs = {"made": int}

        def process_record(self, record: mr.Record) -> None:
            pass

    class Below(mr.Computation):
        inputs = {"made": mr.by_key()}

        def process_record(self, record: mr.Record) -> None:
            pass

    p = mr.Pipeline("p")
    p.inject("events", format=int)
    p.add(Above)
    p.add(Below)
    return p.build()


TOPOLOGY = _topology()

INSTANTS = st.one_of(st.just(MAX_TIMESTAMP), st.integers(0, 50))
REPORTS = st.builds(Report, INSTANTS, INSTANTS, INSTANTS, INSTANTS)
PLACES = st.tuples(st.sampled_from(NAMES), st.integers(0, INTERVALS - 1))


@dataclass(frozen=True)
class Epoch:
    """One epoch: what it changes, and what goes wrong and on beside it.

    Attributes:
        changed: Interval -> its report after it.
        crashes: Whether the driver dies before it begins, and before it completes.
        seen: Numbers of the processes that run a task of it.
        collected: Whether entries are collected after it.
    """

    changed: dict[tuple[str, int], Report]
    crashes: tuple[bool, bool]
    seen: frozenset[int]
    collected: bool


EPOCHS = st.builds(
    Epoch,
    st.dictionaries(PLACES, REPORTS, max_size=3),
    st.tuples(*[st.sampled_from([False, False, False, True])] * 2),
    st.frozensets(st.integers(0, 2)),
    st.booleans(),
)


@dataclass
class Run:
    """A run, its log, and what is known by who kept it whole."""

    claim_entries: int
    state: MemoryHardState = field(default_factory=MemoryHardState)
    kept: Kept = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        """Start a driver, and processes for its tasks."""
        self.run_log = RunLog(
            TOPOLOGY, self.state, intervals=INTERVALS, claim_entries=self.claim_entries
        )
        self.processes = [Followed(TOPOLOGY, self.state.epochs) for _ in range(3)]
        self.check(self.run_log.positions)

    def begin(self, number: int) -> Manifest:
        manifest = self.run_log.begin(number, wall_time_us=number, injectors={"events": number})
        assert manifest is not None
        return manifest

    def epoch(self, number: int, epoch: Epoch) -> None:
        if epoch.crashes[0]:
            self.start()
        manifest = self.begin(number)
        if epoch.collected:
            self.state.epochs.remove_before(max(1, self.run_log.collectable().first_entry))
        if epoch.crashes[1]:
            self.start()
            assert self.begin(number) == manifest
        for process in epoch.seen:
            self.check(self.processes[process].at(manifest))
        for place, report in epoch.changed.items():
            number = self.kept.get(place, Position()).number + 1
            self.kept[place] = Position(number, 1_000 * number + place[1], report)
        results = [
            IntervalResult(
                *place, stands.number, stands.report, Counters(), chain=stands.chain
            )
            for place in epoch.changed for stands in (self.kept[place],)
        ]  # fmt: skip
        self.run_log.complete(manifest, results)
        self.check(self.run_log.positions)
        if epoch.collected:
            self.state.epochs.remove_before(self.run_log.collectable().first_entry)

    def check(self, positions: Positions) -> None:
        for name in NAMES:
            stands = {n: self.kept.get((name, n), Position()) for n in range(INTERVALS)}
            assert {n: positions.of(name, n) for n in stands} == stands
            bulletin = positions.bulletin(name)
            oldest = {n: one.report.oldest_work_us() for n, one in stands.items()}
            assert bulletin.missing() == []
            assert bulletin.oldest_work_us == min(oldest.values())
            for within in (range(INTERVALS), range(2, 6), range(3, 3)):
                idle = bulletin.pending(False, within=within, without=[n for n in within if n % 3])
                expected = [oldest[n] for n in within if not n % 3]
                assert idle.pending_us == min(expected, default=MAX_TIMESTAMP)
                due = bulletin.due(within, {100: 20}, 10)
                assert due == [n for n in within if stands[n].report.due({100: 20}, 10)]


@given(st.lists(EPOCHS, min_size=1, max_size=14), st.integers(3, 9))
def test_folded_entries_say_where_everything_stands(epochs: list[Epoch], often: int) -> None:
    run, history = Run(often), list[Kept]()
    for number, epoch in enumerate(epochs):
        run.epoch(number, epoch)
        history.append(dict(run.kept))
        _, completion, _ = latest(run.state.epochs)
        assert completion is not None
        assert _said(completion) == run.kept
    for number, kept in enumerate(history):
        earlier = completion_of(run.state.epochs, number)
        assert earlier is None or _said(earlier) == kept


def _said(completion: Completion) -> Kept:
    numbers, chains, reports = completion.numbers, completion.chains, completion.reports
    return {
        (name, n): Position(
            number, chains[name].get(n, 0), reports[name].get(n, NOTHING_PENDING)
        )
        for name in numbers
        for n, number in numbers[name].items()
    }  # fmt: skip
