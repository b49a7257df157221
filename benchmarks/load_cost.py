"""What it costs to measure the load of key intervals, beside the work that is measured.

Epochs go through the kernel's worker, see ``kernel.py``: a running count key by key, and windows
kept as columns; in epochs of 100,000 records, of 1,600, and, for the bundles of live tasks, of 100:
six records a bundle. Two workers do the same epochs in turns. One of them measures; the other times
nothing, and looks for neither hot keys nor sizes; and they change their parts all the time. The
share is the median of what measuring costs more in a pair, in CPU seconds, so a busy machine does
little to it. What a task does besides
(Spark, the wire, decoding) is not in it, and makes the share smaller.

Run it with ``python -m benchmarks.load_cost``. It needs no Spark and takes a minute.
"""

from __future__ import annotations

import json
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median, quantiles
from unittest import mock

from rich.console import Console
from rich.table import Table

import millrace as mr
from benchmarks.dedup import Count
from benchmarks.kernel import STREAM, Batch, Kernel, batches
from millrace.kernel.execution import _stopped
from millrace.kernel.results import CommitSizes, KeySampler, StateSizes
from millrace.store import Size

#: Path, distinct keys, records an epoch, epochs.
CASES = [
    (path, keys, records, count)
    for path in ("by key", "as columns")
    for keys, records, count in (
        (1_000, 100_000, 17),
        (100_000, 100_000, 9),
        (1_000, 1_600, 129),
        (100, 100, 513),
    )
]


@dataclass(frozen=True)
class Cost:
    """One case.

    Attributes:
        path: How keys are worked on.
        keys: Distinct keys.
        records: An epoch.
        cpu_us: CPU time a record, without measuring.
        share: What measuring adds to it.
        off_by: By how much the median may be off: half the distance of the quartiles, by the root
            of the number of pairs.
    """

    path: str
    keys: int
    records: int
    cpu_us: float
    share: float
    off_by: float


def main() -> None:
    """Measure each case, print a table, write the results."""
    found = [cost(*case) for case in CASES]
    table = Table("path", "keys", "records an epoch", "CPU us a record", "measuring adds", "+-")
    for one in found:
        table.add_row(
            one.path, f"{one.keys:,}", f"{one.records:,}", f"{one.cpu_us:.2f}", f"{one.share:.2%}",
            f"{one.off_by:.2%}",
        )  # fmt: skip
    Console().print(table)
    print(json.dumps([asdict(one) for one in found]))


def cost(path: str, keys: int, records: int, count: int) -> Cost:
    """Return what a case costs."""
    more: dict[bool, list[float]] = {True: [], False: []}
    plain: list[float] = []
    with tempfile.TemporaryDirectory() as directory:
        kernels = {}
        for name in (True, False):
            where = Path(directory) / str(name)
            where.mkdir()
            kernels[name] = Kernel(_pipeline(path), where, keys=keys, intervals=16)
        made = batches(count=count, records=records, keys=keys, repeated=0.0)
        for n, batch in enumerate(made):
            # Either worker measures every other pair of epochs, and either begins every other one:
            # two of them are never quite alike.
            who = n // 2 % 2 == 0
            spent = {one: _epoch(kernels[one], batch, one is who) for one in _order(who, n)}
            if n:  # the first epoch finds caches to be made
                more[who].append(spent[who] - spent[not who])
                plain.append(spent[not who])
    usual = median(plain)
    share = sum(median(of) for of in more.values()) / 2 / usual
    errors = [(quantiles(of)[2] - quantiles(of)[0]) / 2 / len(of) ** 0.5 for of in more.values()]
    return Cost(path, keys, records, usual / records * 1e6, share, max(errors) / 2**0.5 / usual)


def _order(who: bool, n: int) -> tuple[bool, bool]:
    return (who, not who) if n % 2 else (not who, who)


def _epoch(kernel: Kernel, batch: Batch, measured: bool) -> float:
    """Return the CPU seconds of an epoch."""
    execution = kernel._worker.execution
    if measured:
        execution._seconds = time.perf_counter
        return kernel.run(batch).cpu_s
    execution._seconds = _stopped
    with (
        mock.patch.object(KeySampler, "hottest", _no_keys),
        mock.patch.object(StateSizes, "of", _no_size),
        mock.patch.object(CommitSizes, "of", _no_bytes),
    ):
        return kernel.run(batch).cpu_s


def _no_keys(*_: object) -> dict[bytes, int]:
    return {}


def _no_size(*_: object) -> Size:
    return Size(0, 0)


def _no_bytes(*_: object) -> int:
    return 0


def _pipeline(path: str) -> mr.Pipeline:
    p = mr.Pipeline("load")
    p.inject(STREAM)
    if path == "by key":
        p.add(Count)
    else:
        p.stream(STREAM).key_by("_value").window(mr.FixedWindows("1 min")).count().to("counts")
        p.sink("counts", print)
    return p


if __name__ == "__main__":
    main()
