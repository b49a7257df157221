"""What a side input costs an epoch: a table of 10 MB, all of which changes every second.

One task does whole epochs, without Spark: records are keyed, run and committed on disk (fsync'd),
and go into LMDB. Four pipelines take turns, epoch by epoch, so that one run can be compared in
itself:

    none       each record adds to a cell of its key
    still      and looks a row up in a table of so many bytes, of which nothing changes
    some       and a hundredth of the table comes anew with every epoch
    changing   and the whole table does

Figures are of CPU time of the process and of time, medians of the epochs; and how often what they
are of ``none``, or the first of ``--cases``, the others are. Each key interval keeps the table, so
``--intervals`` counts.

Run it with ``python -m benchmarks.side_input``.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import statistics
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import millrace as mr
from benchmarks.machine import describe
from millrace.epochlog.entries import Manifest
from millrace.epochlog.run_log import RunLog
from millrace.injectors.watermark_publisher import WatermarkPublisher
from millrace.kernel.execution import Execution
from millrace.runtime.epoch.driver import EpochDriver
from millrace.runtime.exchange import LocalExchange, through_levels
from millrace.runtime.reports import TaskReport, reports_in
from millrace.runtime.worker_process import Task, WorkerProcess
from millrace.store import LmdbCaches, LocalHardState
from millrace.testing.feed import Feed, Read

CASES = ("none", "still", "some", "changing")


class Add(mr.Computation):
    """Adds up by key."""

    inputs = {"events": mr.by(lambda event: event % 1_000)}
    outputs = {}
    total = mr.CombiningState(int)

    def process_record(self, record):
        """Add one."""
        self.total.add(record.value)


class Look(Add):
    """Looks a row up for each record."""

    rows = mr.SideInput("rows", lambda row: row[0], waits=False, limit=1 << 30)

    def process_record(self, record):
        """Add what the row has."""
        row = self.rows.get(record.value % len_of_table)
        self.total.add(0 if row is None else len(row[1]))


#: Rows of the table; set before anything runs.
len_of_table = 0


@dataclass
class Cost:
    """Medians of one case, in milliseconds an epoch."""

    case: str
    cpu_ms: float
    wall_ms: float


class Case:
    """One pipeline, its checkpoint, and what its epochs took."""

    def __init__(self, name: str, scratch: Path, intervals: int) -> None:
        self.name = name
        self.cpu_s: list[float] = []
        self.wall_s: list[float] = []
        p = mr.Pipeline(name)
        p.inject("events", format=int)
        if name == "none":
            p.add(Add, name="code")
        else:
            p.inject("rows", format=tuple[int, bytes])
            p.add(Look, name="code")
        state = LocalHardState.create_or_open(scratch / name, pipeline=name)
        self.run_log = RunLog(p.build(), state, intervals=intervals)
        topology = self.run_log.topology
        execution = Execution(topology, state, LmdbCaches(scratch / f"{name}-cache", state.uuid))
        self.runtime = WorkerProcess(topology, tasks=1, execution=execution)
        self.driver = EpochDriver(topology, self.run_log, WatermarkPublisher({}))

    def epoch(self, number: int, feeds: list[Feed]) -> None:
        """Do one epoch, and note what it took."""

        def stages(manifest: Manifest) -> tuple[TaskReport, float]:
            task = Task(self.runtime, manifest, 0)
            sent = [batch for feed in feeds for batch in feed.rows(task)]
            exchange = LocalExchange(self.runtime, manifest)
            return TaskReport.together(reports_in(list(through_levels(exchange, sent, 1)))), 0.0

        started, cpu = time.perf_counter(), time.process_time()
        self.driver.run(number, stages, wall_time_us=number * mr.SECOND)
        self.wall_s.append(time.perf_counter() - started)
        self.cpu_s.append(time.process_time() - cpu)


def main() -> None:
    """Measure all cases in turns, print the table, write the results."""
    arguments = _parser().parse_args()
    global len_of_table
    len_of_table = arguments.bytes // arguments.row
    machine = describe()
    with tempfile.TemporaryDirectory(prefix="millrace-side-input-") as scratch:
        cases = [Case(name, Path(scratch), arguments.intervals) for name in arguments.cases]
        for number in range(arguments.epochs + 1):
            events = Feed("events", [Read(n, number, "all") for n in range(arguments.records)], {})
            content = number.to_bytes(4, "big") * (arguments.row // 4)
            rows = [Read((n, content), number, "all") for n in range(len_of_table)]
            few = rows[number % 100 :: 100]
            for case in cases:
                coming = rows if case.name == "changing" or not number else few
                if case.name == "none" or (case.name == "still" and number):
                    coming = []
                table = [Feed("rows", coming, {})] if coming else []
                case.epoch(number, [*table, events])
    costs = [
        Cost(
            case.name,
            statistics.median(case.cpu_s[1:]) * 1000,
            statistics.median(case.wall_s[1:]) * 1000,
        )
        for case in cases
    ]
    Console().print(_table(costs, arguments))
    started = dt.datetime.fromisoformat(machine["at"])
    named = Path(__file__).parent / "results" / f"side-input-{started:%Y-%m-%d-%H%M}.json"
    results: dict[str, Any] = {"benchmark": "side_input", "machine": machine}
    results |= {"arguments": {k: str(v) for k, v in vars(arguments).items()}}
    results |= {"costs": [*map(asdict, costs)]}
    (arguments.out or named).write_text(json.dumps(results, indent=1) + "\n")


def _table(costs: list[Cost], arguments: argparse.Namespace) -> Table:
    title = f"{arguments.records:,} records an epoch, {arguments.intervals} key intervals"
    table = Table(title=title)
    for column in ("table", "CPU ms", "of none", "ms", "of none"):
        table.add_column(column, justify="right")
    none = costs[0]
    for cost in costs:
        table.add_row(
            cost.case,
            f"{cost.cpu_ms:,.0f}",
            f"{cost.cpu_ms / none.cpu_ms:.2f}",
            f"{cost.wall_ms:,.0f}",
            f"{cost.wall_ms / none.wall_ms:.2f}",
        )
    return table


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--cases",
        type=_cases,
        default=CASES,
        help="which; the first is what others are compared with",
    )
    parser.add_argument("--epochs", type=int, default=20, help="of each case, after the first")
    parser.add_argument("--records", type=int, default=50_000, help="an epoch")
    parser.add_argument("--bytes", type=int, default=10_000_000, help="of the table")
    parser.add_argument("--row", type=int, default=1_000, help="bytes of a row")
    parser.add_argument("--intervals", type=int, default=4, help="key intervals")
    parser.add_argument("--out", type=Path, help="file of the results")
    return parser


def _cases(names: str) -> tuple[str, ...]:
    chosen = tuple(names.split(","))
    if not set(chosen) <= set(CASES):
        raise argparse.ArgumentTypeError(f"{names!r}: expected some of {','.join(CASES)}")
    return chosen


if __name__ == "__main__":
    main()
