"""What stands before what: levels, the longest paths from an injector, and who is upstream."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from millrace.model.errors import PipelineError
from millrace.model.pipeline import Declarations


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


def counting(
    senders: Mapping[str, frozenset[str]], waiting: Iterable[str]
) -> dict[str, tuple[str, ...]]:
    """Return each computation's part in percentiles: who waits for those of its work.

    How much work is left behind a time is asked of all computations upstream of one that waits for
    a percentile, and of no other, not even of itself: its input does not wait for its own work.

    Args:
        senders: Computation -> computations and injectors that feed it.
        waiting: The computations that wait for percentiles.

    >>> counting({"a": frozenset(), "b": frozenset("a"), "c": frozenset("a")}, ["b"])
    {'a': ('b',), 'b': (), 'c': ()}
    """
    found: dict[str, list[str]] = {name: [] for name in senders}
    for name in waiting:
        pending = list(senders[name])
        while pending:
            sender = pending.pop()
            if sender in found and name not in found[sender]:
                found[sender].append(name)
                pending += senders[sender]
    return {name: tuple(those) for name, those in found.items()}
