"""Pipelines of examples on Spark, with the records that the examples give a Harness.

Each stream that a Harness feeds gets a DataFrame with a column for each field, as a user would have
it. A pipeline is planned: its sources are checked, it is pickled for the workers, and Spark
analyses the frame of an epoch. Where its records are there, it is also run as a batch.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from decimal import Decimal
from typing import Any
from unittest.mock import Mock

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import millrace as mr
from millrace.compile.topology import StreamSpec, Topology
from millrace.epochlog.run_log import RunLog
from millrace.injectors.watermark_publisher import WatermarkPublisher
from millrace.model.declarations import Injection
from millrace.model.stream import ByFields
from millrace.model.time import timestamp_us
from millrace.runtime.values import ROWS, SinkColumns
from millrace.spark.external import external_pieces, together
from millrace.spark.plan import StreamPlan
from millrace.spark.source import sources_of
from millrace.store import MemoryHardState

#: Values that a column takes as they are.
_AS_THEY_ARE = (bytes, dt.datetime, dt.date, Decimal)


class Examples:
    """The pipelines that examples make, and what they give the Harness."""

    def __init__(self) -> None:
        self._pipelines: list[mr.Pipeline] = []
        self._harnesses: list[tuple[Any, mr.testing.Harness]] = []
        self._records: list[tuple[Any, str, list[Any]]] = []
        #: Pipelines that go on with the state of another one, or name a system that is not here.
        self._not_run: list[Any] = []

    @contextmanager
    def watched(self, *, external: bool = False) -> Iterator[None]:
        """Note what examples make; of those that name external systems no run starts."""
        examples = self
        init = mr.Pipeline.__init__

        class Harness(mr.testing.Harness):
            def __init__(self, pipeline: Any, **options: Any) -> None:
                self.pipeline = pipeline
                super().__init__(pipeline, **options)
                examples._harnesses.append((pipeline, self))

            def update(self, pipeline: Any) -> None:
                super().update(pipeline)
                self.pipeline = pipeline
                examples._not_run.append(pipeline)

            def inject(self, stream: str, records: Iterable[Any], **options: Any) -> None:
                given = list(records)
                super().inject(stream, given, **options)
                examples._records.append((self.pipeline, stream, given))

        def made(pipeline: mr.Pipeline, *args: Any, **options: Any) -> None:
            init(pipeline, *args, **options)
            examples._pipelines.append(pipeline)
            if external:
                examples._not_run.append(pipeline)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(mr.testing, "Harness", Harness)
            patch.setattr(mr.Pipeline, "__init__", made)
            if external:
                patch.setattr(mr.Pipeline, "start", lambda *_, **options: Mock())
                patch.setattr(mr.Pipeline, "run_batch", lambda *_, **options: Mock())
            yield

    def refused_by_spark(self, spark: SparkSession, *, run: bool = True) -> list[str]:
        """Return what Spark refuses of the pipelines that can be built.

        Args:
            spark: A session.
            run: Whether to run those that have records; of several of one name it is the first.
        """
        problems = []
        ran = set[str]()
        for pipeline in self._pipelines:
            try:
                topology = pipeline.build()
            except mr.MillraceError:
                continue  # the example shows that
            if not topology.injected():
                continue  # it shows a declaration
            if pipeline.name == "transcript":
                continue  # whoever plays it has a source of its own, of tuples
            fed = any(of is pipeline for of, _, _ in self._records)
            try:
                for spec in topology.injected():
                    self._give_source(spark, pipeline, spec)
                can_run = fed and not any(pipeline is one for one in self._not_run)
                if run and can_run and pipeline.name not in ran:
                    ran.add(pipeline.name)
                    self._run(spark, pipeline)
                else:
                    plan(spark, pipeline)
            except Exception as error:
                problems.append(f"{pipeline!r}: {type(error).__name__}: {error}")
        return problems

    def _give_source(self, spark: SparkSession, pipeline: mr.Pipeline, spec: StreamSpec) -> None:
        """Give a stream a policy, and a source if it has none."""
        injection = spec.injection
        assert injection is not None
        injection = replace(injection, low_watermark=injection.low_watermark or mr.BoundedDelay(0))
        if injection.source is None:
            records = [
                record
                for of, stream, records in self._records
                if of is pipeline and stream == spec.name
                for record in records
            ]
            if not injection.ingress:
                column = injection.timestamp or "_time"
                injection = replace(injection, timestamp=column, unit=injection.unit or "us")
            frame = _frame(spark, spec, injection, records)
            injection = replace(injection, source=frame)
        pipeline.injections[spec.name] = injection

    def _run(self, spark: SparkSession, pipeline: mr.Pipeline) -> None:
        status = pipeline.run_batch(spark, progress=False, tasks=1)
        letters = sum(h.dead_letters() for of, h in self._harnesses if of is pipeline)
        assert sum(status.dead_letters.values()) == letters, f"{status.dead_letters} on Spark"


def plan(spark: SparkSession, pipeline: mr.Pipeline) -> None:
    """Have Spark analyse the frame of an epoch, and of its sinks."""
    topology = pipeline.build()
    sources = sources_of(topology, spark)
    WatermarkPublisher.of(topology)
    plan = StreamPlan(topology, sources, tasks=2)
    with pytest.MonkeyPatch.context() as patch:
        # Their writers reach for tables. All get columns of Spark's here.
        patch.setattr("millrace.spark.plan.task_writers", lambda _: {})
        plan.attach(None, "")
    frames, manifest = plan.rows(), _manifest(topology)
    if any(source.injector is not None for source in sources):
        frames.append(external_pieces(spark, {}, tasks=2))
    rows = spark.createDataFrame([], together(frames).schema)
    frame = plan.frame(rows, manifest)
    frame.select(*plan.observed)
    for sink in range(len(topology.sinks)):
        plan.sink_rows(frame, sink)


def _manifest(topology: Topology) -> Any:
    run_log = RunLog(topology, MemoryHardState(), intervals=2)
    return run_log.begin(0, wall_time_us=0, injectors={}, draining=True)


def _frame(
    spark: SparkSession, spec: StreamSpec, injection: Injection, records: list[Any]
) -> DataFrame:
    """Return the records of a Harness as a DataFrame with the columns that their stream names."""
    rows = []
    for value, *_ in records:
        plain = msgspec.to_builtins(value, builtin_types=_AS_THEY_ARE, str_keys=False)
        rows.append(plain if isinstance(plain, dict) else {"value": plain})
    table = pa.Table.from_pylist(rows)
    if spec.format in ROWS:
        # What nobody has fed has the columns that keys are taken from.
        declared = {
            field: pa.string()
            for extractor in [edge.extractor for edge in spec.edges]
            + [step.function for step in spec.steps]
            if isinstance(extractor, ByFields)
            for field in extractor.fields
        }
    else:
        columns = SinkColumns(spec.format, spec.coder)
        declared = {name: columns.arrow.field(name).type for name in columns.names}
    named: dict[str | None, list[Any]] = {
        injection.process: ["0"] * len(records),
        injection.id: [str(record[-1]) for record in records],
        injection.timestamp: [
            None if injection.ingress else timestamp_us(record[1]) for record in records
        ],
    }
    for name, kind in declared.items():
        if name not in table.column_names:
            table = table.append_column(name, pa.nulls(len(records), kind))
    for name, column in named.items():
        if name is not None and name not in table.column_names:
            kind = pa.int64() if name == injection.timestamp else pa.string()
            table = table.append_column(name, pa.array(column, kind))
    return spark.createDataFrame(table)
