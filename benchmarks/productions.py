"""What the options of a computation cost: strong or weak productions, exactly or at least once.

A running count that produces a record of about 60 bytes for each it gets, from a stream with ids,
through the kernel's worker, see ``kernel.py``: epochs of 100,000 records over 200,000 keys, 5 % of
them delivered before, an id kept for five epochs. Every case runs in a process of its own, the
cases in turn, and the median of the rounds is taken. What a failure costs is not in here.

Run it with ``python -m benchmarks.productions``. It needs no Spark and takes some five minutes.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

import millrace as mr
from benchmarks.kernel import STREAM, Kernel, alone, batches, together
from benchmarks.machine import describe

_KEYS = 200_000
_WARM_UP = 8
_REPEATED = 0.05

_OPTIONS = {
    "productions": {"strong": mr.STRONG, "weak": mr.WEAK},
    "delivery": {"exactly once": mr.EXACTLY_ONCE, "at least once": mr.AT_LEAST_ONCE},
}


class Visit(msgspec.Struct):
    """What is produced."""

    key: int
    count: int
    page: str


class Enrich(mr.Computation):
    """Counts the records of a key, and says so with each."""

    inputs = {STREAM: mr.by_key()}
    outputs = {"visits": Visit}
    n = mr.ValueState(int)

    def process_record(self, record: mr.Record) -> None:
        """Add one, and produce."""
        count = self.n.get(0) + 1
        self.n.set(count)
        self.produce("visits", Visit(self.key, count, "https://example.org/some/page/of/it"))


@dataclass(frozen=True)
class Cost:
    """One run of one case.

    Attributes:
        productions: The option.
        delivery: The option.
        cpu_s: CPU seconds a million records.
        wall_s: Seconds a million records.
        written: Bytes of commit log a record.
    """

    productions: str
    delivery: str
    cpu_s: float
    wall_s: float
    written: float


def measure(productions: str, delivery: str, epochs: int, records: int) -> Cost:
    """Return what a combination costs."""
    options: dict[str, Any] = {
        "productions": _OPTIONS["productions"][productions],
        "delivery": _OPTIONS["delivery"][delivery],
    }
    p = mr.Pipeline("productions")
    p.inject(STREAM, format=int, id="id", slack="5 min")
    p.add(Enrich, **options)
    p.sink("visits", print)
    with tempfile.TemporaryDirectory(prefix="millrace-productions-") as directory:
        kernel = Kernel(p, Path(directory), keys=_KEYS)
        found = batches(count=_WARM_UP + epochs, records=records, keys=_KEYS, repeated=_REPEATED)
        total = together([kernel.run(batch) for batch in found][_WARM_UP:])
        dropped = int(records * _REPEATED) * (_WARM_UP + epochs - 1)
        expected = records * (_WARM_UP + epochs) - dropped * (delivery == "exactly once")
        assert kernel.counters.productions == expected, "a wrong result has no figures"
        return Cost(
            productions,
            delivery,
            total.cpu_s / total.records * 1e6,
            total.wall_s / total.records * 1e6,
            total.written / total.records,
        )


def main() -> None:
    """Measure every combination, print the table, write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    machine = describe()
    cases = [(p, d) for p in _OPTIONS["productions"] for d in _OPTIONS["delivery"]]
    rounds = [
        [alone(measure, *case, arguments.epochs, arguments.records) for case in cases]
        for _ in range(arguments.rounds)
    ]
    costs = [
        sorted(costs, key=lambda cost: cost.cpu_s)[len(costs) // 2]
        for costs in zip(*rounds, strict=True)
    ]
    table = Table(title="Options, a million records")
    for name in ("productions", "delivery", "CPU s", "s", "log bytes a record"):
        table.add_column(name, justify="left" if name in _OPTIONS else "right")
    for cost in costs:
        figures = (f"{cost.cpu_s:.2f}", f"{cost.wall_s:.2f}", f"{cost.written:.0f}")
        table.add_row(cost.productions, cost.delivery, *figures)
    Console().print(table)
    named = f"productions-{dt.datetime.fromisoformat(machine['at']):%Y-%m-%d-%H%M}.json"
    results = {
        "benchmark": "productions",
        "machine": machine,
        "epochs": arguments.epochs,
        "records": arguments.records,
        "costs": [asdict(cost) for cost in costs],
        "all_cpu_s": [[cost.cpu_s for cost in costs] for costs in rounds],
    }
    out = arguments.out or Path(__file__).parent / "results" / named
    out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
