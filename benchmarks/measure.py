"""CPU time and memory of a process tree, sampled from outside it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from dataclasses import dataclass
from typing import Self

import numpy as np
import psutil

#: Reading one process's CPU times costs about 20 us, so ten a second do not disturb two cores.
_CPU_EVERY_S = 0.1


@dataclass(frozen=True)
class _Sample:
    at_s: float
    cpu_s: dict[str, float]


class TreeSampler:
    """Samples a process and its descendants on a thread, between ``with`` and its end.

    CPU time is the sum, over the live processes, of their own user and system time and of what
    they collected from children they waited for; so a Python worker or a JVM that has ended still
    counts. Memory is the sum of the proportional set sizes (PSS, Linux): a page that the forked
    Python workers share, or that two of them map from one LMDB file, counts once. Where the
    operating system has no PSS it is the sum of RSS, and ``memory_kind`` says so.

    Args:
        pid: Root of the tree.
        tree_every_s: How often to list the tree, which reads every process of the machine, and to
            read its memory: PSS walks every page table of the JVM, which takes milliseconds.
    """

    def __init__(self, pid: int, *, tree_every_s: float = 0.5) -> None:
        self._tree_every_s = tree_every_s
        self._root = psutil.Process(pid)
        self._samples: list[_Sample] = []
        self._memory: list[tuple[float, int]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="tree-sampler", daemon=True)
        self.memory_kind = "pss" if hasattr(self._root.memory_full_info(), "pss") else "rss"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def cpu_s_between(self, start_s: float, end_s: float) -> dict[str, float]:
        """Return CPU seconds used in ``[start_s, end_s)``, Unix time, interpolated linearly.

        Returns:
            Program -> seconds: ``java`` and ``python`` for a Spark contender.
        """
        at = [sample.at_s for sample in self._samples]
        spent = {}
        for program in sorted({name for sample in self._samples for name in sample.cpu_s}):
            # A process that ends and is not yet waited for is missing from one sample.
            used = np.maximum.accumulate([s.cpu_s.get(program, 0.0) for s in self._samples])
            start, end = np.interp([start_s, end_s], at, used)
            if end > start:
                spent[program] = float(end - start)
        return spent

    def peak_bytes_before(self, end_s: float) -> int:
        """Return the largest memory of the tree seen before ``end_s``, Unix time."""
        return max((used for at, used in self._memory if at < end_s), default=0)

    def kill_tree(self) -> None:
        """Kill the process and its descendants."""
        for process in [*self._root.children(recursive=True), self._root]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    def _loop(self) -> None:
        tree: list[psutil.Process] = []
        tree_due_s = 0.0
        while not self._stop.wait(_CPU_EVERY_S):
            try:
                if time.monotonic() >= tree_due_s:
                    tree = [self._root, *self._root.children(recursive=True)]
                    self._memory.append((time.time(), sum(map(self._memory_bytes, tree))))
                    tree_due_s = time.monotonic() + self._tree_every_s
            except psutil.NoSuchProcess:
                return
            cpu_s: Counter[str] = Counter()
            for process in tree:
                cpu_s.update(_cpu_s(process))
            self._samples.append(_Sample(time.time(), dict(cpu_s)))

    def _memory_bytes(self, process: psutil.Process) -> int:
        try:
            if self.memory_kind == "pss":
                return int(process.memory_full_info().pss)
            return int(process.memory_info().rss)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            return 0


def _cpu_s(process: psutil.Process) -> dict[str, float]:
    try:
        # python3.11 and python are one program.
        program = process.name().rstrip("0123456789.")
        return {program: float(sum(process.cpu_times()[:4]))}
    except psutil.NoSuchProcess:
        return {}
