"""The job of an epoch: runs its frame and sinks, and gathers what the tasks report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame, Observation
from pyspark.storagelevel import StorageLevel

from millrace.plane import wire
from millrace.plane.outcome import Outcome
from millrace.spark.plan import Plan
from millrace.windmill.manifest import Manifest


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
    return Outcome.of(wire.decode_report(bytes(report)) for report in seen.get["reports"])
