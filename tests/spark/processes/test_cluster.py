"""A standalone cluster of two workers, to which Millrace is shipped as an archive."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

SEED = 20130826

SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.5",
    "spark.speculation.minTaskRuntime": "100ms",
}

#: An executor that does not answer is given up after seconds, and not after minutes.
NOTICE = {
    "spark.network.timeout": "10s",
    "spark.network.timeoutInterval": "2s",
    "spark.executor.heartbeatInterval": "2s",
}


def test_a_speculative_copy_and_a_shuffle_that_is_lost(
    scenes: Any, cluster: Any, archive: Path, postgres: Any
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
    scenes: Any, seeds: Any, cluster: Any, archive: Path, postgres: Any
) -> None:
    # Drivers are killed in test_drivers.py, too; here, for want of time, only in further rounds.
    victims = ["worker", "paused", "executor", "python"]
    for draw in seeds(SEED):
        postgres.clear()
        scene = scenes(postgres, files=12)
        scene.use(cluster, archive, **NOTICE)
        driver = scene.start()
        for victim in victims:
            driver.wait_for_entries(draw.randrange(2, 5))
            time.sleep(draw.random() * 0.5)
            worker = draw.choice(cluster.workers)
            if victim == "worker":
                cluster.kill_worker(worker)
                cluster.add_worker()
            elif victim == "executor":
                for pid in worker.find("CoarseGrainedExecutorBackend"):
                    os.kill(pid, signal.SIGKILL)
            elif victim == "paused":
                _pause(scene, cluster, driver)
            elif victim == "python":
                for pid in worker.find("pyspark", "daemon"):
                    os.kill(pid, signal.SIGKILL)
            else:
                driver.end()
                driver = scene.start()
            assert driver.alive(), driver.output()
        assert "drained" in driver.finish()
        scene.check()
        caches = list(cluster.home.glob("worker-*/tmp/millrace"))
        assert len(caches) >= 2, "each worker has caches of its own"
        victims = draw.choices(["worker", "paused", "executor", "python", "driver"], k=6)


def _pause(scene: Any, cluster: Any, driver: Any) -> None:
    """Stop an executor in the middle of a task, until others have gone on without it."""
    before = len(scene.attempts("paused"))
    trap = scene.set_trap("paused")
    driver.wait_until(lambda: len(scene.attempts("paused")) > before or not driver.alive())
    assert not trap.exists()
    driver.wait_for_entries(3)
    for worker in cluster.workers:
        worker.signal(signal.SIGCONT)
