"""Millrace: counts in ``ValueState``, on either plane, through the public Computation API."""

from __future__ import annotations

from typing import Any

import msgspec

import millrace as mr
from benchmarks.latency.job import REKEY, Job, Outcome
from benchmarks.latency.probe import Probe
from benchmarks.latency.synthetic import Synthetic
from benchmarks.latency.visible import TABLE
from benchmarks.latency.wire import ROW, unpack_record
from benchmarks.realtime import realtime_session
from benchmarks.spark_session import build_session


class Event(msgspec.Struct, frozen=True):
    """What a stage gets: when the record was sent, and the stage's key."""

    sent: int
    key: int


class Counted(msgspec.Struct, frozen=True):
    """What the last stage makes of it."""

    sent: int
    key: int
    count: int


def run(job: Job) -> Outcome:
    """Run on the real-time plane: strong productions, exactly once."""
    return _run(job, realtime=True)


def run_weak(job: Job) -> Outcome:
    """The same with weak productions."""
    return _run(job, realtime=True, productions=mr.WEAK)


def run_at_least_once(job: Job) -> Outcome:
    """Run on the real-time plane: strong productions, at-least-once delivery."""
    return _run(job, realtime=True, delivery=mr.AT_LEAST_ONCE)


def run_weak_at_least_once(job: Job) -> Outcome:
    """Run on the real-time plane: weak productions, at-least-once delivery."""
    return _run(job, realtime=True, productions=mr.WEAK, delivery=mr.AT_LEAST_ONCE)


def run_epochs(job: Job) -> Outcome:
    """Run in epochs: Spark's micro-batches, one after the other."""
    return _run(job, realtime=False)


def pipeline_of(job: Job, **options: Any) -> mr.Pipeline:
    """Return the stages between source and sinks."""
    pipeline = mr.Pipeline("latency")
    pipeline.inject(
        "stage-1",
        _source(job),
        timestamp="sent",
        unit="ns",
        low_watermark=mr.BoundedDelay("1 s"),
        format=Event,
    )
    probe = Probe(job.probes_dir)
    for number in range(1, job.stages + 1):
        last = number == job.stages
        stage = _last(job, probe) if last else _stage(number, job.keys)
        pipeline.add(stage, name=f"count-{number}", **options)
    if job.sink:
        sink = mr.sinks.Kafka(job.servers, job.sink, encode=_pack, config={"linger.ms": 0})
        pipeline.sink("counted", sink)
    if job.conninfo:
        pipeline.sink("counted", mr.sinks.PostgreSQL(job.conninfo, TABLE))
    return pipeline


def _run(job: Job, *, realtime: bool, **options: Any) -> Outcome:
    tasks = job.partitions
    if realtime:
        spark = realtime_session(job.rival, tasks=tasks, levels=job.stages, heap="2g")
        plane: dict[str, Any] = {"realtime": True}
    else:
        spark = build_session(job.rival, tasks, heap="2g")
        plane = {"trigger": "0 seconds"}
    checkpoint = str(job.scratch_dir / "checkpoint")
    running = pipeline_of(job, **options).start(
        spark,
        checkpoint=checkpoint,
        cache=str(job.scratch_dir / "cache"),
        tasks=tasks,
        progress=False,
        **plane,
    )
    running.process_available("120 s")
    job.wait_for_stop()
    status = running.status()
    running.stop()
    spark.stop()
    return Outcome(
        {
            "epochs or marks": status.epoch + 1,
            "state": _read_state(checkpoint, job),
            "steps": {step: [s * 1e3 for s in times] for step, times in status.steps.items()},
        }
    )


def _read_state(checkpoint: str, job: Job) -> list[int]:
    """Return what the last stage's counts add up to, read from log and snapshots."""
    kept = mr.ops.open_checkpoint(checkpoint)[f"count-{job.stages}"].scan()
    counts = [one.cells["count"] for one in kept]
    return [len(counts), sum(counts), sum(count**2 for count in counts)]


def _source(job: Job) -> mr.sources.Injector:
    if not job.source:
        return Synthetic(
            job.begin_path,
            rate=job.rate,
            records=job.records,
            keys=job.keys,
            processes=job.partitions,
            every_ms=job.every_ms,
        )
    return mr.sources.Kafka(
        job.servers, job.source, schema="sent long, key long", parse=unpack_record
    )


def _stage(number: int, keys: int) -> type[mr.Computation]:
    source, target = f"stage-{number}", f"stage-{number + 1}"

    class Count(mr.Computation):
        inputs = {source: mr.by("key")}
        outputs = {target: Event}
        count = mr.ValueState(int)

        def process_record(self, record: mr.Record) -> None:
            self.count.set(self.count.get(0) + 1)
            self.produce(target, Event(record.value.sent, self.key * REKEY % keys))

    return Count


def _last(job: Job, probe: Probe) -> type[mr.Computation]:
    wanted, every = bool(job.sink or job.conninfo), job.probe_every

    class CountLast(mr.Computation):
        inputs = {f"stage-{job.stages}": mr.by("key")}
        outputs = {"counted": Counted}
        count = mr.ValueState(int)

        def process_record(self, record: mr.Record) -> None:
            sent = record.value.sent
            count = self.count.get(0) + 1
            if self.key % every == 0:
                probe.saw(sent)
            self.count.set(count)
            if wanted:
                self.produce("counted", Counted(sent, self.key, count))

    return CountLast


def _pack(columns: dict[str, Any]) -> bytes:
    return ROW.pack(columns["sent"], columns["key"], columns["count"])
