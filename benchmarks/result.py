"""The file that a benchmark leaves: what was measured, on which machine, with which versions."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.machine import describe

FOLDER = Path(__file__).parent / "results"
Measurement = TypeVar("Measurement")


def path_of(benchmark: str, machine: Mapping[str, Any], out: Path | None = None) -> Path:
    """Return the file of a result: ``out``, or one in ``results`` named by benchmark and time."""
    at = dt.datetime.fromisoformat(machine["at"])
    return out or FOLDER / f"{benchmark.replace('_', '-')}-{at:%Y-%m-%d-%H%M}.json"


def write(benchmark: str, *, out: Path | None = None, **figures: Any) -> Path:
    """Write a result.

    Args:
        benchmark: Name of its module.
        out: The file; by default one below ``results``, named by the benchmark and the time.
        **figures: What was measured, as data for JSON.

    Returns:
        The file.
    """
    machine = describe()
    file = path_of(benchmark, machine, out)
    result = {"benchmark": benchmark, "machine": machine, **figures}
    file.write_text(json.dumps(result, indent=1) + "\n")
    return file


def write_measurements(
    path: Path,
    benchmark: str,
    machine: Mapping[str, Any],
    settings: Mapping[str, Any],
    measurements: Sequence[Any],
    **more: Any,
) -> None:
    """Write the measurements of a contest so far, with the machine and the settings, as JSON.

    Args:
        path: The file, which is replaced.
        benchmark: Name of its package or module.
        machine: As :func:`~benchmarks.machine.describe` has it.
        settings: Arguments of the command line.
        measurements: Dataclasses.
        **more: Other members of the file, such as ``failures``.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    result = {
        "benchmark": benchmark,
        "machine": machine,
        "settings": settings,
        **more,
        "measurements": [asdict(each) for each in measurements],
    }
    path.write_text(json.dumps(result, indent=1) + "\n")


def read_measurements(path: Path, kind: type[Measurement]) -> list[Measurement]:
    """Return the measurements in a file that :func:`write_measurements` wrote."""
    return [kind(**each) for each in json.loads(path.read_text())["measurements"]]
