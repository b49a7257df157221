"""Seeded schedules: the outcome is as if nothing had happened, or its pieces fit together."""

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor

import pytest

from millrace.testing.simulation import Simulation, run_all
from millrace.testing.simulation.changing import ChangingSimulation
from millrace.testing.simulation.realtime import RealtimeRemapping, RealtimeSimulation
from millrace.testing.simulation.remapping import RemappingSimulation, RemappingVersions
from millrace.testing.simulation.report import failure
from millrace.testing.simulation.workload import TURN

LOT = 25
LOTS = [
    *((Simulation, first) for first in (*range(0, 275, LOT), *range(TURN, TURN + 100, LOT))),
    *((Simulation, first) for first in range(2 * TURN, 2 * TURN + 50, LOT)),
    *((ChangingSimulation, first) for first in range(0, 50, LOT)),
    *((RemappingSimulation, first) for first in range(0, 50, LOT)),
    *((RemappingVersions, first) for first in (75, 150)),
    *((RealtimeRemapping, first) for first in range(0, 50, LOT)),
    *((RealtimeSimulation, first) for first in (*range(0, 200, LOT), *range(TURN, TURN + 50, LOT))),
    *((RealtimeSimulation, first) for first in range(2 * TURN, 2 * TURN + 50, LOT)),
]


@pytest.fixture(scope="module")
def outcomes():
    """By its plane and first schedule, each lot's outcomes to come: every core works on them."""
    # Not forked: this process has threads.
    spawning = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(os.cpu_count(), mp_context=spawning) as pool:
        yield {
            (plane, first): pool.submit(run_all, range(first, first + LOT), plane)
            for plane, first in LOTS
        }
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize(("plane", "first"), LOTS)
def test_faults_change_nothing(plane, first, outcomes):
    for outcome in outcomes[plane, first].result():
        if outcome.violation is not None:
            pytest.fail(failure(outcome.seed, plane), pytrace=False)


@pytest.mark.parametrize("seed", range(5))
def test_without_faults_live_tasks_do_what_is_defined(seed):
    outcome = RealtimeSimulation(seed, calm=True).run()
    assert outcome.violation is None
    assert outcome.epochs > 0
    assert outcome.drivers == 2
