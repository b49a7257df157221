"""Where low watermarks stand between two marks, as tasks tell the driver."""

from __future__ import annotations

from collections.abc import Iterable

from millrace.plane.realtime.messages import Told
from millrace.spark.status import Status


def live_low_watermarks(status: Status, told: Iterable[Told], tasks: int) -> dict[str, int]:
    """Return computation -> low watermark of its input: what all of its tasks have told by now.

    Args:
        status: As of the last mark; nothing is below it.
        told: What tasks have told last.
        tasks: How many there are of a level.
    """
    said: dict[str, list[int]] = {}
    for one in told:
        for name, us in one.inputs.items() if one.level else ():
            said.setdefault(name, []).append(us)
    return {
        name: max(us, min(known)) if len(known := said.get(name, [])) == tasks else us
        for name, us in status.low_watermarks.items()
    }
