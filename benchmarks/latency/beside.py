"""A process beside the contender: the load, the consumer, the client of PostgreSQL."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Self

from benchmarks.contest import ContenderFailed
from benchmarks.measure import TreeSampler

_REPOSITORY = Path(__file__).parents[2]
_LOOK_EVERY_S = 0.02


class Beside:
    """A module's process between ``with`` and its end; its CPU time is sampled.

    Args:
        module: Of ``benchmarks.latency``.
        arguments: Of its command line.

    Attributes:
        sampler: Of its CPU time.
    """

    sampler: TreeSampler

    def __init__(self, module: str, *arguments: str) -> None:
        self._module = module
        self._command = [sys.executable, "-m", f"benchmarks.latency.{module}", *arguments]
        self._said = ""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command,
            cwd=_REPOSITORY,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.sampler = TreeSampler(self._process.pid, tree_every_s=5)
        self.sampler.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self.sampler.__exit__()

    @property
    def said(self) -> str:
        """The last line that it printed."""
        return self._said

    def wait_for_word(self, timeout_s: float = 60) -> None:
        """Wait until it has said something.

        Raises:
            ContenderFailed: It did not.
        """
        deadline = time.monotonic() + timeout_s
        while not self._said:
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise ContenderFailed(f"the {self._module} did not start; see what it printed")
            time.sleep(_LOOK_EVERY_S)

    @property
    def ended(self) -> bool:
        """Whether it has ended.

        Raises:
            ContenderFailed: It failed.
        """
        code = self._process.poll()
        if code:
            raise ContenderFailed(f"the {self._module} failed; its traceback is above")
        return code is not None

    def wait(self, timeout_s: float = 120) -> str:
        """Wait until it has ended, and return the last line that it printed.

        Raises:
            ContenderFailed: It failed, or did not end in time.
        """
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise ContenderFailed(f"the {self._module} did not end") from None
        self._reader.join()
        assert self.ended
        return self._said

    def end(self) -> None:
        """Ask it to end, and wait until it has left what it found."""
        self._process.terminate()
        self.wait()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._said = line.strip()
