"""The metrics file of a checkpoint: what a run has measured, epoch by epoch.

Epochs by part, calls of user code, backlog, latency, hot keys, busy intervals. A run writes a line
an epoch to ``metrics/epochs.jsonl``. A checkpoint in an object store has no such file, and then
nothing of this is known.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from millrace.dashboard.plain import cut, whole
from millrace.kernel.results import HookTimes
from millrace.store import HardState, LocalHardState

#: The end of the file that is read first: some hundred epochs of a few computations.
_TAIL_BYTES: Final = 256 << 10
_EPOCHS_MAX: Final = 120
#: Where the last line is, of some twenty computations.
_LINE_BYTES: Final = 64 << 10
#: So much more is read where that has too few lines. A run keeps the file below some megabytes.
_MORE: Final = 4
#: So many keys stand out, at most.
_KEYS_MAX: Final = 8
#: As many lines as can be told apart.
_LINES_MAX: Final = 6
_SHARES: Final = ("p50", "p95", "p99")
_UNITS: Final = ("records", "files", "bytes")


def over_time(state: HardState) -> dict[str, Any]:
    """Return what the last epochs measured, for charts, oldest first.

    Returns:
        ``parts``: number, clock, seconds, and seconds by part. Where nothing but the whole is
        measured, its ``parts`` are empty. ``backlog``: clock, and unit -> stream -> how much waited
        in its source. ``latency``: clock, and percentile -> name -> seconds; names are the
        ``steps`` of a record in real time, or else computations, by the ``calls`` of their user
        code in each epoch.
    """
    lines = [line for line in map(_read, _tail(state, _TAIL_BYTES, _EPOCHS_MAX)) if line]
    # A run that has gone on with the checkpoint has a later line of an epoch, perhaps.
    by_epoch = list({line["epoch"]: line for line in lines}.values())[-_EPOCHS_MAX:]
    by_clock = sorted(by_epoch, key=lambda line: float(line["wall"]))
    return {
        "parts": _by_part(by_epoch),
        "backlog": _backlog(by_clock),
        "latency": _latency(by_clock),
    }


def _by_part(lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    parts = list(dict.fromkeys(part for line in lines for part in line["parts"]))
    return {
        "epoch": [line["epoch"] for line in lines],
        "wall": [line["wall"] for line in lines],
        "seconds": [line["seconds"] for line in lines],
        "parts": {part: [line["parts"].get(part, 0.0) for line in lines] for part in parts},
    }


def _backlog(lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    units: dict[str, Any] = {}
    others = 0
    for unit in _UNITS:
        known = [line["backlog"][unit] for line in lines]
        names, more = _greatest(known)
        others += more
        if names:
            units[unit] = {name: [values.get(name) for values in known] for name in names}
    return {"wall": [line["wall"] for line in lines], "units": units, "others": others}


def _latency(lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    subject, known = "steps", [line["steps"] for line in lines]
    if not any(times["p95"] for times in known):
        subject, known = "calls", _calls_by_epoch([line["calls"] for line in lines])
    names, others = _greatest([times["p95"] for times in known])
    return {
        "of": subject,
        "others": others,
        "wall": [line["wall"] for line in lines],
        **{p: {name: [times[p].get(name) for times in known] for name in names} for p in _SHARES},
    }


def _calls_by_epoch(counted: Sequence[Mapping[str, Mapping[int, int]]]) -> list[dict[str, Any]]:
    """Return percentile -> computation -> seconds, of the calls that each epoch added."""
    by_epoch = list[dict[str, Any]]()
    before: Mapping[str, Mapping[int, int]] = {}
    for calls in counted:
        times: dict[str, Any] = {p: {} for p in _SHARES}
        for name, now in calls.items():
            then = before.get(name, {})
            if any(n < then.get(size, 0) for size, n in now.items()):
                then = {}  # another process counts now
            added = {
                size: n - then.get(size, 0) for size, n in now.items() if n > then.get(size, 0)
            }
            if added:
                for p, seconds in zip(_SHARES, HookTimes(added).percentiles(), strict=True):
                    times[p][name] = seconds
        by_epoch.append(times)
        before = calls
    return by_epoch


def _greatest(samples: Sequence[Mapping[str, float]]) -> tuple[list[str], int]:
    """Return the names with the greatest values, in their own order, and how many others."""
    most: dict[str, float] = {}
    for sample in samples:
        for name, value in sample.items():
            most[name] = max(value, most.get(name, 0.0))
    chosen = set(sorted(most, key=lambda name: -most[name])[:_LINES_MAX])
    return [name for name in most if name in chosen], len(most) - len(chosen)


def hottest_in(state: HardState) -> list[dict[str, Any]]:
    """Return the keys with the greatest shares of their computations' recent records."""
    shares: list[dict[str, Any]] = [
        {"computation": name, "key": cut(key), "typed": whole(key), "share": share}
        for name, keys in _last(state, "hottest_keys").items()
        for key, share in keys.items()
    ]
    return sorted(shares, key=lambda item: -float(item["share"]))[:_KEYS_MAX]


def interval_shares(state: HardState, computation: str) -> dict[int, float]:
    """Return key interval -> its share in the time in user code, of late, of the busiest."""
    shares = _last(state, "interval_shares").get(computation, {})
    return {int(id): share for id, share in shares.items() if id.isdecimal()}


def calls_in(state: HardState) -> list[dict[str, Any]]:
    """Return how long calls of user code took, by computation: percentiles, and a histogram.

    A bar is how many calls took less than a power of two seconds, and at least half of that; from
    the first bar to the last there is one for each power.
    """
    percentiles = _last(state, "hook_duration_seconds")
    rows = []
    for name, calls in _last(state, "hook_calls").items():
        known = {int(exponent): n for exponent, n in calls.items()}
        first, last = min(known), max(known)
        bars = [known.get(exponent, 0.0) for exponent in range(first, last + 1)]
        rows.append(
            {"computation": name, "first": first, "bars": bars, **percentiles.get(name, {})}
        )
    return sorted(rows, key=lambda item: -float(item.get("p99", 0)))


def services_in(state: HardState) -> list[dict[str, Any]]:
    """Return what became of calls to services, by computation, and how long they took."""
    percentiles = _last(state, "service_call_duration_seconds")
    columns = {
        column: _last(state, metric, dict[str, float])
        for column, metric in (
            ("made", "service_calls"),
            ("retried", "service_call_retries"),
            ("failed", "service_failures"),
            ("flying", "service_calls_in_flight"),
            ("waiting", "service_calls_waiting"),
            ("paused", "service_breaker_open_seconds"),
        )
    }
    return [
        {
            "computation": name,
            **{column: values.get(name, 0) for column, values in columns.items()},
            **percentiles.get(name, {}),
        }
        for name, calls in columns["made"].items()
        if calls
    ]


def backlog_in(state: HardState) -> dict[str, dict[str, float]]:
    """Return injected stream -> how many records, files or bytes wait in its source."""
    by_stream: dict[str, dict[str, float]] = {}
    for unit in _UNITS:
        for stream, n in _last(state, f"backlog_{unit}", dict[str, float]).items():
            by_stream.setdefault(stream, {})[unit] = n
    return by_stream


def _last(state: HardState, column: str, kind: Any = dict[str, dict[str, float]]) -> Any:
    """Return what the last whole line says; nothing if it does not say it."""
    # Two, of which the last may be half a line.
    for line in reversed(_tail(state, _LINE_BYTES, 2)):
        try:
            return msgspec.convert(json.loads(line).get(column, {}), kind)
        except (ValueError, AttributeError):
            continue  # half a line, or one of another version
    return {}


def _tail(state: HardState, first: int, wanted: int) -> list[bytes]:
    """Return the last lines of the file of a checkpoint in a directory, by whole lines.

    Args:
        state: The checkpoint.
        first: Bytes that are read first.
        wanted: Lines for which more is read.
    """
    if not isinstance(state, LocalHardState):
        return []
    try:
        with (state.path / "metrics" / "epochs.jsonl").open("rb") as file:
            size, most = file.seek(0, 2), first
            while True:
                file.seek(max(0, size - most))
                lines = file.read(min(size, most)).splitlines()
                if size <= most:
                    return lines
                if len(lines) > wanted:
                    return lines[1:]
                most *= _MORE
    except OSError:
        return []


def _read(line: bytes) -> dict[str, Any] | None:
    try:
        said = json.loads(line)
        return {
            "epoch": int(said["epoch"]),
            "wall": said["at"] / 1000,
            "seconds": float(said["epoch_duration_seconds"]),
            "parts": _numbers(said.get("epoch_part_seconds", {})),
            "backlog": {unit: _numbers(said.get(f"backlog_{unit}", {})) for unit in _UNITS},
            "steps": {p: _numbers(said.get(f"step_{p}_seconds", {})) for p in _SHARES},
            "calls": {
                str(name): {int(size): int(n) for size, n in calls.items()}
                for name, calls in said.get("hook_calls", {}).items()
            },
        }
    except (ValueError, TypeError, KeyError, AttributeError):
        return None  # half a line, or one of another version


def _numbers(by_name: Mapping[str, Any]) -> dict[str, float]:
    return {str(name): float(value) for name, value in by_name.items()}
