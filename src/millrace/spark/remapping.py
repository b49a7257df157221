"""Splitting and merging key intervals: what the handle of a run takes, and the mailbox.

Source: MillWheel, "Architecture" (7.1).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from millrace.model.errors import PipelineError
from millrace.watermark.remap import Merge, Split


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


class Remappable:
    """A run whose key intervals may be split and merged. In real time that is refused."""

    def remap(self, computation: str, remaps: Sequence[Split | Merge]) -> int:
        """Split and merge key intervals of a computation, between two epochs; return how many.

        It waits for the epoch under way. What the intervals keep goes with their keys: cells,
        timers, holds, ids, windows; no low watermark moves. Who they are:
        ``mr.open_checkpoint(path)[computation].intervals``.

        Args:
            computation: As the pipeline calls it.
            remaps: :class:`~millrace.Split` and :class:`~millrace.Merge`; no interval is in two.

        Returns:
            How many key intervals the computation has now.

        Raises:
            PipelineError: There is no such computation or interval, no epoch has completed yet, or
                the run is in real time; nothing has changed.
            CheckpointMismatch: Intervals that are to be one differ in what they keep for all keys.

        Source: MillWheel, "Architecture" (7.1); docs/changing.md.
        """
        raise PipelineError(
            f"key intervals of {computation!r} cannot be remapped in real time. Stop the run, or "
            "let one on epochs take over: run.update(pipeline, realtime=False); remap there, and "
            "go on in real time."
        )

    def remapping_acts(self) -> Mapping[str, Callable[[str], str]]:
        """Return what can be asked for from outside -> what does it, and says what then holds."""

        def remap(about: str) -> str:
            wanted = msgspec.json.decode(about, type=Remaps)
            count = self.remap(wanted.computation, wanted.asked())
            return f"{wanted.computation} has {count} key intervals"

        return {"remap": remap}
