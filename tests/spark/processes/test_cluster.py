"""A standalone cluster of two workers, to which Millrace is shipped as an archive."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.timeout(1200)

SEED = 20130826

SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.5",
    "spark.speculation.minTaskRuntime": "100ms",
}


def test_a_speculative_copy_and_a_shuffle_that_is_lost(
    scenes: Any, cluster: Any, archive: Path, postgres_server: Any, postgres: Any
) -> None:
    """A task is overtaken by its copy and goes on; an executor dies between two levels."""
    scene = scenes(postgres, files=3)
    scene.use(cluster, archive, **SPECULATION)
    traps = [scene.set_trap("slow"), scene.set_trap("lost")]
    output = scene.start().finish()

    assert not any(trap.exists() for trap in traps)
    first, copy = scene.attempts("slow")
    assert first.name != copy.name
    # What level 1 had sent to level 2 was made again: from its commits, not by user code.
    replayed = int(output.split("drained ")[1].split()[0])
    assert replayed > 0
    (lost,) = scene.attempts("lost")
    millrace, temporary = lost.read_text().split()
    assert str(cluster.home) in millrace, "the package was shipped, not found here"
    assert "/environment/lib/" in millrace
    assert temporary in {str(worker.temporary) for worker in cluster.workers}
    scene.check()


def test_workers_executors_and_drivers_are_killed_and_replaced(
    scenes: Any, cluster: Any, archive: Path, postgres_server: Any, postgres: Any
) -> None:
    draw = random.Random(SEED)
    scene = scenes(postgres, files=8)
    scene.use(cluster, archive)
    driver = scene.start("wait")
    victims = ["worker", "executor", "python", "driver", "worker"]
    for victim in victims:
        driver.wait_for_entries(draw.randrange(2, 5))
        time.sleep(draw.random() * 0.5)
        worker = draw.choice(cluster.workers)
        if victim == "worker":
            assert (worker.temporary / "millrace").is_dir(), "each worker has caches of its own"
            cluster.kill_worker(worker)
            cluster.add_worker()
        elif victim == "executor":
            for pid in worker.find("CoarseGrainedExecutorBackend"):
                os.kill(pid, signal.SIGKILL)
        elif victim == "python":
            for pid in worker.find("pyspark", "daemon"):
                os.kill(pid, signal.SIGKILL)
        else:
            driver.end()
            driver = scene.start("wait")
        assert driver.alive(), driver.output()

    driver.wait_for_entries(2)
    os.kill(driver.process.pid, signal.SIGTERM)
    assert "stopped stopped" in driver.finish()
    assert "drained" in scene.start().finish()
    scene.check()
