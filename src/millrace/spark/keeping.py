"""Keeping a run's checkpoint as it is now: what the handle of a run takes, and the mailbox."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Protocol

from millrace.inspect import add_savepoint, savepoints
from millrace.model.errors import NotKept
from millrace.spark.housekeeping import Housekeeping
from millrace.store import location_of
from millrace.windmill.epochs import Epochs


class Kept(Protocol):
    """What a run has of which something is kept."""

    _epochs: Epochs
    _housekeeping: Housekeeping


class Keeping:
    """A run whose checkpoint an operator may keep while it goes on."""

    def savepoint(self, name: str) -> int:
        """Keep the checkpoint as it was after the last completed epoch; return the epoch.

        It is :func:`~millrace.add_savepoint` beside the run, whose collection waits for it; epochs
        go on. Where a run goes on from it: :func:`~millrace.copy_checkpoint`.

        Args:
            name: Letters, digits, ``_``, ``-`` and ``.``; one that there is not yet.

        Raises:
            PipelineError: That cannot be a name.
            CheckpointMismatch: There is one of that name; or the run is in real time, where marks
                do not stop what tasks do: stop it, and start it again after.
            NotKept: No epoch has completed yet.
            CheckpointUnwritable: The savepoint cannot be written; the run goes on.
        """
        return self._keep(name, self._that_runs()._epochs.completed)

    def snapshot(self) -> str:
        """Keep the checkpoint as :meth:`savepoint` does, by its epoch: return ``epoch-41``, say."""
        epochs = self._that_runs()._epochs
        epoch = epochs.completed
        name = f"epoch-{epoch}"
        if name not in savepoints(location_of(epochs.state)):
            self._keep(name, epoch)
        return name

    def _keep(self, name: str, epoch: int) -> int:
        run = self._that_runs()
        if epoch < 0:
            raise NotKept("no epoch has completed yet: there is nothing to keep.")
        with run._housekeeping.held():
            return add_savepoint(location_of(run._epochs.state), name, epoch=epoch)

    def keeping_acts(self) -> Mapping[str, Callable[[str], str]]:
        """Return what can be asked for from outside -> what does it, and says what was kept."""

        def savepoint(name: str) -> str:
            return f"epoch {self.savepoint(name)} is kept as savepoint {name}"

        def snapshot(_: str) -> str:
            return f"the checkpoint is kept as savepoint {self.snapshot()}"

        return {"savepoint": savepoint, "snapshot": snapshot}

    @abstractmethod
    def _that_runs(self) -> Kept:
        """Return the run that took over last."""
