"""Simulation: whole pipelines, unchanged, on machines that fail as a seed says.

One number makes a schedule: the pipeline (:mod:`.computations`, :mod:`.groupings`, :mod:`.tables`)
and its input, on how many machines, which process runs when, and what goes wrong.
:class:`Simulation` runs one, and compares its outcome with that of a run in which nothing goes
wrong (:mod:`.oracle`), and with what windows, triggers and modes are by definition
(:mod:`.definitions`)::

    python -m simulation --seed 17 --trace
    python -m simulation --schedules 10000

What is real: the stages and the driver's part of an epoch (:mod:`millrace.runtime`),
:class:`~millrace.kernel.execution.Execution` and its machines,
:class:`~millrace.epochlog.run_log.RunLog`, the injectors' publisher, all of
:class:`~millrace.store.LocalHardState` down to its system calls, and all of
:class:`~millrace.store.ObjectHardState` down to its requests. What is not: the disk and the bucket
under these (:mod:`.disk`, :mod:`.bucket`), the caches (:mod:`.hosts`), and Spark (:mod:`.spark`,
:mod:`.driver`).

After FoundationDB's simulation, TigerBeetle's VOPR and sled's tests. It stands beside the package,
and is not installed with it: run it from a clone, after ``make setup``.
"""

from simulation.faults import Fault, Kind
from simulation.report import shrink
from simulation.simulation import Simulation, run_all
from simulation.world import Outcome

__all__ = ["Fault", "Kind", "Outcome", "Simulation", "run_all", "shrink"]
