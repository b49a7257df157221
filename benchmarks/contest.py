"""Runs a contender of a benchmark in a process of its own, and samples it from outside."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.measure import TreeSampler

_REPOSITORY = Path(__file__).parents[1]


class ContenderFailed(Exception):
    """A contender's process failed, ran out of time, or found something wrong."""


def run_process(
    rival: str, module: str, scratch: Path, timeout_s: float, python: str = sys.executable
) -> TreeSampler:
    """Run ``python -m module job.json outcome.json`` of a folder, and return what was sampled.

    A contender gets a fresh interpreter, and so a fresh JVM, and counts as its memory no other's
    libraries.

    Args:
        rival: Name of the contender, for messages.
        module: What to run.
        scratch: Folder with ``job.json``. What the process prints goes to ``log.txt`` there.
        timeout_s: Seconds after which it is killed, with its descendants.
        python: Interpreter of the environment that the contender needs.

    Raises:
        ContenderFailed: With the rival's name and where what it printed is kept.
    """
    # Of a virtual environment of its own, the libraries that this one was started with are not for
    # it.
    own = sys.executable == python
    paths = [str(_REPOSITORY), os.environ.get("PYTHONPATH", "") if own else ""]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "PYSPARK_PYTHON": sys.executable,
    }
    log_path = scratch / "log.txt"
    with log_path.open("w") as log:
        process = subprocess.Popen(
            [python, "-m", module, str(scratch / "job.json"), str(scratch / "outcome.json")],
            cwd=_REPOSITORY,
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        with TreeSampler(process.pid) as sampler:
            try:
                failed = process.wait(timeout_s) != 0
            except subprocess.TimeoutExpired:
                sampler.kill_tree()
                raise ContenderFailed(
                    f"{rival} did not finish in {timeout_s:.0f} s; raise --timeout or lower the "
                    "number of its records."
                ) from None
    if failed:
        kept = shutil.copy(log_path, scratch.parent / f"{scratch.name}.log")
        raise ContenderFailed(f"{rival} failed; its traceback is in {kept}")
    return sampler
