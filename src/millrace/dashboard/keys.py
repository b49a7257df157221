"""What is kept of a key, for the search box."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from millrace.dashboard.plain import cut, key_shown, millis, shown
from millrace.inspect import Checkpoint, ComputationInspection, WindowState, keys_of

#: Entries of a map, timers and holds: more are for ``millrace state get``.
_ROWS_MAX: Final = 200


def key_state(checkpoint: Checkpoint, computation: str, text: str) -> dict[str, Any]:
    """Return what a computation keeps of a key, as rows of text.

    Args:
        checkpoint: After some epoch.
        computation: Its name.
        text: The key as somebody types it, see :func:`~millrace.inspect.keys_of`.

    Raises:
        PipelineError: There is no such computation.
        NotKept: The run has gone on meanwhile.
    """
    found = checkpoint[computation]
    for key in keys_of(text):
        kept = _kept(found, key)
        if kept is not None:
            return {"epoch": checkpoint.epoch, "found": True, "key": key_shown(key), **kept}
    return {"epoch": checkpoint.epoch, "found": False, "key": cut(text)}


def _kept(found: ComputationInspection, key: Any) -> dict[str, Any] | None:
    state, timers, holds = found.get(key), list(found.timers(key)), list(found.holds(key))
    if not timers and not holds and all(each in (None, [], {}) for each in state.values()):
        return None
    cells = [row for name, value in state.items() for row in _cell(name, value)]
    return {
        "cells": cells[:_ROWS_MAX],
        "timers": [
            {"tag": key_shown(timer.tag), "at": millis(timer.at), "domain": str(timer.domain)}
            for timer in timers[:_ROWS_MAX]
        ],
        "holds": [{"at": millis(hold.at)} for hold in holds[:_ROWS_MAX]],
        "more": sum(max(0, len(rows) - _ROWS_MAX) for rows in (cells, timers, holds)),
    }


def _cell(name: str, value: Any) -> list[tuple[str, str]]:
    if not isinstance(value, dict) or not value:
        return [(name, shown(value))]
    if all(isinstance(each, WindowState) for each in value.values()):
        # The entry of a window is where it lies among those of its key, which says nothing.
        return [(name, shown(msgspec.structs.asdict(each))) for each in value.values()]
    return [(f"{name}[{key_shown(entry)}]", shown(each)) for entry, each in value.items()]
