"""What went wrong in a run, said first by the line that matters, not by the JVM's stack."""

from __future__ import annotations

import re

_OURS = re.compile(r"^(?:pyspark\S*|millrace)\.(?:model\.)?errors\.(\w+): (.*)", re.DOTALL)
_STACK = re.compile(
    r"\n\s*(?:at [\w.$]+\(|JVM stacktrace|Driver stacktrace|\tat |SQLSTATE: |=== Streaming Query)"
)


def explain(pipeline: str, cause: BaseException | None, *, batch: bool = False) -> str:
    """Return a message for a failed run.

    Args:
        pipeline: Its name.
        cause: What Spark raised: a Python worker's error arrives as text, traceback and all.
        batch: Whether there is no checkpoint to go on from.
    """
    text = str(cause)
    found = ""
    for position in [match.start() for match in re.finditer(r"millrace\.model\.errors\.", text)]:
        match = _OURS.match(text[position:])
        if match is not None:
            found = f"{match[1]}: {_STACK.split(match[2])[0].strip()}"
    what = found or f"{type(cause).__name__}: {_STACK.split(text)[0].strip()}"
    after = (
        "The sinks have no part of it."
        if batch
        else "Everything committed before is safe; start again with the same checkpoint to go on."
    )
    return f"pipeline {pipeline!r} stopped: {what}\n{after}"
