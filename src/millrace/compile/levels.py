"""The level of each computation: its longest path from an injector."""

from __future__ import annotations

from collections.abc import Mapping

from millrace.model.errors import PipelineError
from millrace.model.pipeline import Pipeline


def levels_of(pipeline: Pipeline, senders: Mapping[str, frozenset[str]]) -> dict[str, int]:
    """Return computation -> level; 1 is fed by injectors only.

    Raises:
        PipelineError: Computations feed one another in a circle.
    """
    levels: dict[str, int] = {}
    path: list[str] = []

    def level(name: str) -> int:
        if name in levels:
            return levels[name]
        if name in path:
            circle = " -> ".join([*path[path.index(name) :], name])
            raise PipelineError(
                f"{pipeline!r} has a cycle: {circle}. A low watermark cannot advance around a "
                "cycle. Break it: feed the stream back through an external queue, or keep the "
                "state in one computation."
            )
        path.append(name)
        found = 1 + max(
            (level(sender) for sender in senders[name] if sender in pipeline.computations),
            default=0,
        )
        path.pop()
        levels[name] = found
        return found

    for name in pipeline.computations:
        level(name)
    return levels
