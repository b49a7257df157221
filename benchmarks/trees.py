"""Two trees of Millrace measured in the same go, case by case, each in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def in_tree(benchmark: str, src: str, case: tuple[Any, ...]) -> dict[str, Any]:
    """Return what a case of a benchmark gives with the Millrace in a folder.

    Args:
        benchmark: Name of its module, which takes ``--case`` and prints JSON.
        src: The folder.
        case: What it is given.
    """
    root = Path(__file__).parents[1]
    paths = [src, str(root), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{benchmark}", "--case", json.dumps(case)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        stdout=subprocess.PIPE, check=True,
    )  # fmt: skip
    return dict(json.loads(done.stdout))
