"""Routes: by which steps records reach a stream, as names that outlive changes elsewhere.

Streams of steps have made-up names, which count the steps of a source. So they are told by what
they are made of: ``bids > filter``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from millrace.compile.topology import Topology
from millrace.model.stream import Step
from millrace.model.time import format_duration


class Routes:
    """The routes of a topology's streams."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._steps: dict[str, list[Step]] = {}
        for spec in topology.streams.values():
            for step in spec.steps:
                self._steps.setdefault(step.target, []).append(step)

    def made_up(self, stream: str) -> bool:
        """Return whether nobody but the pipeline has named a stream."""
        steps = self._steps.get(stream, ())
        return any(re.fullmatch(_made_up_name(step), stream) for step in steps)

    def text(self, stream: str) -> str:
        """Return a stream's name, or what it is made of."""
        return " + ".join(self._fed_by_steps(stream)) if self.made_up(stream) else stream

    def texts(self, streams: Iterable[str]) -> dict[str, str]:
        """Return a text for each of some streams, no two the same.

        >>> import millrace as mr
        >>> p = mr.Pipeline("p")
        >>> bids = p.inject("bids", format=dict)
        >>> big, small = bids.filter(bool), bids.filter(bool)
        >>> p.sink(big.name, print)
        >>> Routes(p.build()).texts([big.name, small.name])
        {'bids.filter-1': 'bids > filter', 'bids.filter-2': 'bids > filter (2)'}
        """
        streams = list(streams)
        return dict(zip(streams, told_apart(map(self.text, streams)), strict=True))

    def feeders(self, stream: str) -> list[str]:
        """Return who feeds a stream."""
        spec = self._topology.streams[stream]
        return sorted(
            [
                *(["an injector"] if spec.injection is not None else []),
                *(f"computation {name!r}" for name in spec.publishers),
                *self._fed_by_steps(stream),
            ]
        )

    def before_computations(self) -> set[str]:
        """Return the streams that records pass on their way to a computation."""
        found: set[str] = set()
        pending = [stream for spec in self._topology.computations for stream in spec.inputs]
        while pending:
            stream = pending.pop()
            if stream not in found:
                found.add(stream)
                pending += [step.source for step in self._steps.get(stream, ())]
        return found

    def _fed_by_steps(self, stream: str) -> list[str]:
        return sorted(self.text(step.source) + _step(step) for step in self._steps.get(stream, ()))


def told_apart(texts: Iterable[str]) -> list[str]:
    """Return the texts, those that repeat an earlier one with a number behind them.

    >>> told_apart(["tea", "rum", "tea"])
    ['tea', 'rum', 'tea (2)']
    """
    found: dict[str, None] = {}
    for text in texts:
        told, n = text, 2
        while told in found:
            told, n = f"{text} ({n})", n + 1
        found[told] = None
    return list(found)


def _made_up_name(step: Step) -> str:
    kind = "flatten" if step.kind == "to" else step.kind
    return rf".*\.{kind}-\d+"


def _step(step: Step) -> str:
    if step.kind == "to":
        return ""
    if step.backwards_us:
        return f" > {step.kind}(backwards={format_duration(step.backwards_us)!r})"
    return f" > {step.kind}"
