"""Bugs planted into the remap of key intervals that are at work: an oracle finds each.

Those of ``LIVE`` are found in schedules of the real-time plane, where tasks rest for a remap.
"""

import dataclasses
from itertools import chain

import pytest
from msgspec.structs import replace

from millrace.balance import transfer
from millrace.balance.preparation import Preparation
from millrace.epochlog.entries import decode_manifest, encode_entry
from millrace.epochlog.run_log import RunLog
from millrace.kernel import families, timer_families
from millrace.runtime.realtime import incarnation_start
from millrace.runtime.realtime.coordinator import Coordinator
from millrace.runtime.realtime.host import IncarnationHost
from millrace.runtime.realtime.injector_task import InjectorTask
from millrace.store import MemoryCache
from millrace.store.cache import CachePosition
from millrace.watermark.report import NOTHING_PENDING
from simulation.realtime import RealtimeRemapping
from simulation.realtime.query import Query
from simulation.remaps import RemappingSimulation

#: Mutant -> where it was found last, and whether without any fault.
PLANTED = {}


def found_at(seed, *, calm):
    def note(plant):
        PLANTED[plant] = seed, calm
        return plant

    return note


@found_at(1, calm=True)
def a_child_forgets_its_holds(patch):
    of_range = transfer.of_range
    holds = {timer_families.HOLDS, timer_families.HOLD_BY_KEY}

    def without_holds(*of):
        return (pair for pair in of_range(*of) if pair[0][:1] not in holds)

    patch.setattr(transfer, "of_range", without_holds)


@found_at(16, calm=True)
def ids_go_with_the_other_half(patch):
    of_range = transfer.of_range
    ids = {families.IDS, families.IDS_BY_COMMIT, families.IDS_BY_EXPIRY}

    def of_sister(pairs, start, end, cut):
        had = list(pairs)
        yield from (pair for pair in of_range(had, start, end, cut) if pair[0][:1] not in ids)
        for other in ((0, start), (end, 1 << 64)):
            if other[0] < other[1]:
                there = of_range(had, *other, cut)
                yield from (pair for pair in there if pair[0][:1] in ids)

    patch.setattr(transfer, "of_range", of_sister)


@found_at(6, calm=True)
def a_merge_has_the_timers_of_one_parent(patch):
    together = transfer.together
    timers = {timer_families.TIMERS, timer_families.TIMER_BY_TAG}

    def of_the_first(parts):
        first, *others = map(list, parts)
        left = ([pair for pair in other if pair[0][:1] not in timers] for other in others)
        return together([first, *left])

    patch.setattr(transfer, "together", of_the_first)


@found_at(1, calm=True)
def a_child_reports_nothing_before_it_has_worked(patch):
    remade = transfer.remade

    def silent(*of):
        made = remade(*of)
        return made and dataclasses.replace(made, report=NOTHING_PENDING)

    patch.setattr(transfer, "remade", silent)


@found_at(2, calm=True)
def the_next_epoch_has_the_map_of_before(patch):
    remapped = RunLog._remapped

    def only_known(self, completion, made):
        before = self._partitions
        remapped(self, completion, made)
        self._partitions = before

    patch.setattr(RunLog, "_remapped", only_known)


@found_at(105, calm=False)
def ids_are_given_that_another_driver_had_reserved(patch):
    def above_the_map(ids, name, intervals):
        return 1 + max(one.id for one in intervals.intervals)

    patch.setattr(transfer, "first_id", above_the_map)


@found_at(938, calm=False)
def a_remap_is_begun_without_a_claim(patch):
    replace_maps = RunLog.replace_maps

    def unclaimed(self, *of, **how):
        self._claim = lambda: None
        try:
            return replace_maps(self, *of, **how)
        finally:
            del self._claim

    patch.setattr(RunLog, "replace_maps", unclaimed)


@found_at(696, calm=False)
def what_is_being_made_is_collected(patch):
    collectable = RunLog.collectable

    def of_all_ids(self):
        settled, self._settled_ids = self._settled_ids, self._ids
        try:
            return collectable(self)
        finally:
            self._settled_ids = settled

    patch.setattr(RunLog, "collectable", of_all_ids)


@found_at(1, calm=True)
def what_is_committed_after_it_was_read_is_not_applied(patch):
    rows_at = transfer.rows_at

    def as_prepared(state, name, ready=None):
        read = rows_at(state, name)

        def rows(interval, number, last):
            if not ready or interval.id not in ready:
                return read(interval, number, last)
            with ready.pop(interval.id).view() as view:
                return list(chain.from_iterable(view.everything()))

        return rows

    patch.setattr(transfer, "rows_at", as_prepared)


@found_at(1, calm=True)
def a_remap_says_where_intervals_stood_when_they_were_read(patch):
    is_near, all_carried = Preparation.is_near, transfer.all_carried
    noted = {}

    def noting(self):
        near = is_near(self)
        if not near:
            noted[id(self.ready)] = self._run_log.current_completion()
        return near

    def of_then(whole, made, state, ready=None):
        said = noted.pop(id(ready), None)
        if said is not None and whole.epoch > said.epoch:
            whole = said
        return all_carried(whole, made, state, ready)

    patch.setattr(Preparation, "is_near", noting)
    patch.setattr(transfer, "all_carried", of_then)


@found_at(25, calm=False)
def what_an_older_generation_has_read_is_taken_for_what_it_should_be(patch):
    draw_from, read = RemappingSimulation._draw_from, Preparation._read
    known = {}

    def of_a_world(self, *of, **how):
        known.clear()
        draw_from(self, *of, **how)

    def reading(self, state, name, interval, number, chain):
        older = known.get((name, interval))
        if older is not None and older[0] < self._run_log.generation:
            self.ready[name][interval] = cache = older[1]
            cache._cache_position = CachePosition(number, chain)
        read(self, state, name, interval, number, chain)
        if interval in self.ready[name]:
            copy, cache = MemoryCache(name, interval), self.ready[name][interval]
            with cache.view() as view:
                copy.load(cache.position, cache.cache_position.chain, view.everything())
            known[name, interval] = self._run_log.generation, copy

    patch.setattr(RemappingSimulation, "_draw_from", of_a_world)
    patch.setattr(Preparation, "_read", reading)


def live_tasks_go_on_from_the_mark_of_a_remap(patch):
    complete, marked = Coordinator._complete, Coordinator._marked

    def not_the_last(self, wall_us):
        orders = marked(self, wall_us)
        if orders and self._resting and self._ending is None:
            self._incarnation.mark.last = False
        return orders

    def as_if_it_were(self, incarnation, wall_us):
        orders = complete(self, incarnation, wall_us)
        self.ended = self.ended or (self._resting and self._ending is None)
        return orders

    patch.setattr(transfer, "check_between", lambda *_, **__: None)
    patch.setattr(Coordinator, "_marked", not_the_last)
    patch.setattr(Coordinator, "_complete", as_if_it_were)


def what_live_tasks_left_is_not_sealed(patch):
    patch.setattr(incarnation_start, "seal_left", lambda incarnations: incarnations.last())


def a_remap_forgets_what_live_tasks_left(patch):
    current_completion = RunLog.current_completion

    def unknown(self):
        said = current_completion(self)
        return replace(said, live=replace(said.live, notes={}))

    patch.setattr(RunLog, "current_completion", unknown)


def a_remap_forgets_how_far_injectors_were_read(patch):
    current_completion = RunLog.current_completion
    patch.setattr(
        RunLog,
        "current_completion",
        lambda self: replace(current_completion(self), source_offsets={}),
    )


def with_the_map_of_the_incarnation_before(patch, kind):
    made, start = Query.made, kind.start
    known = {}

    def of_its_process(self, runtime, where):
        task = made(self, runtime, where)
        task.process = runtime
        return task

    def as_before(self, said, wall_us):
        manifest = decode_manifest(said.manifest)
        maps = known.setdefault(self.process, manifest.intervals)
        if maps != manifest.intervals:
            said = replace(said, manifest=encode_entry(replace(manifest, intervals=maps)))
        return start(self, said, wall_us)

    patch.setattr(Query, "made", of_its_process)
    patch.setattr(kind, "start", as_before)


def a_level_task_goes_on_with_the_map_of_the_incarnation_before(patch):
    with_the_map_of_the_incarnation_before(patch, IncarnationHost)


def an_injector_task_goes_on_with_the_map_of_the_incarnation_before(patch):
    with_the_map_of_the_incarnation_before(patch, InjectorTask)


#: As above, in real time.
LIVE = {
    a_level_task_goes_on_with_the_map_of_the_incarnation_before: (0, True),
    an_injector_task_goes_on_with_the_map_of_the_incarnation_before: (28, False),
    a_child_forgets_its_holds: (4, True),
    ids_go_with_the_other_half: (16, True),
    a_merge_has_the_timers_of_one_parent: (89, True),
    a_child_reports_nothing_before_it_has_worked: (0, True),
    the_next_epoch_has_the_map_of_before: (0, True),
    what_is_committed_after_it_was_read_is_not_applied: (12, False),
    what_live_tasks_left_is_not_sealed: (0, True),
    live_tasks_go_on_from_the_mark_of_a_remap: (0, True),
    a_remap_forgets_what_live_tasks_left: (0, True),
    a_remap_forgets_how_far_injectors_were_read: (0, True),
}
CASES = [
    *((RemappingSimulation, plant, *found) for plant, found in PLANTED.items()),
    *((RealtimeRemapping, plant, *found) for plant, found in LIVE.items()),
]


@pytest.mark.parametrize(
    ("world", "plant", "first", "calm"),
    CASES,
    ids=[f"{plant.__name__}-{world.plane}" for world, plant, *_ in CASES],
)
def test_the_simulator_finds(world, plant, first, calm, monkeypatch, found):
    assert world(first, calm=True).run().violation is None
    plant(monkeypatch)
    assert (world(first, calm=True).run().violation is not None) == calm
    found(plant, first, world)
