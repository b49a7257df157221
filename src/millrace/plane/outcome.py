"""The outcome of an epoch, as its tasks report it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from millrace.plane import wire
from millrace.plane.task_sinks import Receipt
from millrace.store import Written
from millrace.windmill.observed import Observed
from millrace.windmill.results import IntervalResult

_decode_receipt = msgspec.msgpack.Decoder(Receipt).decode


@dataclass(frozen=True)
class Outcome:
    """What came of an epoch.

    Attributes:
        results: One for each interval that had work.
        observed: What was seen of the injected streams.
        seconds: Python time, over all tasks.
        written: Snapshots that the workers wrote.
        liftable: Records that came to the lifting stage.
        partials: What it left of them.
        reached: Injected stream -> process -> the offset to which the epoch has read it, and what
            the process has promised.
        received: Computation -> bytes of the values that came to it.
        publishing: How long it took to publish what tasks had written, in seconds.
    """

    results: list[IntervalResult]
    observed: Observed
    seconds: float
    written: Written
    liftable: int
    partials: int
    reached: dict[str, dict[str, tuple[Any, int | None]]] = field(default_factory=dict)
    publishing: float = 0.0
    received: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, reports: Iterable[wire.TaskReport]) -> Outcome:
        """Return the outcome that the tasks of an epoch report."""
        observed, written, results = Observed(), Written(), list[IntervalResult]()
        seconds, liftable, partials = 0.0, 0, 0
        reached: dict[str, dict[str, tuple[Any, int | None]]] = {}
        received: dict[str, int] = {}
        for report in reports:
            observed.add(
                Observed(
                    report.newest,
                    report.injected,
                    report.refused,
                    report.processes,
                    report.ahead,
                    report.sizes,
                    report.letters,
                    report.dropped,
                )
            )
            for name, size in report.received.items():
                wire.count(received, name, size)
            written.add(report.written)
            seconds += report.seconds
            liftable += report.liftable
            partials += report.partials
            for stream, processes in report.reached.items():
                reached.setdefault(stream, {}).update(processes)
            results += report.intervals
        return cls(
            results, observed, seconds, written, liftable, partials, reached, received=received
        )


@dataclass(frozen=True)
class Messages:
    """What the tasks of an epoch tell the driver.

    Attributes:
        reports: Of the tasks.
        receipts: Edge to a sink that tasks write -> what those that had rows say of them, in
            order of their numbers.
    """

    reports: list[wire.TaskReport]
    receipts: dict[int, list[bytes]]

    @classmethod
    def of(cls, rows: Iterable[tuple[int, bytes]]) -> Messages:
        """Return the messages of an epoch.

        Args:
            rows: Pairs of ``edge`` and ``report``, as they left :class:`Outlet`.
        """
        reports = list[wire.TaskReport]()
        receipts: dict[int, dict[int, bytes]] = {}
        for edge, message in rows:
            if edge == wire.REPORT:
                reports.append(wire.decode_report(message))
            else:
                # One attempt at a task counts. Should a part of a kept result be made again for a
                # second job of the epoch, there are two.
                receipt = _decode_receipt(message)
                receipts.setdefault(edge, {}).setdefault(receipt.task, receipt.of)
        by_task = {edge: [of[task] for task in sorted(of)] for edge, of in receipts.items()}
        return cls(reports, by_task)


def reports_in(batches: Iterable[pa.RecordBatch]) -> list[wire.TaskReport]:
    """Return the reports among the rows that left the last level."""
    return [
        wire.decode_report(batch.column("value")[n].as_py())
        for batch in batches
        for n in np.flatnonzero(batch.column("edge").to_numpy() == wire.REPORT).tolist()
    ]
