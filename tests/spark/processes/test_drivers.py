"""Drivers that are told to end, that are killed, or paused and replaced: the next one goes on."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from typing import Any

import pytest

import millrace as mr
from millrace.dashboard import pulse
from millrace.dashboard.watcher import Watcher
from millrace.inspect import state_at
from millrace.spark.asks import ask

SEED = 20130208
NAMES = ("Confirm", "Totals", "Everything")


def _generation(scene: Any) -> int:
    """Return the last run's; earlier claims may have been collected."""
    entries = [
        json.loads(file.read_text().splitlines()[0])
        for file in sorted((scene.checkpoint / "epochs").glob("*.json"))
    ]
    return max(entry["generation"] for entry in entries if entry.get("type") == "claim")


def _seen(scene: Any, monkeypatch: pytest.MonkeyPatch, *, patience_s: float) -> str:
    """Return what a dashboard in this process thinks of the run, which it has to ask."""
    monkeypatch.setattr(pulse, "_QUIET_S", 0.0)
    monkeypatch.setattr(pulse, "_TIMEOUT_S", patience_s)
    state = state_at(scene.checkpoint)
    watcher = Watcher(state, str(scene.checkpoint), pulse.Pulse(state, ask))
    watcher.look()
    return str(json.loads(watcher.now)["state"])


def test_drivers_that_end_in_every_way(
    scenes: Any, seeds: Any, postgres: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Paused and replaced, replaced at work, told to end, killed: the outputs are those of one run.

    SIGTERM; kill -9 of the Python workers, and of the driver: each in mid-epoch. Of the JVM alone
    in test_evolution.py, and here in further rounds. After each epoch key intervals split and
    merge, so that drivers end in a remap, too. The driver begins epochs itself; by micro-batches in
    test_evolution.py, and here in further rounds.
    """
    ends, is_driven = ["SIGTERM", "python", "driver"], True
    for draw in seeds(SEED):
        postgres.clear()
        scene = scenes(postgres)
        scene.config |= {"remaps": True, "driven": is_driven}
        driver = _replace_one_that_is_paused(scene, draw)
        for end in ends:
            earlier, driver = driver, scene.start("wait")
            if earlier.alive():
                # The one that starts later takes over while the other is at work.
                assert "ZombieWriter: zombie writer" in earlier.finish(status=1)
            scene.feed(3)
            driver.wait_for_entries(draw.randrange(2, 5))
            # Somewhere within the epoch that is under way.
            time.sleep(draw.random() * 0.4)
            assert driver.alive(), driver.output()
            if end == "python":
                assert _seen(scene, monkeypatch, patience_s=120) == "running"
            _end(driver, end)
            if end == "python":
                assert _seen(scene, monkeypatch, patience_s=0.1) == "silent"
        assert "drained" in scene.start().finish()
        scene.check()
        maps = [mr.ops.open_checkpoint(scene.checkpoint)[name].intervals for name in NAMES]
        # Of the uniform map of a new checkpoint, ids are places.
        assert all([one.id for one in of] != [*range(len(of))] for of in maps)
        assert _generation(scene) == 2 + len(ends) + 1
        ends = draw.choices(["SIGTERM", "SIGINT", "driver", "JVM", "python"], k=5)
        is_driven = draw.random() < 0.5


def _replace_one_that_is_paused(scene: Any, draw: random.Random) -> Any:
    """Return the successor; the zombie has ended with an error that says what it is."""
    zombie = scene.start("wait")
    zombie.wait_for_entries(4)
    time.sleep(draw.random() * 0.4)
    zombie.signal(signal.SIGSTOP)
    paused_at = zombie.entries()

    successor = scene.start("wait")
    successor.wait_for_entries(5)
    zombie.signal(signal.SIGCONT)
    assert "ZombieWriter: zombie writer" in zombie.finish(status=1)
    assert successor.alive(), successor.output()
    assert successor.entries() > paused_at
    return successor


def _end(driver: Any, how: str) -> None:
    if how == "driver":
        driver.end()
    elif how == "JVM":
        os.kill(driver.find("java")[0], signal.SIGKILL)
        assert "Error" in driver.finish(status=1)
    elif how == "python":
        # The daemon that forks the workers, and the workers: none is left for the epoch.
        for pid in driver.find("daemon\0pyspark.worker"):
            os.kill(pid, signal.SIGKILL)
        driver.wait_for_entries(2)
        driver.end()
    else:
        os.kill(driver.process.pid, getattr(signal, how))
        output = driver.finish()
        assert "stopped stopped" in output
        assert "Traceback" not in output
