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
    first = next((n for n, sink in enumerate(sinks) if getattr(sink, "single_pass", False)), None)
    if first is not None and len(sinks) == 1:
        sinks[first](plan.sink_rows(frame, first), manifest.epoch)
    elif not sinks:
        _run(frame)
    else:
        # A sink may run any number of jobs on its rows, or none. So the epoch's result is kept: the
        # first sink that is known to run a job runs the epoch with it, and the others that get
        # something read what is kept.
        frame.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            if first is None:
                _run(frame)
            else:
                sinks[first](plan.sink_rows(frame, first), manifest.epoch)
            for number, sink in enumerate(sinks):
                if number != first and seen.get[f"rows{number}"]:
                    sink(plan.sink_rows(frame, number), manifest.epoch)
        finally:
            frame.unpersist()
    return Outcome.of(wire.decode_report(bytes(report)) for report in seen.get["reports"])


def _run(frame: DataFrame) -> None:
    """Run a frame for what it is observed to report."""
    frame.write.format("noop").mode("overwrite").save()
