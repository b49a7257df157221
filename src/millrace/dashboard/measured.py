"""What the metrics in the checkpoint say: epochs, calls, backlog, hot keys, busy intervals."""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec

from millrace.dashboard.plain import cut
from millrace.store import HardState, LocalHardState

#: The end of the file that is read: some hundred epochs.
_TAIL_BYTES: Final = 256 << 10
_EPOCHS_MAX: Final = 120
#: Where the last line is, however many computations it names.
_LINE_BYTES: Final = 64 << 10
#: So many keys stand out, at most.
_KEYS_MAX: Final = 8


def epochs_by_part(state: HardState) -> dict[str, Any]:
    """Return the last epochs, oldest first: number, clock, seconds, and seconds by part.

    Where nothing but the whole is measured, ``parts`` is empty. A checkpoint in an object store has
    no such file, and one from before there were metrics neither: then there are no epochs.
    """
    lines = [line for line in map(_read, _tail(state, _TAIL_BYTES)) if line]
    # A run that has gone on with the checkpoint has a later line of an epoch, perhaps.
    found = list({line["epoch"]: line for line in lines}.values())[-_EPOCHS_MAX:]
    parts = list(dict.fromkeys(part for line in found for part in line["parts"]))
    return {
        "epoch": [line["epoch"] for line in found],
        "wall": [line["wall"] for line in found],
        "seconds": [line["seconds"] for line in found],
        "parts": {part: [line["parts"].get(part, 0.0) for line in found] for part in parts},
    }


def hottest_in(state: HardState) -> list[dict[str, Any]]:
    """Return the keys with the greatest shares of their computations' recent records."""
    found: list[dict[str, Any]] = [
        {"computation": name, "key": cut(key), "share": share}
        for name, keys in _last(state, "hottest_keys").items()
        for key, share in keys.items()
    ]
    return sorted(found, key=lambda one: -float(one["share"]))[:_KEYS_MAX]


def interval_shares(state: HardState, computation: str) -> dict[int, float]:
    """Return key interval -> its share in the time in user code, of late, of the busiest."""
    found = _last(state, "interval_shares").get(computation, {})
    return {int(id): share for id, share in found.items() if id.isdecimal()}


def calls_in(state: HardState) -> list[dict[str, Any]]:
    """Return how long calls of user code took, by computation: percentiles, and a histogram.

    A bar is how many calls took less than a power of two seconds, and at least half of that; from
    the first bar to the last there is one for each power.
    """
    percentiles = _last(state, "hook_duration_seconds")
    found = []
    for name, calls in _last(state, "hook_calls").items():
        known = {int(exponent): n for exponent, n in calls.items()}
        first, last = min(known), max(known)
        bars = [known.get(exponent, 0.0) for exponent in range(first, last + 1)]
        found.append(
            {"computation": name, "first": first, "bars": bars, **percentiles.get(name, {})}
        )
    return sorted(found, key=lambda one: -float(one.get("p99", 0)))


def backlog_in(state: HardState) -> dict[str, dict[str, float]]:
    """Return injected stream -> how many records, files or bytes wait in its source."""
    found: dict[str, dict[str, float]] = {}
    for unit in ("records", "files", "bytes"):
        for stream, n in _last(state, f"backlog_{unit}", dict[str, float]).items():
            found.setdefault(stream, {})[unit] = n
    return found


def _last(state: HardState, what: str, kind: Any = dict[str, dict[str, float]]) -> Any:
    """Return what the last whole line says; nothing if it does not say it."""
    for line in reversed(_tail(state, _LINE_BYTES)):
        try:
            return msgspec.convert(json.loads(line).get(what, {}), kind)
        except (ValueError, AttributeError):
            continue  # half a line, or one of another version
    return {}


def _tail(state: HardState, most: int) -> list[bytes]:
    """Return the last lines of the file of a checkpoint in a directory, in so many bytes."""
    if not isinstance(state, LocalHardState):
        return []
    try:
        with (state.path / "metrics" / "epochs.jsonl").open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - most))
            lines = file.read(most).splitlines()
    except OSError:
        return []
    return lines[1:] if size > most else lines


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
