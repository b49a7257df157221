"""Whether a query can be started, as a session of a cluster says it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from millrace.spark.realtime.settings import has_slots


def session(master: str, parallelism: int, **conf: str) -> Any:
    """Return what stands for a session whose executors have so many cores."""
    settings = {name.replace("_", "."): value for name, value in conf.items()}
    return SimpleNamespace(
        conf={"spark.master": master},
        sparkContext=SimpleNamespace(defaultParallelism=parallelism, getConf=lambda: settings),
    )


@pytest.mark.parametrize(
    ("spark", "roomy"),
    [
        (session("spark://here", 7), True),
        (session("spark://here", 6), False),
        (session("spark://here", 8, spark_task_cpus="2"), False),
        (session("local[7]", 7), True),
        (session("local[6]", 7), False),
    ],
)
def test_there_is_room_when_all_tasks_have_slots(spark: Any, roomy: bool) -> None:
    assert has_slots(spark, 6) is roomy
