"""Low watermarks by sender: where tasks of a level send them when they like, not all at once.

The rules are those of :class:`~millrace.watermark.propagation.WatermarkPropagation`: the minimum
over all senders, and never back. What a sender said last counts until it says more.

Source: MillWheel, "Low Watermarks" (4.5 and 7.2).

Estimate: percentile low watermarks of an injector that several live tasks read.

On the epoch plane a stream has one low watermark that all its records are compared with, in the
driver. Live tasks each have their own, and go on without asking: so each says how far ahead of its
own its records came, and who hears all of them puts that together.

Source: MillWheel 7.2, percentile low watermarks; Dataflow patent, "Percentile Watermark".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from millrace.compile.topology import ComputationSpec, Topology
from millrace.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP
from millrace.watermark.percentiles import RECORDS_MAX, Ahead, edge_us
from millrace.watermark.propagation import LowWatermarks, Message, Pending, WatermarkPropagation

Ints = npt.NDArray[np.int64]


class Estimate:
    """Percentile low watermarks of an injector whose processes several tasks read, each its own.

    A task's future records are expected to be as far ahead of its low watermark as its past ones,
    and as many. So a task that lags counts by its share of the records, and no more.

    >>> estimate = Estimate()
    >>> estimate.add(0, Ahead.of(np.full(9, 1_000), 0)), estimate.add(1, Ahead.of(np.array([5]), 0))
    (None, None)
    >>> estimate.us(100, {0: 70_000, 1: 20}), 70_900 < estimate.us(90, {0: 70_000, 1: 20}) <= 71_000
    (20, True)
    """

    def __init__(self) -> None:
        self._tasks: dict[int, Ahead] = {}
        self._edges: dict[int, tuple[Ints, Ints]] = {}

    def add(self, task: int, ahead: Ahead) -> None:
        """Add the counts of a task since its last message."""
        self._tasks[task] = self._tasks.get(task, Ahead()).merged(ahead)
        self._edges.pop(task, None)
        # All at once: how much each has sent, beside the others, must not change by it.
        while sum(ahead.records for ahead in self._tasks.values()) > RECORDS_MAX:
            self._tasks = {n: ahead.halved() for n, ahead in self._tasks.items()}
            self._edges.clear()

    def us(self, percentile: int, low_watermarks: Mapping[int, int]) -> int:
        """Return what the injector publishes for a share.

        Args:
            percentile: The share.
            low_watermarks: Task -> low watermark of what it reads, now; of all tasks.

        Returns:
            Microseconds; with one task, its low watermark and :meth:`Ahead.ahead_us`. Never below
            the least of them.
        """
        least_us = min(low_watermarks.values())
        reading = [n for n in self._tasks if low_watermarks[n] < MAX_TIMESTAMP]
        if percentile == 100 or least_us == MIN_TIMESTAMP or not reading:
            return least_us
        parts = [(low_watermarks[n], *self._spread(n)) for n in reading]
        at_us = np.concatenate(
            [np.minimum(edges, MAX_TIMESTAMP - us) + us for us, edges, _ in parts]
        )
        counts = np.concatenate([counts for _, _, counts in parts])
        order = np.argsort(at_us, kind="stable")
        passed = np.cumsum(counts[order])
        if not len(passed):
            return least_us
        first = int(np.searchsorted(passed, int(passed[-1]) * (100 - percentile) // 100, "right"))
        return max(least_us, int(at_us[order[first]]))

    def _spread(self, task: int) -> tuple[Ints, Ints]:
        edges = self._edges.get(task)
        if edges is None:
            counts = self._tasks[task].counts
            edges = self._edges[task] = (
                np.array([edge_us(bucket) for bucket in counts], dtype=np.int64),
                np.array(list(counts.values()), dtype=np.int64),
            )
        return edges


class SenderWatermarks:
    """What one task knows of low watermarks.

    Args:
        topology: The pipeline.
        before: As the incarnation began.
        senders: How many tasks the level before has; until all have spoken, nothing moves.
    """

    def __init__(self, topology: Topology, before: LowWatermarks, senders: int) -> None:
        self._topology = topology
        self._senders = senders
        self._last: dict[int, Message] = {}
        self._estimates: dict[str, Estimate] = {}
        self._propagation = WatermarkPropagation(before, {}, {p: {} for p in topology.percentiles})

    @property
    def low_watermarks(self) -> LowWatermarks:
        """As far as they are known. Do not keep it: it moves on."""
        return self._propagation.low_watermarks

    def hear(self, messages_of_senders: Iterable[tuple[int, Message]]) -> None:
        """Take messages of senders, each later than the one before of the same sender."""
        before, counted = dict(self._last), False
        for sender, message in messages_of_senders:
            for injector, ahead in message.ahead.items():
                self._estimates.setdefault(injector, Estimate()).add(sender, ahead)
                counted = True
            self._last[sender] = replace(message, ahead={}) if message.ahead else message
        if len(self._last) < self._senders or (before == self._last and not counted):
            return
        messages = list(self._last.values())
        known = self._propagation.low_watermarks
        for percentile, low_watermarks in [(100, known), *known.percentiles.items()]:
            outputs_of_senders = [m.percentiles.get(percentile, m.outputs) for m in messages]
            outputs, pending = low_watermarks.outputs, messages[0].pending
            for name in outputs:
                if name not in pending:
                    outputs[name] = max(
                        outputs[name],
                        min(published.get(name, MIN_TIMESTAMP) for published in outputs_of_senders),
                    )
            for name, estimate in self._estimates.items():
                output_us = {n: m.outputs.get(name, MIN_TIMESTAMP) for n, m in self._last.items()}
                outputs[name] = max(outputs[name], estimate.us(percentile, output_us))
        together: dict[str, Pending] = {}
        for message in messages:
            for name, part in message.pending.items():
                together[name] = together.get(name, Pending()).merged(part)
        self._propagation.take(together, self._topology)

    def inputs(self, spec: ComputationSpec) -> dict[int, int]:
        """Return the low watermarks of a computation's input, by percentile."""
        return self._propagation.inputs(spec)

    def raise_inputs(self, inputs: Mapping[str, Mapping[int, int]]) -> None:
        """Let no input's low watermark be below what a task has worked at before.

        Args:
            inputs: Computation -> percentile -> microseconds.
        """
        known = self._propagation.low_watermarks
        for percentile, low_watermarks in [(100, known), *known.percentiles.items()]:
            input_watermarks = low_watermarks.inputs
            for name, clocks in inputs.items():
                if name in input_watermarks and clocks:
                    us = clocks.get(percentile, clocks.get(100, input_watermarks[name]))
                    input_watermarks[name] = max(input_watermarks[name], us)

    def message(self, pending: dict[str, Pending]) -> Message:
        """Return what this task tells the next level; see :meth:`WatermarkPropagation.message`."""
        propagated = self._propagation.message(pending)
        return Message(
            dict(propagated.outputs),
            {p: dict(us) for p, us in propagated.percentiles.items()},
            propagated.pending,
        )
