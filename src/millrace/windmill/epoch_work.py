"""GetWork of an epoch: one bundle for each interval that has something to do in it.

Source: Streaming Engine, GetWork.
"""

from __future__ import annotations

from collections.abc import Mapping

from millrace.compile.topology import ComputationSpec
from millrace.windmill.bundle import Arrivals, Attempt
from millrace.windmill.fence import EpochFence
from millrace.windmill.manifest import Manifest
from millrace.windmill.positions import Positions
from millrace.windmill.results import Produced
from millrace.windmill.worker import Worker


def run_epoch(
    worker: Worker,
    spec: ComputationSpec,
    manifest: Manifest,
    positions: Positions,
    owned: range,
    arrivals: Arrivals,
    clocks: Mapping[int, int],
    task: int = 0,
) -> list[Produced]:
    """Run one computation for one epoch; return what the intervals that had work gave.

    An interval without records and without a due timer is as it was: it has no commit. Nor does it
    cost anything.

    Args:
        worker: Runs the bundles.
        spec: The computation.
        manifest: Of the epoch.
        positions: Where intervals stand when it begins.
        owned: The places in the interval map of the intervals that this task owns.
        arrivals: Every record for them.
        clocks: Percentile -> the computation's input low watermark after the records, 100 among
            them.
        task: Which of the epoch's tasks it is: those that the manifest says there are.

    Returns:
        In the order of the interval map.

    Raises:
        ZombieWriter: Another epoch has committed where this one must.
    """
    intervals = manifest.interval_map(spec.name)
    arrived = {
        interval.id: records
        for interval, records in arrivals.by_interval(intervals)
        if len(records.cuts) > 1
    }
    moment = attempt(spec, manifest, clocks, task)
    bundles = positions.bundles(spec, intervals, owned, arrived, moment)
    if not bundles:
        return []
    fence = EpochFence(worker.state.epochs, manifest)
    return worker.run(spec, bundles, fence)


def attempt(
    spec: ComputationSpec, manifest: Manifest, clocks: Mapping[int, int], task: int
) -> Attempt:
    """Return the attempt of a task at a computation's bundles in an epoch."""
    return Attempt(
        manifest.epoch,
        manifest.generation,
        manifest.wall_time_us,
        manifest.arrival_watermark_us(spec),
        clocks,
        manifest.before.outputs[spec.name],
        manifest.arrival_percentiles(spec),
        manifest.before.inputs[spec.name],
        len(manifest.interval_map(spec.name)),
        task,
    )
