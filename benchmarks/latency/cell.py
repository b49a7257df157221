"""One cell: a contender under a load, and what comes of it."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.contest import ContenderFailed
from benchmarks.latency import figures, probe
from benchmarks.latency.course import CODE, KAFKA, Cell, Course
from benchmarks.latency.figures import Latency
from millrace_examples.kafka.broker import Broker


@dataclass(frozen=True)
class Measurement:
    """What a cell has shown.

    Attributes:
        cell: The cell.
        latencies_ms: Point -> latencies: ``code``, and where rows went.
        cpu_s_per_million: Who -> CPU seconds a million measured records.
        cores: Who -> cores in use.
        engine_cpu_s_per_million: The contender's, by program.
        peak_mib: Of the contender, warm-up included.
        peak_kind: PSS or RSS.
        load: How late the load was, in milliseconds, and how often it sent.
        load_average: Of the machine.
        notes: What the contender says.
    """

    cell: Cell
    latencies_ms: dict[str, Latency]
    cpu_s_per_million: dict[str, float]
    cores: dict[str, float]
    engine_cpu_s_per_million: dict[str, float]
    peak_mib: float
    peak_kind: str
    load: dict[str, float]
    load_average: float
    notes: dict[str, Any]


def measure(
    cell: Cell,
    broker: Broker | None,
    conninfo: str,
    work_dir: Path,
    *,
    patience_s: float,
    each_second: Callable[[Course], None] | None = None,
) -> Measurement:
    """Run a cell and return its figures.

    Args:
        cell: The cell.
        broker: Of all Kafka topics; None for a cell that has none.
        conninfo: Of PostgreSQL, for cells that write to it.
        work_dir: A temporary folder is made in it.
        patience_s: How long the contender may take for its last rows, from the end of the load on;
            and twice as long to start.
        each_second: Called while the load runs.

    Raises:
        ContenderFailed: With the rival's name, and what went wrong.
    """
    scratch = Path(tempfile.mkdtemp(prefix=f"{cell.rival}-", dir=work_dir))
    topics = [] if cell.synthetic else [f"in-{scratch.name}"]
    topics += [f"out-{scratch.name}"] if cell.to == KAFKA else []
    try:
        for topic in topics:
            assert broker is not None, "topics need a broker"
            broker.make_topic(topic, cell.partitions)
        course = Course(cell, broker, conninfo, scratch, patience_s)
        course.run(each_second)
        return _measurement(course)
    except ContenderFailed as failure:
        raise ContenderFailed(f"{cell.rival}: {failure}") from failure
    finally:
        for topic in topics:
            assert broker is not None, "topics need a broker"
            broker.delete_topic(topic)
        shutil.rmtree(scratch, ignore_errors=True)


def _measurement(course: Course) -> Measurement:
    cell = course.cell
    since_s = course.begin_ns / 1e9 + cell.warm_up_s
    until_s = since_s + cell.seconds
    millions = cell.rate * cell.seconds / 1e6
    spent = {who: each.cpu_s_between(since_s, until_s) for who, each in course.samplers.items()}
    total = {who: sum(by_program.values()) for who, by_program in spent.items()}
    engine = course.samplers["engine"]
    return Measurement(
        cell=cell,
        latencies_ms=_latencies(course, int(since_s * 1e9), int(until_s * 1e9)),
        cpu_s_per_million={who: cpu_s / millions for who, cpu_s in total.items()},
        cores={who: cpu_s / cell.seconds for who, cpu_s in total.items()},
        engine_cpu_s_per_million={name: s / millions for name, s in spent["engine"].items()},
        peak_mib=engine.peak_bytes_before(until_s) / 2**20,
        peak_kind=engine.memory_kind,
        load=course.load_stats,
        load_average=round(os.getloadavg()[0], 2),
        notes=course.outcome.notes,
    )


def _latencies(course: Course, since_ns: int, until_ns: int) -> dict[str, Latency]:
    cell = course.cell
    sent_ns, keys = course.sent_ns(), course.keys()

    def between(sent: np.ndarray, seen: np.ndarray) -> Latency:
        measured = (sent >= since_ns) & (sent < until_ns)
        return Latency.of(sent[measured], seen[measured])

    _check_state(course.outcome.notes, keys)
    found = {}
    called = probe.read(course.job.probes_dir)
    if len(called):
        expected = np.sort(sent_ns[keys % cell.probe_every == 0])
        if not np.array_equal(np.sort(called[:, 0]), expected):
            raise ContenderFailed(
                f"user code was called {len(called):,} times, expected once for each of "
                f"{len(expected):,} records"
            )
        found[CODE] = between(called[:, 0], called[:, 1])
    if cell.to != CODE:
        rows, arrived_ns = course.rows()
        figures.check_rows(rows, keys)
        if rows[:, 3].any():
            found[CODE] = between(rows[:, 0], rows[:, 3])
        found[cell.to] = between(*figures.match(rows, arrived_ns, sent_ns, keys))
    elif not found:
        raise ContenderFailed("it has no user code, so it can only be measured at its sink")
    return found


def _check_state(notes: dict[str, Any], keys: np.ndarray) -> None:
    """Compare the last stage's state, where a contender has read it back, with what it must be."""
    counts = np.bincount(keys)
    expected = [int(np.count_nonzero(counts)), int(counts.sum()), int((counts**2).sum())]
    if notes.get("state", expected) != expected:
        raise ContenderFailed(
            f"the counts of its last stage (keys, sum, sum of squares) are {notes['state']}, "
            f"expected {expected}"
        )
