"""From Kafka to PostgreSQL exactly once: all is sent twice, and the driver is killed."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jvm
import pytest

pytestmark = pytest.mark.timeout(900)

PROGRAM = Path(__file__).with_name("program.py")
SENDERS, EACH = 5, 40
#: Each costs the start of another driver.
KILLS = 1


class Driver:
    """The program in a session of its own."""

    def __init__(self, settings: dict[str, Any], log: Path) -> None:
        self._log = log
        environment = {k: v for k, v in os.environ.items() if not k.startswith("SPARK_")}
        environment |= {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
        environment |= jvm.ENVIRONMENT
        with log.open("a") as file:
            self.process = subprocess.Popen(
                [sys.executable, str(PROGRAM), json.dumps(settings)],
                stdout=file,
                stderr=file,
                env=environment,
                cwd=log.parent,
                start_new_session=True,
            )

    def kill(self) -> None:
        """Kill -9 every process of the session: driver, JVM, Python workers."""
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == self.process.pid:
                    os.kill(int(entry.name), signal.SIGKILL)
        self.process.wait(60)

    def finish(self) -> None:
        assert self.process.wait(240) == 0, self._log.read_text()[-5000:]


def test_exactly_once_through_kill_9(kafka: Any, postgres: Any, tmp_path: Path) -> None:
    draw = random.Random(6)
    topic = kafka.topic("once", 3)
    settings = {
        "servers": kafka.servers,
        "topic": topic,
        "conninfo": f"{postgres.conninfo} passfile={postgres.passfile}",
        "checkpoint": str(tmp_path / "checkpoint"),
        "until": 2 * SENDERS * EACH,
    }
    numbers = [(f"sender {s}", n) for s in range(SENDERS) for n in range(EACH)]
    draw.shuffle(numbers)
    again: list[tuple[bytes, str]] = []

    def send(count: int) -> None:
        """Send new numbers and, again, as many of those that were sent, now or earlier."""
        fresh = []
        for sender, number in [numbers.pop() for _ in range(count)]:
            value = json.dumps({"sender": sender, "number": number, "at": number})
            fresh.append((value.encode(), f"{sender} {number}"))
        again.extend(fresh)
        repeated = [again.pop(draw.randrange(len(again))) for _ in range(count)]
        for partition in range(3):
            mine = [*fresh[partition::3], *repeated[partition::3]]
            values, ids = zip(*mine, strict=True)
            kafka.send(topic, partition, *values, ids=ids)

    def epochs() -> int:
        return len(list((tmp_path / "checkpoint" / "epochs").glob("*.json")))

    send(70)
    for _ in range(KILLS):
        driver = Driver(settings, tmp_path / "driver.log")
        try:
            wanted, deadline = epochs() + draw.randrange(3, 6), time.monotonic() + 180
            while epochs() < wanted:
                assert driver.process.poll() is None, (tmp_path / "driver.log").read_text()
                assert time.monotonic() < deadline, (tmp_path / "driver.log").read_text()
                time.sleep(0.01)
            send(40)
            time.sleep(draw.random() * 0.4)  # somewhere within an epoch
        finally:
            driver.kill()
    send(len(numbers))
    driver = Driver(settings, tmp_path / "driver.log")
    try:
        driver.finish()
    finally:
        driver.kill()

    rows = postgres.query("SELECT sender, number, count FROM seen")
    assert len(rows) == SENDERS * EACH
    for number in range(SENDERS):
        mine = [row for row in rows if row[0] == f"sender {number}"]
        assert sorted(n for _, n, _ in mine) == list(range(EACH))
        assert sorted(count for _, _, count in mine) == list(range(1, EACH + 1))
