"""What runs a pipeline in real time is killed, on a cluster of two executors, while rows flow."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jvm
import pytest
from tests.spark.processes.live_stream import LiveStream

SEED = 20130827
#: How often something is killed: a worker, an executor and a driver, or as often as is said.
KILLS = int(os.environ.get("CHAOS_KILLS", 3))
#: After so many seconds key intervals are split or merged, again and again; 0: never.
REMAPS_S = float(os.environ.get("CHAOS_REMAPS", 5))
#: Begins no further kill after so long.
MINUTES = float(os.environ.get("CHAOS_MINUTES", "inf"))
#: Rows are compared on the way so often: to read them all takes longer and longer.
CHECKED = 10


@pytest.fixture
def stream(tmp_path: Path, program: Any) -> Iterator[LiveStream]:
    """On two executors, each with the slots for half of the tasks."""
    conf = {
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "512m",
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": jvm.OPTIONS,
    }
    made = LiveStream(
        tmp_path, program, master="local-cluster[2,4,1024]", conf=conf, remaps=REMAPS_S
    )
    yield made
    made.end()


def _kill(pids: list[int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def _some(find: Callable[[], list[int]]) -> list[int]:
    """Return processes as soon as there are any: at a rest there are none at work."""
    deadline = time.monotonic() + 60
    while not (found := find()):
        assert time.monotonic() < deadline, "nothing is at work"
        time.sleep(0.1)
    return found


def _kill_worker(stream: LiveStream, draw: random.Random) -> None:
    """Or, now and then, all Python processes there are."""
    at_work = _some(stream.workers)
    _kill([draw.choice(at_work)] if draw.random() < 0.8 else _some(stream.pythons))


def _kill_executor(stream: LiveStream, draw: random.Random) -> None:
    """Its Python processes notice by themselves."""
    _kill([draw.choice(stream.driver.find("CoarseGrainedExecutorBackend"))])


def _kill_driver(stream: LiveStream, draw: random.Random) -> None:
    """Or its JVM, or all processes of it; the next begins while what is left may be at work."""
    driver = stream.driver
    how = draw.choice(["program", "JVM", "all"])
    if how == "program":
        _kill([driver.process.pid])
    elif how == "JVM":
        _kill(driver.find("org.apache.spark.deploy.SparkSubmit"))
    else:
        driver.end()
    stream.start()


VICTIMS: dict[str, Callable[[LiveStream, random.Random], None]] = {
    "worker": _kill_worker,
    "executor": _kill_executor,
    "driver": _kill_driver,
}


@pytest.mark.timeout(600 + 90 * KILLS)
def test_whatever_is_killed_each_row_counts_once(stream: LiveStream) -> None:
    draw = random.Random(int(os.environ.get("CHAOS_SEED", SEED)))
    victims = draw.sample(list(VICTIMS), len(VICTIMS))
    victims += draw.choices(list(VICTIMS), weights=[5, 4, 1], k=max(0, KILLS - len(victims)))
    stream.start()
    stream.wait_until_back(time.time())
    took: dict[str, list[float]] = {victim: [] for victim in VICTIMS}
    deadline = time.monotonic() + 60 * MINUTES
    for n, victim in enumerate(victims, 1):
        if time.monotonic() > deadline:
            break
        # Somewhere between two marks, or in one.
        time.sleep(1 + 3 * draw.random())
        killed = time.time()
        VICTIMS[victim](stream, draw)
        took[victim].append(stream.wait_until_back(killed))
        checked = f", {stream.check_so_far()} rows" if n % CHECKED == 0 else ""
        sys.stdout.write(f"{n}: {victim}, back after {took[victim][-1]:.1f} s{checked}\n")
        sys.stdout.flush()
    rows = stream.finish()
    said = ", ".join(
        f"{len(times)} of a {victim} (median {sorted(times)[len(times) // 2]:.1f} s until back)"
        for victim, times in took.items()
        if times
    )
    sys.stdout.write(f"{rows} rows, each once; kills: {said}\n")
    log = stream.log()
    # Spark's refusals, after seconds of work: the run waits for an executor that is replaced.
    assert "INSUFFICIENT_SLOT" not in log
    assert not REMAPS_S or log.count("'Counting' has ") > 0
    assert log.count("another session has begun, after") >= len(took["worker"] + took["executor"])
