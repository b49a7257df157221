"""The authority: every interval's last report, and the low watermarks that follow from them.

It lives in the driver. Within an epoch, workers hand low watermarks to each other; what they
reported is recorded here afterwards and travels in the next manifest, so the authority never leads
the workers, and a restart finds what it knew.

Source: MillWheel, "Low Watermarks" (7.2): a central authority tracks all low watermark values and
journals them; workers subscribe to their senders' and compute the minimum themselves.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from millrace.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP
from millrace.model.topology import Topology, injector_name
from millrace.watermark.report import NOTHING_PENDING, Report, output_low_watermark


class LowWatermarks(msgspec.Struct):
    """Low watermarks of a whole pipeline at one moment, in microseconds.

    Attributes:
        inputs: Computation -> low watermark of its input: what decides lateness and fires timers.
        outputs: Computation, or ``injector:<stream>``, -> low watermark it shows its consumers.
    """

    inputs: dict[str, int]
    outputs: dict[str, int]


class Authority:
    """Puts reports together into low watermarks that never move back."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self.reports: dict[str, dict[int, Report]] = {
            spec.name: {} for spec in topology.computations
        }
        self.low_watermarks = LowWatermarks(
            inputs={spec.name: MIN_TIMESTAMP for spec in topology.computations},
            outputs={spec.name: MIN_TIMESTAMP for spec in topology.computations}
            | {injector_name(spec.name): MIN_TIMESTAMP for spec in topology.injected()},
        )

    def restore(
        self, low_watermarks: LowWatermarks, reports: Mapping[str, Mapping[int, Report]]
    ) -> None:
        """Take up what an earlier run knew; a computation it did not know starts afresh."""
        self.low_watermarks.inputs.update(low_watermarks.inputs)
        self.low_watermarks.outputs.update(low_watermarks.outputs)
        for computation, known in reports.items():
            self.reports[computation] = dict(known)

    def advance(
        self,
        injectors: Mapping[str, int],
        reports: Mapping[str, Mapping[int, Report]],
    ) -> LowWatermarks:
        """Record one epoch and return the low watermarks after it.

        Args:
            injectors: Injected stream -> low watermark it published for the epoch.
            reports: Computation -> interval id -> report. An interval that did not report keeps
                its last one.

        Returns:
            The new low watermarks; none is below its predecessor.
        """
        inputs, outputs = self.low_watermarks.inputs, self.low_watermarks.outputs
        for stream, published_us in injectors.items():
            name = injector_name(stream)
            outputs[name] = max(outputs[name], published_us)
        for spec in self._topology.computations:
            known = self.reports[spec.name]
            known.update(reports.get(spec.name, {}))
            input_us = min((outputs[sender] for sender in spec.senders), default=MAX_TIMESTAMP)
            inputs[spec.name] = max(inputs[spec.name], input_us)
            outputs[spec.name] = max(
                outputs[spec.name], output_low_watermark(inputs[spec.name], known.values())
            )
        return self.low_watermarks

    def next_wall_timer_us(self) -> int:
        """Return when the earliest wall-clock timer is due; MAX_TIMESTAMP if there is none."""
        return min(
            (report.wall_timer_us for known in self.reports.values() for report in known.values()),
            default=MAX_TIMESTAMP,
        )

    def report(self, computation: str, interval: int) -> Report:
        """Return an interval's last report."""
        return self.reports[computation].get(interval, NOTHING_PENDING)
