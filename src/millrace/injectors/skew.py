"""Skew limiting: a process that is too far ahead of the low watermark waits until that advances.

Whatever is read beyond the low watermark has to be kept in state until the low watermark gets
there. So what is not read keeps state small: its bound is what the allowed span of time holds.

Source: MillWheel, "Low Watermarks" (4.5): state that waits for the low watermark;
docs/injectors.md, "Skew".
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from millrace.compile.topology import Topology, injector_name
from millrace.injectors.throttle import EVERYONE
from millrace.model.time import MIN_TIMESTAMP


def too_far(
    processes: Mapping[str, int], low_watermark_us: int, skew_us: int | None
) -> frozenset[str]:
    """Return the processes that have to wait.

    The furthest behind never has to: the low watermark is not below what it publishes.

    Args:
        processes: Process -> low watermark that it publishes by itself.
        low_watermark_us: The lowest that is published to the computations it feeds.
        skew_us: How far ahead of that a process may be; None: any distance.

    >>> sorted(too_far({"a": 100, "b": 40, "c": 51}, 40, 10))
    ['a', 'c']
    """
    if skew_us is None:
        return frozenset()
    return frozenset(
        name
        for name, us in processes.items()
        if us != MIN_TIMESTAMP and us > low_watermark_us + skew_us
    )


def together(topology: Topology) -> dict[str, frozenset[str]]:
    """Return injected stream -> the injected streams that feed a computation together with it.

    They share a low watermark: what one of them lacks, the state for the others waits for.
    """
    fed: dict[str, set[str]] = {}
    names = {injector_name(spec.name): spec.name for spec in topology.injected()}
    for spec in topology.computations:  # in order of level: senders come first
        fed[spec.name] = set()
        for sender in spec.senders:
            fed[spec.name] |= {names[sender]} if sender in names else fed[sender]
    return {
        stream: frozenset({stream}.union(*(group for group in fed.values() if stream in group)))
        for stream in names.values()
    }


class Gate:
    """Who has to wait; shared between the driver and the process that asks an injector, by a file.

    Args:
        path: The file. As long as there is none, nobody waits.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._closed: frozenset[str] = frozenset()

    def close_for(self, processes: Iterable[str]) -> None:
        """Replace who has to wait. A reader sees the old or the new list, never half of it."""
        closed = processes if processes is EVERYONE else frozenset(processes)
        if closed == self._closed:
            return
        scratch = self.path.with_suffix(".new")
        scratch.write_text(json.dumps(None if closed is EVERYONE else sorted(closed)))
        scratch.replace(self.path)
        self._closed = closed

    def waiting(self) -> frozenset[str]:
        """Return who has to wait."""
        try:
            names = json.loads(self.path.read_text())
            return EVERYONE if names is None else frozenset(names)
        except FileNotFoundError:
            return frozenset()
