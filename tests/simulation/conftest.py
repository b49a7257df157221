"""What tests of planted bugs share: a search for the first schedule that finds one."""

from collections.abc import Callable

import pytest

from simulation import Simulation
from simulation.workload import TURN
from simulation.world import World

#: A mutant must be found within so many schedules.
SCHEDULES = 2_500


@pytest.fixture
def found(record_property) -> Callable[..., None]:
    """Fail unless a bug that is planted is found, looking first where it was found last."""

    def search(planted: Callable[..., None], first: int, plane: type[World] = Simulation) -> None:
        turn = first // TURN * TURN  # whose programs are of one kind
        seeds = (*range(first, turn + SCHEDULES), *range(turn, first))
        violations = ((seed, plane(seed).run().violation) for seed in seeds)
        seed, violation = next(((seed, why) for seed, why in violations if why), (None, None))
        assert seed is not None, f"{planted.__name__} passed {SCHEDULES} schedules"
        # Of a signature that has changed since, and no harm of what is planted.
        assert "TypeError" not in violation, violation
        record_property("seed", seed)

    return search
