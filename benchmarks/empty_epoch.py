"""The fixed cost of an epoch with next to nothing to do, by depth of the pipeline.

``floor`` is what Spark charges anyone: a ``foreachBatch`` query whose batches pass through as many
``repartitionById`` and ``mapInArrow`` stages as the pipeline has levels, each handing on what it
gets, into the noop sink. ``millrace`` is a pipeline of as many computations in a row, each with a
key of its own so that none are fused, each producing what it gets. Both read one Parquet file with
one row a batch, in the same session, each case in a fresh JVM. The difference is what Millrace
adds: encoding, the manifest, a commit a level, and control rows.

``driven`` is the same pipeline over an injector: the driver begins its epochs, each of which is a
batch job. ``one task`` is that with ``tasks=(1, 2)``, which comes to one task a level, and so to
one stage of Spark. ``idle`` are those epochs of it in which nothing is read and nothing is due:
they have no job. Their cost is what the run says of each epoch, in its checkpoint.

Of the first two an epoch's cost is the ``triggerExecution`` of Spark's progress report. The first
``--warmup`` epochs of each case are dropped; the JIT compiler goes on improving both for some
hundred epochs, so the median over many is taken, with the quartiles beside it.

Run it with ``python -m benchmarks.empty_epoch``.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from rich.console import Console
from rich.table import Table

import millrace as mr
from benchmarks.machine import describe
from benchmarks.relay import relay_pipeline
from benchmarks.spark_session import BatchLog, build_session, read_batches

_SCHEMA_DDL = "key BIGINT, value BIGINT, time TIMESTAMP"
_REPOSITORY = Path(__file__).parents[1]
CONTENDERS = ("floor", "millrace", "driven", "one task", "idle")


@dataclass(frozen=True)
class EpochCost:
    """Milliseconds an epoch of one contender at one depth."""

    contender: str
    depth: int
    epochs: int
    median_ms: float
    quartiles_ms: tuple[float, float]


def main() -> None:
    """Measure every case in a process of its own, print the table, write the results."""
    arguments = _parser().parse_args()
    if arguments.child:
        _run_child(arguments)
        return
    console = Console()
    machine = describe()
    costs = [
        _measure(contender, depth, arguments)
        for depth in arguments.depths
        for contender in CONTENDERS
    ]
    console.print(_table(costs))
    started = dt.datetime.fromisoformat(machine["at"])
    named = Path(__file__).parent / "results" / f"empty-epoch-{started:%Y-%m-%d-%H%M}.json"
    results = {"benchmark": "empty_epoch", "machine": machine, "costs": [*map(asdict, costs)]}
    (arguments.out or named).write_text(json.dumps(results, indent=1) + "\n")


def _measure(contender: str, depth: int, arguments: argparse.Namespace) -> EpochCost:
    scratch = Path(tempfile.mkdtemp(prefix="millrace-empty-epoch-"))
    paths = [str(_REPOSITORY), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "PYSPARK_PYTHON": sys.executable,
    }
    try:
        subprocess.run(
            [
                *(sys.executable, "-m", "benchmarks.empty_epoch"),
                *("--child", contender, "--depths", str(depth), "--out", str(scratch / "ms.json")),
                *("--epochs", str(arguments.epochs), "--warmup", str(arguments.warmup)),
            ],
            cwd=_REPOSITORY,
            env=environment,
            check=True,
        )
        lasted_ms = json.loads((scratch / "ms.json").read_text())
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    low, median, high = statistics.quantiles(lasted_ms, n=4)
    return EpochCost(contender, depth, len(lasted_ms), median, (low, high))


def _run_child(arguments: argparse.Namespace) -> None:
    """Run one case and write the milliseconds of its measured epochs."""
    [depth] = arguments.depths
    scratch = arguments.out.parent
    epochs = arguments.warmup + arguments.epochs
    if arguments.child in ("driven", "one task", "idle"):
        lasted_ms = _run_driven(depth, scratch / "checkpoint", epochs, arguments.child)
        arguments.out.write_text(json.dumps(lasted_ms[arguments.warmup :]))
        return
    _make_input(scratch / "input", epochs)
    spark = build_session("empty-epoch", cores=2)
    log = BatchLog()
    spark.streams.addListener(log)
    source = read_batches(spark, str(scratch / "input"), _SCHEMA_DDL, files=1)
    run = {"floor": _run_floor, "millrace": _run_millrace}[arguments.child]
    run(source, depth, str(scratch / "checkpoint"))
    batches = log.wait_for(epochs)[arguments.warmup :]
    lasted_ms = [(batch.ended_s - batch.started_s) * 1000 for batch in batches]
    arguments.out.write_text(json.dumps(lasted_ms))
    spark.stop()


def _make_input(folder: Path, epochs: int) -> None:
    folder.mkdir()
    for epoch in range(epochs):
        time = pa.array([1_700_000_000_000_000 + epoch]).cast(pa.timestamp("us", tz="UTC"))
        row = pa.table({"key": pa.array([epoch]), "value": pa.array([0]), "time": time})
        path = folder / f"{epoch:05}.parquet"
        pq.write_table(row, path)
        os.utime(path, (epoch, epoch))


def _run_floor(source: DataFrame, depth: int, checkpoint: str) -> None:
    def run_epoch(batch: DataFrame, _epoch: int) -> None:
        rows = batch.select((F.col("key") % 2).cast("int").alias("target"), "key", "value", "time")
        for _ in range(depth):
            rows = rows.repartitionById(2, F.col("target")).mapInArrow(_hand_on, rows.schema)
        rows.write.format("noop").mode("overwrite").save()

    writer = source.writeStream.foreachBatch(run_epoch).option("checkpointLocation", checkpoint)
    writer.trigger(availableNow=True).start().awaitTermination()


def _hand_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def _run_millrace(source: DataFrame, depth: int, checkpoint: str) -> None:
    run = relay_pipeline(source, depth).start(source.sparkSession, checkpoint=checkpoint)
    run.process_available()
    run.stop()


class _OneByOne(mr.sources.Injector):
    """Has so many rows."""

    schema = "key long, value long, time long"
    there = 0

    def processes(self) -> list[str]:
        return ["one"]

    def advance(self, process: str, offset: Any) -> mr.sources.Advance:
        return mr.sources.Advance(self.there)

    def read(self, process: str, start: Any, end: Any) -> Iterator[tuple[int, int, int]]:
        for row in range(start or 0, end):
            yield row, 0, 1_700_000_000_000_000 + row


def _run_driven(depth: int, checkpoint: Path, epochs: int, contender: str) -> list[float]:
    """Return how long epochs took, in ms: those with a row, or those in which nothing was due."""
    tasks: Any = (1, 2) if contender == "one task" else 2
    spark = build_session("empty-epoch", cores=2)
    pipeline = relay_pipeline(_OneByOne(), depth)
    run = pipeline.start(spark, checkpoint=str(checkpoint), progress=False, tasks=tasks)
    for there in range(1, epochs + 1):
        # The run has a copy of the injector, in this process.
        run._run.engine._input._injectors["level-1"].there = there
        run.process_available()
    run.stop()
    spark.stop()
    lines = (checkpoint / "metrics" / "epochs.jsonl").read_text().splitlines()
    lasted_ms, read = [], 0.0
    for line in map(json.loads, lines):
        before, read = read, sum(line.get("injected_records", {}).values())
        if (read == before) is (contender == "idle"):
            lasted_ms.append(line["epoch_duration_seconds"] * 1000)
    return lasted_ms


def _table(costs: list[EpochCost]) -> Table:
    table = Table(title="An epoch of one row, median ms (quartiles)")
    heads = ("levels", "Spark alone", "Millrace", "by an injector", "one task", "nothing due")
    for name in heads:
        table.add_column(name, justify="right")
    for depth in dict.fromkeys(cost.depth for cost in costs):
        of_depth = [cost for cost in costs if cost.depth == depth]
        table.add_row(
            str(depth),
            *(
                f"{cost.median_ms:.0f} ({cost.quartiles_ms[0]:.0f}-{cost.quartiles_ms[1]:.0f})"
                for cost in of_depth
            ),
        )
    return table


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.empty_epoch",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--depths", type=_integers, default=[1, 2, 3], help="levels, 1,2,3")
    parser.add_argument("--epochs", type=int, default=100, help="measured epochs a case")
    parser.add_argument("--warmup", type=int, default=30, help="epochs dropped before them")
    parser.add_argument("--out", type=Path, help="results file (default: benchmarks/results/…)")
    parser.add_argument("--child", choices=CONTENDERS, help=argparse.SUPPRESS)
    return parser


def _integers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


if __name__ == "__main__":
    main()
