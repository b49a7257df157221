"""Of two drivers in real time one works, and the other waits with all its tasks started."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.spark.processes.live_stream import LiveStream


def test_when_the_driver_is_killed_the_tasks_that_wait_take_over(
    tmp_path: Path, program: Callable[..., Any]
) -> None:
    stream = LiveStream(tmp_path, program, master="local[7]", lease="2 s", options={"marks": "1 s"})
    try:
        stream.start()
        stream.wait_until_back(time.monotonic())
        stream.start_waiting()
        stream.wait_for("all tasks are started, and wait for the lease")
        stream.drivers[0].end()
        stream.wait_until_back(time.monotonic())
        # Else a query was started anew.
        took = re.search(
            "another incarnation has begun, after .* until the new tasks had taken up",
            stream.driver.output(),
        )
        assert took is not None, stream.driver.output()
        assert stream.finish() > 0
    finally:
        stream.end()
