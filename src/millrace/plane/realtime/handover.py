"""The handover of a checkpoint between live tasks and tasks that end with their epoch.

It is possible where nothing is under way: where the last epoch that was begun is complete.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from millrace.model.errors import CheckpointMismatch, ZombieWriter
from millrace.windmill.epochs import Epochs
from millrace.windmill.manifest import LiveMark


class Publishing(Protocol):
    """A sink, as the driver knows it: see :class:`~millrace.plane.task_sinks.TaskSink`."""

    def publish(self, epoch: int, receipts: list[bytes]) -> None:
        """Make seen what tasks wrote in an epoch, unless it is."""
        ...


def from_live_tasks(epochs: Epochs, sinks: Mapping[int, Publishing]) -> None:
    """Take a checkpoint over that live tasks may have left; it is claimed already.

    Args:
        epochs: Of the run that takes it over, whose tasks end with their epochs.
        sinks: Edge to a sink -> what publishes what tasks have written to it.

    Raises:
        CheckpointMismatch: They were not stopped, and left something under way.
        ZombieWriter: Another run takes it over.
    """
    if epochs.open is not None and epochs.open.live:
        raise CheckpointMismatch(
            f"epoch {epochs.open.epoch} of this checkpoint was begun in real time, and is "
            "unfinished: that run failed, or was killed. Start it with realtime=True again, and "
            "stop it with run.stop(); after that either plane can go on."
        )
    if epochs.live is None:
        return
    journals = epochs.state.journals
    if journals.seal(journals.last() + 1) is None:
        raise ZombieWriter(
            "zombie writer: another run has taken this checkpoint over, and goes on with it. This "
            "one must stop. Nothing was lost."
        )
    publish(epochs.completed, epochs.live, sinks)


def to_live_tasks(epochs: Epochs) -> None:
    """Refuse a checkpoint that live tasks cannot take over.

    Raises:
        CheckpointMismatch: An epoch is under way, or nobody knows how far the input was read.
    """
    if epochs.open is not None and not epochs.open.live:
        raise CheckpointMismatch(
            f"epoch {epochs.open.epoch} of this checkpoint is unfinished: its run failed, or was "
            "killed. Start it without realtime=True again, and stop it with run.stop(); after that "
            "either plane can go on."
        )
    read = {stream for stream, count in epochs.observed.injected.items() if count}
    if unknown := sorted(read - epochs.places.keys()):
        raise CheckpointMismatch(
            f"streams {unknown} were read by Spark's own sources, or by an earlier version of "
            "Millrace, so that how far they were read is not in this checkpoint, and realtime=True "
            "cannot go on from there. If their sources are injectors, run one epoch with this "
            "version first; if they are Spark's, start with a new checkpoint."
        )


def publish(epoch: int, left: LiveMark, sinks: Mapping[int, Publishing]) -> None:
    """Publish what the receipts of a mark say; again, if that is not known."""
    for edge, receipts in left.receipts.items():
        if edge in sinks:  # a sink may have been taken off since
            sinks[edge].publish(epoch, receipts)
