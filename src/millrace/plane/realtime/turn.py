"""A turn as an epoch: what the code that both planes share asks a manifest for."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from millrace.compile.topology import Topology
from millrace.model.time import MIN_TIMESTAMP
from millrace.watermark.propagation import LowWatermarks
from millrace.windmill.manifest import Manifest


def turns_manifest(
    topology: Topology,
    begun: Manifest,
    *,
    epoch: int,
    wall_us: int,
    output_watermark_us: int,
    published: Mapping[str, int] = MappingProxyType({}),
) -> Manifest:
    """Return a manifest that says what holds in one turn of one task.

    Who lifts asks it which records are late for the receiver: at the latest those behind what
    this task itself has shown, whatever else the receiver has heard.

    Args:
        topology: The pipeline.
        begun: Of the epoch in which the session began.
        epoch: That is open now.
        wall_us: What time it is.
        output_watermark_us: The highest low watermark that the task has shown.
        published: Injected stream -> low watermark, of those that the task reads.
    """
    before = begun.before
    return Manifest(
        epoch=epoch,
        generation=begun.generation,
        wall_time_us=wall_us,
        injectors={
            spec.name: published.get(spec.name, output_watermark_us) for spec in topology.injected()
        },
        draining=False,
        before=LowWatermarks(
            dict.fromkeys(before.inputs, MIN_TIMESTAMP),
            dict.fromkeys(before.outputs, output_watermark_us),
        ),
        intervals=begun.intervals,
        entry=begun.entry,
        edges=begun.edges,
    )
