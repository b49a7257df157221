"""The fence between an attempt at an epoch and the collection of what that epoch committed.

The name of a segment is free when nobody has taken it, and again when the segment has been
collected. An attempt that was left behind would win it then, with bytes that nobody has seen.
But commits of an epoch are collected after its completion only, and entries of the epoch log from
the lowest up. So who has put its commits, and finds the epoch still open, put them before any of
them could be collected: it won fairly.

Source: MillWheel 6.2, sequencers: "to ensure that no zombie writers can cause havoc".
"""

from __future__ import annotations

from dataclasses import dataclass

from millrace.epochlog.entries import Claim, Manifest, decode_entry
from millrace.model.errors import CheckpointMismatch, DamagedStore, ZombieWriter
from millrace.store import EpochLog, Incarnations


def refuse_superseded(log: EpochLog, manifest: Manifest) -> None:
    """Raise ZombieWriter if the manifest's epoch is over.

    Called after an attempt's commits are durable, before anything of them leaves or is cached. Two
    looks at the log where the epoch is open; a claim after the manifest does not end its epoch.
    """
    number = manifest.entry + 1
    while (data := log.read(number)) is not None:
        if not isinstance(decode_entry(data), Claim):
            raise left_behind(manifest)
        number += 1
    # In this order: an entry is removed after those before it, so if the manifest is still there,
    # what was not found after it was not collected, but never written.
    if not log.exists(manifest.entry):
        if log.last() < manifest.entry:  # the last entry stays where others are collected
            raise DamagedStore(
                f"entry {manifest.entry} of the epoch log, and all after it, are gone. Was the "
                "checkpoint removed under a running pipeline, or is its directory not mounted?"
            )
        raise left_behind(manifest)


@dataclass(frozen=True, slots=True)
class EpochFence:
    """The fence of an epoch: whether it is open still.

    Attributes:
        log: The epoch log.
        manifest: Of the epoch.
    """

    log: EpochLog
    manifest: Manifest

    def check(self) -> None:
        """Return if the epoch is open."""
        refuse_superseded(self.log, self.manifest)


@dataclass(frozen=True, slots=True)
class IncarnationFence:
    """The fence of an incarnation: whether a newer one has begun.

    Attributes:
        incarnations: That are sealed.
        incarnation: This one's number.
    """

    incarnations: Incarnations
    incarnation: int

    def check(self) -> None:
        """Return if this is the last incarnation.

        Raises:
            ZombieWriter: It is not.
        """
        if self.incarnations.superseded(self.incarnation):
            raise ZombieWriter(
                f"zombie writer: incarnation {self.incarnation} is over, and another has begun. "
                "This task was left behind, and must stop. Nothing was lost."
            )


def seal_left(incarnations: Incarnations) -> int:
    """Seal what live tasks that are over have left; return the incarnation that does.

    Their commits are among the others then. Who calls it has claimed the checkpoint.

    Raises:
        ZombieWriter: Another run begins an incarnation, or does the same.
    """
    incarnation = incarnations.last() + 1
    if incarnations.seal(incarnation) is None:
        raise ZombieWriter(
            "zombie writer: another run has taken this checkpoint over, and goes on with it. This "
            "one must stop. Nothing was lost."
        )
    return incarnation


def left_behind(manifest: Manifest) -> ZombieWriter:
    """Return the error of an attempt at an epoch that is over."""
    return ZombieWriter(
        f"zombie writer: epoch {manifest.epoch} (generation {manifest.generation}) is complete, "
        "and this attempt at it has only now come to its end. It was left behind, and must stop. "
        "Nothing was lost."
    )


def superseded_run(generation: int | None = None) -> ZombieWriter:
    """Return the error of a run after which a newer one has claimed the checkpoint.

    Args:
        generation: Of the run; None if it has none yet.
    """
    known = "" if generation is None else f"this run has generation {generation}, but "
    return ZombieWriter(
        f"zombie writer: {known}a newer run has claimed the "
        "checkpoint since and goes on with it. This one must stop. Nothing was lost. Two runs on "
        "one checkpoint: was the earlier one thought to be dead?"
    )


def out_of_step(epoch: int, unfinished: Manifest | None, completed: int) -> CheckpointMismatch:
    """Return the error of a run that is asked for another epoch than the next.

    A run that slept while another went on is told that first: it is not to complain of its offsets.
    """
    return CheckpointMismatch(
        f"epoch {epoch} was asked for, but "
        + (
            f"epoch {unfinished.epoch} is unfinished. "
            if unfinished is not None
            else f"epoch {completed} was the last to complete. "
        )
        + "Spark's offsets and Millrace's state have come apart: was one of their directories "
        "deleted or restored without the other? Restore both from one copy, or start with a new "
        "checkpoint."
    )
