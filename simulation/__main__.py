"""``python -m simulation``: replay one schedule, or run many."""

from __future__ import annotations

import os
import random
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import click

from simulation.changes import ChangingSimulation
from simulation.realtime import RealtimeRemapping, RealtimeSimulation
from simulation.remaps import RemappingSimulation, RemappingVersions
from simulation.report import Summary, failure, fault_lines
from simulation.simulation import Simulation, run_all
from simulation.world import World

PLANES: dict[str, type[World]] = {
    world.plane: world
    for world in (
        Simulation,
        ChangingSimulation,
        RemappingSimulation,
        RemappingVersions,
        RealtimeSimulation,
        RealtimeRemapping,
    )
}
#: Schedules that a process is given at a time.
_LOT = 10
#: First seeds are drawn below this one.
_SEEDS = 10**9


@click.command()
@click.option("--seed", type=int, help="Replay this schedule.")
@click.option("--keep", help="Of its faults only these, such as 0,3; '' for none.")
@click.option("--trace", is_flag=True, help="Print every step.")
@click.option("--schedules", type=int, default=1000, show_default=True, help="Run so many.")
@click.option("--first", type=int, help="Seed of the first; by default one that is drawn anew.")
@click.option("--minutes", type=float, help="Stop after so long, however many are left.")
@click.option(
    "--plane", type=click.Choice([*PLANES]), default="epochs", show_default=True, help="Of which."
)
@click.option("--processes", type=int, default=os.cpu_count() or 1, show_default=True)
def main(
    seed: int | None,
    keep: str | None,
    trace: bool,
    schedules: int,
    first: int | None,
    minutes: float | None,
    plane: str,
    processes: int,
) -> None:
    """Run the kernel, the store and the driver's part on simulated machines that fail."""
    if seed is not None:
        kept = None if keep is None else [int(n) for n in keep.split(",") if n]
        sys.exit(_replay(PLANES[plane], seed, kept, trace=trace))
    if first is None:
        first = random.SystemRandom().randrange(_SEEDS)
    click.echo(
        f"seeds from {first} on; again: python -m simulation --plane {plane} "
        f"--schedules {schedules} --first {first}"
    )
    sys.exit(_run(PLANES[plane], first, schedules, minutes, processes))


def _replay(plane: type[World], seed: int, keep: list[int] | None, *, trace: bool) -> int:
    outcome = plane(seed, keep=keep, trace=trace).run()
    for line in outcome.trace:
        click.echo(line)
    click.echo(f"schedule {seed}: {outcome.steps} steps, {outcome.epochs} epochs, faults:")
    click.echo(fault_lines(outcome.faults, keep))
    click.echo(outcome.violation or "nothing is violated")
    return int(outcome.violation is not None)


def _run(
    plane: type[World], first: int, schedules: int, minutes: float | None, processes: int
) -> int:
    started = time.monotonic()
    summary = Summary()
    lots = [
        range(start, min(start + _LOT, first + schedules))
        for start in range(first, first + schedules, _LOT)
    ]
    with ProcessPoolExecutor(processes) as pool:
        # As many at a time as there are processes, so that time that has run out is noticed.
        for n in range(0, len(lots), processes):
            for outcomes in pool.map(partial(run_all, plane=plane), lots[n : n + processes]):
                for outcome in outcomes:
                    summary.add(outcome)
                    if outcome.violation is not None:
                        click.echo(failure(outcome.seed, plane))
            if minutes is not None and time.monotonic() - started > minutes * 60:
                break
    click.echo(summary.text(time.monotonic() - started))
    return int(bool(summary.failed))


if __name__ == "__main__":
    main()
