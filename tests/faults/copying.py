"""A program that copies a checkpoint again and again, and is killed at each change of a file.

``copying.py SEED checkpoint copy SOURCE FOLDER/%`` copies to ``FOLDER/0``, ``FOLDER/1`` and so on;
it takes any command of ``millrace``. The process of the first is killed before the first change
that it makes, that of the second before the second, until one is whole; some more are killed at
random times. It prints which was not killed.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from typing import Any

from millrace.cli.main import main as millrace

#: What changes files, as Python's audit hooks call it.
CHANGES = {"os.mkdir", "os.link", "os.remove", "os.rename", "os.rmdir"}


def copying(command: list[str], change: int | None) -> int:
    """Begin a copy in a process of its own, which is killed before a change; return its id."""
    child = os.fork()
    if child:
        return child
    left = [change]

    def killed(event: str, arguments: tuple[Any, ...]) -> None:
        writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & os.O_CREAT
        if left[0] is None or not (event in CHANGES or writes):
            return
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        left[0] -= 1

    sys.addaudithook(killed)
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    millrace(command)
    os._exit(9)


def main(seed: int, command: list[str]) -> None:
    def numbered(n: int) -> list[str]:
        return [word.replace("%", str(n)) for word in command]

    n = 0
    while True:
        began = time.monotonic()
        _, status = os.waitpid(copying(numbered(n), n), 0)
        took = time.monotonic() - began
        if os.waitstatus_to_exitcode(status) == 0:
            break
        assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL, status
        n += 1
    print(n)  # noqa: T201  it is read by the test
    rng = random.Random(seed)
    for later in range(n + 1, n + 9):
        child = copying(numbered(later), None)
        time.sleep(rng.random() * took)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
