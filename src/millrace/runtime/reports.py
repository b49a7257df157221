"""Reports: what a task tells its driver of an epoch, or of its turns between two marks.

The report of all tasks together is one as well: :meth:`TaskReport.together`.

What a task observes of injected streams, it observes by their rows. Rows of a source that names its
processes, or publishes its own low watermark, carry it in the columns ``process`` and ``promised``;
others have nulls there, or no such columns.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from millrace.compile.topology import Edge
from millrace.epochlog.entries import Sources, SourceStats, add_sources
from millrace.kernel.results import CallStats, Counters, IntervalResult
from millrace.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP
from millrace.runtime import wire
from millrace.runtime.sink_contract import Receipt
from millrace.runtime.worker_process import Task
from millrace.store import NOTHING, Repair, SnapshotStats
from millrace.watermark.percentiles import Ahead
from millrace.watermark.report import ONLY, ProcessState


class TaskReport(msgspec.Struct, array_like=True):
    """What one task tells the driver, or what all tasks of an epoch told it.

    Attributes:
        results: One for each interval that had work.
        sources: Injected stream -> what was observed of it.
        injected_bytes: Injected stream -> bytes of the values that were read of it.
        received_bytes: Computation -> bytes of the values that came to it.
        reached: Injected stream -> process of its injector -> the offset to which it was read, and
            what the process has promised.
        liftable: Records of native sources for groupings that take partials.
        partials: What they became: partials, and those that went on as they were.
        seconds: How long Python code ran.
        written: Snapshots that workers wrote since their last report.
        calls: Computation -> what became of its calls to services.
    """

    results: list[IntervalResult] = []
    sources: Sources = {}
    injected_bytes: dict[str, int] = {}
    received_bytes: dict[str, int] = {}
    reached: dict[str, dict[str, tuple[Any, int | None]]] = {}
    liftable: int = 0
    partials: int = 0
    seconds: float = 0.0
    written: SnapshotStats = msgspec.field(default_factory=SnapshotStats)
    calls: dict[str, CallStats] = {}

    def source(self, stream: str) -> SourceStats:
        """Return what was observed of an injected stream, to be added to."""
        stats = self.sources.get(stream)
        if stats is None:
            stats = self.sources[stream] = SourceStats()
        return stats

    @property
    def records(self) -> int:
        """How many records were read of all injected streams."""
        return sum(stats.records for stats in self.sources.values())

    @property
    def is_quiet(self) -> bool:
        """Whether sources had no record, nor a refused low watermark, and no call is pending."""
        return not (
            any(source.records or source.refused_watermarks for source in self.sources.values())
            or any(stats.pending for stats in self.calls.values())
        )

    def last_commits(self) -> dict[str, dict[int, int]]:
        """Return computation -> interval -> number of its last commit, of those with a result."""
        last: dict[str, dict[int, int]] = {}
        for result in self.results:
            last.setdefault(result.computation, {})[result.interval] = result.number
        return last

    def add(self, other: TaskReport) -> None:
        """Add what another task tells, or a later turn; its results are of other intervals."""
        self.results += other.results
        add_sources(self.sources, other.sources)
        for name, size in other.injected_bytes.items():
            count(self.injected_bytes, name, size)
        for name, size in other.received_bytes.items():
            count(self.received_bytes, name, size)
        for name, stats in other.calls.items():
            self.called(name, stats)
        for stream, processes in other.reached.items():
            self.reached.setdefault(stream, {}).update(processes)
        self.liftable += other.liftable
        self.partials += other.partials
        self.seconds += other.seconds
        self.written.add(other.written)

    def called(self, computation: str, stats: CallStats) -> None:
        """Add what became of calls of a computation."""
        known = self.calls.get(computation)
        if known is None:
            self.calls[computation] = stats
        else:
            known.add(stats)

    @classmethod
    def together(cls, reports: Iterable[TaskReport]) -> TaskReport:
        """Return what the tasks of an epoch, or of a mark, tell."""
        found = cls()
        for report in reports:
            found.add(report)
        return found


def count(sizes: dict[str, int], name: str, more: int) -> None:
    """Add to one of some counts."""
    sizes[name] = sizes.get(name, 0) + more


encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(TaskReport).decode
_decode_receipt = msgspec.msgpack.Decoder(Receipt).decode


def report_row(report: TaskReport, pid: int) -> pa.RecordBatch:
    """Return the row that carries a task's report, by way of a task of the next level."""
    return wire.messages(wire.REPORT, encode(report), np.array([pid], dtype=np.int32))


class MarkReport:
    """The report of a live task between two marks: results of many turns become one an interval.

    Attributes:
        report: What was gathered since the last mark, but for results.
    """

    def __init__(self) -> None:
        self.report = TaskReport()
        self._results: dict[tuple[str, int], IntervalResult] = {}
        #: (computation, interval) -> repairs of its cache that no report has yet.
        self._repairs: dict[tuple[str, int], Repair] = {}

    def add(self, result: IntervalResult) -> None:
        """Take what a commit changed."""
        at = result.computation, result.interval
        found = self._results.get(at)
        if found is None:
            counters, load = Counters(), result.load
        else:
            counters, load = found.counters, found.load.then(result.load)
        counters.add(result.counters)
        if result.repair is not NOTHING:
            self.repaired(*at, result.repair)
        self._results[at] = IntervalResult(
            *at,
            result.number,
            result.report,
            counters,
            False,
            result.chain,
            NOTHING,  # until the report is taken
            load,
        )

    def repaired(self, computation: str, interval: int, repair: Repair) -> None:
        """Take what it took to bring the cache of an interval to where it had to be."""
        if repair != NOTHING:
            at = computation, interval
            self._repairs[at] = self._repairs.get(at, NOTHING).then(repair)

    def take(self) -> TaskReport:
        """Return the report and begin the next one.

        A cache that was brought forward for an interval without a commit is in a later one.
        """
        report, self.report = self.report, TaskReport()
        report.results = [
            replace(result, load=result.load.reported(), repair=self._repairs.pop(at, NOTHING))
            for at, result in self._results.items()
        ]
        self._results = {}
        return report


@dataclass(frozen=True)
class Messages:
    """What the tasks of an epoch tell the driver.

    Attributes:
        reports: Of the tasks.
        receipts: Edge to a sink that tasks write -> what those that had rows say of them, in
            order of their numbers.
    """

    reports: list[TaskReport]
    receipts: dict[int, list[bytes]]

    @classmethod
    def of(cls, rows: Iterable[tuple[int, bytes]]) -> Messages:
        """Return the messages of an epoch.

        Args:
            rows: Pairs of ``edge`` and ``report``, as they left :class:`SinkEncoder`.
        """
        reports = list[TaskReport]()
        receipts: dict[int, dict[int, bytes]] = {}
        for edge, message in rows:
            if edge == wire.REPORT:
                reports.append(decode(message))
            else:
                # One attempt at a task counts. Should a part of a kept result be made again for a
                # second job of the epoch, there are two.
                receipt = _decode_receipt(message)
                receipts.setdefault(edge, {}).setdefault(receipt.task, receipt.of)
        by_task = {
            edge: [by_number[task] for task in sorted(by_number)]
            for edge, by_number in receipts.items()
        }
        return cls(reports, by_task)


def reports_in(batches: Iterable[pa.RecordBatch]) -> list[TaskReport]:
    """Return the reports among the rows that left the last level."""
    return [
        decode(batch.column("value")[n].as_py())
        for batch in batches
        for n in np.flatnonzero(batch.column("edge").to_numpy() == wire.REPORT).tolist()
    ]


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
        process = ProcessState(newest_us, min(process_watermark_us, MAX_TIMESTAMP))
        name = row["process"].decode("utf-8", "backslashreplace")
        stats.hear(name, process)
