"""The file that a benchmark leaves: what was measured, on which machine, with which versions."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

from benchmarks.machine import describe

FOLDER = Path(__file__).parent / "results"


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
    at = dt.datetime.fromisoformat(machine["at"])
    file = out or FOLDER / f"{benchmark.replace('_', '-')}-{at:%Y-%m-%d-%H%M}.json"
    result = {"benchmark": benchmark, "machine": machine, **figures}
    file.write_text(json.dumps(result, indent=1) + "\n")
    return file
