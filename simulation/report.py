"""Reports: what an engineer reads of one failing schedule, and of ten thousand that do not fail.

A schedule that fails is shrunk to one that fails with fewer faults.
"""

from __future__ import annotations

import importlib.metadata
import platform
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from millrace.model.distribution import DISTRIBUTION
from simulation.faults import Fault, Kind
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


_LINES = 80
_LIBRARIES = (DISTRIBUTION, "greenlet", "lmdb", "msgspec", "numpy", "sortedcontainers", "xxhash")


@dataclass
class Summary:
    """Many schedules.

    Attributes:
        schedules: How many.
        seeds: The first and the last.
        steps: Of all together.
        epochs: Completed.
        drivers: Started.
        incarnations: Begun, on the real-time plane.
        happened: Kind of fault -> how often it happened.
        failed: Seeds of the schedules that failed.
    """

    schedules: int = 0
    seeds: tuple[int, int] | None = None
    steps: int = 0
    epochs: int = 0
    drivers: int = 0
    incarnations: int = 0
    happened: Counter[Kind] = field(default_factory=Counter)
    failed: list[int] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        """Count one more."""
        self.schedules += 1
        first, last = self.seeds or (outcome.seed, outcome.seed)
        self.seeds = min(first, outcome.seed), max(last, outcome.seed)
        self.steps += outcome.steps
        self.epochs += outcome.epochs
        self.drivers += outcome.drivers
        self.incarnations += outcome.incarnations
        self.happened.update(outcome.happened)
        if outcome.violation is not None:
            self.failed.append(outcome.seed)

    def _kinds(self) -> list[tuple[Kind, int]]:
        return [(kind, self.happened[kind]) for kind in Kind if self.happened[kind]]

    def text(self, seconds: float) -> str:
        """Return the summary as text.

        Args:
            seconds: How long it took.
        """
        first, last = self.seeds or (0, 0)
        lines = [
            f"schedules   {self.schedules}, seeds {first} to {last}",
            f"failed      {len(self.failed)}" + (f": {self.failed[:20]}" if self.failed else ""),
            f"epochs      {self.epochs}",
            f"drivers     {self.drivers}",
            *([f"incarnations {self.incarnations}"] if self.incarnations else []),
            f"steps       {self.steps}",
            f"faults      {self.happened.total()}",
            *(f"  {kind.name.lower():14}{count:7}  {kind.value}" for kind, count in self._kinds()),
            f"time        {seconds:.0f} s",
            f"versions    {versions()}",
        ]
        return "\n".join(lines)


def versions() -> str:
    """Return the versions of what took part."""
    known = []
    for name in _LIBRARIES:
        try:
            known.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            known.append(f"{name} not installed")
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return f"{python} on {platform.system()} {platform.machine()}, {', '.join(known)}"


def fault_lines(faults: Sequence[Fault], keep: Sequence[int] | None = None) -> str:
    """Return a plan as text, a line a fault."""
    return "\n".join(
        f"  {n}  from step {fault.at}: {_fault_line(fault)}"
        for n, fault in enumerate(faults)
        if keep is None or n in keep
    )


def _fault_line(fault: Fault) -> str:
    text = f"{fault.kind.name}, {fault.kind.value}"
    if fault.call:
        text += f" (at the next {fault.call})"
    if fault.then is not None:
        text += f"; {fault.then.at} steps after that: {_fault_line(fault.then)}"
    return text


def failure(seed: int, plane: type[World] = Simulation) -> str:
    """Return what there is to know of a schedule that fails, with the fewest faults.

    Args:
        seed: Its number.
        plane: Of which it is one.
    """
    again = "python -m simulation"
    if plane.plane != Simulation.plane:
        again += f" --plane {plane.plane}"
    kept, outcome = shrink(seed, plane)
    numbers = ",".join(map(str, kept))
    trace = outcome.trace[-_LINES:]
    return "\n".join(
        [
            f"schedule {seed} is violated: {outcome.violation}",
            f"with {len(kept)} of its {len(outcome.faults)} faults:",
            fault_lines(outcome.faults, kept),
            f"the last {len(trace)} of {len(outcome.trace)} lines of its trace:",
            *trace,
            "again, with all lines:",
            f"  {again} --seed {seed} --keep '{numbers}' --trace",
        ]
    )
