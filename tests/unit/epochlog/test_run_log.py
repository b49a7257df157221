"""Epochs: claim, begin, complete, recover, and the fence between drivers."""

import pytest

import millrace as mr
from millrace.epochlog.entries import SourceStats
from millrace.epochlog.reader import end_of
from millrace.epochlog.run_log import RunLog
from millrace.kernel.bundle import Position
from millrace.kernel.results import Counters, IntervalResult
from millrace.model.errors import CheckpointMismatch, ZombieWriter
from millrace.store import MemoryHardState
from millrace.watermark.report import Report


class Count(mr.Computation):
    inputs = {"events": mr.by("key")}
    outputs = {"counts": int}
    n = mr.ValueState(int)

    def process_record(self, record):
        pass


def topology(*computations, format=dict):
    p = mr.Pipeline("p")
    p.inject("events", format=format)
    for computation in computations or (Count,):
        p.add(computation)
    return p.build()


def open_epochs(state, *computations, **options):
    return RunLog(topology(*computations, **options), state, intervals=2)


def result(number, *, interval=0, records=1, **report):
    counters = Counters(records=records)
    return IntervalResult("Count", interval, number, Report(**report), counters)


@pytest.fixture
def state():
    return MemoryHardState()


@pytest.fixture
def epochs(state):
    return open_epochs(state)


def begin(epochs, epoch=0, *, wall_time_us=0, watermark=0, **options):
    return epochs.begin(
        epoch, wall_time_us=wall_time_us, injectors={"events": watermark}, **options
    )


def whole(epochs, epoch, *results, sources=None, **options):
    """Begin and complete an epoch."""
    return epochs.complete(begin(epochs, epoch, **options), results, sources or {})


def test_a_new_checkpoint_is_claimed_by_generation_one(epochs, state):
    assert epochs.generation == 1
    assert epochs.completed == -1
    assert epochs.open is None
    assert state.epochs.last() == 1


def test_a_manifest_is_durable_when_begin_returns(epochs, state):
    begin(epochs)

    assert state.epochs.last() == 2


def test_every_new_run_raises_the_generation(state):
    assert [open_epochs(state).generation for _ in range(3)] == [1, 2, 3]


def test_of_two_runs_of_one_pipeline_that_start_at_once_one_goes_on(state):
    """Their claims say the same but for their owners."""
    end = end_of(state.epochs)
    first = RunLog(topology(), state, intervals=2, end=end)
    with pytest.raises(ZombieWriter):
        RunLog(topology(), state, intervals=2, end=end)
    begin(first)


def test_a_begun_epoch_is_begun_again_with_the_manifest_it_had(epochs):
    first = begin(epochs, wall_time_us=10, watermark=5)

    assert begin(epochs, wall_time_us=99, watermark=77) == first


def test_a_begun_epoch_is_found_by_the_next_run_with_the_manifest_it_had(epochs, state):
    first = begin(epochs, wall_time_us=10, watermark=5)
    recovered = open_epochs(state)

    assert recovered.open == first
    assert begin(recovered, wall_time_us=99, watermark=77) == first


def test_a_completed_epoch_is_not_begun_again(epochs, state):
    whole(epochs, 0)

    assert begin(epochs, 0) is None
    assert begin(open_epochs(state), 0) is None


def test_a_completed_epoch_leaves_none_open(epochs, state):
    whole(epochs, 0)

    assert epochs.open is None
    assert open_epochs(state).open is None


@pytest.mark.parametrize("wrong", [1, 2, 7])
def test_an_epoch_out_of_turn_is_refused_before_anything_is_written(epochs, state, wrong):
    with pytest.raises(CheckpointMismatch, match=f"epoch {wrong} was asked for"):
        begin(epochs, wrong)

    assert state.epochs.last() == 1


def test_an_epoch_beside_an_unfinished_one_is_refused(epochs):
    begin(epochs, 0)

    with pytest.raises(CheckpointMismatch, match="epoch 0 is unfinished"):
        begin(epochs, 1)


def test_a_second_claim_makes_the_first_drivers_next_manifest_a_zombies(epochs, state):
    open_epochs(state)

    with pytest.raises(ZombieWriter, match="generation 1"):
        begin(epochs)


def test_a_run_that_slept_while_another_went_on_is_a_zombie_whatever_batch_spark_gives_it(
    epochs, state
):
    begin(epochs, 0)
    newer = open_epochs(state)
    for epoch in range(3):
        whole(newer, epoch)
    with pytest.raises(ZombieWriter, match="generation 1"):
        begin(epochs, 3)


def test_a_start_during_which_another_run_collects_the_log_reads_it_again(state):
    """Found by the simulator, seed 4773: it told the user to restore a copy."""
    running = RunLog(topology(), state, intervals=2, claim_entries=3)
    begin(running, 0)
    read = state.epochs.read

    def slowly(number):
        state.epochs.read = read
        data = read(number)
        running.complete(running.open, [])
        for epoch in (1, 2):
            whole(running, epoch)
        assert state.epochs.remove_before(running.collectable().first_entry) > 2
        return data

    state.epochs.read = slowly
    started = open_epochs(state)
    assert (started.completed, started.generation) == (2, 2)


def test_a_second_claim_makes_the_first_drivers_completion_a_zombies(epochs, state):
    manifest = begin(epochs)
    open_epochs(state)

    with pytest.raises(ZombieWriter):
        epochs.complete(manifest, ())


def test_two_drivers_take_turns_at_most_once(state):
    """Whatever the order in which they wake, only the newest goes on."""
    drivers = [open_epochs(state) for _ in range(3)]

    for zombie in drivers[:2]:
        with pytest.raises(ZombieWriter):
            begin(zombie)
    assert begin(drivers[2]) is not None


def test_of_two_drivers_that_claim_at_once_one_is_a_zombie(state):
    append = state.epochs.append

    def beaten(number, entry):
        state.epochs.append = append
        open_epochs(state)
        return append(number, entry)

    state.epochs.append = beaten
    with pytest.raises(ZombieWriter):
        open_epochs(state)


def test_the_clock_never_moves_back(epochs, state):
    whole(epochs, 0, wall_time_us=100)

    assert begin(epochs, 1, wall_time_us=50).wall_time_us == 100
    assert open_epochs(state).open.wall_time_us == 100


def test_the_clock_never_moves_back_over_a_restart(epochs, state):
    whole(epochs, 0, wall_time_us=100)

    assert begin(open_epochs(state), 1, wall_time_us=50).wall_time_us == 100


def test_an_injectors_watermark_never_moves_back(epochs, state):
    whole(epochs, 0, watermark=100)

    assert begin(epochs, 1, watermark=50).injectors == {"events": 100}


def test_an_injector_that_says_nothing_holds_its_last_watermark(epochs):
    whole(epochs, 0, watermark=100)

    assert epochs.begin(1, wall_time_us=0, injectors={}).injectors == {"events": 100}


def test_draining_takes_every_injector_to_the_end_of_time(epochs, state):
    completion = whole(epochs, 0, draining=True)

    assert completion.drained
    assert completion.after.inputs == {"Count": mr.MAX_TIMESTAMP}
    assert open_epochs(state).drained


def test_what_an_epoch_left_is_what_the_next_run_finds(epochs, state):
    seen = {"events": SourceStats(7, 3, 1)}
    whole(
        epochs,
        0,
        result(1, low_watermark_timer_us=50, records=3),
        result(0, interval=1, records=2),
        sources=seen,
        watermark=20,
    )
    recovered = open_epochs(state)
    manifest = begin(recovered, 1, watermark=0)

    assert recovered.completed == 0
    assert recovered.sources == seen
    assert recovered.counters["Count"].records == 5
    assert recovered.positions.numbers == {"Count": {0: 1}}
    assert recovered.positions.of("Count", 0).report == Report(low_watermark_timer_us=50)
    assert manifest.before.inputs == {"Count": 20}
    assert manifest.injectors == {"events": 20}


def test_an_interval_that_is_missing_in_the_results_is_as_it_was(epochs):
    whole(epochs, 0, result(1, hold_us=9), result(4, interval=1))
    whole(epochs, 1, result(2, hold_us=30))
    assert epochs.positions.of("Count", 0) == Position(2, 0, Report(hold_us=30))
    assert epochs.positions.of("Count", 1) == Position(4, 0, Report())


def test_the_interval_map_of_a_checkpoint_outlives_other_settings(epochs, state):
    whole(epochs, 0)
    recovered = RunLog(topology(), state, intervals=16)

    assert len(begin(recovered, 1).interval_map("Count")) == 2


def test_an_open_epoch_keeps_its_interval_map_under_other_settings(epochs, state):
    begin(epochs)
    recovered = RunLog(topology(), state, intervals=16)
    whole_map = recovered.open.interval_map("Count")
    recovered.complete(recovered.open, ())

    assert len(whole_map) == 2
    assert begin(recovered, 1).interval_map("Count") == whole_map


# -- the topology that a checkpoint depends on -----------------------------------------------------


class Renamed(Count):
    pass


class OtherState(Count):
    n = mr.ValueState(str)


class OtherKey(Count):
    inputs = {"events": mr.by("user")}


@pytest.mark.parametrize(
    ("computations", "named"),
    [
        ((Renamed,), "Renamed"),
        ((OtherState,), "state 'n': was int, is str now"),
        ((OtherKey,), "input 'events', key: was .*key.*user"),
    ],
    ids=lambda given: "" if isinstance(given, str) else given[-1].__name__,
)
def test_a_changed_topology_is_refused_with_what_differs(epochs, state, computations, named):
    p = mr.Pipeline("p")
    p.inject("events", format=dict)
    for n, computation in enumerate(computations):
        keeps_name = n == 0 and computation is not Renamed
        p.add(computation, name="Count" if keeps_name else None)

    with pytest.raises(CheckpointMismatch, match=named):
        RunLog(p.build(), state, intervals=2)
    assert state.epochs.last() == 1


def test_a_topology_that_lost_a_computation_is_refused(state):
    open_epochs(state, Count, Renamed)

    with pytest.raises(CheckpointMismatch, match="'Renamed': in the checkpoint, gone"):
        open_epochs(state, Count)
    assert state.epochs.last() == 1


def test_after_a_refusal_the_right_pipeline_still_runs(epochs, state):
    whole(epochs, 0)
    with pytest.raises(CheckpointMismatch):
        open_epochs(state, Renamed)

    assert begin(epochs, 1) is not None


def test_a_claim_after_an_end_that_was_looked_at_is_refused_if_the_log_has_gone_on(state):
    before = open_epochs(state)
    whole(before, 0)
    end = end_of(state.epochs)
    other = open_epochs(state)
    with pytest.raises(ZombieWriter):
        RunLog(topology(), state, intervals=2, end=end)
    assert other.superseded() is None, "nothing was written"
    heir = RunLog(topology(), state, intervals=2, end=end_of(state.epochs))
    assert (heir.generation, heir.completed) == (3, 0)
    assert other.superseded() is not None
