"""What a task sees of injected streams, for its report: how far, how many, by which process."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.compile.topology import Edge
from millrace.model.time import MIN_TIMESTAMP
from millrace.spark import processes, wire
from millrace.spark.runtime import Runtime
from millrace.watermark.ahead import Ahead
from millrace.windmill.manifest import Manifest


class Seen:
    """Notes the accepted records of native sources.

    Args:
        runtime: Of the run.
        manifest: Of the epoch.
        latest_us: Injected stream -> timestamps after this are refused.
        report: Takes the notes.
    """

    def __init__(
        self,
        runtime: Runtime,
        manifest: Manifest,
        latest_us: Mapping[str, int],
        report: wire.TaskReport,
    ) -> None:
        self._topology = runtime.topology
        self._published = manifest.injectors
        self._latest_us = latest_us
        self._report = report
        self._naming = {s.stream for s in runtime.blueprint.sources if s.names_processes}

    def note(self, edge: Edge, rows: pa.Table, timestamps: npt.NDArray[np.int64]) -> None:
        """Note records on an edge; those of a stream with several edges count on its first."""
        if not len(timestamps):
            return
        report, stream, newest_us = self._report, edge.stream, int(timestamps.max())
        report.newest[stream] = max(report.newest.get(stream, MIN_TIMESTAMP), newest_us)
        if edge.number != self._topology.streams[stream].edges[0].number:
            return
        report.injected[stream] = report.injected.get(stream, 0) + len(timestamps)
        if self._topology.percentiles:
            ahead = report.ahead.get(stream, Ahead())
            report.ahead[stream] = ahead.merged(Ahead.of(timestamps, self._published[stream]))
        if stream in self._naming:
            processes.note(report, stream, rows, self._latest_us[stream])
