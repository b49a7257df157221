"""Throughput of the real-time plane, beside the epoch plane and rivals: keyed state and windows.

Run it with ``python -m benchmarks.realtime_throughput``; it takes about an hour and a half. It runs
the contenders of ``benchmarks.keyed_state`` and ``benchmarks.windows``, whose docstrings say what
each does, how its result is checked against NumPy's, and what CPU time and memory are. Here is what
differs where nothing has batches.

**Work.** A running count in Python, one state read and write for each record, at 200,000 and 1,000
keys; and sums by fixed windows and sessions. Records are read by Millrace itself from Parquet
(``millrace-realtime``), from a Kafka topic that has them all beforehand (``-kafka``; 24 bytes a
record, unpacked by Python), or are in the memory of the injector tasks (``-memory``). Beside it:
the epoch plane (``millrace-files``, in batches of 400,000), ``tws``, ``bytewax-recovery``, Spark's
own windows, Flink SQL.

**Clock.** The warm-up records come first. When a mark is complete that has them all, the measured
ones are released, all at once: files get their names, a Kafka transaction is committed. The clock
runs from the first read of them (of Kafka: from the commit) to the first mark that is complete and
has them all, which is when everything is consumed in every stage and durable. Marks are made every
250 ms, so the time is up to so much too long. Of the others it is the first and last measured
batch, as ever.

**Goals** are of the real-time plane, and are printed as met or not: see ``GOALS``.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks import keyed_state as _counts
from benchmarks import windows as _sums
from benchmarks.arguments import integers
from benchmarks.batches import Measurement, measure
from benchmarks.broker import servers_for
from benchmarks.contest import ContenderFailed, clean_up_when_terminated
from benchmarks.keyed_state.workload import Workload as Counts
from benchmarks.machine import describe
from benchmarks.windows.workload import Workload as Sums

_RESULTS = Path(__file__).parent / "results"
_OURS = "millrace-realtime"
_REALTIME = (_OURS, f"{_OURS}-kafka")
_COUNTING = (*_REALTIME, f"{_OURS}-memory", "millrace-files", "tws", "bytewax-recovery")
_SUMMING = (*_REALTIME, "millrace-files", "spark", "flink")
_QUICK = {"records": 200_000, "slow_records": 100_000, "batch": 100_000, "keys": [1_000]}


@dataclass(frozen=True)
class Figure:
    """What one contender did.

    Attributes:
        work: ``keyed state``, ``windows`` or ``sessions``.
        keys: Distinct keys.
        contender: Its name.
        records: That were measured.
        records_per_s: Of them.
        cpu_s_per_million: CPU seconds of its process tree.
        peak_mib: Of its process tree.
    """

    work: str
    keys: int
    contender: str
    records: int
    records_per_s: float
    cpu_s_per_million: float
    peak_mib: float


@dataclass(frozen=True)
class Goal:
    """The real-time plane, reading Parquet, is to be so many times as fast as a contender."""

    work: str
    keys: int
    contender: str
    times: float


#: What the plane was promised to reach.
GOALS = (
    *(Goal("keyed state", keys, "millrace-files", 2) for keys in (1_000, 200_000)),
    Goal("keyed state", 200_000, "tws", 30),
    Goal("keyed state", 1_000, "tws", 8),
    Goal("keyed state", 200_000, "bytewax-recovery", 2.5),
    *(Goal(work, 1_000, "spark", 1.5) for work in ("windows", "sessions")),
    *(Goal(work, 200_000, "spark", 3) for work in ("windows", "sessions")),
    *(Goal(work, 1_000, "flink", 1) for work in ("windows", "sessions")),
)


def main() -> None:
    """Measure everybody, print the table, write the results."""
    arguments = _parser().parse_args()
    if arguments.quick:
        vars(arguments).update(_QUICK)
    clean_up_when_terminated()
    machine = describe()
    work_dir = arguments.work_dir or Path(tempfile.gettempdir()) / "millrace-benchmarks"
    work_dir.mkdir(parents=True, exist_ok=True)
    started = dt.datetime.fromisoformat(machine["at"])
    path = arguments.out or _RESULTS / f"realtime-throughput-{started:%Y-%m-%d-%H%M}.json"
    results = {
        "benchmark": "realtime_throughput",
        "machine": machine,
        "settings": {name: str(value) for name, value in vars(arguments).items()},
        "figures": (figures := []),
        "failures": (failures := []),
    }
    with servers_for(_REALTIME, work_dir) as servers:
        for found in _measure(arguments, work_dir, servers):
            if isinstance(found, ContenderFailed):
                print(found, flush=True)
                failures.append(str(found))
            else:
                print(f"{found.work}, {found.keys:,} keys: {found.contender}", end=" ")
                print(f"{found.records_per_s:,.0f} records/s", flush=True)
                figures.append(asdict(found))
            path.write_text(json.dumps(results, indent=1) + "\n")
    print(markdown([Figure(**each) for each in figures]))


def _measure(
    arguments: argparse.Namespace, work_dir: Path, servers: str
) -> Iterator[Figure | ContenderFailed]:
    """Yield what each contender did, or why it has no figure."""
    cores, timeout_s = arguments.cores, arguments.timeout
    for keys in arguments.keys:
        for rival in _chosen(arguments, _COUNTING):
            slow = rival == "tws"
            records = arguments.slow_records if slow else arguments.records
            batch = min(arguments.batch, records)
            counts = Counts(records, keys, batch, 10, 20_000, cores)
            try:
                one = measure(
                    "keyed_state", Measurement, rival, counts, work_dir, cores, timeout_s, servers
                )
            except ContenderFailed as failure:
                yield failure
                continue
            yield Figure(
                "keyed state", keys, rival, records, one.records_per_s, one.cpu_s_per_million,
                one.peak_mib,
            )  # fmt: skip
    for shape in arguments.shapes:
        for keys in arguments.keys:
            sums = Sums(
                shape, arguments.records, keys, False, 10, arguments.batch, 10, 20_000, cores
            )
            for rival in _chosen(arguments, _SUMMING):
                try:
                    two = measure(
                        "windows", Measurement, rival, sums, work_dir, cores, timeout_s, servers
                    )
                except ContenderFailed as failure:
                    yield failure
                    continue
                yield Figure(
                    shape, keys, rival, arguments.records, two.records_per_s,
                    two.cpu_s_per_million, two.peak_mib,
                )  # fmt: skip


def _chosen(arguments: argparse.Namespace, rivals: tuple[str, ...]) -> list[str]:
    return [rival for rival in rivals if not arguments.rivals or rival in arguments.rivals]


def markdown(figures: list[Figure]) -> str:
    """Return the table, and whether each goal was met."""
    return "\n".join([*_table(figures), "", *_judge(figures)])


def _table(figures: list[Figure]) -> Iterator[str]:
    yield (
        "| work | keys | contender | records/s | `millrace-realtime` is | CPU s / million | "
        "peak MiB |"
    )
    yield "|---|---:|---|---:|---:|---:|---:|"
    for one in figures:
        ours = _ours(figures, one)
        ratio = f"{ours.records_per_s / one.records_per_s:.2f} x" if ours else ""
        yield (
            f"| {one.work} | {one.keys:,} | {one.contender} | {one.records_per_s:,.0f} | {ratio} "
            f"| {one.cpu_s_per_million:.1f} | {one.peak_mib:,.0f} |"
        )


def _judge(figures: list[Figure]) -> Iterator[str]:
    for goal in GOALS:
        for one in figures:
            if (one.work, one.keys, one.contender) != (goal.work, goal.keys, goal.contender):
                continue
            if (ours := _ours(figures, one)) is None:
                continue
            times = ours.records_per_s / one.records_per_s
            yield (
                f"{'met' if times >= goal.times else 'NOT MET'}: {times:.2f} x {one.contender}, "
                f"{one.work}, {one.keys:,} keys; expected at least {goal.times:g} x"
            )


def _ours(figures: list[Figure], rival: Figure) -> Figure | None:
    case = rival.work, rival.keys, _OURS
    return next((one for one in figures if (one.work, one.keys, one.contender) == case), None)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.realtime_throughput",
        description=f"{__doc__}\n{_counts.__doc__}\n{_sums.__doc__}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--records", type=int, default=4_000_000, help="measured records")
    parser.add_argument("--slow-records", type=int, default=400_000, help="those of tws")
    parser.add_argument("--batch", type=int, default=400_000, help="of those that have batches")
    parser.add_argument("--keys", type=integers, default=[200_000, 1_000])
    parser.add_argument("--shapes", nargs="*", default=["windows", "sessions"])
    parser.add_argument("--rivals", nargs="*", help="only these; of keyed state and of windows")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=1800.0, help="seconds a contender")
    parser.add_argument("--work-dir", type=Path, help="input files, checkpoints, the broker's data")
    parser.add_argument("--out", type=Path, help="results file (default: benchmarks/results/…)")
    parser.add_argument("--quick", action="store_true", help=f"a check, not a result: {_QUICK}")
    return parser


if __name__ == "__main__":
    main()
