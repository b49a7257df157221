"""Observation: what a task observes of injected streams, by their rows, for its report.

Rows of a source that names its processes, or publishes its own low watermark, carry it in the
columns ``process`` and ``promised``; others have nulls there, or no such columns.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millrace.compile.topology import Edge
from millrace.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP
from millrace.plane.reports import TaskReport, count
from millrace.plane.task import Task
from millrace.watermark.percentiles import Ahead
from millrace.watermark.report import ONLY, Process

#: The columns, besides those of the record.
COLUMNS: Final = ("process", "promised")


class SourceObserver:
    """Observes the accepted records of native sources.

    Args:
        task: The task.
        report: Takes what is observed.
    """

    def __init__(self, task: Task, report: TaskReport) -> None:
        self._topology = task.topology
        self._published = task.manifest.injectors
        self._latest_us = task.latest_us
        self._report = report
        self._live = task.runtime.live
        self._naming = {s.stream for s in task.runtime.sources if s.names_processes}

    def observe(self, edge: Edge, rows: pa.Table, timestamps: npt.NDArray[np.int64]) -> None:
        """Count records on an edge; those of a stream with several edges count on its first."""
        if self._live or not len(timestamps):
            return
        report, stream, newest_us = self._report, edge.stream, int(timestamps.max())
        stats = report.source(stream)
        if edge.number != self._topology.streams[stream].edges[0].number:
            stats.newest_us = max(stats.newest_us, newest_us)
            return
        ahead = None
        if self._topology.percentiles:
            ahead = Ahead.of(timestamps, self._published[stream])
        stats.count(len(timestamps), newest_us, ahead)
        number = self._topology.streams[stream].number
        count(report.injected_bytes, stream, rows.column(f"s{number}").nbytes)
        if stream in self._naming:
            observe_processes(report, stream, rows, self._latest_us[stream])


def observe_processes(report: TaskReport, stream: str, rows: pa.Table, latest_us: int) -> None:
    r"""Add to a task's report what accepted records, or punctuation, tell of their processes.

    A promise after ``latest_us``, and not at the end of time, is refused and counted: a broken
    clock would make everything late that follows. A name that is not UTF-8, such as a column of
    bytes may have, is known by its escapes, ``\xff``.

    Args:
        report: Of the task.
        stream: The injected stream.
        rows: With the columns ``ts``, null in punctuation, ``process`` and ``promised``.
        latest_us: Of the stream.
    """
    if not rows.num_rows:
        return
    stats = report.source(stream)
    # Where all rows say the same, it may come with a dictionary, or as nulls of no type.
    promised, named = rows.column("promised").cast(pa.int64()), rows.column("process")
    valid = pc.fill_null(
        pc.or_(pc.less_equal(promised, latest_us), pc.greater_equal(promised, MAX_TIMESTAMP)), True
    )
    wrong = rows.num_rows - int(np.count_nonzero(valid.to_numpy()))
    if wrong:
        promised = pc.if_else(valid, promised, pa.scalar(None, pa.int64()))
        stats.refused_watermarks += wrong
    table = pa.table(
        {
            # As bytes: nobody has seen to it that text of Spark's is UTF-8.
            "process": pc.fill_null(named.cast(pa.string()).cast(pa.binary()), ONLY.encode()),
            "ts": rows.column("ts"),
            "promised": promised,
        }
    )
    grouped = table.group_by("process").aggregate([("ts", "max"), ("promised", "max")])
    for row in grouped.to_pylist():
        newest_us, process_watermark_us = (
            MIN_TIMESTAMP if us is None else us for us in (row["ts_max"], row["promised_max"])
        )
        process = Process(newest_us, min(process_watermark_us, MAX_TIMESTAMP))
        name = row["process"].decode("utf-8", "backslashreplace")
        stats.hear(name, process)
