"""Seeded schedules of the real-time plane: whatever happens, the pieces fit together."""

import pytest

from millrace.testing.simulation.realtime import RealtimeSimulation


@pytest.mark.parametrize("seed", range(20))
def test_without_faults_all_is_as_defined(seed):
    outcome = RealtimeSimulation(seed, calm=True).run()
    assert outcome.violation is None
    assert outcome.epochs > 0
