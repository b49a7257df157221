"""Storage: where a schedule's checkpoint is, on a disk or in an object store, by real code."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Protocol

from millrace.model.time import SECOND
from millrace.store import BucketOptions, BucketUrl, HardState, LocalHardState, ObjectHardState
from millrace.store.object_blobs import ObjectBlobs
from simulation import disk
from simulation.bucket import Ask, SimulatedBucket
from simulation.disk import SimulatedDisk
from simulation.scheduler import Turns

#: Where the checkpoint is; drivers make the path to it.
_ROOT = Path("/data/checkpoint")
_URL = BucketUrl("s3", "data", "checkpoint")
#: How many requests are made of one before it is given up.
_TRIES = 5
_PAUSE_S = 10


class Storage(Protocol):
    """Keeps a checkpoint."""

    def create_or_open(self, pipeline: str) -> HardState:
        """Open the checkpoint as a driver does."""
        ...

    def open(self) -> HardState:
        """Open it as a worker does."""
        ...

    def collected(self, entry: int) -> bytes | None:
        """Return what an entry of the epoch log held that was collected."""
        ...

    def cut_power(self) -> int:
        """Lose what is not durable, or not all of it; return how much that was."""
        ...

    def settle(self) -> None:
        """Let happen what is under way."""
        ...


class OnDisk:
    """A checkpoint on a simulated disk.

    Args:
        random: Decides what a power cut leaves.
        ask: Called before each system call.
        turns: Makes the locks of what processes share, as threads of one do.
    """

    def __init__(self, random: Random, ask: disk.Ask, turns: Callable[[], Turns]) -> None:
        self._disk = SimulatedDisk(random, ask)
        self._turns = turns

    def create_or_open(self, pipeline: str) -> HardState:
        """Open the checkpoint as a driver does."""
        state = LocalHardState.create_or_open(_ROOT, pipeline=pipeline, disk=self._disk)
        state.incarnations.turns, state.blobs.turns = self._turns(), self._turns
        return state

    def open(self) -> HardState:
        """Open it as a worker does."""
        return LocalHardState.open(_ROOT, disk=self._disk)

    def collected(self, entry: int) -> bytes | None:
        """Return what an entry held that was collected."""
        return self._disk.removed.get(_ROOT / "epochs" / f"{entry:010d}.json")

    def cut_power(self) -> int:
        """Lose names and bytes that were not synced, or not all of them."""
        return self._disk.cut_power()

    def settle(self) -> None:
        """Do nothing: a system call that returns is over."""


class InBucket:
    """A checkpoint in a simulated object store.

    Args:
        ask: Called before each request, and before a client waits to make one again.
        turns: Makes the locks of what processes share, as threads of one do.
    """

    def __init__(self, ask: Ask, turns: Callable[[], Turns]) -> None:
        self._ask = ask
        self._turns = turns
        self._bucket = SimulatedBucket(ask)

    def create_or_open(self, pipeline: str) -> HardState:
        """Open the checkpoint as a driver does."""
        state = ObjectHardState.create_or_open(self._client(), pipeline=pipeline)
        state.incarnations.turns = self._turns()
        return state

    def open(self) -> HardState:
        """Open it as a worker does."""
        return ObjectHardState.open(self._client())

    def collected(self, entry: int) -> bytes | None:
        """Return what an entry held that was collected."""
        return self._bucket.removed.get(f"epochs/{entry:010d}.json")

    def cut_power(self) -> int:
        """Lose nothing: what was answered is kept, and what was not may be there or not."""
        return 0

    def settle(self) -> None:
        """Let requests take effect that were delayed."""
        self._bucket.settle()

    def _client(self) -> ObjectBlobs:
        """Return the client of a process; its clock moves by its pauses alone."""
        now = [0.0]

        def sleep(_: float) -> None:
            self._ask("wait", "to try again")
            now[0] += _PAUSE_S

        options = BucketOptions(retry_for_us=(_TRIES * _PAUSE_S - 5) * SECOND, requests=1)
        return ObjectBlobs(
            _URL,
            options,
            store=self._bucket,
            clock=lambda: now[0],
            sleep=sleep,
            turns=self._turns,
        )
