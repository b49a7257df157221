"""Bugs planted into the real-time plane: the simulator finds each, and the correct code passes."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from millrace.epochlog.fence import IncarnationFence
from millrace.epochlog.run_log import RunLog
from millrace.kernel.router import RowsBuilder
from millrace.model.errors import CheckpointUnwritable
from millrace.runtime import commit_writer, task_watermarks
from millrace.runtime.admission import Demultiplexer
from millrace.runtime.commit_writer import GrownWriter
from millrace.runtime.packets import Received, _decode
from millrace.runtime.realtime import coordinator
from millrace.runtime.realtime.coordinator import Coordinator
from millrace.runtime.realtime.host import IncarnationHost
from millrace.runtime.realtime.incarnation_start import TaskNote
from millrace.runtime.realtime.injector_task import InjectorTask
from millrace.runtime.realtime.messages import MarkPassed
from millrace.store import AheadCache, collection
from millrace.store.incarnations import Incarnations, _End
from millrace.store.local_blobs import LocalAppender
from simulation.realtime import RealtimeSimulation

#: Mutant -> the schedule that found it last, to look there first.
MUTANTS: dict[Any, int] = {}
#: Those that do harm without faults, too: that tasks take turns in any order is enough.
HARMFUL: set[Any] = set()


def mutant(first, *, without_faults=False):
    def note(plant):
        MUTANTS[plant] = first
        if without_faults:
            HARMFUL.add(plant)
        return plant

    return note


# -- marks -----------------------------------------------------------------------------------------


@mutant(66)
def a_mark_overtakes_what_comes_to_sinks_after_it(patch):
    sort = Demultiplexer.sorted
    patch.setattr(Demultiplexer, "sorted", lambda self, packets, _: sort(self, packets, _Never()))


class _Never(set[int]):
    """Takes nothing."""

    def add(self, _: int) -> None:
        pass


@mutant(3, without_faults=True)
def a_mark_is_complete_before_the_last_task_has_passed_it(patch):
    receive = Coordinator.receive

    def early(self, message, wall_us):
        incarnation = self._incarnation
        if (
            incarnation is not None
            and incarnation.mark is not None
            and isinstance(message, MarkPassed)
        ):
            missing = set(self._where) - set(incarnation.passed) - {(message.level, message.task)}
            if len(missing) == 1 and not message.covered:
                # Nothing of the last one is known, so it is taken to have done nothing.
                where = missing.pop()
                incarnation.passed[where] = replace(
                    message, level=where[0], task=where[1], segment="", published={}, input={}
                )
        return receive(self, message, wall_us)

    patch.setattr(Coordinator, "receive", early)


@mutant(2, without_faults=True)
def a_task_passes_a_mark_with_the_first_of_its_senders(patch):
    turn = IncarnationHost.turn

    def first(self, wall_us, wait_s):
        yield from turn(self, wall_us, wait_s)
        if not self._over and self._marks.come(self._epoch):
            yield from self._pass_mark()

    patch.setattr(IncarnationHost, "turn", first)


@mutant(55)
def what_sinks_got_is_published_before_the_completion(patch):
    complete = RunLog.complete

    def published_first(self, manifest, *arguments, **more):
        live = more.get("live")
        if live is not None and _sinks.get(id(self)):
            for edge, receipts in live.receipts.items():
                _sinks[id(self)][edge].publish(manifest.epoch, receipts)
        return complete(self, manifest, *arguments, **more)

    made = Coordinator.__init__

    def init(self, epochs, **more):
        made(self, epochs, **more)
        _sinks[id(epochs)] = more["sinks"]

    _sinks: dict[int, Any] = {}
    patch.setattr(RunLog, "complete", published_first)
    patch.setattr(Coordinator, "__init__", init)


@mutant(13)
def what_was_published_last_is_not_published_again(patch):
    patch.setattr(coordinator, "publish_again", lambda *_: None)


# It does harm without faults, too, but in none of the few schedules that are looked at.
@mutant(6)
def a_task_works_on_after_the_last_mark(patch):
    pass_mark = IncarnationHost._pass_mark

    def on(self):
        yield from pass_mark(self)
        self._over = False

    patch.setattr(IncarnationHost, "_pass_mark", on)


# -- commits and channels --------------------------------------------------------------------------


@mutant(484)
def productions_leave_before_their_commit(patch):
    append, turn, end = GrownWriter._append, IncarnationHost.turn, GrownWriter.end

    def later(self, commits):
        self._later = [*getattr(self, "_later", []), commits]

    def now(self):
        for commits in vars(self).pop("_later", ()):
            append(self, commits)

    def sent_first(self, wall_us, wait_s):
        yield from turn(self, wall_us, wait_s)
        now(self._writer)

    def ended(self):
        now(self)  # a mark does not overtake it
        return end(self)

    patch.setattr(GrownWriter, "_append", later)
    patch.setattr(GrownWriter, "end", ended)
    patch.setattr(IncarnationHost, "turn", sent_first)


@mutant(2)
def channel_numbers_are_not_in_the_commit(patch):
    run = GrownWriter.run

    def without(self, spec, bundles, _):
        return run(self, spec, bundles, {})

    patch.setattr(GrownWriter, "run", without)


@mutant(2)
def productions_of_a_sealed_commit_are_not_sent_again(patch):
    again = commit_writer.commits_again

    def quietly(*arguments):
        for result, _ in again(*arguments):
            yield result, RowsBuilder()

    patch.setattr(commit_writer, "commits_again", quietly)


@mutant(4)
def positions_are_those_of_the_completion(patch):
    patch.setattr(commit_writer, "commits_again", lambda *_: ())


@mutant(168)
def a_incarnation_goes_on_after_an_append_that_failed(patch):
    append = GrownWriter._append

    def bravely(self, commits):
        try:
            append(self, commits)
        except CheckpointUnwritable:
            if self._segment is not None:
                self._segment._segment._over = ""
            self._settle(commits)

    patch.setattr(GrownWriter, "_append", bravely)


@mutant(431)
def the_incarnation_of_a_packet_is_not_looked_at(patch):
    take = Received.take

    def any_incarnation(self, packets):
        for data in packets:
            self._incarnation = _decode(data).incarnation
            yield from take(self, [data])

    patch.setattr(Received, "take", any_incarnation)


@mutant(1694)
def nobody_looks_whether_the_incarnation_is_over(patch):
    patch.setattr(IncarnationFence, "check", lambda _: None)


# -- weak productions ------------------------------------------------------------------------------


@mutant(517)
def ids_of_weak_productions_are_those_of_their_commit(patch):
    ids = GrownWriter._ids

    def by_commit(self, spec, bundle, productions):
        productions.causes = None
        return ids(self, spec, bundle, productions)

    patch.setattr(GrownWriter, "_ids", by_commit)


@mutant(210)
def a_mark_does_not_take_along_what_waits_for_it(patch):
    end = GrownWriter.end

    def without(self):
        kept, self.ahead.commits = self.ahead.commits, []
        try:
            return end(self)
        finally:
            self.ahead.commits = kept

    patch.setattr(GrownWriter, "end", without)


@mutant(0, without_faults=True)
def a_row_in_memory_stays_as_it_was_read_first(patch):
    def keep(self, commit, size):
        self._commits.append(commit)
        self.rows = {**dict(commit.mutations), **self.rows}

    patch.setattr(AheadCache, "keep", keep)


@mutant(0, without_faults=True)
def what_waits_is_written_to_its_cache_after_what_follows(patch):
    forward = AheadCache.forward

    def backwards(self, *more):
        self._commits = [
            replace(one, mutations=other.mutations)
            for one, other in zip(self._commits, reversed(self._commits), strict=True)
        ]
        forward(self, *more)

    patch.setattr(AheadCache, "forward", backwards)


@mutant(517)
def a_weak_computation_begins_where_its_readers_had_come(patch):
    floor = TaskNote.floor
    patch.setattr(TaskNote, "floor", lambda self, _: floor(self, ()))


# -- order -----------------------------------------------------------------------------------------


@mutant(608)
def few_rows_reach_sinks_behind_many_that_came_after_them(patch):
    sort = Demultiplexer.sorted

    def few_last(self, packets, marked):
        arrived = sort(self, packets, marked)
        arrived.passing.sort(key=lambda rows: rows.few is not None)
        return arrived

    patch.setattr(Demultiplexer, "sorted", few_last)


# -- low watermarks --------------------------------------------------------------------------------


@mutant(12)
def the_floor_of_low_watermarks_is_not_taken_up(patch):
    made = task_watermarks.TaskWatermarks.__init__

    def without(self, *arguments, floor, **more):
        made(self, *arguments, floor={}, **more)

    patch.setattr(task_watermarks.TaskWatermarks, "__init__", without)


@mutant(1, without_faults=True)
def low_watermarks_are_told_before_the_rows_they_follow(patch):
    leave = IncarnationHost._leave

    def told_first(self, leaving, **more):
        rows = list(leaving)
        if (rows or more.get("through")) and self._outlet is None:
            message = self._watermarks.message()
            yield from self._pipes.send((), message=message, wall_us=self._wall_us)
        yield from leave(self, rows, **more)

    patch.setattr(IncarnationHost, "_leave", told_first)


# -- input -----------------------------------------------------------------------------------------


@mutant(642)
def what_is_decided_is_read_before_it_is_written_down(patch):
    patch.setattr(InjectorTask, "_note_decided", lambda _: None)


@mutant(700)
def a_mark_forgets_what_was_decided_and_not_read(patch):
    start = InjectorTask.start

    def as_the_mark_left_it(self, begun, wall_us):
        sent = start(self, begun, wall_us)
        for stream, places in begun.input.items():
            for name, place in places.items():
                self._reading[stream][name].place = place
        return sent

    patch.setattr(InjectorTask, "start", as_the_mark_left_it)


@mutant(39)
def a_mark_says_how_far_was_read_at_the_one_before(patch):
    pass_mark = InjectorTask._pass_mark

    def passed(self, mark):
        pass_mark(self, mark)
        input = self.outgoing[-1].input
        self._before, before = (
            {stream: dict(of) for stream, of in input.items()},
            getattr(self, "_before", None),
        )
        if before is not None and not mark.last:
            input.update(before)

    patch.setattr(InjectorTask, "_pass_mark", passed)


# -- seals and collection --------------------------------------------------------------------------


@mutant(1498)
def a_seal_takes_for_durable_what_is_there(patch):
    end_of = Incarnations._end_of

    def as_it_is(self, name, size, *, newest):
        end = end_of(self, name, size, newest=newest)
        if end is None or not end.tail:
            return end
        return _End(end.length + len(end.tail), end.last)

    patch.setattr(Incarnations, "_end_of", as_it_is)


@mutant(3)
def a_group_is_not_synced(patch):
    made = LocalAppender.__init__

    def lazily(self, *arguments):
        made(self, *arguments)
        self._sync = lambda _: None

    patch.setattr(LocalAppender, "__init__", lazily)


@mutant(1918)
def a_seal_does_not_fence(patch):
    patch.setattr(Incarnations, "superseded", lambda *_: False)


@mutant(32, without_faults=True)
def parts_are_collected_before_snapshots_cover_them(patch):
    patch.setattr(collection, "removable", lambda segments, _: sorted(segments))


@mutant(33)
def what_a_mark_has_begun_is_not_taken_up(patch):
    recover = RunLog._recover

    def forgetting(self, end, uniform):
        if end.manifest is not None and end.manifest.entry == end.completed:
            end.manifest = None
        recover(self, end, uniform)

    patch.setattr(RunLog, "_recover", forgetting)


# -- the test --------------------------------------------------------------------------------------


@pytest.mark.parametrize("plant", MUTANTS, ids=lambda plant: plant.__name__)
def test_the_simulator_finds(plant, monkeypatch, found):
    plant(monkeypatch)
    seeds = range(5 if plant in HARMFUL else 3)
    harm = any(RealtimeSimulation(seed, calm=True).run().violation for seed in seeds)
    assert harm == (plant in HARMFUL), "without faults it does harm, or none, as noted"
    found(plant, MUTANTS[plant], RealtimeSimulation)
