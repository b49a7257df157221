"""Splitting and merging key intervals: what the handle of a run takes, and the mailbox.

Source: MillWheel, "Architecture" (7.1).
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from millrace.watermark.remap import Merge, Split

_log = logging.getLogger("millrace")


class Remaps(msgspec.Struct, frozen=True):
    """What a request from outside is about.

    Attributes:
        computation: As the pipeline calls it.
        splits: Interval ids, and the lowest hash of the second part of each; None for the middle.
        merges: Interval ids, the lower one first.
    """

    computation: str
    splits: list[tuple[int, int | None]] = []
    merges: list[tuple[int, int]] = []

    def asked(self) -> list[Split | Merge]:
        """Return the remaps."""
        return [Split(*one) for one in self.splits] + [Merge(*one) for one in self.merges]


class Remade(NamedTuple):
    """What became of a remap.

    Attributes:
        intervals: How many the computation has now.
        epoch: After which it took effect.
        pause: How long the run stood still for it, in words; "" if no longer than it took.
    """

    intervals: int
    epoch: int
    pause: str = ""


class Remappable:
    """A run whose key intervals may be split and merged."""

    def remap(self, computation: str, remaps: Sequence[Split | Merge]) -> int:
        """Split and merge key intervals of a computation, between two epochs; return how many.

        The rows of the intervals are read while the run goes on, and it waits while what was
        committed since is applied, and all is written. What the intervals keep goes with their
        keys: cells, timers, holds, ids, windows; no low watermark moves. Who they are:
        ``mr.open_checkpoint(path)[computation].intervals``. In real time all tasks wait at a mark
        for it, and go on: the run stands still for some tenths of a second.

        Args:
            computation: As the pipeline calls it.
            remaps: :class:`~millrace.Split` and :class:`~millrace.Merge`; no interval is in two.

        Returns:
            How many key intervals the computation has now.

        Raises:
            PipelineError: There is no such computation or interval, another remap took one while
                rows were read, no epoch has completed yet, or the run has ended; nothing has
                changed.
            CheckpointMismatch: Intervals that are to be one differ in what they keep for all keys.

        Source: MillWheel, "Architecture" (7.1); docs/changing.md.
        """
        return self._that_runs()._remade(computation, remaps).intervals

    def _remade(self, computation: str, remaps: Sequence[Split | Merge]) -> Remade:
        """Do as :meth:`remap`; return more of it."""
        made = self._remapped(computation, remaps)
        _log.info("%r has %d key intervals", computation, made.intervals)
        return made

    @abstractmethod
    def _remapped(self, computation: str, remaps: Sequence[Split | Merge]) -> Remade:
        """Do it, as the plane does."""

    @abstractmethod
    def _that_runs(self) -> Remappable:
        """Return the run that took over last."""

    def remapping_acts(self) -> Mapping[str, Callable[[str], str]]:
        """Return what can be asked for from outside -> what does it, and says what then holds."""

        def remap(about: str) -> str:
            wanted = msgspec.json.decode(about, type=Remaps)
            made = self._remade(wanted.computation, wanted.asked())
            said = f"{wanted.computation} has {made.intervals} key intervals"
            said += f" after epoch {made.epoch}"
            return f"{said}; the run stood still for {made.pause}" if made.pause else said

        return {"remap": remap}
