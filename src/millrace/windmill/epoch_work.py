"""GetWork of an epoch: one bundle for each interval that has something to do in it.

Source: Streaming Engine, GetWork.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from millrace.compile.topology import ComputationSpec
from millrace.watermark.intervals import KeyInterval
from millrace.watermark.report import NOTHING_PENDING
from millrace.windmill.arrivals import NO_RECORDS, Arrivals
from millrace.windmill.bundle import Attempt, Bundle, Position
from millrace.windmill.counters import Counters
from millrace.windmill.fence import EpochFence
from millrace.windmill.manifest import Manifest
from millrace.windmill.replay import Result
from millrace.windmill.routing import Productions
from millrace.windmill.worker import Worker


def run_epoch(
    worker: Worker,
    spec: ComputationSpec,
    manifest: Manifest,
    owned: Sequence[KeyInterval],
    arrivals: Arrivals,
    clocks: Mapping[int, int],
) -> list[Result]:
    """Run one computation for one epoch; return a result for each owned interval, in their order.

    An interval without records and without a due timer is as it was: it has no commit.

    Args:
        worker: Runs the bundles.
        spec: The computation.
        manifest: Of the epoch.
        owned: The intervals that this task owns.
        arrivals: Every record for them.
        clocks: Percentile -> the computation's input low watermark after the records, 100 among
            them.

    Raises:
        ZombieWriter: Another epoch has committed where this one must.
    """
    name = spec.name
    numbers, reports = manifest.numbers.get(name, {}), manifest.reports.get(name, {})
    chains = manifest.chains.get(name, {})
    by_interval = arrivals.by_interval(manifest.interval_map(name))
    arrived = {interval.id: records for interval, records in by_interval}
    results: dict[int, Result] = {}
    bundles = []
    for interval in owned:
        id = interval.id
        number, report = numbers.get(id, 0), reports.get(id, NOTHING_PENDING)
        records = arrived.get(id, NO_RECORDS)
        if len(records.cuts) <= 1 and not report.due(clocks, manifest.wall_time_us):
            results[id] = Result(
                name, id, number, report, Counters(), Productions(), chain=chains.get(id, 0)
            )
        else:
            bundles.append(Bundle(interval, Position(number, chains.get(id, 0), report), records))
    if bundles:
        fence = EpochFence(worker.state.epochs, manifest)
        ran = worker.run(spec, bundles, attempt(spec, manifest, clocks), fence)
        results.update({result.interval: result for result in ran})
    return [results[interval.id] for interval in owned]


def attempt(spec: ComputationSpec, manifest: Manifest, clocks: Mapping[int, int]) -> Attempt:
    """Return the attempt of a computation's bundles in an epoch."""
    return Attempt(
        manifest.epoch,
        manifest.generation,
        manifest.wall_time_us,
        manifest.delivery_low_watermark_us(spec),
        clocks,
        manifest.before.outputs[spec.name],
        manifest.delivery_percentiles_us(spec),
        manifest.before.inputs[spec.name],
        len(manifest.intervals[spec.name]),
    )
