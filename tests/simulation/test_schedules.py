"""Seeded schedules: the outcome is as if nothing had happened, or its pieces fit together."""

import pytest

from simulation import Simulation, run_all
from simulation.changes import ChangingSimulation
from simulation.realtime import RealtimeRemapping, RealtimeSimulation
from simulation.remaps import RemappingSimulation, RemappingVersions
from simulation.report import failure
from simulation.workload import TURN

#: Schedules by plane, from a first seed on: all of them, and those with ``--fast``.
SCHEDULES = [
    (Simulation, 0, 175, 30),
    (Simulation, TURN, 75, 15),
    (Simulation, 2 * TURN, 50, 15),
    (Simulation, 3 * TURN, 20, 10),
    (Simulation, 4 * TURN, 10, 5),
    (Simulation, 5 * TURN, 15, 5),
    (Simulation, 6 * TURN, 5, 5),
    (ChangingSimulation, 0, 15, 4),
    (RemappingSimulation, 0, 15, 4),
    (RemappingVersions, 75, 10, 3),
    (RemappingVersions, 150, 5, 0),
    (RealtimeRemapping, 0, 15, 4),
    (RealtimeSimulation, 0, 125, 25),
    (RealtimeSimulation, TURN, 50, 10),
    (RealtimeSimulation, 2 * TURN, 25, 10),
    (RealtimeSimulation, 3 * TURN, 25, 10),
    (RealtimeSimulation, 4 * TURN, 15, 5),
    (RealtimeSimulation, 5 * TURN, 15, 5),
    (RealtimeSimulation, 6 * TURN, 10, 5),
]

#: So many are one test.
LOT = 5


def pytest_generate_tests(metafunc):
    if "lot" not in metafunc.fixturenames:
        return
    lots = [
        (plane, range(start, min(start + LOT, first + (few if fast else many))))
        for fast in [metafunc.config.getoption("fast")]
        for plane, first, many, few in SCHEDULES
        for start in range(first, first + (few if fast else many), LOT)
    ]
    ids = [f"{plane.__name__}-{lot[0]}" for plane, lot in lots]
    metafunc.parametrize(("plane", "lot"), lots, ids=ids)


def test_faults_change_nothing(plane, lot):
    for outcome in run_all(lot, plane):
        if outcome.violation is not None:
            pytest.fail(failure(outcome.seed, plane), pytrace=False)


@pytest.mark.parametrize("seed", range(5))
def test_without_faults_live_tasks_do_what_is_defined(seed):
    outcome = RealtimeSimulation(seed, calm=True).run()
    assert outcome.violation is None
    assert outcome.epochs > 0
    assert outcome.drivers == 2
