"""Propagation: low watermarks within one epoch, from injectors down, computation by computation.

Workers and the authority compute by the same rules: the workers level by level, from what the
injectors published and what the level before said; the authority, afterwards, from the reports.

Source: MillWheel, "Low Watermarks" (4.5 and 7.2).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from millrace.compile.topology import ComputationSpec, Topology, injector_name
from millrace.model.time import MAX_TIMESTAMP
from millrace.watermark.percentiles import NOTHING_OUTSTANDING, Ahead, Outstanding
from millrace.watermark.report import Report


class LowWatermarks(msgspec.Struct, omit_defaults=True):
    """Low watermarks of a whole pipeline at one moment, in microseconds.

    Attributes:
        inputs: Computation -> low watermark of its input: what decides lateness and fires timers.
        outputs: Computation, or ``injector:<stream>``, -> low watermark it shows its consumers.
        percentiles: Percentile -> the same for that share of the work.
    """

    inputs: dict[str, int]
    outputs: dict[str, int]
    percentiles: dict[int, LowWatermarks] = {}

    def taken(self, other: LowWatermarks) -> LowWatermarks:
        """Return those of another for all that these have, and it has, too; without percentiles."""
        return LowWatermarks(
            {name: other.inputs.get(name, us) for name, us in self.inputs.items()},
            {name: other.outputs.get(name, us) for name, us in self.outputs.items()},
        )

    def copy(self, percentiles: Iterable[int]) -> LowWatermarks:
        """Return a copy with these percentiles; one that is new starts with the whole."""
        return LowWatermarks(
            dict(self.inputs),
            dict(self.outputs),
            {p: self.percentiles.get(p, self).copy(()) for p in percentiles},
        )


class Pending(msgspec.Struct, array_like=True, frozen=True):
    """The pending work of some key intervals.

    Attributes:
        pending_us: The oldest of it; MAX_TIMESTAMP if there is none.
        outstanding: How it is spread; empty where the pipeline uses no percentiles.
    """

    pending_us: int = MAX_TIMESTAMP
    outstanding: Outstanding = NOTHING_OUTSTANDING

    @classmethod
    def of(cls, reports: Iterable[Report], *, spread: bool) -> Pending:
        """Return that of some reports.

        Args:
            reports: One a key interval.
            spread: Whether percentiles are asked for.
        """
        pending = cls()
        for report in reports:
            pending = pending.merged(
                cls(
                    report.oldest_work_us(),
                    report.spread() if spread else NOTHING_OUTSTANDING,
                )
            )
        return pending

    def merged(self, other: Pending) -> Pending:
        """Return the pending work of both."""
        return Pending(
            min(self.pending_us, other.pending_us), self.outstanding.merged(other.outstanding)
        )

    def pins_us(self, percentile: int) -> int:
        """Return where it pins the low watermark of a percentile."""
        if percentile == 100:
            return self.pending_us
        return max(self.pending_us, self.outstanding.passed_us(percentile))


class Message(msgspec.Struct, array_like=True):
    """What a task tells those of the next level: all that it knows, and its own part.

    Attributes:
        outputs: What the levels above its own show, whole.
        percentiles: Percentile -> the same.
        pending: Computation of its level -> pending work of its own intervals.
        ahead: Of a live injector task: ``injector:<stream>`` -> how far ahead of its low watermark
            there the records came that it sent since it last said so.
    """

    outputs: dict[str, int]
    percentiles: dict[int, dict[str, int]]
    pending: dict[str, Pending]
    ahead: dict[str, Ahead] = {}


class WatermarkPropagation:
    """Low watermarks of an epoch, as they become known; none is below what it was before.

    Args:
        before: As the epoch began.
        injectors: Injected stream -> low watermark published with the epoch.
        percentiles: Percentile -> the same.

    Attributes:
        low_watermarks: As far as they are known.
    """

    def __init__(
        self,
        before: LowWatermarks,
        injectors: Mapping[str, int],
        percentiles: Mapping[int, Mapping[str, int]],
    ) -> None:
        self.low_watermarks = before.copy(percentiles)
        for percentile, known in self._each():
            outputs = known.outputs
            for stream, us in (percentiles.get(percentile, injectors)).items():
                outputs[injector_name(stream)] = max(outputs[injector_name(stream)], us)

    def inputs(self, spec: ComputationSpec) -> dict[int, int]:
        """Return the low watermarks of a computation's input, by percentile; all senders known.

        Returns:
            Percentile -> microseconds; 100 is the low watermark itself.
        """
        inputs = {}
        for percentile, known in self._each():
            us = spec.input_us(known.outputs)
            inputs[percentile] = known.inputs[spec.name] = max(known.inputs[spec.name], us)
        return inputs

    def finish(self, spec: ComputationSpec, pending: Pending) -> None:
        """Take the pending work of a whole computation, after its inputs."""
        name = spec.name
        for percentile, known in self._each():
            output_us = min(known.inputs[name], pending.pins_us(percentile))
            known.outputs[name] = max(known.outputs[name], output_us)

    def message(self, pending: Mapping[str, Pending]) -> Message:
        """Return the message of a task to the next level.

        Args:
            pending: Computation of this level -> pending work of the task's own intervals.
        """
        return Message(
            self.low_watermarks.outputs,
            {p: known.outputs for p, known in self.low_watermarks.percentiles.items()},
            dict(pending),
        )

    def hear(self, messages: Iterable[Message], topology: Topology) -> None:
        """Take the messages of all tasks of the level before."""
        together: dict[str, Pending] = {}
        for message in messages:
            for percentile, known in self._each():
                outputs = message.percentiles.get(percentile, message.outputs)
                known.outputs.update(
                    {name: us for name, us in outputs.items() if name not in message.pending}
                )
            for name, pending in message.pending.items():
                together[name] = together.get(name, Pending()).merged(pending)
        self.take(together, topology)

    def take(self, together: Mapping[str, Pending], topology: Topology) -> None:
        """Take the pending work of all tasks of a level."""
        for name, pending in together.items():
            spec = topology.computation(name)
            self.inputs(spec)
            self.finish(spec, pending)

    def _each(self) -> Iterator[tuple[int, LowWatermarks]]:
        yield 100, self.low_watermarks
        yield from self.low_watermarks.percentiles.items()
