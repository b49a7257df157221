"""Low watermarks by sender: where tasks of a level send them when they like, not all at once.

The rules are those of :class:`~millrace.watermark.propagation.WatermarkPropagation`: the minimum
over all senders, and never back. What a sender said last counts until it says more.

Source: MillWheel, "Low Watermarks" (4.5 and 7.2).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from millrace.compile.topology import ComputationSpec, Topology
from millrace.model.time import MIN_TIMESTAMP
from millrace.watermark.estimate import Estimate
from millrace.watermark.propagation import LowWatermarks, Message, Pending, WatermarkPropagation


class SenderWatermarks:
    """What one task knows of low watermarks.

    Args:
        topology: The pipeline.
        before: As the session began.
        senders: How many tasks the level before has; until all have spoken, nothing moves.
    """

    def __init__(self, topology: Topology, before: LowWatermarks, senders: int) -> None:
        self._topology = topology
        self._senders = senders
        self._last: dict[int, Message] = {}
        self._estimates: dict[str, Estimate] = {}
        self._shown = WatermarkPropagation(before, {}, {p: {} for p in topology.percentiles})

    @property
    def low_watermarks(self) -> LowWatermarks:
        """As far as they are known. Do not keep it: it moves on."""
        return self._shown.low_watermarks

    def hear(self, said: Iterable[tuple[int, Message]]) -> None:
        """Take messages of senders, each later than what the same one said before."""
        before, counted = dict(self._last), False
        for sender, message in said:
            for injector, ahead in message.ahead.items():
                self._estimates.setdefault(injector, Estimate()).add(sender, ahead)
                counted = True
            self._last[sender] = replace(message, ahead={}) if message.ahead else message
        if len(self._last) < self._senders or (before == self._last and not counted):
            return
        messages = list(self._last.values())
        known = self._shown.low_watermarks
        for percentile, low_watermarks in [(100, known), *known.percentiles.items()]:
            told = [m.percentiles.get(percentile, m.outputs) for m in messages]
            outputs, pending = low_watermarks.outputs, messages[0].pending
            for name in outputs:
                if name not in pending:
                    outputs[name] = max(
                        outputs[name], min(one.get(name, MIN_TIMESTAMP) for one in told)
                    )
            for name, estimate in self._estimates.items():
                said_us = {n: m.outputs.get(name, MIN_TIMESTAMP) for n, m in self._last.items()}
                outputs[name] = max(outputs[name], estimate.us(percentile, said_us))
        together: dict[str, Pending] = {}
        for message in messages:
            for name, part in message.pending.items():
                together[name] = together.get(name, Pending()).merged(part)
        self._shown.take(together, self._topology)

    def inputs(self, spec: ComputationSpec) -> dict[int, int]:
        """Return the low watermarks of a computation's input, by percentile."""
        return self._shown.inputs(spec)

    def raise_inputs(self, inputs: Mapping[str, Mapping[int, int]]) -> None:
        """Let no input's low watermark be below what a task has worked at before.

        Args:
            inputs: Computation -> percentile -> microseconds.
        """
        known = self._shown.low_watermarks
        for percentile, low_watermarks in [(100, known), *known.percentiles.items()]:
            mine = low_watermarks.inputs
            for name, clocks in inputs.items():
                if name in mine and clocks:
                    us = clocks.get(percentile, clocks.get(100, mine[name]))
                    mine[name] = max(mine[name], us)

    def message(self, pending: dict[str, Pending]) -> Message:
        """Return what this task tells the next level; see :meth:`WatermarkPropagation.message`."""
        said = self._shown.message(pending)
        return Message(
            dict(said.outputs), {p: dict(us) for p, us in said.percentiles.items()}, said.pending
        )
