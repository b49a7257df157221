"""Bytewax: a count a key in ``stateful_batch``, with and without its recovery.

``stateful_batch`` is what bytewax's other stateful operators are built on, and about twice as fast
as ``stateful_map``. Two processes pickle records to each other, so with few keys, where counting is
cheap, one worker alone is faster than two; with many it is slower. Both are measured. Two worker
threads share one interpreter lock and never won.

Bytewax has no batches, so a batch is an epoch: each source partition hands out one file a call, and
an epoch interval of zero closes the epoch after each call.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import bytewax.operators as op
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from bytewax.dataflow import Dataflow
from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition
from bytewax.operators import StatefulBatchLogic
from bytewax.outputs import DynamicSink, StatelessSinkPartition
from bytewax.recovery import RecoveryConfig, init_db_dir
from bytewax.run import cli_main

from benchmarks.addresses import free_addresses
from benchmarks.batches import Job, Outcome
from benchmarks.keyed_state.workload import Totals, Workload

_Item = tuple[str, int]
_RECOVERY = "recovery"


@dataclass
class _Seen:
    """What one process saw: when its source partitions were called, and the logic of each key."""

    calls_s: dict[str, list[float]] = field(default_factory=dict)
    logics: list[_CountLogic] = field(default_factory=list)


class _FilesPartition(StatefulSourcePartition[_Item, int]):
    def __init__(self, paths: list[Path], done: int, calls_s: list[float]) -> None:
        self._paths = paths
        self._done = done
        self._calls_s = calls_s

    def next_batch(self) -> Iterable[_Item]:
        self._calls_s.append(time.time())
        if self._done == len(self._paths):
            raise StopIteration
        table = pq.read_table(self._paths[self._done], columns=["key", "value"])
        self._done += 1
        keys = table.column("key").cast(pa.string())
        return list(zip(keys.to_pylist(), table.column("value").to_pylist(), strict=True))

    def snapshot(self) -> int:
        return self._done


class _FilesSource(FixedPartitionedSource[_Item, int]):
    def __init__(self, folder: Path, parts: int, seen: _Seen) -> None:
        self._folder = folder
        self._parts = [str(part) for part in range(parts)]
        self._seen = seen

    def list_parts(self) -> list[str]:
        return self._parts

    def build_part(self, step_id: str, part: str, resume_state: int | None) -> _FilesPartition:
        paths = sorted(self._folder.glob(f"batch-*-part-{part}.parquet"))
        calls_s = self._seen.calls_s.setdefault(part, [])
        return _FilesPartition(paths, resume_state or 0, calls_s)


class _CountLogic(StatefulBatchLogic[int, None, int]):
    __slots__ = ("count",)

    def __init__(self, count: int) -> None:
        self.count = count

    def on_batch(self, values: list[int]) -> tuple[Iterable[None], bool]:
        for _ in values:
            self.count += 1
        return [], StatefulBatchLogic.RETAIN

    def snapshot(self) -> int:
        return self.count


class _NoPartition(StatelessSinkPartition[Any]):
    def write_batch(self, items: list[Any]) -> None:
        pass


class _NoSink(DynamicSink[Any]):
    def build(self, step_id: str, worker_index: int, worker_count: int) -> _NoPartition:
        return _NoPartition()


def run(job: Job[Workload]) -> Outcome:
    """Count in memory, one process a core: nothing survives the processes."""
    return _run(job, processes=job.cores, recovery=False)


def run_with_recovery(job: Job[Workload]) -> Outcome:
    """Count with a snapshot of the touched keys in SQLite at the end of each epoch."""
    return _run(job, processes=job.cores, recovery=True)


def run_single(job: Job[Workload]) -> Outcome:
    """Count in memory, on one worker: one core, and no exchange of records."""
    return _run(job, processes=1, recovery=False)


def run_single_with_recovery(job: Job[Workload]) -> Outcome:
    """Count on one worker, with snapshots."""
    return _run(job, processes=1, recovery=True)


def _run(job: Job[Workload], processes: int, recovery: bool) -> Outcome:
    if recovery:
        (job.scratch_dir / _RECOVERY).mkdir()
        init_db_dir(job.scratch_dir / _RECOVERY, job.cores)
    job_path = job.scratch_dir / "bytewax.json"
    job.dump(job_path)
    addresses = free_addresses(processes)
    running = [
        subprocess.Popen([sys.executable, "-m", __name__, str(job_path), str(number), *addresses])
        for number in range(processes)
    ]
    codes = [process.wait() for process in running]
    if any(codes):
        raise RuntimeError("a bytewax process failed; its traceback is above")
    found = [json.loads(_found_path(job, number).read_text()) for number in range(processes)]
    calls_s = [calls for each in found for calls in each["calls_s"].values()]
    marks_s = [*map(min, zip(*calls_s, strict=True))][job.workload.warmup_batches : -1]
    marks_s.append(max(calls[-1] for calls in calls_s))
    totals = [Totals(**each["totals"]) for each in found]
    return Outcome(marks_s, job.workload.batch_records, sum(totals[1:], totals[0]))


def _run_process(job: Job[Workload], number: int, addresses: list[str]) -> None:
    seen = _Seen()

    def build_logic(count: int | None) -> _CountLogic:
        logic = _CountLogic(count or 0)
        seen.logics.append(logic)
        return logic

    flow = Dataflow("keyed-state")
    events = op.input("events", flow, _FilesSource(job.input_dir, job.workload.parts, seen))
    op.output("out", op.stateful_batch("count", events, build_logic), _NoSink())
    recovery_dir = job.scratch_dir / _RECOVERY
    clustered = len(addresses) > 1
    cli_main(
        flow,
        process_id=number if clustered else None,
        addresses=addresses if clustered else None,
        epoch_interval=timedelta(0),
        recovery_config=RecoveryConfig(recovery_dir) if recovery_dir.exists() else None,
    )
    totals = Totals.of(np.array([logic.count for logic in seen.logics]))
    found = {"calls_s": seen.calls_s, "totals": asdict(totals)}
    _found_path(job, number).write_text(json.dumps(found))


def _found_path(job: Job[Workload], number: int) -> Path:
    return job.scratch_dir / f"found-{number}.json"


if __name__ == "__main__":
    _run_process(Job.load(Path(sys.argv[1]), Workload), int(sys.argv[2]), sys.argv[3:])
