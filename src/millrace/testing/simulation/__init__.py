"""Simulation: kernel, store and epochs, unchanged, on machines that fail as a seed says.

One number makes a schedule: what is processed, on how many machines, which process runs when, and
what goes wrong. :class:`Simulation` runs one and compares its outcome with that of a run in which
nothing goes wrong::

    python -m millrace.testing.simulation --seed 17 --trace
    python -m millrace.testing.simulation --schedules 10000

What is real: the stages and the driver's part of an epoch (:mod:`millrace.plane`),
:class:`~millrace.windmill.worker.Worker` and its machines,
:class:`~millrace.windmill.epochs.Epochs`, the injectors' publisher, and all of
:class:`~millrace.store.LocalHardState` down to its system calls. What is not: the disk under these
(:mod:`.disk`), the caches (:mod:`.hosts`), and Spark (:mod:`.spark`, :mod:`.driver`).

After FoundationDB's simulation, TigerBeetle's VOPR and sled's tests. It needs ``greenlet``:
``pip install 'millrace[simulation]'``.
"""

from millrace.testing.simulation.faults import Fault, Kind
from millrace.testing.simulation.shrink import shrink
from millrace.testing.simulation.simulation import Outcome, Simulation, run_all

__all__ = ["Fault", "Kind", "Outcome", "Simulation", "run_all", "shrink"]
