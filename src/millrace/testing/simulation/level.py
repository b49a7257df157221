"""A level's task, as Spark's stage runs it: rows and low watermarks in, a block of rows out.

The worker, the interval maps and the record ids are the real ones; what is done here is what
``millrace.plane.level`` does with Arrow: find what is addressed to this task, let the worker run,
address what leaves.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from millrace.compile.topology import ComputationSpec, Topology, injector_name
from millrace.windmill.arrivals import Arrivals
from millrace.windmill.manifest import Manifest
from millrace.windmill.record_ids import injected_origin, place, production_ids
from millrace.windmill.routing import Productions, Router
from millrace.windmill.source_ids import fingerprint, unseal
from millrace.windmill.worker import Result, Worker


class Row(NamedTuple):
    """A record on an edge."""

    edge: int
    hash: int
    key: bytes
    value: bytes
    timestamp: int
    origin: int
    sequence: int


@dataclass
class Block:
    """What one task sent.

    Attributes:
        task: Which; -1 for the source.
        rows: Receiving task -> rows.
        low_watermarks: What it knows of the senders of the next level.
        results: Its reports, and those that it passes on.
    """

    task: int = -1
    rows: dict[int, list[Row]] = field(default_factory=dict)
    low_watermarks: dict[str, int] = field(default_factory=dict)
    results: list[Result] = field(default_factory=list)


class Levels:
    """The levels of one epoch.

    Args:
        topology: The pipeline.
        manifest: Of the epoch.
        tasks: Tasks a level.
    """

    def __init__(self, topology: Topology, manifest: Manifest, tasks: int) -> None:
        self._topology = topology
        self._manifest = manifest
        self._tasks = tasks
        self._intervals = {
            spec.name: manifest.interval_map(spec.name) for spec in topology.computations
        }
        self._starts = {
            name: [interval.start for interval in intervals.intervals]
            for name, intervals in self._intervals.items()
        }
        self._level_of = {spec.name: spec.level for spec in topology.computations}

    def source(self, stream: str, records: Sequence[tuple[Any, int]]) -> Block:
        """Return what the source stage sends: each record, encoded, on its edges."""
        router, block = Router(self._topology), Block()
        injection = self._topology.streams[stream].injection
        assert injection is not None, f"{stream!r} is injected"
        number = [spec.name for spec in self._topology.injected()].index(stream)
        origin = injected_origin(number, self._manifest.epoch)
        for n, (value, timestamp_us) in enumerate(records):
            made = Productions()
            id = None if injection.id is None else fingerprint(value[injection.id])
            router.send_injected(made, stream, value, timestamp_us, id)
            self._address(block, made, origin, [place(0, n)] * len(made), 0)
        for spec in self._topology.injected():
            name = injector_name(spec.name)
            block.low_watermarks[name] = max(
                self._manifest.injectors[spec.name], self._manifest.before.outputs[name]
            )
        return block

    def run(self, level: int, task: int, blocks: Sequence[Block], worker: Worker) -> Block:
        """Run one task of a level.

        Args:
            level: From 1.
            task: From 0.
            blocks: From each task of the level before, in any order.
            worker: Of the Python worker.
        """
        known: dict[str, int] = {}
        here: dict[str, list[Row]] = {}
        made = Block(task)
        for block in blocks:
            if block.task == task:
                made.results += block.results
            for name, low_watermark_us in block.low_watermarks.items():
                known[name] = min(known.get(name, low_watermark_us), low_watermark_us)
            for row in block.rows.get(task, ()):
                consumer = self._topology.edges[row.edge].computation
                if consumer is not None and self._level_of[consumer] == level:
                    here.setdefault(consumer, []).append(row)
                else:
                    made.rows.setdefault(task, []).append(row)
        for spec in self._topology.computations:
            if spec.level != level:
                continue
            input_us = max(
                self._manifest.before.inputs[spec.name],
                spec.input_us(known),
            )
            intervals = self._intervals[spec.name]
            results = worker.run(
                spec,
                self._manifest,
                intervals,
                intervals.owned(task, self._tasks),
                self._arrivals(here.get(spec.name, [])),
                input_us,
            )
            known[spec.name] = max(
                self._manifest.before.outputs[spec.name],
                min([input_us, *(result.report.oldest_work_us() for result in results)]),
            )
            self._send(made, spec, results, task)
        made.low_watermarks = known
        return made

    def _send(
        self, block: Block, spec: ComputationSpec, results: Sequence[Result], task: int
    ) -> None:
        for result in results:
            origin, sequences = production_ids(
                spec.number, result.number, result.interval, len(result.productions)
            )
            self._address(block, result.productions, origin, sequences.tolist(), task)
            block.results.append(result)

    def _address(
        self,
        block: Block,
        productions: Productions,
        origin: int,
        sequences: Sequence[int],
        task: int,
    ) -> None:
        for n, number in enumerate(productions.edges):
            consumer = self._topology.edges[number].computation
            to = task if consumer is None else self._owner(consumer, productions.hashes[n])
            block.rows.setdefault(to, []).append(
                Row(
                    number,
                    productions.hashes[n],
                    productions.keys[n],
                    productions.values[n],
                    productions.timestamps[n],
                    origin,
                    sequences[n],
                )
            )

    def _owner(self, computation: str, hashed: int) -> int:
        starts = self._starts[computation]
        return (bisect_right(starts, hashed) - 1) * self._tasks // len(starts)

    def _arrivals(self, rows: Sequence[Row]) -> Arrivals:
        by_edge: dict[int, list[Row]] = {}
        for row in rows:
            by_edge.setdefault(row.edge, []).append(row)
        return Arrivals.together([self._on(edge, found) for edge, found in by_edge.items()])

    def _on(self, number: int, rows: Sequence[Row]) -> Arrivals:
        edge = self._topology.edges[number]
        stream, ids = self._topology.streams[edge.stream], None
        values = [row.value for row in rows]
        origins = np.array([row.origin for row in rows], dtype=np.int64)
        if edge.identified:
            values, ids = unseal(edge.stream, values, origins, stream.slacks)
        return Arrivals(
            np.array([row.hash for row in rows], dtype=np.uint64),
            [row.key for row in rows],
            [stream.coder.decode(value) for value in values],
            np.array([row.timestamp for row in rows], dtype=np.int64),
            edge.stream,
            origins,
            np.array([row.sequence for row in rows], dtype=np.int64),
            ids,
        )
