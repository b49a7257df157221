"""Opening: what a run of either plane checks and chooses before it takes a checkpoint."""

from __future__ import annotations

import time
from math import inf
from typing import Final

from pyspark.sql import SparkSession

from millrace.model.errors import CheckpointMismatch, PipelineError
from millrace.model.time import SECOND, Duration, duration_us
from millrace.plane.stuck import CallLimits
from millrace.spark.metrics.prometheus import Scrapes
from millrace.spark.parallelism import intervals_for, is_local
from millrace.store import is_object_store, local_path
from millrace.windmill.balancer import Balance
from millrace.windmill.epochs import Epochs

#: A call that is ended at its time limit ends so many times later at the most.
_ENDED_WITHIN: Final = 1.5


def tasks_of(wanted: int | None, fitting: int) -> int:
    """Return the number of tasks a level.

    Args:
        wanted: What was asked for.
        fitting: How many there are to be, if nothing was.

    Raises:
        PipelineError: It is no number of tasks.
    """
    if wanted is None:
        return fitting
    if isinstance(wanted, bool) or not isinstance(wanted, int) or wanted < 1:
        raise PipelineError(f"tasks={wanted!r}: expected a number of tasks a level, 1 or more.")
    return wanted


def scrapes_of(metrics: int | str | None) -> Scrapes | None:
    """Return what answers Prometheus; None if nobody asked for that."""
    return None if metrics is None else Scrapes(metrics)


def intervals_of(wanted: int | None, tasks: int, *, each: int) -> int:
    """Return the number of key intervals a computation.

    Args:
        wanted: What was asked for.
        tasks: Of a level.
        each: How many for each task, if nothing was.

    Raises:
        PipelineError: It is no power of two.
    """
    intervals = intervals_for(tasks, each=each) if wanted is None else wanted
    if intervals < 1 or intervals & (intervals - 1):
        raise PipelineError(f"intervals={intervals}: expected a power of two, such as 64.")
    return intervals


def cache_of(wanted: str | None, checkpoint: str, spark: SparkSession) -> str:
    """Return the directory for caches; "" lets each worker's host choose."""
    if wanted or is_object_store(checkpoint) or not is_local(spark):
        return wanted or ""
    return f"{local_path(checkpoint)}/cache"


def check_not_drained(checkpoint: str, epochs: Epochs) -> None:
    """Refuse a checkpoint that has ended.

    Raises:
        CheckpointMismatch: It was drained.
    """
    if epochs.drained:
        raise CheckpointMismatch(
            f"the run of checkpoint {checkpoint!r} was drained: its input ended, and every low "
            "watermark is at the end of time. Its outputs are complete. Start with a new "
            "checkpoint."
        )


def check_attempts(attempts: int) -> None:
    """Refuse a number of attempts that is none.

    Raises:
        PipelineError: It is below 1.
    """
    if attempts < 1:
        raise PipelineError(f"start(attempts={attempts!r}): expected 1 or more; 3 is the default.")


def call_limits(
    stuck_after: Duration | None,
    time_limit: Duration | None,
    hang_limit: Duration | None = None,
) -> CallLimits:
    """Return how long calls of user code may take, by the options of a run.

    Raises:
        PipelineError: One is no time, or none at all; or a process would be ended before a call in
            it is.
    """
    limits = CallLimits(
        _seconds(stuck_after, "stuck_after", "user code is reported"),
        _seconds(time_limit, "time_limit", "user code is ended"),
        _seconds(hang_limit, "hang_limit", "a process that hangs is ended"),
    )
    if limits.ended_s < inf and limits.hung_s < limits.ended_s * _ENDED_WITHIN:
        raise PipelineError(
            f"start(time_limit={time_limit!r}, hang_limit={hang_limit!r}): a process would be "
            "ended before a call of user code in it is. Give a hang_limit= of at least "
            f"{_ENDED_WITHIN:g} times the time limit, or None."
        )
    return limits


def _seconds(wanted: Duration | None, option: str, what: str) -> float:
    if wanted is None:
        return inf
    after_us = duration_us(wanted, f"start({option})")
    if after_us <= 0:
        raise PipelineError(
            f"start({option}={wanted!r}): expected a time after which {what}, "
            'such as "10 s", or None.'
        )
    return after_us / SECOND


def elapsed_us() -> int:
    """Return microseconds since some instant, by a clock that nobody sets."""
    return time.monotonic_ns() // 1000


def now_us() -> int:
    """Return what time it is, in microseconds since 1970."""
    return time.time_ns() // 1000


def check_cache_limit(limit: int | None) -> None:
    """Refuse what is no number of bytes.

    Raises:
        PipelineError: It is none.
    """
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 0):
        raise PipelineError(
            f"cache_limit={limit!r}: expected a number of bytes, such as cache_limit=10 << 30, or "
            "None for caches as large as the state."
        )


def balance_of(balance: bool | Balance, intervals: int) -> Balance | None:
    """Return how hard key intervals follow the load; None if they do not.

    Args:
        balance: As the user said.
        intervals: How many a computation is to have, unless he said.

    Raises:
        PipelineError: That is no ``mr.Balance``, and neither True nor False.
    """
    if isinstance(balance, Balance):
        return balance
    if not isinstance(balance, bool):
        raise PipelineError(f"balance={balance!r}: expected True, False or an mr.Balance.")
    return Balance(intervals=intervals) if balance else None
