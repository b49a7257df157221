"""The job of an epoch: runs its frame and sinks, and gathers what the tasks report."""

from __future__ import annotations

import json
import logging
import time
from base64 import b64decode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.storagelevel import StorageLevel

from millrace.epochlog.entries import Manifest
from millrace.runtime.reports import Messages, TaskReport
from millrace.runtime.sink_contract import WriteAgain
from millrace.spark.connect import is_connect
from millrace.spark.failure import CAREFULLY, worker_died
from millrace.spark.plan import Plan

_log = logging.getLogger("millrace")

#: Spark's name for what its UI says of a job.
_DESCRIPTION = "spark.job.description"


def run_job(
    plan: Plan,
    rows: DataFrame,
    manifest: Manifest,
    sinks: Sequence[Any],
    *,
    lots: Sequence[Sequence[bytes]] | None = None,
    lift: bool = True,
    careful: bool = False,
) -> tuple[TaskReport, float]:
    """Run an epoch as one Spark job, its sinks included, and publish what tasks have written.

    Returns what the tasks reported, and how long it took to publish, in seconds.

    Args:
        plan: Of the run.
        rows: The epoch's raw rows.
        manifest: Of the epoch.
        sinks: The pipeline's sinks.
        lots: See :meth:`Plan.frame`.
        lift: Likewise.
        careful: Likewise.
    """
    frame = plan.frame(rows, manifest, lots=lots, lift=lift, careful=careful)
    written = plan.written
    called = {number: sink for number, sink in enumerate(sinks) if number not in written}
    while True:
        with _named(rows.sparkSession, plan, manifest.epoch):
            messages = Messages.of(
                _called(plan, frame, manifest, called) if called else frame.collect()
            )
        ran = time.perf_counter()
        try:
            for sink, edge in written.items():
                if edge in messages.receipts:
                    sinks[sink].publish(manifest.epoch, messages.receipts[edge])
        except WriteAgain as refused:
            # The commits are there, so the tasks only replay them.
            _log.warning("epoch %d is written again: %s", manifest.epoch, refused)
            continue
        return TaskReport.together(messages.reports), time.perf_counter() - ran


def rehearse(
    plan: Plan,
    rows: DataFrame,
    manifest: Manifest,
    *,
    lots: Sequence[Sequence[bytes]] | None = None,
) -> None:
    """Run the job of an epoch without records, over an empty checkpoint; no sink is called.

    Args:
        plan: Of the run.
        rows: None, of the columns of an epoch's rows.
        manifest: Of the first epoch of an empty checkpoint.
        lots: See :meth:`Plan.frame`.
    """
    frame = plan.frame(rows, manifest, lots=lots, rehearsed=True)
    if not plan.sinks_called:
        frame.collect()
        return
    frame.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        frame.agg(*plan.observed).collect()
    finally:
        frame.unpersist()


@contextmanager
def _named(session: SparkSession, plan: Plan, epoch: int) -> Iterator[None]:
    """Have Spark's UI say of jobs which epoch they are of, and for how many levels.

    Their group, or tag, stays what it is: by that the jobs of a run that is stopped are cancelled.
    """
    if is_connect(session):  # its UI says which query of a client a job is of, and no more
        yield
        return
    context = session.sparkContext
    before = context.getLocalProperty(_DESCRIPTION)
    levels = "level 1" if plan.levels == 1 else f"levels 1 to {plan.levels}"
    context.setLocalProperty(_DESCRIPTION, f"{plan.pipeline}: epoch {epoch}, {levels}")
    try:
        yield
    finally:
        context.setLocalProperty(_DESCRIPTION, before)  # type: ignore[arg-type]


def run_patiently(
    plan: Plan,
    rows: DataFrame,
    manifest: Manifest,
    sinks: Sequence[Any],
    *,
    lift: bool,
    attempts: int,
    lots: Sequence[Sequence[bytes]] | None = None,
) -> tuple[TaskReport, float]:
    """Run an epoch's job again if worker processes died in it, and find out of what the last time.

    What was committed in an earlier attempt is there, and is only replayed.

    Args:
        plan: Of the run.
        rows: The epoch's raw rows.
        manifest: Of the epoch.
        sinks: The pipeline's sinks.
        lift: See :meth:`Plan.frame`.
        attempts: How often it is tried at the most.
        lots: See :meth:`Plan.frame`.
    """
    for attempt in range(1, attempts):
        try:
            return run_job(plan, rows, manifest, sinks, lots=lots, lift=lift)
        except Exception as error:
            if not worker_died(error):
                raise
            _log.warning(
                "epoch %d: a worker process died. It is run again, attempt %d of %d%s",
                manifest.epoch,
                attempt + 1,
                attempts,
                CAREFULLY * (attempt + 1 == attempts),
            )
    return run_job(plan, rows, manifest, sinks, lots=lots, lift=lift, careful=attempts > 1)


def _called(
    plan: Plan, frame: DataFrame, manifest: Manifest, sinks: Mapping[int, Any]
) -> list[tuple[int, bytes]]:
    """Call the sinks that want a DataFrame; return the messages, in the same job as a sink's rows.

    A sink that runs one job on its rows runs the epoch with it, and the messages are observed. Over
    Spark Connect, a write returns nothing that was observed up to Spark 4.0.
    """
    first = next((n for n, sink in sinks.items() if getattr(sink, "single_pass", False)), None)
    if first is not None and len(sinks) == 1 and not is_connect(frame.sparkSession):
        seen = Observation()
        sinks[first](plan.sink_rows(frame.observe(seen, *plan.observed), first), manifest.epoch)
        return _messages(seen.get["messages"])
    # A sink may run any number of jobs on its rows, or none. So the epoch's result is kept: the
    # first sink that is known to run a job runs the epoch with it, and the others that get
    # something read what is kept.
    frame.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        if first is not None:
            sinks[first](plan.sink_rows(frame, first), manifest.epoch)
        gathered = frame.agg(*plan.observed).collect()[0]
        for number, sink in sinks.items():
            if number != first and gathered[f"rows{number}"]:
                sink(plan.sink_rows(frame, number), manifest.epoch)
    finally:
        frame.unpersist()
    return _messages(gathered["messages"])


def _messages(observed: str) -> list[tuple[int, bytes]]:
    """Return what tasks have sent to the driver: see :attr:`Plan.observed`."""
    return [(message["edge"], b64decode(message["report"])) for message in json.loads(observed)]
