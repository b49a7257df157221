"""Seeded schedules: whatever happens, the outcome is as if nothing had."""

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor

import pytest

from millrace.testing.simulation import run_all
from millrace.testing.simulation.report import failure

LOTS = range(0, 500, 25)


@pytest.fixture(scope="module")
def outcomes():
    """By its first schedule, each lot's outcomes to come: every core works on them."""
    # Not forked: this process has threads.
    spawning = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(os.cpu_count(), mp_context=spawning) as pool:
        yield {first: pool.submit(run_all, range(first, first + LOTS.step)) for first in LOTS}
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("first", LOTS)
def test_faults_change_nothing(first, outcomes):
    for outcome in outcomes[first].result():
        if outcome.violation is not None:
            pytest.fail(failure(outcome.seed), pytrace=False)
