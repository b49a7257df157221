"""Runs a contender of a benchmark in a process of its own, and samples it from outside."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Self

from benchmarks.measure import TreeSampler

_REPOSITORY = Path(__file__).parents[1]


class ContenderFailed(Exception):
    """A contender's process failed, ran out of time, or found something wrong."""


def clean_up_when_terminated() -> None:
    """Let SIGTERM end this process as Ctrl-C does, so that contenders and servers end with it."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("told to end"))


class Contender:
    """A process that runs ``python -m module job.json outcome.json`` of a folder; it is sampled.

    A contender gets a fresh interpreter, and so a fresh JVM, and counts as its memory no other's
    libraries. It runs between ``with`` and its end, where it is killed with its descendants if it
    has not ended.

    Args:
        rival: Name of the contender, for messages.
        module: What to run.
        scratch: Folder with ``job.json``. What the process prints goes to ``log.txt`` there.
        python: Interpreter of the environment that the contender needs.
        tree_every_s: How often its processes are listed and their memory is read.
    """

    sampler: TreeSampler

    def __init__(
        self,
        rival: str,
        module: str,
        scratch: Path,
        python: str = sys.executable,
        *,
        tree_every_s: float = 2.0,
    ) -> None:
        self.rival = rival
        self._command = [python, "-m", module]
        self._command += [str(scratch / "job.json"), str(scratch / "outcome.json")]
        self._own = sys.executable == python
        self._scratch = scratch
        self._tree_every_s = tree_every_s

    def __enter__(self) -> Self:
        # Of a virtual environment of its own, the libraries that this one was started with are not
        # for it.
        paths = [str(_REPOSITORY), os.environ.get("PYTHONPATH", "") if self._own else ""]
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "PYSPARK_PYTHON": sys.executable,
        }
        # What was written before, the input above all, would be brought to the disk meanwhile.
        os.sync()
        with (self._scratch / "log.txt").open("w") as log:
            self._process = subprocess.Popen(
                self._command,
                cwd=_REPOSITORY,
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.sampler = TreeSampler(self._process.pid, tree_every_s=self._tree_every_s)
        self.sampler.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self.sampler.kill_tree()
            self._process.wait()
        self.sampler.__exit__()

    @property
    def pid(self) -> int:
        """Of the process, the root of its tree."""
        return self._process.pid

    @property
    def ended(self) -> bool:
        """Whether the process has ended.

        Raises:
            ContenderFailed: It failed.
        """
        code = self._process.poll()
        if code:
            raise ContenderFailed(f"{self.rival} failed; its traceback is in {self._kept_log()}")
        return code is not None

    def wait(self, timeout_s: float) -> None:
        """Wait until the process has ended.

        Raises:
            ContenderFailed: It failed, or did not end in time and was killed.
        """
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.sampler.kill_tree()
            self._process.wait()
            raise ContenderFailed(
                f"{self.rival} did not finish in {timeout_s:.0f} s; raise --timeout or lower the "
                f"number of its records. What it printed is in {self._kept_log()}"
            ) from None
        assert self.ended

    def failure(self, what: str) -> ContenderFailed:
        """Return an error that says what went wrong, and where to read more."""
        return ContenderFailed(f"{what}; what it printed is in {self._kept_log()}")

    def _kept_log(self) -> Path:
        kept = self._scratch.parent / f"{self._scratch.name}.log"
        return Path(shutil.copy(self._scratch / "log.txt", kept))


def run_process(
    rival: str, module: str, scratch: Path, timeout_s: float, python: str = sys.executable
) -> TreeSampler:
    """Run a :class:`Contender` to its end, and return what was sampled.

    Args:
        rival: Name of the contender, for messages.
        module: What to run.
        scratch: Folder with ``job.json``.
        timeout_s: Seconds after which it is killed.
        python: Interpreter of the environment that the contender needs.

    Raises:
        ContenderFailed: With the rival's name and where what it printed is kept.
    """
    with Contender(rival, module, scratch, python) as contender:
        contender.wait(timeout_s)
    return contender.sampler
