"""How long epochs took, by part, as the metrics in the checkpoint have it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from millrace.store import HardState, LocalHardState

#: The end of the file that is read: some hundred epochs.
_TAIL_BYTES: Final = 256 << 10
_EPOCHS_MAX: Final = 120


def epochs_by_part(state: HardState) -> dict[str, Any]:
    """Return the last epochs, oldest first: number, clock, seconds, and seconds by part.

    Where nothing but the whole is measured, ``parts`` is empty. A checkpoint in an object store has
    no such file, and one from before there were metrics neither: then there are no epochs.
    """
    if not isinstance(state, LocalHardState):
        return {"epoch": [], "wall": [], "seconds": [], "parts": {}}
    lines = [line for line in map(_read, _tail(state.path / "metrics" / "epochs.jsonl")) if line]
    # A run that has gone on with the checkpoint has a later line of an epoch, perhaps.
    found = list({line["epoch"]: line for line in lines}.values())[-_EPOCHS_MAX:]
    parts = list(dict.fromkeys(part for line in found for part in line["parts"]))
    return {
        "epoch": [line["epoch"] for line in found],
        "wall": [line["wall"] for line in found],
        "seconds": [line["seconds"] for line in found],
        "parts": {part: [line["parts"].get(part, 0.0) for line in found] for part in parts},
    }


def _tail(path: Path) -> list[bytes]:
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _TAIL_BYTES))
            lines = file.read(_TAIL_BYTES).splitlines()
    except OSError:
        return []
    return lines[1:] if size > _TAIL_BYTES else lines


def _read(line: bytes) -> dict[str, Any] | None:
    try:
        said = json.loads(line)
        parts = said.get("epoch_part_seconds", {})
        return {
            "epoch": int(said["epoch"]),
            "wall": said["at"] / 1000,
            "seconds": float(said["epoch_duration_seconds"]),
            "parts": {str(name): float(seconds) for name, seconds in parts.items()},
        }
    except (ValueError, TypeError, KeyError, AttributeError):
        return None  # half a line, or one of another version
