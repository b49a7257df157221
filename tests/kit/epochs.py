"""One computation of an epoch, run by hand: its bundles, without a wire around them."""

from __future__ import annotations

from collections.abc import Mapping

from millrace.compile.topology import ComputationSpec
from millrace.epochlog.entries import Manifest
from millrace.epochlog.fence import EpochFence
from millrace.epochlog.positions import Positions
from millrace.kernel.bundle import ReceivedRecords
from millrace.kernel.execution import Execution
from millrace.kernel.results import Produced
from millrace.runtime.commit_writer import PutWriter
from millrace.runtime.epoch.host import attempt_of_epoch


def run_epoch(
    execution: Execution,
    spec: ComputationSpec,
    manifest: Manifest,
    positions: Positions,
    owned: range,
    arrivals: ReceivedRecords,
    clocks: Mapping[int, int],
    task: int = 0,
) -> list[Produced]:
    """Run one computation for one epoch; return what the intervals that had work gave.

    Args:
        execution: Runs the bundles.
        spec: The computation.
        manifest: Of the epoch.
        positions: Where intervals stand when it begins.
        owned: The places in the interval map of the intervals that this task owns.
        arrivals: Every record for them.
        clocks: Percentile -> the computation's input low watermark after the records, 100 among
            them.
        task: Which of the epoch's tasks it is: those that the manifest says there are.
    """
    attempt = attempt_of_epoch(manifest, spec, clocks)
    records = arrivals.of_intervals(intervals := manifest.interval_map(spec.name))
    bundles = positions.bundles(spec, intervals, owned, records, attempt)
    if not bundles:
        return []
    writer = PutWriter(execution, EpochFence(execution.state.epochs, manifest), task)
    return writer.commit(writer.run(spec, bundles))
