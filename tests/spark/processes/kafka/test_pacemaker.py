"""An idle topic that keeps the tasks of a run in real time running."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from tests.spark.processes.live_stream import LiveStream

ROOT = Path(__file__).parents[4]


def test_a_run_goes_by_a_topic_that_nobody_writes_to(
    kafka: Any, program: Any, tmp_path: Path
) -> None:
    topic = kafka.topic("idle", 2)
    jars = ",".join(map(str, sorted((ROOT / ".spark-kafka").glob("*.jar"))))
    stream = LiveStream(
        tmp_path,
        program,
        master="local[7]",
        conf={"spark.jars": jars},
        options={"pacemaker": f"kafka:{kafka.servers}/{topic}"},
    )
    try:
        stream.start()
        stream.wait_until_back(time.time())
        assert stream.finish() > 0
    finally:
        stream.end()
    assert not kafka.messages(topic, 2)
