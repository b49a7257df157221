"""Stages of an epoch as the function that Spark calls for each task of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf

import pyarrow as pa

from millrace.epochlog.entries import decode_manifest
from millrace.runtime.packets import packed, unpacked
from millrace.runtime.sink_writer import SinkEncoder
from millrace.runtime.worker_process import Stage, Task
from millrace.spark.worker import Blueprint, rehearsal_of, runtime_of


class OnSpark:
    """The function of stages with no shuffle between them, for ``mapInArrow``: one call a task.

    Args:
        blueprint: Of the run.
        manifest: Of the epoch, as JSON.
        stages: What each task does, one after the other.
        last: Whether they end with the last one: what leaves it are columns for the sinks, and
            reports.
        packed: Whether what leaves them leaves in packets.
        careful: Whether to look for calls that end their process.
        rehearsed: Whether it is a rehearsal: see :func:`~millrace.spark.worker.rehearsal_of`.
    """

    def __init__(
        self,
        blueprint: Blueprint,
        manifest: bytes,
        stages: Sequence[Stage],
        *,
        last: bool = False,
        packed: bool = False,
        careful: bool = False,
        rehearsed: bool = False,
    ) -> None:
        self.blueprint = blueprint
        self.manifest = manifest
        self.stages = stages
        self.last = last
        self.packed = packed
        self.careful = careful
        self.rehearsed = rehearsed

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield what leaves the task."""
        from pyspark import TaskContext

        context = TaskContext.get()
        number = context.partitionId() if context is not None else 0
        if self.rehearsed:
            runtime = rehearsal_of(self.blueprint)
        else:
            runtime = runtime_of(self.blueprint, careful_s=inf if self.careful else 0.0)
        manifest = decode_manifest(self.manifest)
        leaving = unpacked(batches)
        for stage in self.stages:
            leaving = stage.run(Task(runtime, manifest, number), leaving)
        if self.last:
            leaving = SinkEncoder(runtime, manifest.epoch, number).batches(leaving)
        elif self.packed:
            leaving = packed(leaving)
        yield from leaving
