"""Bugs planted into windows, triggers and what carries them: the simulator finds each of them.

Those of the first part do no harm on a schedule without faults. Those of the second are wrong
whatever happens, so a comparison of two runs would not notice: the definitions do.
"""

import pytest
from greenlet import getcurrent

from millrace.dataflow.columnar.windows import WindowColumns
from millrace.dataflow.grouping import GroupByKeyAndWindow, panes
from millrace.dataflow.grouping.window_state import Merging, WindowRow
from millrace.dataflow.partials.fanout import CombineByPart
from millrace.dataflow.triggers.data import _Threshold
from millrace.dataflow.windows import SlidingWindows
from millrace.kernel import families
from millrace.kernel.execution import Execution
from millrace.kernel.router import RowsBuilder
from millrace.model.pane import Paned, PanedCoder, Timing
from millrace.model.stream import Spread
from millrace.runtime import commit_writer
from millrace.runtime.partials_stage import Lifter
from simulation import Simulation, simulation
from simulation.hosts import _SharedCache

#: Mutant -> the schedule that found it last, to look there first.
WITH_FAULTS = {}
ALWAYS = {}


def harmless_without_faults(first):
    def note(plant):
        WITH_FAULTS[plant] = first
        return plant

    return note


def wrong_by_definition(first):
    def note(plant):
        ALWAYS[plant] = first
        return plant

    return note


def replays(patch, change):
    """Have what a replay sends changed by a function of its result and productions."""
    replay = commit_writer.replay

    def changed(commit, weak):
        result, productions = replay(commit, weak)
        change(result, productions)
        return result, productions

    patch.setattr(commit_writer, "replay", changed)


def keep(productions, kept):
    """Leave only rows for which a function of their value is true."""
    chosen = [n for n, value in enumerate(productions.values) if kept(value)]
    for name in RowsBuilder.__slots__:
        column = getattr(productions, name)
        if column is not None:
            column[:] = [column[n] for n in chosen]


# -- what a replay sends ---------------------------------------------------------------------------


@harmless_without_faults(71)
def parts_of_a_hot_key_are_not_sent_again(patch):
    def forget(result, productions):
        if result.computation.endswith(".parts"):
            productions.truncate(0)

    replays(patch, forget)


@harmless_without_faults(35)
def retractions_are_not_sent_again(patch):
    coder = PanedCoder()

    def forget(result, productions):
        if result.computation == "one":
            keep(productions, lambda value: not _retracts(coder, value))

    replays(patch, forget)


def _retracts(coder, value):
    paned = coder.decode(value)
    return type(paned) is Paned and paned.pane.retraction


@harmless_without_faults(13)
def only_the_last_pane_is_sent_again(patch):
    def forget(result, productions):
        if result.computation == "one" and len(productions) > 1:
            last = productions.values[-1]
            keep(productions, lambda value: value is last)

    replays(patch, forget)


@harmless_without_faults(10)
def weak_productions_are_not_made_again(patch):
    def forget(commit, _weak):
        return replay(commit, RowsBuilder())

    replay = commit_writer.replay
    patch.setattr(commit_writer, "replay", forget)


@harmless_without_faults(329)
def what_is_sent_again_is_combined_a_second_time(patch):
    lifted, replay = Lifter.lifted, commit_writer.replay
    replaying = set()

    def note(*arguments):
        replaying.add(getcurrent())
        return replay(*arguments)

    def twice(self, batch):
        edges = set(self._edges)
        for made in lifted(self, batch):
            yield made
            if getcurrent() in replaying and edges & set(made.column("edge").to_pylist()):
                yield made

    patch.setattr(commit_writer, "replay", note)
    patch.setattr(Lifter, "lifted", twice)


@harmless_without_faults(126)
def a_record_goes_to_another_part_when_a_driver_reads_it_again(patch):
    part_of, start = Spread.part_of, simulation.Simulation.start_driver
    drivers = {}

    def noted(self):
        process = start(self)
        drivers[process.greenlet] = len(self.drivers) - 1
        return process

    def moved(self, encoded, timestamp_us):
        shift = drivers.get(getcurrent(), 0)
        return (part_of(self, encoded, timestamp_us) + shift) % self.parts

    patch.setattr(simulation.Simulation, "start_driver", noted)
    patch.setattr(Spread, "part_of", moved)


# -- what a process remembers, and a commit does not -----------------------------------------------


@harmless_without_faults(205)
def chunks_are_taken_out_before_the_commit(patch):
    execute = Execution.run

    def take_out(self, spec, bundle, *arguments):
        outcome, repaired = execute(self, spec, bundle, *arguments)
        cache = self.caches.open(spec.name, bundle.interval.id)
        if isinstance(cache, _SharedCache):
            shared = cache._host.cache(spec.name, bundle.interval.id)
            for row, value in outcome.mutations.items():
                if row[:1] == families.CHUNKS and value is None:
                    shared._rows.pop(row, None)
        return outcome, repaired

    patch.setattr(Execution, "run", take_out)


@harmless_without_faults(35)
def a_count_is_kept_by_the_process(patch):
    store = _Threshold._store
    sums = {}

    def remember(self, ctx, total):
        where = (id(ctx._call.clocks), str(ctx._call.clocks.key), ctx.window, ctx._node)
        known = sums.get(where)
        if known is not None:
            known += total - ctx.get("sum", 0)
        # The first time, and where windows have merged, the row is believed.
        total = total if known is None else known
        store(self, ctx, total)
        sums[where] = total
        if ctx.triggered:
            del sums[where]

    patch.setattr(_Threshold, "_store", remember)


# -- what a driver knows after a restart -----------------------------------------------------------


# -- the definitions -------------------------------------------------------------------------------


@wrong_by_definition(14)
def sessions_that_merge_keep_the_elements_of_the_first(patch):
    merge = GroupByKeyAndWindow._merge

    def first_only(self, active, whole, old):
        values = [self.windows[known.address].accumulator for known in old]
        address, row, merged = merge(self, active, whole, old)
        row.accumulator = values[0]
        return address, row, merged

    patch.setattr(GroupByKeyAndWindow, "_merge", first_only)


@wrong_by_definition(9)
def sessions_that_touch_become_one(patch):
    with_window = Merging.with_window

    def touching(self, active, window):
        wider = type(window)(window.start, window.end + 1)
        return with_window(self, active, wider if self.overlapping else window)

    patch.setattr(Merging, "with_window", touching)


@wrong_by_definition(66)
def a_trigger_that_starts_over_keeps_what_it_had(patch):
    def keep_state(self, node):
        self.timers = [timer for timer in self.timers if timer.node != node]

    patch.setattr(WindowRow, "forget", keep_state)


@wrong_by_definition(5)
def a_pane_is_not_taken_back(patch):
    patch.setattr(GroupByKeyAndWindow, "_retract", lambda *_: None)


@wrong_by_definition(5)
def a_pane_is_taken_back_twice(patch):
    retract = GroupByKeyAndWindow._retract

    def twice(self, emitted, fire):
        retract(self, emitted, fire)
        retract(self, emitted, fire)

    patch.setattr(GroupByKeyAndWindow, "_retract", twice)


@wrong_by_definition(35)
def panes_are_numbered_from_the_beginning_again(patch):
    emit = GroupByKeyAndWindow._emit

    def restart(self, row, fire, **how):
        emit(self, row, fire, **how)
        row.panes %= 2

    patch.setattr(GroupByKeyAndWindow, "_emit", restart)


@wrong_by_definition(34)
def every_pane_after_the_end_says_that_it_is_the_last(patch):
    made = panes.Pane

    def last(window, index, timing, first, is_last, *rest):
        return made(window, index, timing, first, is_last or timing is not Timing.EARLY, *rest)

    patch.setattr(panes, "Pane", last)


@wrong_by_definition(24)
def a_window_takes_no_late_elements_though_it_may(patch):
    found = GroupByKeyAndWindow._found

    def strict(self, window):
        if window.end is not None and window.end <= self.low_watermark:
            return None
        return found(self, window)

    patch.setattr(GroupByKeyAndWindow, "_found", strict)


@wrong_by_definition(28)
def a_window_that_is_over_takes_elements(patch):
    found = GroupByKeyAndWindow._found

    def lax(self, window):
        lateness, self._lateness_us = self._lateness_us, 1 << 60
        try:
            return found(self, window)
        finally:
            self._lateness_us = lateness

    patch.setattr(GroupByKeyAndWindow, "_found", lax)


@wrong_by_definition(81)
def discarding_panes_have_what_was_before(patch):
    emit = GroupByKeyAndWindow._emit

    def keep_all(self, row, fire, **how):
        before = row.accumulator
        emit(self, row, fire, **how)
        if self._discarding and row.panes > 1:
            row.accumulator = before

    patch.setattr(GroupByKeyAndWindow, "_emit", keep_all)


@wrong_by_definition(72)
def chunks_stay_when_their_window_has_fired(patch):
    run = WindowColumns.run

    def stay(self, bundle):
        done = run(self, bundle)
        done.removed = []
        return done

    patch.setattr(WindowColumns, "run", stay)


@wrong_by_definition(24)
def an_element_misses_the_oldest_of_its_windows(patch):
    assign = SlidingWindows.assign
    patch.setattr(SlidingWindows, "assign", lambda self, record: list(assign(self, record))[1:])


@wrong_by_definition(34)
def a_part_sends_its_last_window_only(patch):
    process = CombineByPart.process_timer

    def last_only(self, timer):
        self.partials.set(dict(list(self.partials.get({}).items())[-1:]))
        process(self, timer)

    patch.setattr(CombineByPart, "process_timer", last_only)


# -- the tests -------------------------------------------------------------------------------------


@pytest.mark.parametrize("plant", WITH_FAULTS, ids=lambda plant: plant.__name__)
def test_the_simulator_finds(plant, monkeypatch, found):
    plant(monkeypatch)
    for seed in range(3):
        calm = Simulation(seed, calm=True).run().violation
        assert calm is None, "without faults it must do no harm"
    found(plant, WITH_FAULTS[plant])


@pytest.mark.parametrize("plant", ALWAYS, ids=lambda plant: plant.__name__)
def test_the_definitions_find(plant, monkeypatch):
    plant(monkeypatch)
    violation = Simulation(ALWAYS[plant], calm=True).run().violation
    assert violation is not None, "nothing was noticed"
    assert violation.startswith("Wrong"), violation
