"""What a run's status says, as metrics: by the names of Prometheus, for whoever collects them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Final, NamedTuple

from millrace.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP, SECOND
from millrace.spark.realtime.steps import StepTimes
from millrace.spark.status import Status
from millrace.windmill.hook_times import LONGEST, SHORTEST


class Family(NamedTuple):
    """A metric with its samples.

    Attributes:
        name: By Prometheus's conventions: the unit at its end, a counter without ``_total``.
        help: What it says.
        counter: Whether it only grows while a checkpoint lasts.
        label: What tells samples apart besides the pipeline; "" if nothing does.
        samples: Value by label; by "" if there is none.
    """

    name: str
    help: str
    counter: bool
    label: str
    samples: Mapping[str, float]


class Histogram(NamedTuple):
    """A metric that says how many of what it measures are below a bound, by computation.

    Attributes:
        name: By Prometheus's conventions.
        help: What it says.
        bounds: Upper ones of its buckets, always the same, in seconds.
        counts: Computation -> how many are below each bound, and how many there are.
        sums: Computation -> what is measured, together.
    """

    name: str
    help: str
    bounds: tuple[float, ...]
    counts: Mapping[str, list[int]]
    sums: Mapping[str, float]


_COUNTED: Final = (
    ("records", "Records delivered to user code", "records"),
    ("late_records", "Records behind the low watermark", "late"),
    ("duplicates", "Records delivered again by an injector, and filtered", "duplicates_filtered"),
    ("productions", "Rows sent to consumers", "productions"),
    ("timers_fired", "Timers fired", "timers"),
)

_COST: Final = (
    ("user_code_seconds", "Time in user code, in this process's epochs", "seconds", True),
    ("committed_bytes", "What its commits in this process's epochs hold", "committed_bytes", True),
    ("cache_hits", "Key intervals of its epochs whose cache stood where they began", "cache_hits",
     True),
    ("cache_misses", "Key intervals of its epochs whose cache was brought there first",
     "cache_misses", True),
    ("state_rows", "Rows of its state, in intervals that have worked", "state_rows", False),
    ("state_bytes", "About their size", "state_bytes", False),
    ("busiest_interval_ratio", "Share of its busiest key interval in that time, lately", "busiest",
     False),
)  # fmt: skip


def families(status: Status) -> list[Family]:
    """Return the metrics of a run.

    Low watermarks before time and at the end of time are left out: they are no instants.

    Args:
        status: Of the run, as it is.
    """
    counters = status.counters
    known = {
        name: us for name, us in status.low_watermarks.items() if MIN_TIMESTAMP < us < MAX_TIMESTAMP
    }
    behind = {name: status.behind(us) for name, us in status.low_watermarks.items()}
    return [
        _one("up", "1 while the run goes on", status.state == "running"),
        _one("epoch", "The last completed epoch, or mark; -1 before the first", status.epoch),
        _one("generation", "How many runs have claimed the checkpoint", status.generation),
        _one("epoch_duration_seconds", "How long the last epoch took", status.epoch_seconds),
        Family("epoch_part_seconds", "How long parts of it took, by the driver's clock", False,
               "part", status.epoch_parts),
        *(
            Family(f"step_{of}_seconds", f"{of} of the time that a step of a record takes in real "
                   "time, lately", False, "step",
                   {name: getattr(times, of) for name, times in status.steps.items()})
            for of in StepTimes._fields
        ),
        _one("task_seconds", "Python time of tasks in this process's epochs", status.task_seconds,
             counter=True),
        *(
            Family(name, help, True, "computation", _of(counters, attribute))
            for name, help, attribute in _COUNTED
        ),
        Family("injected_records", "Records read", True, "stream", status.injected),
        Family("injected_bytes", "Values read, in this process's epochs", True, "stream",
               status.injected_bytes),
        Family("dead_letters", "Dead letters: of the computation that failed, or the injected "
               "stream that refused the record", True, "origin", status.dead_letters),
        Family("refused_low_watermarks", "Low watermarks of processes that were refused", True,
               "stream", status.refused_low_watermarks),
        Family("dropped_records", "Records that a source was told to drop, such as tombstones",
               True, "stream", status.dropped),
        *(
            Family(f"backlog_{unit}", f"{words} in its source, not read yet", False, "stream",
                   _there({name: getattr(one, of) for name, one in status.backlog.items()}))
            for unit, words, of in (("records", "Records", "records"),
                                    ("files", "Files with something", "files"),
                                    ("bytes", "Bytes", "size"))
        ),
        Family("received_bytes", "Values that came to it, in this process's epochs", True,
               "computation", status.received_bytes),
        *(
            Family(name, help, counter, "computation", _of(status.load, attribute))
            for name, help, attribute, counter in _COST
        ),
        Family("hottest_key_ratio", "Share of its hottest key in its records, lately", False,
               "computation", {n: load.hottest[0].share for n, load in status.load.items()
                               if load.hottest}),
        Family("worst_lateness_seconds", "How far behind the low watermark its worst record was",
               False, "computation", {name: counters.worst_lateness_us / SECOND
                                      for name, counters in status.counters.items()}),
        _seconds("low_watermark_timestamp_seconds", "Low watermark of its input", known),
        Family("low_watermark_lag_seconds", "How far that is behind the newest record, event time",
               False, "computation", _there(behind)),
        _seconds("low_watermark_moved_timestamp_seconds",
                 "When the low watermark that it shows last moved", status.moved),
        _seconds("oldest_work_timestamp_seconds", "Its oldest pending timer or hold",
                 status.oldest_work),
        _seconds("next_wall_timer_timestamp_seconds", "When its next wall-clock timer is due",
                 status.wall_timers),
        Family("pending_timers", "Low-watermark timers set that have not fired", False,
               "computation", status.pending_timers),
        Family("pending_wall_timers", "Wall-clock timers set that have not fired", False,
               "computation", status.pending_wall_timers),
        _seconds("newest_record_timestamp_seconds", "Latest event time read", status.newest,
                 "stream"),
        Family("stuck_calls", "Calls of user code that have not returned for long", False,
               "computation", _stuck(status)),
        Family("missing_processes", "Expected processes that were never heard of", False, "stream",
               {name: len(processes) for name, processes in status.missing.items()}),
        Family("idle_processes", "Processes left out, for they are silent", False, "stream",
               {name: len(processes) for name, processes in status.idle.items()}),
        _one("replayed_commits", "Commits found made by an earlier attempt", status.replayed,
             counter=True),
        _one("repaired_commits", "Commits by which caches were brought forward", status.repaired,
             counter=True),
        _one("rebuilt_caches", "Caches built again", status.rebuilt, counter=True),
        _one("recovered_bytes", "Read for both", status.recovered_bytes, counter=True),
        _one("damaged", "Damaged snapshots, commits and caches met", status.damaged, counter=True),
        _one("snapshots", "Snapshots written", status.snapshots, counter=True),
        _one("snapshot_bytes", "Their size", status.snapshot_bytes, counter=True),
        _one("collected_files", "Files collected that were not needed any more", status.collected,
             counter=True),
        _one("housekeeping_failures", "Snapshots and collections that failed",
             status.housekeeping_failures, counter=True),
        _one("strange_connections", "Connections to the driver that did not prove the key of its "
             "tasks", status.strangers, counter=True),
    ]  # fmt: skip


def hook_times(status: Status) -> Histogram:
    """Return how long calls of user code took, about."""
    known = {name: load.times for name, load in status.load.items() if load.times.calls}
    exponents = range(SHORTEST, LONGEST)
    return Histogram(
        "hook_duration_seconds",
        "About how long calls of user code took, in this process's epochs, a record or timer each",
        tuple(2.0**exponent for exponent in exponents),
        {
            name: list(accumulate(times.calls.get(n, 0) for n in (*exponents, LONGEST)))
            for name, times in known.items()
        },
        {name: times.seconds for name, times in known.items()},
    )


def by_name(found: Iterable[Family]) -> dict[str, float | dict[str, float]]:
    """Return metrics as plain data: a number, or numbers by label.

    >>> by_name([Family("epoch", "", False, "", {"": 7.0})])
    {'epoch': 7.0}
    """
    return {
        family.name: dict(family.samples) if family.label else family.samples[""]
        for family in found
        if family.samples
    }


def _of(counters: Mapping[str, object], attribute: str) -> dict[str, float]:
    return {name: getattr(one, attribute) for name, one in counters.items()}


def _stuck(status: Status) -> dict[str, float]:
    found = dict.fromkeys(status.counters, 0.0)
    for stuck in status.stuck:
        found[stuck.computation] = found.get(stuck.computation, 0.0) + 1
    return found


def _one(name: str, help: str, value: float, *, counter: bool = False) -> Family:
    return Family(name, help, counter, "", {"": float(value)})


def _seconds(
    name: str, help: str, instants: Mapping[str, int], label: str = "computation"
) -> Family:
    return Family(name, help, False, label, {of: us / SECOND for of, us in instants.items()})


def _there(values: Mapping[str, float | int | None]) -> dict[str, float]:
    return {name: value for name, value in values.items() if value is not None}
