"""Flink's asynchronous calls from Python, in an environment of its own, for ``benchmarks.calls``.

One slot, answers as they come, a checkpoint a second. What counts is the time from the first call
to the last answer: the start of the JVM and of the Python worker has no part in it.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from pyflink.common import Configuration, Time, Types, WatermarkStrategy
from pyflink.datastream import AsyncDataStream, AsyncFunction, StreamExecutionEnvironment
from pyflink.datastream.connectors.number_seq import NumberSequenceSource

from benchmarks.http_client import HttpClient


class _Ask(AsyncFunction):  # type: ignore[misc]
    """Asks once for each number, and returns when that began and ended."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._client: Any = None

    async def async_invoke(self, value: int) -> list[str]:
        """Return one row of JSON: the answer, and two Unix times in seconds."""
        if self._client is None:
            self._client = HttpClient()
        began = time.time()
        answer = await self._client.get(self._url)
        return [json.dumps([answer, began, time.time()])]


def seconds(url: str, records: int, concurrency: int) -> float:
    """Return the seconds from the first call to the last answer."""
    with tempfile.TemporaryDirectory() as folder:
        configuration = Configuration()
        for name, value in {
            "restart-strategy.type": "none",
            "python.fn-execution.bundle.time": "10",
            "python.executable": sys.executable,
            "python.client.executable": sys.executable,
            "state.backend.type": "rocksdb",
            "execution.checkpointing.incremental": "true",
            "execution.checkpointing.interval": "1 s",
            "execution.checkpointing.dir": Path(folder).as_uri(),
        }.items():
            configuration.set_string(name, value)
        flink = StreamExecutionEnvironment.get_execution_environment(configuration)
        flink.set_parallelism(1)
        numbers = flink.from_source(
            NumberSequenceSource(0, records - 1),
            WatermarkStrategy.no_watermarks(),
            "numbers",
            Types.LONG(),
        )
        answers = AsyncDataStream.unordered_wait(
            numbers, _Ask(url), Time.seconds(10), concurrency, Types.STRING()
        )
        with answers.execute_and_collect() as rows:
            times = [json.loads(row) for row in rows]
    assert len(times) == records
    assert all(answer == "ok" for answer, _, _ in times)
    return max(ended for _, _, ended in times) - min(began for _, began, _ in times)


if __name__ == "__main__":
    _taken = seconds(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
    sys.stdout.write(f"{json.dumps([_taken, None])}\n")
