"""A simulation in which the program is changed while it runs, on the epoch plane.

Versions are deployed one after the other. A driver that starts takes the newest that the checkpoint
takes, so an epoch that was begun under an older one is finished by that; a driver at work hands
over to a newer one between two epochs, or goes on and does not know of it. Whatever happens
meanwhile, one of them must be able to go on.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

from millrace.compile.topology import Topology
from millrace.epochlog.entries import Claim
from millrace.epochlog.run_log import RunLog
from millrace.model.errors import CheckpointMismatch
from millrace.store import HardState
from simulation import workload
from simulation.program import Ends
from simulation.scheduler import Process
from simulation.simulation import Simulation
from simulation.versions import Versions, version_of
from simulation.world import CLAIM_ENTRIES


class ChangingSimulation(Simulation):
    """A world of the epoch plane, with versions of the program.

    >>> print(ChangingSimulation(1).run().violation)
    None
    """

    plane = "changes"

    def _workload(self, random: Random) -> workload.Workload:
        self._versions = Versions(random, Ends())
        count = len(self._versions.topologies)
        self._deployed_with = sorted(random.randint(1, 9) for _ in range(count - 1))
        self._handed_over = set[Process]()
        return workload.filled(random, self._versions, records=(25, 45), per_batch=(3, 7))

    def open_run_log(self, state: HardState) -> RunLog:
        """Claim the checkpoint for the newest version that it takes."""
        newest, began = self._newest(), state.epochs.last()
        refused: CheckpointMismatch | None = None
        for number in range(newest, -1, -1):
            try:
                return RunLog(
                    self._versions.topologies[number],
                    state,
                    intervals=self.work.intervals,
                    claim_entries=CLAIM_ENTRIES,
                )
            except CheckpointMismatch as error:
                self.note(self.scheduler.current, f"version {number} is refused")
                refused = refused or error
        if newest < self._newest() or began < state.epochs.last():
            # Others ran meanwhile: each version was refused at another moment. Whoever started it
            # starts it again.
            return self.open_run_log(state)
        assert refused is not None, "there is a version"
        raise refused

    def hands_over(self, topology: Topology) -> bool:
        """Return whether the driver at hand ends for a newer version, which is started then."""
        if version_of(topology.streams) == self._newest() or self.random.random() < 0.5:
            return False
        assert self.scheduler.current is not None, "a driver is at hand"
        self._handed_over.add(self.scheduler.current)
        self.start_driver()
        return True

    def version(self, claim: Claim) -> Topology:
        """Return the topology of which a claim is."""
        computations = claim.topology["computations"].values()
        streams: Iterable[str] = (name for one in computations for name in one["outputs"])
        return self._versions.topologies[version_of(streams)]

    def _processed_by(self, process: Process) -> bool:
        return super()._processed_by(process) and process not in self._handed_over

    def _newest(self) -> int:
        """Return which version is deployed."""
        batch = max(self.query_log.offsets, default=-1)
        return sum(batch >= first for first in self._deployed_with)
