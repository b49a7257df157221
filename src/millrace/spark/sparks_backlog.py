"""What waits in sources that Spark reads itself, by the progress that it reports of its query."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from millrace.compile.topology import Topology
from millrace.injectors.backlog import Backlog
from millrace.injectors.injector import Injector


def asking_spark(
    topology: Topology, query: Callable[[], Any]
) -> dict[str, Callable[[], Backlog | None]]:
    """Return injected stream -> what asks how much waits in its DataFrame.

    Args:
        topology: The pipeline.
        query: Returns its query; None as long as there is none.
    """
    streams = [spec for spec in topology.injected() if spec.injection is not None]

    def asks(at: int) -> Callable[[], Backlog | None]:
        def ask() -> Backlog | None:
            running = query()
            progress = None if running is None else running.lastProgress
            # Besides theirs it has the source of ticks. Where there are more, or less, one of the
            # frames is of several sources, or two are of one: nobody could say whose is whose.
            if progress is None or len(progress.sources) != len(streams) + 1:
                return None
            source = progress.sources[at]
            return behind(source.endOffset, source.latestOffset)

        return ask

    return {
        spec.name: asks(at)
        for at, spec in enumerate(streams)
        if spec.injection is not None and not isinstance(spec.injection.source, Injector)
    }


def behind(read: str | None, latest: str | None) -> Backlog | None:
    """Return what lies between offsets of Spark's Kafka source; None for another source's.

    >>> behind('{"t":{"0":5,"1":7}}', '{"t":{"0":9,"1":7,"2":3}}')
    Backlog(records=4, files=None, size=None)
    >>> behind("41", "44")
    """
    try:
        begun, end = json.loads(read or ""), json.loads(latest or "")
        records = [
            last - begun[topic].get(partition, last)
            for topic, partitions in end.items()
            for partition, last in partitions.items()
        ]
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    return Backlog(records=sum(max(0, n) for n in records))
