"""Bytewax: counts in ``stateful_batch``, with recovery, a process for each partition.

Its Kafka connectors are bytewax's own. The sink sends what a step hands it and waits for the
broker, whatever the epoch: so rows can be seen before their epoch's snapshots are in SQLite.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

import bytewax.operators as op
from bytewax.connectors.kafka import KafkaSink, KafkaSinkMessage, KafkaSource
from bytewax.dataflow import Dataflow
from bytewax.operators import StatefulBatchLogic
from bytewax.recovery import RecoveryConfig, init_db_dir
from bytewax.run import cli_main

from benchmarks.addresses import free_addresses
from benchmarks.latency.job import REKEY, Job, Outcome
from benchmarks.latency.probe import Probe
from benchmarks.latency.wire import ROW, unpack_record

_LOOK_EVERY_S = 0.1
#: (send time, key, count)
_Counted = tuple[int, int, int]


class _Count(StatefulBatchLogic[tuple[int, int], _Counted, int]):
    __slots__ = ("count", "probe")

    def __init__(self, count: int, probe: Probe | None) -> None:
        self.count = count
        self.probe = probe

    def on_batch(self, values: list[tuple[int, int]]) -> tuple[Iterable[_Counted], bool]:
        found = []
        for sent, key in values:
            if self.probe is not None:
                self.probe.saw(sent)
            self.count += 1
            found.append((sent, key, self.count))
        return found, StatefulBatchLogic.RETAIN

    def snapshot(self) -> int:
        return self.count


class _Source(KafkaSource):
    """Bytewax's own, which says when a process is there."""

    def __init__(self, job: Job, ready_path: Path) -> None:
        # Messages at once, and the wait for them: as it comes.
        super().__init__([job.servers], [job.source])
        self._ready_path = ready_path

    def build_part(self, step_id: str, for_part: str, resume_state: int | None) -> Any:
        built = super().build_part(step_id, for_part, resume_state)
        self._ready_path.touch()
        return built


def run_shortest_epochs(job: Job) -> Outcome:
    """Close an epoch with every call of the source."""
    return _run(job, 0)


def run_second_epochs(job: Job) -> Outcome:
    """Close an epoch every second."""
    return _run(job, 1)


def _run(job: Job, epoch_s: int) -> Outcome:
    recovery_dir = job.scratch_dir / "recovery"
    recovery_dir.mkdir()
    init_db_dir(recovery_dir, job.partitions)
    job_path = job.scratch_dir / "bytewax.json"
    job.dump(job_path)
    addresses = free_addresses(job.partitions)
    command = [sys.executable, "-m", __name__, str(job_path), str(epoch_s)]
    running = [
        subprocess.Popen([*command, str(number), *addresses]) for number in range(job.partitions)
    ]
    while not all(_ready_path(job, number).exists() for number in range(job.partitions)):
        _check(running)
        time.sleep(_LOOK_EVERY_S)
    job.wait_for_stop()
    _check(running)
    for process in running:
        process.kill()
        process.wait()
    return Outcome()


def _check(running: list[subprocess.Popen[bytes]]) -> None:
    if any(process.poll() is not None for process in running):
        raise RuntimeError("a bytewax process ended; its traceback is above")


def _run_process(job: Job, epoch_s: int, number: int, addresses: list[str]) -> None:
    probe = Probe(job.probes_dir)
    flow = Dataflow("latency")
    messages = op.input("events", flow, _Source(job, _ready_path(job, number)))
    records = op.map("decode", messages, lambda message: unpack_record(message.value))
    for stage in range(1, job.stages + 1):
        keyed = op.key_on(f"key-{stage}", records, lambda record: str(record[1]))
        wanted = probe if stage == job.stages else None
        counted = op.stateful_batch(
            f"count-{stage}", keyed, lambda count, wanted=wanted: _Count(count or 0, wanted)
        )
        records = op.map(
            f"rekey-{stage}", counted, lambda pair: (pair[1][0], pair[1][1] * REKEY % job.keys)
        )
    if job.sink:
        rows = op.map("encode", counted, lambda pair: KafkaSinkMessage(None, ROW.pack(*pair[1])))
        op.output("out", rows, KafkaSink([job.servers], job.sink))
    else:
        op.output("out", op.filter("nothing", counted, lambda _: False), _nowhere())
    clustered = len(addresses) > 1
    _end_with_parent()
    cli_main(
        flow,
        process_id=number if clustered else None,
        addresses=addresses if clustered else None,
        epoch_interval=timedelta(seconds=epoch_s),
        recovery_config=RecoveryConfig(job.scratch_dir / "recovery"),
    )


def _nowhere() -> Any:
    from bytewax.connectors.stdio import StdOutSink

    return StdOutSink()


def _end_with_parent() -> None:
    """Let this process end when the one that started it has."""
    parent = os.getppid()

    def look() -> None:
        while os.getppid() == parent:
            time.sleep(_LOOK_EVERY_S)
        os._exit(1)

    threading.Thread(target=look, daemon=True).start()


def _ready_path(job: Job, number: int) -> Path:
    return job.scratch_dir / f"ready-{number}"


if __name__ == "__main__":
    _run_process(Job.load(Path(sys.argv[1])), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
