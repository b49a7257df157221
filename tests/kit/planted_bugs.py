"""Planted bugs that both planes must find, with the seeds of the schedules that found them last."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from simulation import Simulation
from simulation.realtime import RealtimeSimulation
from simulation.world import World

#: Patches the code that is tested.
Plant = Callable[[pytest.MonkeyPatch], None]
PLANES: dict[str, type[World]] = {"epochs": Simulation, "realtime": RealtimeSimulation}


class PlantedBugs:
    """The planted bugs of one module.

    Attributes:
        seeds: Bug -> the seeds that found it last, one for each of :data:`PLANES`; None: the bug is
            not sought on that plane.
    """

    def __init__(self) -> None:
        self.seeds: dict[Plant, tuple[int | None, int | None]] = {}

    def found_by(self, epochs: int | None, realtime: int | None) -> Callable[[Plant], Plant]:
        """Return a decorator that adds a bug with its seeds."""

        def add(plant: Plant) -> Plant:
            self.seeds[plant] = epochs, realtime
            return plant

        return add

    @property
    def on_each_plane(self) -> pytest.MarkDecorator:
        """The mark of a test of each bug on each plane, with ``plant``, ``plane`` and ``seed``."""
        return pytest.mark.parametrize(
            ("plant", "plane", "seed"),
            [
                pytest.param(plant, plane, seeds[n], id=f"{plant.__name__}-{name}")
                for n, (name, plane) in enumerate(PLANES.items())
                for plant, seeds in self.seeds.items()
                if seeds[n] is not None
            ],
        )
