"""Drivers that are told to end, that are killed, or paused and replaced: the next one goes on."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from typing import Any

SEED = 20130208


def _generation(scene: Any) -> int:
    """Return the last run's; earlier claims may have been collected."""
    entries = [
        json.loads(file.read_text().splitlines()[0])
        for file in sorted((scene.checkpoint / "epochs").glob("*.json"))
    ]
    return max(entry["generation"] for entry in entries if entry.get("type") == "claim")


def test_drivers_that_end_in_every_way(scenes: Any, seeds: Any, postgres: Any) -> None:
    """SIGTERM, SIGINT, and kill -9 of the driver, its JVM and a Python worker, in mid-epoch."""
    ends = ["SIGTERM", "SIGINT", "driver", "JVM", "python"]
    for draw in seeds(SEED):
        postgres.clear()
        scene = scenes(postgres, files=12)
        for end in ends:
            driver = scene.start("wait")
            driver.wait_for_entries(draw.randrange(2, 5))
            # Somewhere within the epoch that is under way.
            time.sleep(draw.random() * 0.4)
            assert driver.alive(), driver.output()
            _end(driver, end)
        assert "drained" in scene.start().finish()
        scene.check()
        assert _generation(scene) == len(ends) + 1
        draw.shuffle(ends)


def _end(driver: Any, how: str) -> None:
    if how == "driver":
        driver.end()
    elif how == "JVM":
        os.kill(driver.find("java")[0], signal.SIGKILL)
        assert "Error" in driver.finish(status=1)
    elif how == "python":
        # The daemon that forks the workers, and the workers: none is left for the epoch.
        for pid in driver.find("pyspark", "daemon"):
            os.kill(pid, signal.SIGKILL)
        driver.wait_for_entries(2)
        driver.end()
    else:
        os.kill(driver.process.pid, getattr(signal, how))
        output = driver.finish()
        assert "stopped stopped" in output
        assert "Traceback" not in output


def test_a_driver_that_is_paused_replaced_and_continued(scenes: Any, postgres: Any) -> None:
    """The zombie ends with an error that says so; the outputs are those of one run."""
    draw = random.Random(SEED)
    scene = scenes(postgres)
    zombie = scene.start("wait")
    zombie.wait_for_entries(4)
    time.sleep(draw.random() * 0.4)
    zombie.signal(signal.SIGSTOP)
    paused_at = zombie.entries()

    successor = scene.start("wait")
    successor.wait_for_entries(5)
    zombie.signal(signal.SIGCONT)
    output = zombie.finish(status=1)
    assert "ZombieWriter: zombie writer" in output
    assert successor.alive(), successor.output()
    assert successor.entries() > paused_at

    # And without a pause: the one that starts later takes over while the other is at work.
    scene.feed(3)
    third = scene.start()
    assert "ZombieWriter: zombie writer" in successor.finish(status=1)
    assert "drained" in third.finish()
    scene.check()
    assert _generation(scene) == 3
