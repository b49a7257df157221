"""An idle topic that keeps the tasks of a run in real time running, over Spark Connect."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import millrace as mr
from tests.spark.processes.connect_server import ConnectServer
from tests.spark.processes.live_stream import LiveStream

ROOT = Path(__file__).parents[4]
TASKS, LEVELS = 2, 2


def test_a_client_runs_in_real_time_by_a_topic_that_nobody_writes_to(
    kafka: Any,
    program: Any,
    tmp_path: Path,
    record_property: Callable[[str, Any], None],
) -> None:
    record_property("row", "Real time")
    record_property("kind", "connect")
    record_property("gives", "yes, with a topic")
    topic = kafka.topic("idle", TASKS)
    jars = ",".join(map(str, sorted((ROOT / ".spark-kafka").glob("*.jar"))))
    folder = tmp_path / "server"
    folder.mkdir()
    settings = mr.spark.realtime_settings(tasks=TASKS) | {
        "spark.master": f"local[{TASKS * (LEVELS + 1) + 1}]",
        "spark.jars": jars,
    }
    server = ConnectServer(program, folder, settings)
    stream = LiveStream(
        tmp_path,
        program,
        master=server.url,
        options={"pacemaker": f"kafka:{kafka.servers}/{topic}"},
    )
    stream.executors = server.process
    try:
        stream.start()
        stream.wait_until_back(time.monotonic())
        # A worker is killed, and the client goes on by itself.
        os.kill(stream.workers()[0], signal.SIGKILL)
        stream.wait_until_back(time.monotonic())
        assert "another incarnation has begun" in stream.log()
        # The client is killed, and another goes on; the tasks of the first end by themselves.
        stream.driver.end()
        stream.start()
        stream.wait_until_back(time.monotonic())
        assert stream.finish() > 0
    except BaseException:
        print(server.process.output()[-20000:])  # noqa: T201  pytest shows it
        raise
    finally:
        stream.end()
        server.process.end()
    assert not kafka.messages(topic, TASKS)
