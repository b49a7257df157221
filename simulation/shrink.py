"""Shrinking: from a schedule that fails to one that fails with fewer faults."""

from __future__ import annotations

from simulation.simulation import Simulation
from simulation.world import Outcome, World


def shrink(seed: int, plane: type[World] = Simulation) -> tuple[list[int], Outcome]:
    """Return the numbers of the faults that a failing schedule needs, and what it then comes to.

    Leaves out one fault after the other, as long as something is violated, if not the same thing.

    Args:
        seed: Of a schedule that fails.
        plane: Of which it is one.

    Raises:
        ValueError: The schedule does not fail.
    """
    outcome = plane(seed).run()
    if outcome.violation is None:
        raise ValueError(f"schedule {seed} does not fail")
    kept = list(range(len(outcome.faults)))
    for number in reversed(kept.copy()):
        fewer = [one for one in kept if one != number]
        if plane(seed, keep=fewer).run().violation is not None:
            kept = fewer
    return kept, plane(seed, keep=kept, trace=True).run()
