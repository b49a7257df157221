"""Where intervals stand: what the log says of it, and how processes that run tasks keep up."""

from __future__ import annotations

import pytest

import millrace as mr
from millrace.epochlog.entries import Completion, Manifest, decode_entry, encode_entry
from millrace.epochlog.positions import Followed
from millrace.epochlog.run_log import RunLog
from millrace.kernel.bundle import Position
from millrace.kernel.results import Counters, IntervalResult
from millrace.model.errors import DamagedStore, ZombieWriter
from millrace.store import MemoryHardState
from millrace.watermark.report import Report


class Count(mr.Computation):
    inputs = {"events": mr.by_key()}

    def process_record(self, record: mr.Record) -> None:
        pass


class Run:
    """A run whose epochs give some intervals a commit, and what processes read of its log."""

    def __init__(self, *, intervals: int = 8, claim_entries: int = 1_000) -> None:
        p = mr.Pipeline("p")
        p.inject("events", format=int)
        p.add(Count)
        self.topology, self.state = p.build(), MemoryHardState()
        self.run_log = RunLog(
            self.topology, self.state, intervals=intervals, claim_entries=claim_entries
        )
        self.read: list[int] = []
        self.manifests: list[Manifest] = []

    def process(self) -> Followed:
        log = self.state.epochs

        class Log:
            """The log, as a process reads it."""

            exists, last = log.exists, log.last

            @staticmethod
            def read(number: int) -> bytes | None:
                self.read.append(number)
                return log.read(number)

        return Followed(self.topology, Log)  # type: ignore[arg-type]

    def begin(self) -> Manifest:
        number = self.run_log.completed + 1
        manifest = self.run_log.begin(number, wall_time_us=number, injectors={})
        assert manifest is not None
        self.manifests.append(manifest)
        return manifest

    def complete(self, *intervals: int) -> Completion:
        results = []
        for interval in intervals:
            stands = self.run_log.positions.of("Count", interval)
            results.append(
                IntervalResult("Count", interval, stands.number + 1, Report(), Counters())
            )
        return self.run_log.complete(self.manifests[-1], results)

    def epoch(self, *intervals: int) -> Completion:
        self.begin()
        return self.complete(*intervals)


def test_a_completion_says_what_its_epoch_changed_and_the_first_after_a_claim_all() -> None:
    run = Run(claim_entries=5)
    said = [run.epoch(0, 1), run.epoch(1), run.epoch(), run.epoch(2), run.epoch(2)]

    assert [(one.since, one.numbers["Count"] if one.numbers else {}) for one in said] == [
        (None, {0: 1, 1: 1}),
        (3, {1: 2}),
        (5, {}),
        (None, {0: 1, 1: 2, 2: 1}),
        (10, {2: 2}),
    ]


def test_what_is_before_the_whole_one_is_collected() -> None:
    run = Run(claim_entries=5)
    for _ in range(8):
        run.epoch(0)
        run.state.epochs.remove_before(run.run_log.collectable().first_entry)
        log = run.state.epochs
        assert log.last() - log.first() <= 8


def test_entries_are_as_long_as_what_happened() -> None:
    sizes = []
    for intervals in (16, 16_384):
        run = Run(intervals=intervals)
        run.epoch(*range(intervals))
        run.epoch(0)
        manifest, completion = run.begin(), run.complete(1)
        sizes.append(len(encode_entry(manifest)) + len(encode_entry(completion)))

    assert sizes[1] - sizes[0] < 10  # the number of the intervals has more digits


def test_a_process_that_sees_every_manifest_reads_the_log_once() -> None:
    run = Run()
    run.epoch(0, 1)
    process = run.process()
    for _ in range(4):
        manifest = run.begin()
        assert process.at(manifest) is process.at(manifest)
        assert process.at(manifest).of("Count", 1) == Position(manifest.epoch)
        run.complete(1)

    assert run.read == [3]


def test_a_process_that_missed_manifests_reads_what_it_missed() -> None:
    run = Run()
    run.epoch(0)
    process = run.process()
    process.at(run.begin())
    run.complete(0)
    run.epoch(1)
    found = process.at(run.begin())

    assert [found.of("Count", n).number for n in range(3)] == [2, 1, 0]
    assert run.read == [3, 5]  # what entry 7 says is in the manifest, too


@pytest.mark.parametrize("claim_entries", [1_000, 6])
def test_processes_that_take_turns_read_no_more_than_they_missed(claim_entries: int) -> None:
    run = Run(claim_entries=claim_entries)
    processes = [run.process() for _ in range(3)]
    for epoch in range(30):
        run.read.clear()
        found = processes[epoch % 3].at(run.begin())
        if epoch >= 3:
            assert len(run.read) <= 2
        stand = [found.of("Count", interval).number for interval in range(4)]
        assert stand == [run.run_log.positions.of("Count", n).number for n in range(4)]
        assert found.bulletin("Count").report(epoch % 4) == Report(), "as the driver has it"
        run.complete(epoch % 4)


def test_an_attempt_at_an_epoch_that_its_process_knows_to_be_over_stops() -> None:
    run = Run()
    run.epoch(0)
    stale = run.begin()
    run.complete(0)
    process = run.process()
    process.at(run.begin())

    with pytest.raises(ZombieWriter, match="left behind"):
        process.at(stale)


def test_an_attempt_whose_entries_were_collected_stops() -> None:
    run = Run(claim_entries=3)
    run.epoch(0)
    stale = run.begin()
    run.complete(0)
    run.epoch(0)
    run.state.epochs.remove_before(run.run_log.collectable().first_entry)

    with pytest.raises(ZombieWriter, match="left behind"):
        run.process().at(stale)


def test_a_log_that_lost_an_entry_of_an_open_epoch_is_damaged() -> None:
    run = Run()
    run.epoch(0)
    run.epoch(0)
    manifest = run.begin()
    read = run.state.epochs.read
    run.state.epochs.read = lambda n: None if n == 3 else read(n)  # type: ignore[method-assign]

    with pytest.raises(DamagedStore, match="entry 3 of the epoch log is gone"):
        run.process().at(manifest)


def test_a_manifest_says_the_same_in_the_log() -> None:
    run = Run()
    run.epoch(0, 1)
    manifest = run.begin()
    stored = run.state.epochs.read(manifest.entry)

    assert stored is not None
    assert decode_entry(stored) == manifest
    assert manifest.changed is not None
    assert (manifest.follows, manifest.changed.since) == (3, 0)
