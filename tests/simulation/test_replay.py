"""A seed is all that it takes to see a schedule again."""

import json
import os
import subprocess
import sys
from itertools import groupby
from random import Random

import pytest

import simulation
from millrace.epochlog.run_log import RunLog
from millrace.runtime import commit_writer
from simulation import Simulation, shrink
from simulation.__main__ import PLANES
from simulation.faults import OF_REAL_TIME
from simulation.report import Summary, failure
from simulation.scheduler import Scheduler, Turns

COMMAND = [sys.executable, "-m", "simulation"]


def command(*arguments, **environment):
    return subprocess.run(
        [*COMMAND, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | environment,
    )


def test_a_seed_replays_step_by_step_whatever_the_hashes_of_strings():
    other = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    lines = command("--seed", "5", "--trace", PYTHONHASHSEED=other).stdout.splitlines()
    outcome = Simulation(5, trace=True).run()
    assert lines[: len(outcome.trace)] == outcome.trace
    assert len(lines) == len(outcome.trace) + len(outcome.faults) + 2


#: Those of which there are traces.
SEEDS = (*range(3), 100_000)


@pytest.fixture(scope="module")
def traces():
    """The traces of some seeds on each plane, from two processes with other hashes of strings."""
    script = (
        "import json\n"
        "from simulation.__main__ import PLANES\n"
        f"seeds = {SEEDS}\n"
        "print(json.dumps({name: [plane(seed, trace=True).run().trace for seed in seeds] "
        "for name, plane in PLANES.items()}))"
    )
    return [
        json.loads(
            subprocess.run(
                [sys.executable, "-c", script],
                capture_output=True,
                check=True,
                timeout=300,
                env=os.environ | {"PYTHONHASHSEED": n},
            ).stdout
        )
        for n in ("1", "2")
    ]


@pytest.mark.parametrize("plane", PLANES)
def test_no_plane_depends_on_the_hashes_of_strings(plane, traces):
    assert sum(map(len, traces[0][plane])) > 1_000
    assert traces[0][plane] == traces[1][plane]


def test_of_those_that_share_a_lock_one_goes_on_and_may_take_it_again():
    did = []
    scheduler = Scheduler(Random(3), stickiness=0.0, on_step=lambda *_: None, on_end=lambda _: None)
    turns = Turns(scheduler)

    def work(name):
        with turns, turns:
            for _ in range(5):
                scheduler.step("work")
                did.append(name)
            if name == "killed":
                scheduler.kill(scheduler.current)
                scheduler.step("die")

    for name in ("one", "killed", "two"):
        scheduler.spawn(name, 0, lambda name=name: work(name))
    scheduler.run(lambda: not scheduler.processes)
    assert len(did) == 15
    assert [len([*same]) for _, same in groupby(did)] == [5, 5, 5]


def test_seeds_differ(traces):
    assert len(set(map(tuple, traces[0][Simulation.plane]))) == len(SEEDS)
    assert len({tuple(Simulation(seed).faults) for seed in SEEDS}) == len(SEEDS)


def test_every_kind_of_fault_happens():
    summary, kinds, ran = Summary(), set(simulation.Kind) - OF_REAL_TIME, []
    for seed in range(100):
        schedule = Simulation(seed)
        if any(planned(fault) - set(summary.happened) for fault in schedule.faults):
            summary.add(schedule.run())
            ran.append(seed)
        if set(summary.happened) == kinds:
            break
    assert set(summary.happened) == kinds
    assert summary.seeds == (ran[0], ran[-1])
    assert summary.drivers > 1.5 * len(ran)
    assert f"seeds {ran[0]} to {ran[-1]}" in summary.text(1.0)


def planned(fault):
    """Return the kinds of a fault and of those that follow it."""
    return {fault.kind} if fault.then is None else {fault.kind} | planned(fault.then)


def test_a_calm_run_has_one_driver_and_one_more_that_finds_nothing_to_do():
    outcome = Simulation(0, calm=True).run()
    assert (outcome.violation, outcome.drivers, outcome.faults) == (None, 2, [])


def test_a_failure_is_shrunk_to_the_faults_it_needs_and_told_with_its_seed(monkeypatch):
    replay = commit_writer.replay

    def forget(commit, attempt, mine):
        result, productions = replay(commit, attempt, mine)
        productions.truncate(0)
        return result, productions

    monkeypatch.setattr(commit_writer, "replay", forget)
    # Few faults, as each is left out in turn; and none that has drivers start until the end.
    outcomes = (Simulation(s).run() for s in range(100) if 3 < len(Simulation(s).faults) < 7)
    seed = next(o.seed for o in outcomes if o.violation and "no end" not in o.violation)
    kept, outcome = shrink(seed)
    assert len(kept) < len(outcome.faults)
    assert outcome.violation is not None
    for number in kept:
        fewer = [one for one in kept if one != number]
        assert Simulation(seed, keep=fewer).run().violation is None
    told = failure(seed)
    assert outcome.violation in told
    assert f"--seed {seed} --keep '{','.join(map(str, kept))}' --trace" in told
    assert outcome.trace[-1] in told


def test_a_schedule_that_passes_is_not_shrunk():
    with pytest.raises(ValueError, match="does not fail"):
        shrink(1)


def test_an_unexpected_end_of_a_process_is_a_violation(monkeypatch):
    def broken(*_, **__):
        raise ZeroDivisionError("nobody expects this")

    monkeypatch.setattr(RunLog, "complete", broken)
    assert "nobody expects this" in Simulation(0, calm=True).run().violation


def test_many_schedules_from_the_command_line():
    done = command("--schedules", "6", "--first", "40", "--processes", "2")
    assert done.returncode == 0, done.stderr
    assert "schedules   6, seeds 40 to 45" in done.stdout
    assert "failed      0" in done.stdout


def test_each_run_begins_at_another_seed_and_prints_how_it_is_run_again():
    ran = [command("--schedules", "1", "--processes", "1", "--plane", "changes") for _ in "ab"]
    lines = [done.stdout.splitlines() for done in ran]
    again = [of_one[0].partition("again: python -m simulation ") for of_one in lines]
    assert again[0] != again[1]
    repeated = command(*again[0][2].split(), "--processes", "1").stdout.splitlines()
    assert [line for line in repeated if "time" not in line] == [
        line for line in lines[0] if "time" not in line
    ]
    assert again[0][2].startswith("--plane changes --schedules 1 --first ")


def test_the_command_line_stops_when_its_time_is_over():
    done = command(
        "--schedules", "100000", "--first", "0", "--minutes", "0", "--processes", "1"
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "schedules   10, seeds 0 to 9" in done.stdout
