"""What the tasks of a session say of a mark that they have passed, put together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
from msgspec.structs import replace

from millrace.plane.realtime.messages import Mark, Passed
from millrace.plane.task_sinks import Receipt
from millrace.windmill.manifest import Manifest
from millrace.windmill.place import Place

_decode_receipt = msgspec.msgpack.Decoder(Receipt).decode


def as_passed(manifest: Manifest, mark: Mark, passed: Iterable[Passed], wall_us: int) -> Manifest:
    """Return the manifest of an epoch as its mark ended it: with what injectors had published."""
    said_us = published(passed)
    return replace(
        manifest,
        injectors=said_us.get(100, manifest.injectors),
        percentiles={p: us for p, us in said_us.items() if p != 100},
        draining=mark.draining,
        wall_time_us=max(manifest.wall_time_us, wall_us),
    )


def published(passed: Iterable[Passed]) -> dict[int, dict[str, int]]:
    """Return percentile -> injected stream -> the least that any task says of it."""
    found: dict[int, dict[str, int]] = {}
    for part in passed:
        for percentile, streams in part.published.items():
            known = found.setdefault(percentile, {})
            for stream, us in streams.items():
                known[stream] = min(known.get(stream, us), us)
    return found


def places(
    passed: Iterable[Passed], numbers: Mapping[str, Mapping[str, int]]
) -> dict[str, dict[str, Place]]:
    """Return injected stream -> process -> where it stood.

    Args:
        passed: What injector tasks said.
        numbers: Of processes that no mark before has. Of one that is gone it is all there is.
    """
    found = {
        stream: {name: Place(number) for name, number in of.items()}
        for stream, of in numbers.items()
    }
    for part in passed:
        for stream, of in part.input.items():
            found.setdefault(stream, {}).update(of)
    return found


def receipts(passed: Iterable[Passed]) -> dict[int, list[bytes]]:
    """Return edge to a sink -> what tasks say of what they wrote to it."""
    found: dict[int, list[bytes]] = {}
    for one in passed:
        for edge, receipt in one.receipts.items():
            found.setdefault(edge, []).append(_decode_receipt(receipt).of)
    return found
