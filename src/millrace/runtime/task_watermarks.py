"""The clocks of a level task: low watermarks as it hears them, works at them, and tells of them.

Nothing is computed anew while nobody said anything and nothing that pins them has changed.

Source: MillWheel 4.5.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from millrace.compile.topology import ComputationSpec, Topology, injector_name
from millrace.epochlog.positions import Positions
from millrace.model.time import MAX_TIMESTAMP
from millrace.runtime.packets import Packet
from millrace.watermark.propagation import LowWatermarks, Message
from millrace.watermark.senders import SenderWatermarks


class TaskWatermarks:
    """What one task of a level knows of low watermarks in an incarnation.

    Args:
        topology: The pipeline.
        specs: The computations of the level.
        owned: Computation -> places of its intervals that the task owns.
        positions: Where intervals stand; their reports pin what is shown.
        before: Low watermarks as the incarnation began.
        floor: Computation -> its input is never worked at a low watermark below.
        senders: Tasks of the level before.

    Attributes:
        arrival: Low watermarks while what arrives was on its way. Do not write to it.
        inputs: Computation -> percentile -> low watermark of its input, now.
        outputs: Computation -> low watermark that the task's own intervals have shown.
    """

    def __init__(
        self,
        topology: Topology,
        specs: Sequence[ComputationSpec],
        owned: Mapping[str, range],
        positions: Positions,
        *,
        before: LowWatermarks,
        floor: Mapping[str, Mapping[int, int]],
        senders: int,
    ) -> None:
        self._topology = topology
        self._specs = specs
        self._owned = owned
        self._positions = positions
        self._senders = SenderWatermarks(topology, before, senders)
        self._senders.raise_inputs(floor)
        self.outputs = {spec.name: before.outputs[spec.name] for spec in specs}
        self._moved = False
        self._pinned = True
        self._now: Message | None = None
        self._look()
        self._copy()

    def hear(self, packets: Sequence[Packet]) -> None:
        """Take what packets say."""
        said = [(packet.sender, packet.message) for packet in packets if packet.message is not None]
        if said or self._moved:
            self._copy()
        self._moved = bool(said)
        if said:
            self._senders.hear(said)
            self._look()

    def _copy(self) -> None:
        self.arrival = self._senders.low_watermarks.copy(self._topology.percentiles)

    def _look(self) -> None:
        self.inputs = {spec.name: self._senders.inputs(spec) for spec in self._specs}
        self._pinned = True

    def pinned(self) -> None:
        """Take note that what pins low watermarks has changed."""
        self._pinned = True

    def input_us(self) -> dict[str, int]:
        """Return computation -> low watermark of its input."""
        return {name: clocks[100] for name, clocks in self.inputs.items()}

    def injected(self) -> dict[int, dict[str, int]]:
        """Return percentile -> injected stream -> low watermark of that share, as heard here."""
        known = self._senders.low_watermarks.percentiles
        return {
            percentile: {
                spec.name: known.outputs[injector_name(spec.name)]
                for spec in self._topology.injected()
            }
            for percentile, known in known.items()
        }

    def message(self) -> Message:
        """Return what the next level is to know now; the same object as before if nothing moved."""
        if self._now is None or self._pinned:
            self._pinned = False
            spread = bool(self._topology.percentiles)
            pending = {
                name: self._positions.bulletin(name).pending(spread, within=indexes)
                for name, indexes in self._owned.items()
            }
            for name, clocks in self.inputs.items():
                output_us = min(clocks[100], pending[name].pending_us)
                self.outputs[name] = max(self.outputs[name], output_us)
            now = self._senders.message(pending)
            if now != self._now:
                self._now = now
        return self._now

    @property
    def wake_us(self) -> int:
        """When a timer of the wall clock is due."""
        return min(
            (
                self._positions.bulletin(name).next_wall_timer_within(indexes)
                for name, indexes in self._owned.items()
            ),
            default=MAX_TIMESTAMP,
        )
