"""Keeping a run's checkpoint as it is now: what the handle of a run takes, and the mailbox."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import NamedTuple

from millrace.inspect import add_savepoint, check_savepoint, savepoints
from millrace.model.errors import NotKept
from millrace.spark.housekeeping import Housekeeping
from millrace.store import location_of
from millrace.windmill.epochs import Epochs


class Kept(NamedTuple):
    """What was kept.

    Attributes:
        name: Of the savepoint.
        epoch: After which the checkpoint was so.
        pause: How long the run stood still for it, in words; "" if it did not.
    """

    name: str
    epoch: int
    pause: str = ""

    def __str__(self) -> str:
        said = f"epoch {self.epoch} is kept as savepoint {self.name}"
        return f"{said}; the run stood still for {self.pause}" if self.pause else said


class Keeping:
    """A run whose checkpoint an operator may keep while it goes on.

    Attributes:
        _epochs: Of the run.
        _housekeeping: Its collection.
    """

    _epochs: Epochs
    _housekeeping: Housekeeping

    def savepoint(self, name: str) -> int:
        """Keep the checkpoint as it was after the last completed epoch; return the epoch.

        It is :func:`~millrace.add_savepoint` beside the run, whose collection waits for it; epochs
        go on. In real time all tasks wait at a mark for about a tenth of a second, and the copy is
        made beside them. Where a run goes on from it:
        :func:`~millrace.copy_checkpoint`.

        Args:
            name: Letters, digits, ``_``, ``-`` and ``.``; one that there is not yet.

        Raises:
            PipelineError: That cannot be a name.
            CheckpointMismatch: There is one of that name.
            NotKept: No epoch has completed yet.
            CheckpointUnwritable: The savepoint cannot be written; the run goes on.
        """
        return self._that_runs()._keep_as(name).epoch

    def snapshot(self) -> str:
        """Keep the checkpoint as :meth:`savepoint` does, by its epoch: return ``epoch-41``, say."""
        return self._that_runs()._keep_as(None).name

    def _keep_as(self, name: str | None) -> Kept:
        """Keep the checkpoint under a name; None for that of its epoch."""
        checkpoint = location_of(self._epochs.state)
        if name is not None:
            check_savepoint(checkpoint, name)
        with self._housekeeping.held():
            epoch, pause = self._with_nothing_under_way()
            if epoch < 0:
                raise NotKept("no epoch has completed yet: there is nothing to keep.")
            kept = Kept(name or f"epoch-{epoch}", epoch, pause)
            if name is not None or kept.name not in savepoints(checkpoint):
                add_savepoint(checkpoint, kept.name, epoch=epoch)
        return kept

    def _with_nothing_under_way(self) -> tuple[int, str]:
        """Return an epoch beyond which nothing was done when it completed, and the pause."""
        return self._epochs.completed, ""

    def keeping_acts(self) -> Mapping[str, Callable[[str], str]]:
        """Return what can be asked for from outside -> what does it, and says what was kept."""

        def savepoint(name: str) -> str:
            return str(self._keep_as(name))

        def snapshot(_: str) -> str:
            return str(self._keep_as(None))

        return {"savepoint": savepoint, "snapshot": snapshot}

    @abstractmethod
    def _that_runs(self) -> Keeping:
        """Return the run that took over last."""
