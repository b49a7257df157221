"""The authority: every interval's last report, and the low watermarks that follow from them.

It lives in the driver. Within an epoch, workers hand low watermarks to each other; what they
reported is recorded here afterwards and travels in the next manifest, so the authority never leads
the workers, and a restart finds what it knew.

Source: MillWheel, "Low Watermarks" (7.2): a central authority tracks all low watermark values and
journals them; workers subscribe to their senders' and compute the minimum themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from millrace.compile.topology import Topology, injector_name
from millrace.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP
from millrace.watermark.bulletin import Bulletin, Sequencer
from millrace.watermark.propagation import LowWatermarks, WatermarkPropagation
from millrace.watermark.report import Report

_NO_PERCENTILES: Mapping[int, Mapping[str, int]] = {}


class Authority:
    """Puts reports together into low watermarks that never move back.

    Args:
        topology: The pipeline.

    Attributes:
        bulletins: Computation -> the reports of its intervals.
        low_watermarks: What follows from them.
    """

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self.bulletins = {spec.name: Bulletin(spec.name) for spec in topology.computations}
        self.low_watermarks = LowWatermarks(
            inputs={spec.name: MIN_TIMESTAMP for spec in topology.computations},
            outputs={spec.name: MIN_TIMESTAMP for spec in topology.computations}
            | {injector_name(spec.name): MIN_TIMESTAMP for spec in topology.injected()},
        ).copy(topology.percentiles)

    @property
    def reports(self) -> dict[str, dict[int, Report]]:
        """Computation -> interval id -> its last report."""
        return {name: bulletin.reports for name, bulletin in self.bulletins.items()}

    def cover(self, computation: str, intervals: Iterable[int]) -> None:
        """Take a computation's interval map: until all of it has reported, nothing new is shown."""
        self.bulletins[computation].cover(intervals)

    def restore(
        self,
        low_watermarks: LowWatermarks,
        reports: Mapping[str, Mapping[int, Report]],
        sequencer: Sequencer,
    ) -> None:
        """Take up what an earlier run journaled, and when.

        What it did not know starts afresh, and what is no part of the pipeline any more is left.
        """
        fresh = self.low_watermarks.copy(())
        known = fresh.taken(low_watermarks)
        known.percentiles = {p: fresh.taken(of) for p, of in low_watermarks.percentiles.items()}
        self.low_watermarks = known.copy(self._topology.percentiles)
        for computation in reports.keys() & self.bulletins.keys():
            self.bulletins[computation].restore(reports[computation], sequencer)

    def advance(
        self,
        injectors: Mapping[str, int],
        reports: Mapping[str, Mapping[int, Report]],
        sequencer: Sequencer,
        percentiles: Mapping[int, Mapping[str, int]] = _NO_PERCENTILES,
    ) -> LowWatermarks:
        """Record one epoch and return the low watermarks after it.

        Args:
            injectors: Injected stream -> low watermark it published for the epoch.
            reports: Computation -> interval id -> report. An interval that did not report keeps
                its last one.
            sequencer: Generation and epoch of who reports.
            percentiles: Percentile -> injected stream -> what it published for that.

        Returns:
            The new low watermarks; none is below its predecessor.

        Raises:
            ZombieWriter: A newer owner has reported for one of the intervals.
        """
        for computation, reported in reports.items():
            self.bulletins[computation].record(reported, sequencer)
        shown = WatermarkPropagation(
            self.low_watermarks,
            injectors,
            {p: percentiles.get(p, injectors) for p in self._topology.percentiles},
        )
        for spec in self._topology.computations:
            shown.inputs(spec)
            shown.finish(spec, self.bulletins[spec.name].pending(bool(self._topology.percentiles)))
        self.low_watermarks = shown.low_watermarks
        return self.low_watermarks

    def next_wall_timer_us(self) -> int:
        """Return when the earliest wall-clock timer is due; MAX_TIMESTAMP if there is none."""
        return min(
            (bulletin.next_wall_timer_us for bulletin in self.bulletins.values()),
            default=MAX_TIMESTAMP,
        )

    def report(self, computation: str, interval: int) -> Report:
        """Return an interval's last report."""
        return self.bulletins[computation].report(interval)
