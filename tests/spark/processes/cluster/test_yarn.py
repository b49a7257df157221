"""A pipeline on YARN, by spark-submit: shipped as an archive, with containers that are killed.

``make test-yarn`` fetches YARN's servers, and runs this.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jvm
import pyspark
import pytest

from tests.spark.processes import live_pipeline
from tests.spark.processes.cluster.yarn import JARS, Yarn

PROGRAM = Path(__file__).with_name("submitted.py")
EXECUTOR = "YarnCoarseGrainedExecutorBackend"
#: The driver's container in cluster mode.
MASTER = "deploy.yarn.ApplicationMaster"
SPARK = Path(pyspark.__file__).parent


@pytest.fixture(scope="module")
def yarn(disk: Path, daemon: Callable[..., Any]) -> Iterator[Yarn]:
    if not list(JARS.glob("*.jar")):
        pytest.skip("YARN's servers are not here: make test-yarn fetches them")
    made = Yarn(disk / "yarn", daemon)
    try:
        made.start()
        yield made
    finally:
        made.end()


class Submitted:
    """An application, and what it has seen."""

    def __init__(
        self, yarn: Yarn, daemon: Callable[..., Any], archive: Path, root: Path, *, mode: str,
        plane: str,
    ) -> None:  # fmt: skip
        self.yarn, self.root = yarn, root
        (root / "work").mkdir(parents=True)
        (root / "began").write_text(repr(time.monotonic()))
        environment = root / "environment"
        environment.mkdir()
        # In client mode Spark starts a Python process beside the driver, too.
        subprocess.run(["tar", "-xzf", archive, "-C", environment], check=True)
        python = "./environment/bin/python"
        conf = {
            "spark.yarn.jars": f"local:{SPARK}/jars/*",
            "spark.yarn.stagingDir": f"file://{root}/staging",
            "spark.yarn.appMasterEnv.PYSPARK_PYTHON": python,
            "spark.executorEnv.PYSPARK_PYTHON": python,
            "spark.yarn.am.memory": "256m",
            "spark.yarn.submit.waitAppCompletion": "true",
            "spark.yarn.report.interval": "200ms",
            "spark.executor.instances": "2",
            "spark.executor.cores": "4",
            "spark.executor.memory": "512m",
            "spark.driver.memory": "512m",
            "spark.executor.extraJavaOptions": jvm.OPTIONS,
            "spark.ui.enabled": "false",
        }
        settings = [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]
        self.process = daemon(
            [
                str(SPARK / "bin" / "spark-submit"), "--master", "yarn", "--deploy-mode", mode,
                "--archives", f"{archive}#environment",
                "--py-files", str(Path(live_pipeline.__file__)), *settings,
                str(PROGRAM), str(root), plane,
            ],
            root / "log",
            YARN_CONF_DIR=str(yarn.conf), PYSPARK_PYTHON=python, PYTHONPATH="",
        )  # fmt: skip

    def seen(self) -> int:
        return live_pipeline.passed(self.root / "out").total()

    def wait_for_more(self) -> None:
        """Wait until rows are seen that were not there."""
        before = self.seen()
        self.wait_until(lambda: self.seen() > before + 100)

    def wait_until(self, reached: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 300
        while not reached():
            assert self.process.process.poll() is None, self.process.output()[-5000:]
            assert time.monotonic() < deadline, self.process.output()[-5000:]
            time.sleep(0.1)

    def kill(self, what: str) -> None:
        """Kill a container; another one comes in its place."""
        victim = self.yarn.containers(what)[-1]
        os.kill(victim, signal.SIGKILL)
        self.wait_until(lambda: victim not in self.yarn.containers(what))

    def finish(self) -> None:
        """End the input, and compare what was seen."""
        rows = live_pipeline.rows_after(live_pipeline.seconds_of(self.root) + 3)
        rows -= rows % live_pipeline.KEYS
        live_pipeline.Numbers(self.root / "limit").allow(rows)
        assert self.process.process.wait(240) == 0, self.process.output()[-5000:]
        assert live_pipeline.passed(self.root / "out") == live_pipeline.wanted(rows)


@pytest.fixture
def submit(
    yarn: Yarn, daemon: Callable[..., Any], archive: Path, tmp_path: Path
) -> Iterator[Callable[..., Submitted]]:
    made: list[Submitted] = []

    def start(**how: str) -> Submitted:
        made.append(Submitted(yarn, daemon, archive, tmp_path / "application", **how))
        return made[-1]

    yield start
    for one in made:
        one.process.end()


@pytest.mark.parametrize("plane", ["epochs", "realtime"])
@pytest.mark.parametrize("mode", ["client", "cluster"])
def test_a_lost_container_costs_nothing(
    submit: Callable[..., Submitted], mode: str, plane: str
) -> None:
    submitted = submit(mode=mode, plane=plane)
    submitted.wait_for_more()
    submitted.kill(EXECUTOR)
    submitted.wait_for_more()
    if mode == "cluster":
        submitted.kill(MASTER)  # with the driver: YARN starts another
        submitted.wait_for_more()
    submitted.finish()
