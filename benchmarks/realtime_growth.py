"""How the real-time plane grows: by stages, keys and partitions; and one hour of it.

``python -m benchmarks.realtime_growth`` draws three lines, a cell of ``benchmarks.latency`` for
each point (records from Kafka, seen by user code of the last stage; its docstring says what latency
and CPU time are): stages 1 to 5, keys 1,000 to 1,000,000, partitions 1, 2 and 4, all else being two
stages, 1,000 keys, one partition, 2,000 records/s in batches of 5 ms. At such a rate most of a
million keys are not met within a minute; how fast a state of a million keys is, says ``python -m
benchmarks.realtime_throughput --keys 1000000``.

``python -m benchmarks.realtime_growth --soak`` runs one cell for ``--minutes``, with marks every
two seconds, snapshots and collection as they are by default, at ``--rate``, which should be half of
what the machine can do. An injector of Millrace's own makes the records (``latency/synthetic.py``),
so that nothing else takes a core. By minute it keeps the latency of the records of one key in
``--probe-every``, the resident memory of every process (RSS: pages that two processes share count
twice), threads, open files, and the bytes of checkpoint and cache on disk, in a JSON and a PNG. At
the end the counts of all keys are read from the checkpoint and compared with NumPy's. Whether it is
flat is said by the median of the last tenth of the minutes over that of the second tenth: the first
is still warming up.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.arguments import integers
from benchmarks.broker import broker_in
from benchmarks.contest import ContenderFailed, clean_up_when_terminated
from benchmarks.latency.cell import Measurement, measure
from benchmarks.latency.course import CODE, Cell, Course
from benchmarks.latency.report import in_brief, markdown
from benchmarks.machine import describe
from benchmarks.result import path_of, write_measurements
from benchmarks.soak import Sample, flatness, taken_by

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_RIVAL = "millrace-realtime"
_QUICK = {
    "seconds": 5,
    "warm_up": 5,
    "stages": [1, 3],
    "keys": [1_000, 100_000],
    "partitions": [1],
    "minutes": 1,
    "rate": 200,
    "sample_every": 5,
}


def main() -> None:
    """Measure, print the table, write the results and the picture."""
    arguments = _parser().parse_args()
    if arguments.quick:
        vars(arguments).update(_QUICK)
    work_dir = arguments.work_dir or Path(tempfile.gettempdir()) / "millrace-benchmarks"
    work_dir.mkdir(parents=True, exist_ok=True)
    clean_up_when_terminated()
    machine = describe()
    name = "realtime-soak" if arguments.soak else "realtime-growth"
    path = path_of(name, machine, arguments.out)
    settings = {name: str(value) for name, value in vars(arguments).items()}
    if arguments.soak:
        _soak(arguments, work_dir, path, machine, settings)
    else:
        _grow(arguments, work_dir, path, machine, settings)


def _grow(
    arguments: argparse.Namespace,
    work_dir: Path,
    path: Path,
    machine: dict[str, Any],
    settings: dict[str, str],
) -> None:
    measurements: list[Measurement] = []
    failures: list[str] = []
    with broker_in(work_dir) as broker:
        for cell in _cells(arguments):
            try:
                found = measure(cell, broker, "", work_dir, patience_s=arguments.patience)
            except ContenderFailed as failure:
                print(f"{cell}: {failure}", flush=True)
                failures.append(f"{cell}: {failure}")
                continue
            measurements.append(found)
            print(
                f"{cell.stages} stages, {cell.keys:,} keys, {cell.partitions} partitions: "
                f"{in_brief(found)}, {found.cpu_s_per_million['engine']:,.0f} CPU s a million",
                flush=True,
            )
            write_measurements(
                path, "realtime_growth", machine, settings, measurements, failures=failures
            )
    print(markdown(measurements))


def _cells(arguments: argparse.Namespace) -> Iterator[Cell]:
    usual = _usual(arguments)
    lines = [
        *(replace(usual, stages=stages) for stages in arguments.stages),
        *(replace(usual, keys=keys) for keys in arguments.keys),
        *(replace(usual, partitions=partitions) for partitions in arguments.partitions),
    ]
    # A point that two lines share is measured once.
    yield from dict.fromkeys(lines)


def _usual(arguments: argparse.Namespace) -> Cell:
    return Cell(
        rival=_RIVAL,
        to=CODE,
        rate=arguments.rate,
        keys=1_000,
        stages=2,
        partitions=arguments.partitions[0],
        warm_up_s=arguments.warm_up,
        seconds=arguments.seconds,
        synthetic=False,
        every_ms=5,
    )


def _soak(
    arguments: argparse.Namespace,
    work_dir: Path,
    path: Path,
    machine: dict[str, Any],
    settings: dict[str, str],
) -> None:
    samples: list[Sample] = []

    def look(course: Course) -> None:
        at_s = time.time() - course.begin_ns / 1e9
        if at_s >= len(samples) * arguments.sample_every:
            samples.append(taken_by(course.pid, course.job.scratch_dir, at_s))
            print(f"{at_s / 60:.0f} min: {sum(samples[-1].rss_mib.values()):,.0f} MiB", flush=True)

    cell = replace(
        _usual(arguments),
        keys=arguments.soak_keys,
        seconds=60 * arguments.minutes,
        synthetic=True,
        probe_every=arguments.probe_every,
    )
    found = measure(cell, None, "", work_dir, patience_s=arguments.patience, each_second=look)
    minutes = _by_minute(found)
    results = {
        "benchmark": "realtime_soak",
        "machine": machine,
        "settings": settings,
        "measurement": asdict(found),
        "latency by minute: p50, p99, max": minutes,
        "samples": [asdict(sample) for sample in samples],
    }
    path.write_text(json.dumps(results) + "\n")
    print(markdown([found]))
    for line in _flatness(minutes, samples):
        print(line)
    _picture(minutes, samples, cell).savefig(path.with_suffix(".png"), dpi=110)


def _by_minute(found: Measurement) -> list[list[float]]:
    """Return by minute the medians of its seconds' p50 and p99, and its maximum."""
    seconds = found.latencies_ms[CODE].by_second
    minutes = [seconds[n : n + 60] for n in range(0, len(seconds), 60)]
    return [
        [
            statistics.median(second[0] for second in minute),
            statistics.median(second[1] for second in minute),
            max(second[2] for second in minute),
        ]
        for minute in minutes
    ]


def _flatness(minutes: Sequence[Sequence[float]], samples: Sequence[Sample]) -> Iterator[str]:
    lines: dict[str, list[float]] = {
        "p50 latency": [minute[0] for minute in minutes],
        "p99 latency": [minute[1] for minute in minutes],
        "resident memory": [sum(sample.rss_mib.values()) for sample in samples],
        "threads": [sample.threads for sample in samples],
        "open files": [sample.open_files for sample in samples],
        "checkpoint on disk": [sample.disk_mib["checkpoint"] for sample in samples],
        "cache on disk": [sample.disk_mib["cache"] for sample in samples],
    }
    return flatness(lines)


def _picture(minutes: Sequence[Sequence[float]], samples: Sequence[Sample], cell: Cell) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 8), layout="constrained")
    latency, memory, disk = figure.subplots(3, 1, sharex=True)
    for column, name in enumerate(("p50", "p99", "max")):
        latency.plot(range(len(minutes)), [minute[column] for minute in minutes], label=name)
    latency.set_yscale("log")
    latency.set_ylabel("latency (ms)")
    at = [sample.at_s / 60 for sample in samples]
    for name in dict.fromkeys(name for sample in samples for name in sample.rss_mib):
        memory.plot(at, [sample.rss_mib.get(name, 0) for sample in samples], label=name)
    memory.set_ylabel("resident memory (MiB)")
    for name in ("checkpoint", "cache"):
        disk.plot(at, [sample.disk_mib[name] for sample in samples], label=name)
    disk.set_ylabel("on disk (MiB)")
    disk.set_xlabel("minutes")
    for axes in (latency, memory, disk):
        axes.grid(visible=True, color="0.92")
        axes.legend(loc="upper right", fontsize="small")
    for axes in (memory, disk):
        axes.set_ylim(bottom=0)
    latency.set_title(f"{cell.stages} keyed stages, {cell.rate:,} records/s, {cell.keys:,} keys")
    return figure


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.realtime_growth",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rate", type=int, default=2_000, help="records/s")
    parser.add_argument("--stages", type=integers, default=[1, 2, 3, 4, 5])
    parser.add_argument("--keys", type=integers, default=[1_000, 10_000, 100_000, 1_000_000])
    parser.add_argument(
        "--partitions",
        type=integers,
        default=[1, 2, 4],
        help="the first is that of all other lines",
    )
    parser.add_argument("--seconds", type=int, default=60, help="measured, after the warm-up")
    parser.add_argument("--warm-up", type=int, default=30)
    parser.add_argument("--patience", type=float, default=60.0, help="seconds for the last records")
    parser.add_argument("--soak", action="store_true", help="one cell for long, see above")
    parser.add_argument("--minutes", type=int, default=60, help="of --soak")
    parser.add_argument("--soak-keys", type=int, default=100_000)
    parser.add_argument("--probe-every", type=int, default=10)
    parser.add_argument("--sample-every", type=int, default=60, help="seconds, of --soak")
    parser.add_argument("--work-dir", type=Path, help="the broker's data, checkpoints")
    parser.add_argument("--out", type=Path, help="results file (default: benchmarks/results/…)")
    parser.add_argument("--quick", action="store_true", help=f"a check, not a result: {_QUICK}")
    return parser


if __name__ == "__main__":
    main()
