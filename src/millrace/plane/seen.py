"""What a task sees of injected streams, for its report: how far, how many, by which process."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.compile.topology import Edge
from millrace.model.time import MIN_TIMESTAMP
from millrace.plane import processes, wire
from millrace.plane.task import Task
from millrace.watermark.ahead import Ahead


class Seen:
    """Notes the accepted records of native sources.

    Args:
        task: The task.
        report: Takes the notes.
    """

    def __init__(self, task: Task, report: wire.TaskReport) -> None:
        self._topology = task.topology
        self._published = task.manifest.injectors
        self._latest_us = task.latest_us
        self._report = report
        self._live = task.runtime.live
        self._naming = {s.stream for s in task.runtime.sources if s.names_processes}

    def note(self, edge: Edge, rows: pa.Table, timestamps: npt.NDArray[np.int64]) -> None:
        """Note records on an edge; those of a stream with several edges count on its first."""
        if self._live or not len(timestamps):
            return
        report, stream, newest_us = self._report, edge.stream, int(timestamps.max())
        report.newest[stream] = max(report.newest.get(stream, MIN_TIMESTAMP), newest_us)
        if edge.number != self._topology.streams[stream].edges[0].number:
            return
        wire.count(report.injected, stream, len(timestamps))
        number = self._topology.streams[stream].number
        wire.count(report.sizes, stream, rows.column(f"s{number}").nbytes)
        if self._topology.percentiles:
            ahead = report.ahead.get(stream, Ahead())
            report.ahead[stream] = ahead.merged(Ahead.of(timestamps, self._published[stream]))
        if stream in self._naming:
            processes.note(report, stream, rows, self._latest_us[stream])
