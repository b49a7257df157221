"""``--tasks``: a number of tasks a level, or the least and the most."""

from __future__ import annotations

import re

import click


def task_numbers(text: str) -> int | tuple[int, int]:
    """Return what ``--tasks`` says: a number, or two where it follows the load.

    Raises:
        click.BadParameter: It says neither.

    >>> task_numbers("8"), task_numbers("2-16")
    (8, (2, 16))
    """
    match = re.fullmatch(r"(\d+)(?:-(\d+))?", text)
    least, most = (0, 0) if match is None else (int(match[1]), int(match[2] or match[1]))
    if match is None or not 1 <= least <= most:
        raise click.BadParameter(
            f"{text!r}: expected a number of tasks, 1 or more, such as 8; or the least and the "
            "most, such as 2-16."
        )
    return least if match[2] is None else (least, most)


def least_of(tasks: int | tuple[int, int]) -> int:
    """Return how many tasks a level there are at the least.

    >>> least_of(8), least_of((2, 16))
    (8, 2)
    """
    return tasks if isinstance(tasks, int) else tasks[0]
