"""What filtering duplicates costs: a running count over a stream with ids, and without.

Epochs of 100,000 records over 200,000 keys go through the kernel's worker, see ``kernel.py``. An id
is kept for five epochs of event time, so while the measured epochs run as many ids are collected as
are added. ``no filters`` has Bloom filters of next to no size, so every id is looked up in LMDB:
the difference to ``ids`` is what they save. Every case runs in a process of its own, the cases in
turn, and the median of the rounds is taken.

Run it with ``python -m benchmarks.dedup``. It needs no Spark and takes some five minutes.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import statistics
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

import millrace as mr
from benchmarks.kernel import STREAM, Kernel, alone, batches, together
from benchmarks.machine import describe

_KEYS = 200_000
_WARM_UP = 8


class Count(mr.Computation):
    """Counts the records of a key."""

    inputs = {STREAM: mr.by_key()}
    n = mr.ValueState(int)

    def process_record(self, record: mr.Record) -> None:
        """Add one."""
        self.n.set(self.n.get(0) + 1)


@dataclass(frozen=True)
class Case:
    """One way to run.

    Attributes:
        name: What the table calls it.
        ids: Whether the stream has ids.
        repeated: Share of the records that have come before.
        filters: Whether there are Bloom filters of a useful size.
    """

    name: str
    ids: bool = True
    repeated: float = 0.0
    filters: bool = True


CASES = (
    Case("no ids", ids=False),
    Case("ids"),
    Case("ids, 5 % twice", repeated=0.05),
    Case("ids, 50 % twice", repeated=0.5),
    Case("ids, no filters", filters=False),
)


@dataclass(frozen=True)
class Cost:
    """One run of one case.

    Attributes:
        case: Its name.
        cpu_us: CPU time a record.
        wall_us: Time a record.
        written: Bytes of commit log a record.
        looked_up: Share of the records that were new and were looked for in the store all the same.
        filter_mib: Memory of the Bloom filters at the end.
        filtered: Records that were dropped, in all.
    """

    case: str
    cpu_us: float
    wall_us: float
    written: float
    looked_up: float
    filter_mib: float
    filtered: int


def measure(case: Case, epochs: int, records: int) -> Cost:
    """Return what a case costs."""
    p = mr.Pipeline("dedup")
    p.inject(STREAM, format=int, **({"id": "id", "slack": "5 min"} if case.ids else {}))
    p.add(Count)
    with tempfile.TemporaryDirectory(prefix="millrace-dedup-") as directory:
        kernel = Kernel(p, Path(directory), keys=_KEYS)
        if not case.filters:
            kernel.limit_filters(0)
        spent = []
        looked_up = 0
        found = batches(
            count=_WARM_UP + epochs, records=records, keys=_KEYS, repeated=case.repeated
        )
        for n, batch in enumerate(found):
            spent.append(kernel.run(batch))
            if n + 1 == _WARM_UP and kernel.deduplicator is not None:
                looked_up = kernel.deduplicator.lookups
        total = together(spent[_WARM_UP:])
        counters, ids = kernel.counters, kernel.deduplicator
        repeats = int(records * case.repeated)
        expected = repeats * (_WARM_UP + epochs - 1) if case.ids else 0
        assert counters.duplicates_filtered == expected, "a wrong result has no figures"
        needless = 0 if ids is None else ids.lookups - looked_up - repeats * epochs
        return Cost(
            case.name,
            total.cpu_s / total.records * 1e6,
            total.wall_s / total.records * 1e6,
            total.written / total.records,
            needless / (total.records - repeats * epochs),
            0.0 if ids is None else ids.filter_bytes() / 2**20,
            counters.duplicates_filtered,
        )


def main() -> None:
    """Measure every case, print the table, write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    machine = describe()
    rounds = [
        [alone(measure, case, arguments.epochs, arguments.records) for case in CASES]
        for _ in range(arguments.rounds)
    ]
    costs = [
        sorted(costs, key=lambda cost: cost.cpu_us)[len(costs) // 2]
        for costs in zip(*rounds, strict=True)
    ]
    Console().print(_table(costs))
    named = f"dedup-{dt.datetime.fromisoformat(machine['at']):%Y-%m-%d-%H%M}.json"
    results = {
        "benchmark": "dedup",
        "machine": machine,
        "epochs": arguments.epochs,
        "records": arguments.records,
        "costs": [asdict(cost) for cost in costs],
        "all_cpu_us": [[cost.cpu_us for cost in costs] for costs in rounds],
    }
    out = arguments.out or Path(__file__).parent / "results" / named
    out.write_text(json.dumps(results, indent=1) + "\n")


def _table(costs: list[Cost]) -> Table:
    table = Table(title="Deduplication")
    for name in ("case", "CPU us", "ratio", "us", "log bytes", "looked up", "filters MiB"):
        table.add_column(name, justify="left" if name == "case" else "right")
    base = statistics.median(cost.cpu_us for cost in costs if cost.case == "no ids")
    for cost in costs:
        table.add_row(
            cost.case,
            f"{cost.cpu_us:.2f}",
            f"{cost.cpu_us / base:.2f}",
            f"{cost.wall_us:.2f}",
            f"{cost.written:.0f}",
            f"{cost.looked_up:.2%}",
            f"{cost.filter_mib:.2f}",
        )
    return table


if __name__ == "__main__":
    main()
