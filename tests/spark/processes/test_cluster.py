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
    "spark.network.timeout": "6s",
    "spark.network.timeoutInterval": "1s",
    "spark.executor.heartbeatInterval": "1s",
}


def test_workers_executors_and_drivers_are_killed_and_replaced(
    scenes: Any, seeds: Any, cluster: Any, archive: Path, postgres: Any
) -> None:
    """And, first, a task is overtaken by its copy and goes on; an executor dies between levels."""
    # Python workers and drivers are killed in test_drivers.py, too; here only in further rounds.
    victims = ["worker", "paused", "executor"]
    for draw in seeds(SEED):
        postgres.clear()
        scene = scenes(postgres, files=16)
        scene.use(cluster, archive, **SPECULATION, **NOTICE)
        traps = [scene.set_trap("slow"), scene.set_trap("lost")]
        driver = scene.start()
        _wait_for(traps, driver)
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
        output = driver.finish()
        scene.check()
        _check_traps(scene, cluster)
        if "driver" not in victims:
            # What level 1 had sent to level 2 was made again: from its commits, not by user code.
            assert int(output.split("drained ")[1].split()[0]) > 0
        caches = list(cluster.home.glob("worker-*/tmp/millrace-[0-9]*"))
        assert len(caches) >= 2, "each worker has caches of its own"
        victims = draw.choices(["worker", "paused", "executor", "python", "driver"], k=6)


def _wait_for(traps: list[Path], driver: Any) -> None:
    driver.wait_until(lambda: not any(trap.exists() for trap in traps) or not driver.alive())


def _check_traps(scene: Any, cluster: Any) -> None:
    first, copy = scene.attempts("slow")
    assert first.name != copy.name
    (lost,) = scene.attempts("lost")
    millrace, temporary = lost.read_text().split()
    assert str(cluster.home) in millrace, "the package was shipped, not found here"
    assert "/environment/lib/" in millrace
    assert Path(temporary).parent.parent == cluster.home, "a worker's own directory"


def _pause(scene: Any, cluster: Any, driver: Any) -> None:
    """Stop an executor in the middle of a task, until others have gone on without it."""
    before = len(scene.attempts("paused"))
    trap = scene.set_trap("paused")
    driver.wait_until(lambda: len(scene.attempts("paused")) > before or not driver.alive())
    assert not trap.exists()
    driver.wait_for_entries(3)
    for worker in cluster.workers:
        worker.signal(signal.SIGCONT)
