"""A thousand seeded schedules: whatever happens, the outcome is as if nothing had."""

import pytest

from millrace.testing.simulation import Simulation
from millrace.testing.simulation.report import failure

LOT = 50


@pytest.mark.parametrize("first", range(0, 1000, LOT))
def test_faults_change_nothing(first):
    for seed in range(first, first + LOT):
        if Simulation(seed).run().violation is not None:
            pytest.fail(failure(seed), pytrace=False)
