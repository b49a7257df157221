"""Results that stand for code which has not run: coroutines and generators."""

from __future__ import annotations

import inspect
from typing import Any


def unrun(result: Any) -> str | None:
    """Return what a result is if code in it has not run, and close it; None of any other.

    >>> unrun(n for n in [1]), unrun(1), unrun(None)
    ('a generator', None, None)
    """
    if inspect.iscoroutine(result):
        result.close()  # Python would warn that nobody awaited it.
        return "a coroutine"
    if inspect.isgenerator(result):
        return "a generator"
    if inspect.isasyncgen(result):
        return "an async generator"
    return "an awaitable" if inspect.isawaitable(result) else None
