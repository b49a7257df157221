"""The process that runs one contender of a benchmark: a fresh interpreter, and a fresh JVM.

A contender is named by where its ``(Job) -> Outcome`` is, "module:function": one must not load, and
count as its memory, the libraries of the others, which may not be in its environment.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


def play(package: str, contenders: Mapping[str, str], load: Callable[[Path], Any]) -> None:
    """Run the job whose path is the first argument, and write its outcome to the second.

    Args:
        package: Below ``benchmarks``, in which the contenders' modules are.
        contenders: Name -> "module:function".
        load: Reads the job, whose ``rival`` names the contender.
    """
    job_path, outcome_path = map(Path, sys.argv[1:])
    asked = load(job_path)
    module, function = contenders[asked.rival].split(":")
    run = getattr(importlib.import_module(f"benchmarks.{package}.{module}"), function)
    run(asked).dump(outcome_path)
