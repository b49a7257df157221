"""The alarm of a run, which any thread sets, and the source of ticks that it rings."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from millrace.model.errors import PipelineError
from millrace.spark.ticks import Alarm, Ticks

HOUR_US = 3_600_000_000


class Wanted:
    """In place of the source: the epochs that it was to begin."""

    def __init__(self) -> None:
        self.epochs: list[int] = []

    def want(self, epoch: int) -> None:
        self.epochs.append(epoch)


def test_it_rings_once_when_its_time_has_come(monkeypatch: pytest.MonkeyPatch) -> None:
    now = itertools.count(1000.0, 1.0)
    monkeypatch.setattr("time.monotonic", lambda: next(now))
    wanted: Any = Wanted()
    alarm = Alarm(wanted, begun=4)

    assert alarm.look() is None  # it was never set
    alarm.ring_in(3_500_000)  # at 1000, so for 1003.5; it looks at 1001
    assert (alarm.look(), alarm.look()) == (1.5, 0.5)
    assert wanted.epochs == []
    assert (alarm.look(), alarm.look()) == (None, None)
    assert wanted.epochs == [5]
    alarm.epoch_begins(5)
    alarm.ring_in(0)
    assert wanted.epochs == [5, 6]
    alarm.ring_in(HOUR_US)
    assert wanted.epochs == [5, 6]


def test_two_threads_may_set_it_at_once() -> None:
    wanted: Any = Wanted()
    alarm = Alarm(wanted, begun=-1)

    def set_often(delay_us: int) -> None:
        for _ in range(500):
            alarm.ring_in(delay_us)

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(set_often, [0, HOUR_US]))

    assert wanted.epochs == [0] * 500


def test_a_tick_begins_an_epoch_without_a_task_and_is_never_begun_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Through a restart of the query, with another source, as another driver has."""
    begun: list[tuple[int, int]] = []
    for last in (-1, 1):
        ticks = Ticks.of(spark)
        ticks.want(last + 1)

        def epoch(rows: DataFrame, number: int, last: int = last, ticks: Ticks = ticks) -> None:
            begun.append((number, rows.rdd.getNumPartitions()))
            if number < last + 2:
                ticks.want(number + 1)

        query = (
            ticks.frame(spark)
            .writeStream.foreachBatch(epoch)
            .option("checkpointLocation", str(tmp_path))
            .start()
        )
        query.processAllAvailable()
        query.stop()

    assert begun == [(number, 0) for number in range(4)]


def test_a_spark_without_such_a_source_is_named() -> None:
    class Session:
        version = "9.9.9"

        @property
        def _jvm(self) -> Any:
            raise RuntimeError("no JVM\nat all")

    session: Any = Session()
    with pytest.raises(PipelineError, match=r"MemoryStream.*in Spark 9\.9\.9: no JVM\. "):
        Ticks.of(session)
