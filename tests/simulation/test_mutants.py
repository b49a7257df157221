"""Bugs planted into the protocol: the simulator finds each of them, and the correct code passes.

A mutant is a patch of the kernel, the store or the driver's loop. On a schedule without faults it
does nothing wrong; it needs a crash, a zombie or a power cut at the right moment to do harm. Those
that lose what a recovery may need do so without faults, too.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from greenlet import getcurrent

from millrace.compile.topology import injector_name
from millrace.epochlog import claims, fence, reader
from millrace.epochlog.entries import encode_entry
from millrace.epochlog.run_log import LogWriter, RunLog
from millrace.kernel import execution, families, timer_families
from millrace.kernel.execution import Execution
from millrace.model.computation import WEAK
from millrace.model.errors import ZombieWriter
from millrace.runtime import commit_writer
from millrace.runtime.commit_writer import PutWriter
from millrace.runtime.epoch.driver import EpochDriver
from millrace.runtime.level_task import LevelTask
from millrace.store import (
    Collector,
    EpochLog,
    LocalBlobs,
    MemoryCache,
    ObjectBlobs,
    TaskCommits,
    bring,
    collection,
    decode_segment,
    durable_files,
    encode_segment,
    local_blobs,
)
from millrace.store.cache import changes
from millrace.store.commit_log import ComputationSegments
from millrace.store.repair import NOTHING
from millrace.watermark.authority import Authority
from millrace.watermark.report import ONLY
from simulation import Simulation, driver
from simulation.driver import is_driven
from simulation.hosts import _SharedCache
from simulation.program import STREAM
from simulation.spark import Job

Mutant = Callable[[pytest.MonkeyPatch], None]
MUTANTS: list[Mutant] = []
#: Where those that take long were found last, to look there first.
FOUND_AT = {
    "an_attempt_left_behind_takes_back_what_it_won": 931,
    "nobody_looks_whether_the_epoch_is_over": 541,
    "nobody_looks_after_a_replay_whether_the_epoch_is_over": 514,
    "the_loser_of_a_segment_takes_itself_for_the_winner": 251,
    "a_claim_that_is_there_is_taken_for_its_own": 12,
    "an_older_commit_is_applied_again": 57,
    "the_cache_is_written_before_the_commit": 251,
    "due_timers_are_taken_off_before_the_commit": 31,
    "weak_productions_are_made_again_over_the_state_after": 942,
    "commits_of_the_open_epoch_are_collected": 1048,
    "names_are_not_synced": 26,
    "an_attempt_moves_the_positions_of_its_process": 5,
    "an_entry_of_the_epoch_log_is_overwritten": 4,
    "an_epoch_is_complete_before_its_sinks_have_its_rows": 10,
    "a_zombie_driver_goes_on_at_the_next_number": 4,
    "a_name_is_looked_at_and_then_taken": 501,
    "the_loser_sends_its_own_productions": 704,
    "commits_are_collected_before_their_snapshot_is_durable": 156,
    "data_is_not_synced_before_it_gets_its_name": 26,
    "source_ids_are_remembered_before_the_commit": 66,
    "a_restart_takes_what_the_last_epoch_changed_for_all": 420,
    "a_name_that_is_found_is_not_synced": 5098,
    "an_open_epoch_ends_where_sources_are_now": 99,
}


#: Those that do harm without faults.
ALWAYS: list[Mutant] = []
#: Those that do so where the driver begins epochs itself.
DRIVEN: list[Mutant] = []


def mutant(plant: Mutant) -> Mutant:
    MUTANTS.append(plant)
    return plant


def driven(plant: Mutant) -> Mutant:
    DRIVEN.append(plant)
    return plant


def always(plant: Mutant) -> Mutant:
    ALWAYS.append(plant)
    return plant


# -- the commit writer -----------------------------------------------------------------------------


@mutant
def an_attempt_moves_the_positions_of_its_process(patch):
    turn = LevelTask.turn

    def moving(self, *arrived):
        produced = turn(self, *arrived)
        for result, _ in produced:
            self._positions.move(
                result.computation, result.interval, result.number, result.chain, result.report
            )
        return produced

    patch.setattr(LevelTask, "turn", moving)


@mutant
def productions_leave_before_the_commit(patch):
    commit, send = PutWriter.commit, Job._send
    pending = {}

    def later(self, attempted):
        if getcurrent().parent is None:  # the oracle's run, outside of any process
            return commit(self, attempted)
        pending.setdefault(getcurrent(), []).append((self, attempted))
        return [(one.result, one.productions) for one in attempted]

    def send_first(self, *arguments):
        send(self, *arguments)
        for who, what in pending.pop(getcurrent(), ()):
            commit(who, what)

    patch.setattr(PutWriter, "commit", later)
    patch.setattr(Job, "_send", send_first)


@mutant
def the_loser_sends_its_own_productions(patch):
    commit = PutWriter.commit

    def mine(self, attempted):
        own = {(one.result.computation, one.result.interval): one.productions for one in attempted}
        return [
            (result, own[result.computation, result.interval])
            for result, _ in commit(self, attempted)
        ]

    patch.setattr(PutWriter, "commit", mine)


@mutant
def a_replay_runs_user_code_again(patch):
    replay = commit_writer.replay

    def again(commit, mine):
        result, _ = replay(commit, mine)
        return result, mine

    patch.setattr(commit_writer, "holds_productions", lambda *_: False)
    patch.setattr(commit_writer, "replay", again)


@mutant
def a_retry_commits_once_more_at_the_next_free_number(patch):
    run = PutWriter.run

    def next_free(self, spec, bundles, *more):
        moved = []
        for bundle in bundles:
            number = bundle.position.number
            while self.execution.state.commits.exists(spec.name, bundle.interval.id, number + 1):
                number += 1
            position = msgspec.structs.replace(bundle.position, number=number)
            moved.append(msgspec.structs.replace(bundle, position=position))
        return run(self, spec, moved, *more)

    patch.setattr(PutWriter, "run", next_free)


@mutant
def the_cache_is_written_before_the_commit(patch):
    commit = PutWriter.commit

    def cache_first(self, attempted):
        for one in attempted:
            if (made := one.commit) is not None:
                self.execution.caches.open(made.computation, made.interval).apply(made)
        return commit(self, attempted)

    patch.setattr(PutWriter, "commit", cache_first)


@mutant
def an_attempt_left_behind_takes_back_what_it_won(patch):
    refuse, put = fence.refuse_superseded, TaskCommits.put
    won = {}

    def remember(self, commits):
        won[getcurrent()] = self if put(self, commits) else None
        return won[getcurrent()] is not None

    def take_back(log, manifest):
        try:
            refuse(log, manifest)
        except ZombieWriter:
            if mine := won.pop(getcurrent(), None):
                mine._blobs.remove([mine._name])
            raise

    patch.setattr(TaskCommits, "put", remember)
    patch.setattr(fence, "refuse_superseded", take_back)


@mutant
def due_timers_are_taken_off_before_the_commit(patch):
    execute = Execution.run

    def take_off(self, spec, bundle, *arguments):
        outcome, repaired = execute(self, spec, bundle, *arguments)
        interval = bundle.interval
        cache = self.caches.open(spec.name, interval.id)
        if isinstance(cache, _SharedCache) and spec.guarantees.productions is not WEAK:
            taken = [row for row, value in outcome.mutations.items() if value is None]
            shared = cache._host.cache(spec.name, interval.id)
            for row in taken:
                if row[:1] in (timer_families.TIMERS, timer_families.TIMER_BY_TAG):
                    shared._rows.pop(row, None)
        return outcome, repaired

    patch.setattr(Execution, "run", take_off)


@mutant
def source_ids_are_remembered_before_the_commit(patch):
    execute = Execution.run

    def remember(self, spec, bundle, *arguments):
        outcome, repaired = execute(self, spec, bundle, *arguments)
        interval = bundle.interval
        cache = self.caches.open(spec.name, interval.id)
        if isinstance(cache, _SharedCache):
            shared = cache._host.cache(spec.name, interval.id)
            for row, value in outcome.mutations.items():
                if row[:1] == families.IDS and value is not None:
                    shared._rows[row] = value
        return outcome, repaired

    patch.setattr(Execution, "run", remember)


@mutant
def weak_productions_are_made_again_over_the_state_after(patch):
    view = MemoryCache.view

    def not_turned_back(cache, state, computation, interval, number, chain=None):
        if cache.cache_position.position > number:
            return NOTHING
        return bring(cache, state, computation, interval, number, chain)

    patch.setattr(execution, "bring", not_turned_back)
    patch.setattr(MemoryCache, "view", lambda self, *_, **__: view(self))


@mutant
def nobody_looks_whether_the_epoch_is_over(patch):
    patch.setattr(fence, "refuse_superseded", lambda *_: None)


@mutant
def nobody_looks_after_a_replay_whether_the_epoch_is_over(patch):
    commit = PutWriter.commit

    class Unasked:
        def check(self):
            pass

    def trusting(self, attempted):
        if all(one.commit is None for one in attempted):
            self._fence = Unasked()
        return commit(self, attempted)

    patch.setattr(PutWriter, "commit", trusting)


@mutant
def the_loser_of_a_segment_takes_itself_for_the_winner(patch):
    put = TaskCommits.put
    patch.setattr(TaskCommits, "put", lambda *a: put(*a) or True)


@mutant
def an_epoch_is_tried_again_with_another_number_of_tasks(patch):
    begin = RunLog.planned

    def anew(self, epoch, **said):
        manifest = begin(self, epoch, **said)
        return manifest and msgspec.structs.replace(manifest, tasks=said["tasks"])

    patch.setattr(RunLog, "planned", anew)


# -- collection ------------------------------------------------------------------------------------


@mutant
def commits_of_the_open_epoch_are_collected(patch):
    collect = Collector._collect

    def all_with_a_snapshot(self, computation, numbers, gone, collected):
        newest = self._state.snapshots.numbers(computation)
        everything = {interval: max(there) for interval, there in newest.items() if there}
        collect(self, computation, everything, gone, collected)

    patch.setattr(collection, "KEPT_SNAPSHOTS", 1)
    patch.setattr(Collector, "_collect", all_with_a_snapshot)


@always
def a_segment_goes_with_the_first_commit_that_may(patch):
    def remove_to(self, interval, number):
        self.refresh()
        line = self._lines.get(interval)
        gone = {*line.forget_to(number)} if line is not None else set()
        self._blobs.remove(self._segments[key].name for key in gone)
        self._forget(gone)

    patch.setattr(ComputationSegments, "remove_to", remove_to)


@always
def thinning_drops_a_commit_that_is_needed(patch):
    def dropping(replace):
        def careless(self, name, data):
            left = [*decode_segment(data)][1:]
            replace(self, name, encode_segment(left, name))

        return careless

    for blobs in (LocalBlobs, ObjectBlobs):
        patch.setattr(blobs, "replace", dropping(blobs.replace))


@mutant
def commits_are_collected_before_their_snapshot_is_durable(patch):
    put = LocalBlobs.put_pieces

    class Unsynced:
        def __init__(self, disk):
            self.disk = disk

        def __getattr__(self, call):
            return getattr(self.disk, call)

        def fsync(self, fd):
            pass

    def unsynced(self, *arguments):
        careless = copy.copy(self)
        careless._disk = Unsynced(self._disk)
        return put(careless, *arguments)

    patch.setattr(LocalBlobs, "put_pieces", unsynced)


# -- the cache -------------------------------------------------------------------------------------


@mutant
def an_older_commit_is_applied_again(patch):
    def apply(self, *commits, overhead=0):
        puts, deletes = changes(*commits)
        self._rows = self._rows.copy()
        for row in deletes:
            self._rows.pop(row, None)
        self._rows.update(puts)
        for commit in commits:
            if commit.number > self.position:
                self._cache_position = self._cache_position.after(commit)

    patch.setattr(MemoryCache, "apply", apply)


# -- the driver ------------------------------------------------------------------------------------


@mutant
def commits_come_before_the_manifest(patch):
    append, complete = LogWriter.append, RunLog.complete

    def begin_unwritten(self, entry, then):
        if type(entry).__name__ != "Manifest":
            append(self, entry, then)
        else:
            then()

    def write_both(self, manifest, *arguments, **named):
        append(self._log, manifest, lambda: None)
        return complete(self, manifest, *arguments, **named)

    patch.setattr(fence, "refuse_superseded", lambda *_: None)  # it would find no manifest
    patch.setattr(LogWriter, "append", begin_unwritten)
    patch.setattr(RunLog, "complete", write_both)


@mutant
def a_retry_writes_a_manifest_of_its_own(patch):
    recover = RunLog._recover

    def forget_the_open_one(self, *arguments):
        claim = recover(self, *arguments)
        self.open = None
        return claim

    patch.setattr(RunLog, "_recover", forget_the_open_one)


@mutant
def a_zombie_driver_goes_on_at_the_next_number(patch):
    def append(self, entry, then):
        while not self._log.append(self.last + 1, encode_entry(entry)):
            self.last += 1
        self.last += 1
        then()

    patch.setattr(LogWriter, "append", append)


@mutant
def a_claim_that_is_there_is_taken_for_its_own(patch):
    claim_of = claims.claim_of

    def owned_by_all(*arguments):
        return msgspec.structs.replace(claim_of(*arguments), owner="anybody")

    patch.setattr(claims, "claim_of", owned_by_all)


@mutant
def an_entry_of_the_epoch_log_is_overwritten(patch):
    append = EpochLog.append

    def replace(self, number, entry):
        self._blobs.remove([f"epochs/{number:010d}.json"])
        self._last = min(self._last, number - 1)
        return append(self, number, entry)

    patch.setattr(EpochLog, "append", replace)


@mutant
def a_restart_forgets_low_watermarks(patch):
    patch.setattr(Authority, "restore", lambda *_: None)


@mutant
def a_restart_takes_what_the_last_epoch_changed_for_all(patch):
    patch.setattr(reader, "together", lambda said: said[-1])


@mutant
def an_epoch_is_complete_before_its_sinks_have_its_rows(patch):
    complete = RunLog.complete
    write = driver.write_sinks

    def sinks_after(world, batch, rows_):
        waiting.append((world, batch, rows_))

    def complete_first(self, *arguments, **named):
        completion = complete(self, *arguments, **named)
        while waiting:
            write(*waiting.pop())
        return completion

    waiting = []
    patch.setattr(driver, "write_sinks", sinks_after)
    patch.setattr(RunLog, "complete", complete_first)


# -- the disk --------------------------------------------------------------------------------------


@mutant
def data_is_not_synced_before_it_gets_its_name(patch):
    def write(path: Path, parts, disk):
        fd = disk.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        for part in parts:
            rest = memoryview(part)
            while rest:
                rest = rest[disk.write(fd, rest) :]
        disk.close(fd)

    patch.setattr(durable_files, "_write", write)


@mutant
def names_are_not_synced(patch):
    patch.setattr(durable_files, "sync_directory", lambda *_: None)


@mutant
def a_name_that_is_found_is_not_synced(patch):
    patch.setattr(local_blobs, "sync_directory", lambda *_: None)


@mutant
def a_name_is_looked_at_and_then_taken(patch):
    def link(temporary: Path, path: Path, disk):
        try:
            disk.stat(path)
        except FileNotFoundError:
            pass
        else:
            return False
        with contextlib.suppress(FileNotFoundError):
            disk.unlink(path)
        disk.link(temporary, path)
        return True

    patch.setattr(durable_files, "_link", link)


# -- the test --------------------------------------------------------------------------------------


# -- epochs that the driver begins itself ---------------------------------------------------------


@mutant
def an_open_epoch_ends_where_sources_are_now(patch):
    def asking(world, name, epoch_driver, collector, random_end):
        run_log = epoch_driver.run_log
        if run_log.open is not None:
            start = world.query_log.offsets.get(run_log.completed, (0, 0))[1]
            _, brought = run_log.open.offsets[STREAM][ONLY]
            offsets = {STREAM: {ONLY: [[start, random_end(start)], brought]}}
            run_log.open = msgspec.structs.replace(run_log.open, offsets=offsets)
        alone(world, name, epoch_driver, collector, random_end)

    alone = driver._drive_alone
    patch.setattr(driver, "_drive_alone", asking)


@pytest.mark.parametrize("plant", MUTANTS, ids=lambda plant: plant.__name__)
def test_the_simulator_finds(plant, monkeypatch, found):
    plant(monkeypatch)
    for seed in range(3):
        calm = Simulation(seed, calm=True).run().violation
        assert calm is None, "without faults it must do no harm"
    found(plant, FOUND_AT.get(plant.__name__, 0))


@driven
def timers_are_due_at_the_low_watermarks_from_before(patch):
    def before(self, manifest):
        outputs = self.run_log.authority.low_watermarks.outputs
        injectors = {stream: outputs[injector_name(stream)] for stream in manifest.injectors}
        return due(self, msgspec.structs.replace(manifest, injectors=injectors))

    due = EpochDriver.due
    patch.setattr(EpochDriver, "due", before)


@driven
def nothing_is_due_without_records(patch):
    patch.setattr(EpochDriver, "due", lambda *_: False)


@driven
def only_the_first_level_is_asked_what_is_due(patch):
    def first(self, manifest):
        topology = self.topology
        shallow = [spec for spec in topology.computations if spec.level == 1]
        self.topology = dataclasses.replace(topology, computations=tuple(shallow))
        try:
            return due(self, manifest)
        finally:
            self.topology = topology

    due = EpochDriver.due
    patch.setattr(EpochDriver, "due", first)


@driven
def wall_clock_timers_wait_for_records(patch):
    def never(self, manifest):
        return due(self, msgspec.structs.replace(manifest, wall_time_us=0))

    due = EpochDriver.due
    patch.setattr(EpochDriver, "due", never)


@driven
def tasks_run_an_epoch_whose_manifest_is_not_written(patch):
    def unwritten(self, manifest):
        self._opened(manifest)

    patch.setattr(RunLog, "write", unwritten)


@pytest.mark.parametrize("plant", DRIVEN, ids=lambda plant: plant.__name__)
def test_the_simulator_finds_in_epochs_that_the_driver_begins(plant, monkeypatch):
    plant(monkeypatch)
    seeds = (seed for seed in range(2_000) if is_driven(seed))
    assert any(Simulation(seed, calm=True).run().violation for seed in seeds)


@pytest.mark.parametrize("plant", ALWAYS, ids=lambda plant: plant.__name__)
def test_the_simulator_finds_without_faults(plant, monkeypatch):
    plant(monkeypatch)
    assert any(Simulation(seed, calm=True).run().violation for seed in range(10))
