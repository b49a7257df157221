"""The handover of a checkpoint: from live tasks to tasks that end with their epoch, and back.

It is possible where nothing is under way: where the last epoch that was begun is complete. There
live tasks also hand over to others, of other key intervals.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from millrace.model.errors import CheckpointMismatch
from millrace.watermark.map_change import Remap, Remapped
from millrace.windmill.carrying import Grouping, Ready, same
from millrace.windmill.epochs import Epochs
from millrace.windmill.fence import seal_left


class Publishing(Protocol):
    """A sink, as the driver knows it: see :class:`~millrace.plane.task_sinks.TaskSink`."""

    def publish(self, epoch: int, receipts: list[bytes]) -> None:
        """Make seen what tasks wrote in an epoch."""
        ...


def from_live_tasks(epochs: Epochs, sinks: Mapping[int, Any]) -> None:
    """Take a checkpoint over that live tasks may have left; it is claimed already.

    Args:
        epochs: Of the run that takes it over, whose tasks end with their epochs.
        sinks: Edge to a sink -> the sink.

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
    journals = epochs.state.journals
    if epochs.live is None:
        epochs.session = journals.last()
        return
    epochs.session = seal_left(journals)
    publish_again(epochs, sinks)


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
    read = {stream for stream, stats in epochs.sources.items() if stats.records}
    if unknown := sorted(read - epochs.places.keys()):
        raise CheckpointMismatch(
            f"streams {unknown} were read by Spark's own sources, so that how far they were read "
            "is not in this checkpoint, and realtime=True cannot go on from there. Start with a "
            "new checkpoint."
        )


def to_other_intervals(
    epochs: Epochs,
    remaps: Mapping[str, Iterable[Remap]],
    *,
    ready: Ready | None = None,
    grouped: Grouping = same,
) -> dict[str, Remapped]:
    """Split and merge key intervals while all tasks have stopped at a mark; return the maps.

    Args:
        epochs: Of the run, which goes on.
        remaps: Computation -> what changes.
        grouped: How intervals are grouped into tasks then.
        ready: What was read before: see :mod:`millrace.windmill.preparing`.

    Raises:
        PipelineError: That cannot be, or not now; nothing was written.
        CheckpointMismatch: Intervals that are to be one differ in what is of all keys.
        ZombieWriter: Another run takes the checkpoint over.
    """
    if (superseded := epochs.superseded()) is not None:
        raise superseded
    seal_left(epochs.state.journals)
    return epochs.remap(remaps, grouped=grouped, ready=ready)


def lasting(
    receipts: Mapping[int, list[bytes]], sinks: Mapping[int, Publishing]
) -> dict[int, list[bytes]]:
    """Return the receipts that belong into a completion: for output that outlives the driver.

    What of it is seen must be what the completion says, and of no mark that was given up. So it is
    published after that, and again by who finds a completion whose driver has perhaps not.
    """
    return {edge: of for edge, of in receipts.items() if hasattr(sinks[edge], "publish_again")}


def publish_again(epochs: Epochs, sinks: Mapping[int, Any]) -> None:
    """Publish what the receipts of the last mark say: its driver has perhaps not come to it.

    What went to a sink that the pipeline has no more stays as it is.
    """
    for edge, receipts in ({} if epochs.live is None else epochs.live.receipts).items():
        if edge in sinks:
            sinks[edge].publish_again(epochs.completed, receipts)
