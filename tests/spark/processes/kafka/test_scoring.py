"""The fraud scoring as its command runs it: Kafka, a model behind HTTP, and all of it killed."""

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


def test_a_kill_with_calls_in_flight_changes_no_score(kafka: Any, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "millrace_examples.scoring.demo"]
    options = ["--kafka", kafka.servers, "--out", str(tmp_path), "--seconds", "10", "--rate", "60"]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SPARK_")}
    environment |= jvm.WITHOUT_SETTINGS  # as users have it
    run = subprocess.run(
        [*command, *options],
        env=environment | {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    said = f"{run.stdout}\n{run.stderr}"
    assert run.returncode == 0, said
    assert re.search(r"kill -9 of the driver, after \d+ scores", run.stdout), said
    assert "are those of the payments" in run.stdout.replace("\n", " "), said
