"""Faults that befall a pipeline in real time: something is killed, paused, full or cut off."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.spark.processes.live_network import Disk, Network
from tests.spark.processes.live_stream import LiveStream

#: What one JVM of a driver is found by, and one of an executor.
DRIVER, EXECUTOR = "org.apache.spark.deploy.SparkSubmit", "CoarseGrainedExecutorBackend"


@dataclass
class Scene:
    """What faults befall.

    Attributes:
        stream: With its drivers.
        draw: What is not said is drawn.
        longest_s: Of a pause.
        network: Of the executors, where there is one of its own.
        disk: Of checkpoint and outputs, the same.
    """

    stream: LiveStream
    draw: random.Random
    longest_s: float
    network: Network | None = None
    disk: Disk | None = None

    def some_time(self) -> float:
        """Return how long a pause is; the half of them is short."""
        return round(5 + (self.longest_s - 5) * self.draw.random(), 1)

    def executor(self) -> int:
        """Return the process of an executor."""
        return self.draw.choice(some(lambda: self.stream.driver.find(EXECUTOR)))


@dataclass
class Befallen:
    """How a fault was.

    Attributes:
        how: In words.
        since: From when on the run could be back, by the monotonic clock; by default from now on.
    """

    how: str
    since: float = field(default_factory=time.monotonic)


Fault = Callable[[Scene], Befallen]


def some(find: Callable[[], list[int]], seconds: float = 60) -> list[int]:
    """Return processes as soon as there are any: at a rest there are none at work."""
    deadline = time.monotonic() + seconds
    while not (found := find()):
        assert time.monotonic() < deadline, "nothing is at work"
        time.sleep(0.1)
    return sorted(found)


def send(number: int, pids: list[int]) -> None:
    """Send a signal to those that are still there."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


@contextlib.contextmanager
def paused(pids: list[int]) -> Iterator[None]:
    """Stop processes, and let those go on that are still there."""
    send(signal.SIGSTOP, pids)
    try:
        yield
    finally:
        send(signal.SIGCONT, pids)


def family(pid: int) -> list[int]:
    """Return a process and all that it started, directly or not."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                parents[int(entry.name)] = int(fields[1])
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found


def go_on(scene: Scene) -> None:
    """Have another driver go on: the one that waits for the lease, or else a new one.

    Its workers are waited for: those of the one before may be at work yet.
    """
    stream = scene.stream
    if stream.waiting is not None and stream.waiting.alive():
        stream.wait_until_taken_over()
    else:
        stream.start()
    some(stream.workers, 180)


# -- kills -----------------------------------------------------------------------------------------


def kill_worker(scene: Scene) -> Befallen:
    """Kill a Python worker that is at work."""
    send(signal.SIGKILL, [scene.draw.choice(some(scene.stream.workers))])
    return Befallen("killed a worker")


def kill_pythons(scene: Scene) -> Befallen:
    """Kill all Python processes of all executors."""
    send(signal.SIGKILL, some(scene.stream.pythons))
    return Befallen("killed all workers")


def kill_executor(scene: Scene) -> Befallen:
    """Kill its JVM; its Python processes notice by themselves."""
    send(signal.SIGKILL, [scene.executor()])
    return Befallen("killed an executor")


def kill_driver(scene: Scene) -> Befallen:
    """Or its JVM, or all processes of it; the next begins while what is left may be at work."""
    driver = scene.stream.driver
    how = scene.draw.choice(["program", "JVM", "processes"])
    began = time.monotonic()
    if how == "program":
        send(signal.SIGKILL, [driver.process.pid])
    elif how == "JVM":
        send(signal.SIGKILL, driver.find(DRIVER))
    else:
        driver.end()
    go_on(scene)
    return Befallen(f"killed the driver ({how})", began)


# -- pauses ----------------------------------------------------------------------------------------


def pause_worker(scene: Scene) -> Befallen:
    """Stop a worker, perhaps for longer than it may hang."""
    seconds = scene.some_time()
    with paused([scene.draw.choice(some(scene.stream.workers))]):
        time.sleep(seconds)
    return Befallen(f"paused a worker for {seconds} s")


def pause_executor(scene: Scene) -> Befallen:
    """Stop a host: the executor, and all that it started."""
    seconds = scene.some_time()
    with paused(family(scene.executor())):
        time.sleep(seconds)
    return Befallen(f"paused an executor for {seconds} s")


def pause_driver(scene: Scene) -> Befallen:
    """Stop program and JVM; executors go on as far as they can."""
    driver, seconds = scene.stream.driver, scene.some_time()
    with paused([driver.process.pid, *driver.find(DRIVER)]):
        time.sleep(seconds)
    by = "" if scene.stream.driver is driver else ", and another has taken over"
    return Befallen(f"paused the driver for {seconds} s{by}")


def supersede_driver(scene: Scene) -> Befallen:
    """Stop program and JVM, and have another go on; the one that wakes up is to be told of it."""
    driver = scene.stream.driver
    began = time.monotonic()
    with paused([driver.process.pid, *driver.find(DRIVER)]):
        go_on(scene)
        scene.stream.wait_until_back(time.monotonic())
    deadline = time.monotonic() + 180
    while driver.alive():
        assert time.monotonic() < deadline, f"it goes on:\n{driver.output()}"
        time.sleep(0.1)
    assert driver.process.returncode, driver.output()
    assert "ZombieWriter" in driver.output(), driver.output()
    return Befallen(f"paused the driver for {time.monotonic() - began:.1f} s, and another went on")


# -- surroundings ----------------------------------------------------------------------------------


def fill_disk(scene: Scene) -> Befallen:
    """Have no room for a while; what is freed meanwhile is taken, too."""
    assert scene.disk is not None
    seconds = round(1 + 5 * scene.draw.random(), 1)
    deadline = time.monotonic() + seconds
    try:
        while time.monotonic() < deadline:
            scene.disk.fill()
            time.sleep(0.05)
    finally:
        scene.disk.empty()
    return Befallen(f"the disk was full for {seconds} s")


def cut_network(scene: Scene) -> Befallen:
    """Have an executor without a network for a while."""
    assert scene.network is not None
    executor, seconds = scene.executor(), scene.some_time()
    scene.network.cut(executor)
    try:
        time.sleep(seconds)
    finally:
        scene.network.mend(executor)
    return Befallen(f"an executor was off the network for {seconds} s")


KILLS: dict[Fault, int] = {kill_worker: 10, kill_pythons: 2, kill_executor: 5, kill_driver: 1}
PAUSES: dict[Fault, int] = {
    pause_worker: 3,
    pause_executor: 2,
    pause_driver: 2,
    supersede_driver: 1,
}
SURROUNDINGS: tuple[Fault, ...] = (fill_disk, cut_network)


def drawn(draw: random.Random, how_many: int, surroundings: bool) -> list[Fault]:
    """Return faults in an order: of ten, six kills of all sorts, two pauses, and two others."""
    found: list[Fault] = []
    for _ in range(max(1, how_many // 10)):
        ten = [kill_worker, kill_executor, kill_driver]
        ten += draw.choices(list(KILLS), weights=list(KILLS.values()), k=3)
        ten += draw.choices(list(PAUSES), weights=list(PAUSES.values()), k=2)
        if surroundings:
            ten += SURROUNDINGS
        found += draw.sample(ten, len(ten))
    return found
