"""The table of metrics: name, kind, unit, help, and how each is drawn from a run's status.

Whoever gives metrics to somebody makes them from here: Prometheus, OpenTelemetry, the lines in a
checkpoint, the facts of a progress display. The documentation's table is compared with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import accumulate
from typing import Any, Final, NamedTuple

from millrace.kernel.results import LONGEST, SHORTEST, HookTimes
from millrace.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP, SECOND
from millrace.spark.status import Status

#: Kinds: only grows while a checkpoint, or a process, lasts; may fall, too; counts by size.
COUNTER: Final = "counter"
GAUGE: Final = "gauge"
HISTOGRAM: Final = "histogram"

#: An instant, as a unit.
SINCE_1970: Final = "s since 1970"


class Metric(NamedTuple):
    """A metric.

    Attributes:
        name: By Prometheus's conventions: the unit at its end, a counter without ``_total``.
        kind: :data:`COUNTER`, :data:`GAUGE` or :data:`HISTOGRAM`.
        unit: ``s``, :data:`SINCE_1970`, ``bytes``, ``1`` of a ratio, or what is counted.
        help: What it says.
        label: What tells samples apart besides the pipeline; "" if nothing does.
        draw: Returns value by label, by "" if there is none; of a histogram, times by label.
    """

    name: str
    kind: str
    unit: str
    help: str
    label: str
    draw: Callable[[Status], Mapping[str, Any]]


def _one(attribute: str) -> Callable[[Status], Mapping[str, float]]:
    return lambda status: {"": float(getattr(status, attribute))}


def _by(attribute: str) -> Callable[[Status], Mapping[str, float]]:
    return lambda status: getattr(status, attribute)


def _number_of(attribute: str) -> Callable[[Status], Mapping[str, float]]:
    return lambda status: {name: len(names) for name, names in getattr(status, attribute).items()}


def _each(of: str, attribute: str) -> Callable[[Status], Mapping[str, float]]:
    """Draw an attribute of each of what a status has by name, where it is known."""
    return lambda status: _there(
        {name: getattr(one, attribute) for name, one in getattr(status, of).items()}
    )


def _instants(attribute: str) -> Callable[[Status], Mapping[str, float]]:
    return lambda status: {name: us / SECOND for name, us in getattr(status, attribute).items()}


def _up(status: Status) -> Mapping[str, float]:
    return {"": float(status.state == "running")}


def _hottest(status: Status) -> Mapping[str, float]:
    return {name: load.hottest[0].share for name, load in status.load.items() if load.hottest}


def _worst_lateness(status: Status) -> Mapping[str, float]:
    return {name: counters.worst_lateness_us / SECOND for name, counters in status.counters.items()}


def _low_watermarks(status: Status) -> Mapping[str, float]:
    """Draw low watermarks but those before time and at the end of time: they are no instants."""
    known = status.low_watermarks.items()
    return {name: us / SECOND for name, us in known if MIN_TIMESTAMP < us < MAX_TIMESTAMP}


def _lags(status: Status) -> Mapping[str, float]:
    return _there({name: status.behind(us) for name, us in status.low_watermarks.items()})


def _stuck(status: Status) -> Mapping[str, float]:
    seconds = dict.fromkeys(status.counters, 0.0)
    for stuck in status.stuck:
        seconds[stuck.computation] = seconds.get(stuck.computation, 0.0) + 1
    return seconds


def _hook_times(status: Status) -> Mapping[str, HookTimes]:
    return {name: load.times for name, load in status.load.items() if load.times.calls}


def _standby(status: Status) -> Mapping[str, float]:
    return {"": float(status.standby == "ready")} if status.standby else {}


def _open_breakers(status: Status) -> Mapping[str, float]:
    return {name: calls.breaker_open_us / SECOND for name, calls in status.calls.items()}


def _call_times(status: Status) -> Mapping[str, HookTimes]:
    return {name: calls.times for name, calls in status.calls.items() if calls.durations}


def _there(values: Mapping[str, float | int | None]) -> dict[str, float]:
    return {name: value for name, value in values.items() if value is not None}


METRICS: Final = (
    Metric("up", GAUGE, "1", "1 while the run goes on", "", _up),
    Metric("epoch", GAUGE, "number", "The last completed epoch, or mark; -1 before the first", "",
           _one("epoch")),
    Metric("generation", GAUGE, "runs", "How many runs have claimed the checkpoint", "",
           _one("generation")),
    Metric("epoch_duration_seconds", GAUGE, "s", "How long the last epoch took", "",
           _one("epoch_seconds")),
    Metric("epoch_part_seconds", GAUGE, "s", "How long parts of it took, by the driver's clock",
           "part", _by("epoch_parts")),
    *(
        Metric(f"step_{share}_seconds", GAUGE, "s", f"{share} of the time that a step of a record "
               "takes in real time, lately", "step", _each("steps", share))
        for share in ("p50", "p95", "p99")
    ),
    Metric("task_seconds", COUNTER, "s", "Python time of tasks in this process's epochs", "",
           _one("task_seconds")),
    Metric("records", COUNTER, "records", "Records delivered to user code", "computation",
           _each("counters", "records")),
    Metric("late_records", COUNTER, "records", "Records behind the low watermark", "computation",
           _each("counters", "late")),
    Metric("duplicates", COUNTER, "records", "Records delivered again by an injector, and filtered",
           "computation", _each("counters", "duplicates_filtered")),
    Metric("productions", COUNTER, "rows", "Rows sent to consumers", "computation",
           _each("counters", "productions")),
    Metric("timers_fired", COUNTER, "timers", "Timers fired", "computation",
           _each("counters", "timers")),
    Metric("injected_records", COUNTER, "records", "Records read", "stream", _by("injected")),
    Metric("injected_bytes", COUNTER, "bytes", "Values read, in this process's epochs", "stream",
           _by("injected_bytes")),
    Metric("dead_letters", COUNTER, "records and timers", "Dead letters: of the computation that "
           "failed, or the injected stream that refused the record", "origin", _by("dead_letters")),
    Metric("refused_low_watermarks", COUNTER, "rows", "Low watermarks of processes that were "
           "refused", "stream", _by("refused_low_watermarks")),
    Metric("dropped_records", COUNTER, "records", "Records that a source was told to drop, such as "
           "tombstones", "stream", _by("dropped")),
    Metric("backlog_records", GAUGE, "records", "Records in its source, not read yet", "stream",
           _each("backlog", "records")),
    Metric("backlog_files", GAUGE, "files", "Files with something in its source, not read yet",
           "stream", _each("backlog", "files")),
    Metric("backlog_bytes", GAUGE, "bytes", "Bytes in its source, not read yet", "stream",
           _each("backlog", "size")),
    Metric("received_bytes", COUNTER, "bytes", "Values that came to it, in this process's epochs",
           "computation", _by("received_bytes")),
    Metric("user_code_seconds", COUNTER, "s", "Time in user code, in this process's epochs",
           "computation", _each("load", "seconds")),
    Metric("committed_bytes", COUNTER, "bytes", "What its commits in this process's epochs hold",
           "computation", _each("load", "committed_bytes")),
    Metric("cache_hits", COUNTER, "intervals", "Key intervals of its epochs whose cache stood "
           "where they began", "computation", _each("load", "cache_hits")),
    Metric("cache_misses", COUNTER, "intervals", "Key intervals of its epochs whose cache was "
           "brought there first", "computation", _each("load", "cache_misses")),
    Metric("state_rows", GAUGE, "rows", "Rows of its state, in intervals that have worked",
           "computation", _each("load", "state_rows")),
    Metric("state_bytes", GAUGE, "bytes", "About their size", "computation",
           _each("load", "state_bytes")),
    Metric("busiest_interval_ratio", GAUGE, "1", "Share of its busiest key interval in that time, "
           "lately", "computation", _each("load", "busiest")),
    Metric("hottest_key_ratio", GAUGE, "1", "Share of its hottest key in its records, lately",
           "computation", _hottest),
    Metric("worst_lateness_seconds", GAUGE, "s", "How far behind the low watermark its worst "
           "record was", "computation", _worst_lateness),
    Metric("low_watermark_timestamp_seconds", GAUGE, SINCE_1970, "Low watermark of its input",
           "computation", _low_watermarks),
    Metric("low_watermark_lag_seconds", GAUGE, "s", "How far that is behind the newest record, "
           "event time", "computation", _lags),
    Metric("low_watermark_moved_timestamp_seconds", GAUGE, SINCE_1970, "When the low watermark "
           "that it shows last moved", "computation", _instants("moved")),
    Metric("oldest_work_timestamp_seconds", GAUGE, SINCE_1970, "Its oldest pending timer or hold",
           "computation", _instants("oldest_work")),
    Metric("next_wall_timer_timestamp_seconds", GAUGE, SINCE_1970, "When its next wall-clock timer "
           "is due", "computation", _instants("wall_timers")),
    Metric("pending_timers", GAUGE, "timers", "Low-watermark timers set that have not fired",
           "computation", _by("pending_timers")),
    Metric("pending_wall_timers", GAUGE, "timers", "Wall-clock timers set that have not fired",
           "computation", _by("pending_wall_timers")),
    Metric("newest_record_timestamp_seconds", GAUGE, SINCE_1970, "Latest event time read",
           "stream", _instants("newest")),
    Metric("stuck_calls", GAUGE, "calls", "Calls of user code that have not returned for long",
           "computation", _stuck),
    Metric("missing_processes", GAUGE, "processes", "Expected processes that were never heard of",
           "stream", _number_of("missing")),
    Metric("idle_processes", GAUGE, "processes", "Processes left out, for they are silent",
           "stream", _number_of("idle")),
    Metric("replayed_commits", COUNTER, "commits", "Commits found made by an earlier attempt", "",
           _one("replayed")),
    Metric("repaired_commits", COUNTER, "commits", "Commits by which caches were brought forward",
           "", _one("repaired")),
    Metric("rebuilt_caches", COUNTER, "caches", "Caches built again", "", _one("rebuilt")),
    Metric("recovered_bytes", COUNTER, "bytes", "Read for both", "", _one("recovered_bytes")),
    Metric("damaged", COUNTER, "objects", "Damaged snapshots, commits and caches met", "",
           _one("damaged")),
    Metric("snapshots", COUNTER, "snapshots", "Snapshots written", "", _one("snapshots")),
    Metric("snapshot_bytes", COUNTER, "bytes", "Their size", "", _one("snapshot_bytes")),
    Metric("collected_files", COUNTER, "files", "Files collected that were not needed any more", "",
           _one("collected")),
    Metric("housekeeping_failures", COUNTER, "failures", "Snapshots and collections that failed",
           "", _one("housekeeping_failures")),
    Metric("strange_connections", COUNTER, "connections", "Connections to the driver that did not "
           "prove the key of its tasks", "", _one("strangers")),
    Metric("tasks", GAUGE, "tasks", "Tasks a level; by epochs of the next one", "", _one("tasks")),
    Metric("standby_ready", GAUGE, "1", "1 while a second query waits that could take over now",
           "", _standby),
    Metric("service_calls", COUNTER, "calls", "Calls to services that were begun, in this "
           "process's epochs; each retry is one, and each batch", "computation",
           _each("calls", "made")),
    Metric("service_call_retries", COUNTER, "calls", "Those of them that were retries",
           "computation", _each("calls", "retried")),
    Metric("service_call_timeouts", COUNTER, "calls", "Those of them that took too long",
           "computation", _each("calls", "timed_out")),
    Metric("service_responses", COUNTER, "records", "Records that a service has answered",
           "computation", _each("calls", "answered")),
    Metric("service_failures", COUNTER, "records", "Records whose call failed for good",
           "computation", _each("calls", "failed")),
    Metric("service_calls_in_flight", GAUGE, "records", "Records whose call was being made at the "
           "end of the last epoch, or at the last mark", "computation",
           _each("calls", "in_flight")),
    Metric("service_calls_waiting", GAUGE, "records", "Records that waited for a call then",
           "computation", _each("calls", "waiting")),
    Metric("service_breaker_open_seconds", GAUGE, "s", "For how long the circuit breaker had been "
           "open then; 0 if it was closed", "computation", _open_breakers),
    Metric("hook_duration_seconds", HISTOGRAM, "s", "About how long calls of user code took, in "
           "this process's epochs, a record or timer each", "computation", _hook_times),
    Metric("service_call_duration_seconds", HISTOGRAM, "s", "How long calls to services took, in "
           "this process's epochs", "computation", _call_times),
)  # fmt: skip

#: Those with one value by label.
NUMBERS: Final = tuple(metric for metric in METRICS if metric.kind != HISTOGRAM)
#: Those with times by label.
HISTOGRAMS: Final = tuple(metric for metric in METRICS if metric.kind == HISTOGRAM)

#: Upper bounds of a histogram's buckets, always the same, in seconds.
BOUNDS: Final = tuple(2.0**exponent for exponent in range(SHORTEST, LONGEST))


def below(times: HookTimes) -> list[int]:
    """Return how many times are below each of :data:`BOUNDS`, and how many there are.

    >>> below(HookTimes({-20: 3, 7: 1}, 70.0))[-2:]
    [3, 4]
    """
    exponents = range(SHORTEST, LONGEST + 1)
    return list(accumulate(times.calls.get(exponent, 0) for exponent in exponents))


def values(status: Status) -> dict[str, float | dict[str, float]]:
    """Return metrics as plain data, by name: a number, or numbers by label."""
    by_metric: dict[str, float | dict[str, float]] = {}
    for metric in NUMBERS:
        samples = metric.draw(status)
        if samples:
            by_metric[metric.name] = dict(samples) if metric.label else samples[""]
    return by_metric
