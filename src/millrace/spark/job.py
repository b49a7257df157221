"""The job of an epoch: runs its frame and sinks, and gathers what the tasks report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, Observation
from pyspark.storagelevel import StorageLevel

from millrace.plane import wire
from millrace.spark.plan import Plan
from millrace.store import Written
from millrace.windmill.epochs import Observed
from millrace.windmill.manifest import Manifest
from millrace.windmill.routing import Productions
from millrace.windmill.worker import Result


@dataclass(frozen=True)
class Outcome:
    """An epoch's outcome, from its tasks' reports.

    Attributes:
        results: One for each interval; productions are not among what is reported.
        observed: What was seen of the injected streams.
        seconds: Python time, over all tasks.
        written: Snapshots that the workers wrote.
        liftable: Records that came to the lifting stage.
        partials: What it left of them.
    """

    results: list[Result]
    observed: Observed
    seconds: float
    written: Written
    liftable: int
    partials: int


def run_job(
    plan: Plan, rows: DataFrame, manifest: Manifest, sinks: Sequence[Any], *, lift: bool = True
) -> Outcome:
    """Run an epoch as one Spark job, its sinks included; the reports ride along (``observe``).

    Args:
        plan: Of the run.
        rows: The epoch's raw rows.
        manifest: Of the epoch.
        sinks: The pipeline's sinks.
        lift: See :meth:`Plan.frame`.
    """
    seen = Observation()
    frame = plan.frame(rows, manifest, lift=lift).observe(seen, *plan.observed)
    if len(sinks) == 1 and getattr(sinks[0], "single_pass", False):
        sinks[0](plan.sink_rows(frame, 0), manifest.epoch)
    elif not sinks:
        frame.write.format("noop").mode("overwrite").save()
    else:
        # A sink may run any number of jobs on its rows, or none. So the epoch is run once, here,
        # and the sinks that get something read its result.
        frame.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            frame.write.format("noop").mode("overwrite").save()
            for number, sink in enumerate(sinks):
                if seen.get[f"rows{number}"]:
                    sink(plan.sink_rows(frame, number), manifest.epoch)
        finally:
            frame.unpersist()
    return _outcome([wire.decode_report(bytes(report)) for report in seen.get["reports"]])


def _outcome(reports: list[wire.TaskReport]) -> Outcome:
    observed = Observed()
    written = Written()
    results = []
    for report in reports:
        observed.add(
            Observed(report.newest, report.injected, report.refused, report.processes, report.ahead)
        )
        written.add(report.written)
        results += [
            Result(
                one.computation,
                one.interval,
                one.number,
                one.report,
                one.counters,
                Productions(),
                one.replayed,
                one.chain,
                one.repair,
            )
            for one in report.intervals
        ]
    return Outcome(
        results,
        observed,
        sum(report.seconds for report in reports),
        written,
        sum(report.liftable for report in reports),
        sum(report.partials for report in reports),
    )
