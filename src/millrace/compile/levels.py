"""What stands before what: levels, the longest paths from an injector, and who is upstream."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from millrace.model.declarations import Declarations
from millrace.model.errors import PipelineError


def levels_of(pipeline: Declarations, senders: Mapping[str, frozenset[str]]) -> dict[str, int]:
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


def upstream(senders: Mapping[str, frozenset[str]], names: Iterable[str]) -> set[str]:
    """Return the computations and injectors that feed some computations, over others or not.

    Args:
        senders: Computation -> computations and injectors that feed it.
        names: Computations; one is among the result if it feeds another.

    >>> sorted(upstream({"a": frozenset(), "b": frozenset("a"), "c": frozenset("b")}, ["c"]))
    ['a', 'b']
    """
    found: set[str] = set()
    pending = [sender for name in names for sender in senders[name]]
    while pending:
        sender = pending.pop()
        if sender not in found:
            found.add(sender)
            pending += senders.get(sender, ())
    return found
