"""What tests of planted bugs share: a search for the first schedule that finds one."""

from collections.abc import Callable

import pytest

from millrace.testing.simulation import Simulation

#: A mutant must be found within so many schedules.
SCHEDULES = 2_500


@pytest.fixture
def found(record_property) -> Callable[[Callable[..., None], int], None]:
    """Fail unless a bug that is planted is found, looking first where it was found last."""

    def search(planted: Callable[..., None], first: int) -> None:
        seeds = (*range(first, SCHEDULES), *range(first))
        seed = next((seed for seed in seeds if Simulation(seed).run().violation), None)
        assert seed is not None, f"{planted.__name__} passed {SCHEDULES} schedules"
        record_property("seed", seed)

    return search
