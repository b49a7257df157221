"""The live leaderboard as its command runs it: Kafka, real time, and a worker killed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jvm
import pytest

pytestmark = pytest.mark.timeout(300)


def test_a_killed_worker_changes_no_total(kafka: Any, tmp_path: Path) -> None:
    # Not in this process: the real-time plane wants settings from the beginning of a session.
    command = [sys.executable, "-c", "from millrace.cli.main import main; main()"]
    options = ["--kafka", kafka.servers, "--out", str(tmp_path), "--seconds", "20", "--rate", "60"]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SPARK_")}
    environment |= jvm.WITHOUT_SETTINGS  # as users have it
    run = subprocess.run(
        [*command, "demo", "realtime", *options],
        env=environment | {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    said = f"{run.stdout}\n{run.stderr}"
    assert run.returncode == 0, said
    assert "all totals, boards and streaks are those of the scores that were sent" in run.stdout, (
        said
    )
    assert re.search(r"kill -9 of worker \d+: reports came again after [\d.]+ s", run.stdout), said
    assert re.search(r"\d+ scores/s, +\d+ reports/s, latency p50 [\d.]+ ms", run.stdout), said
    assert (tmp_path / "latency.png").read_bytes().startswith(b"\x89PNG")
