"""Hosts of a cluster are killed, cut off, and set wrong: outputs are those of no fault.

``make test-hosts`` prints how long keys wait for their first new record. Four hosts are namespaces
of this machine (``hosts.py``); the master of the standalone cluster is on none of them, and the
checkpoint is in a folder that all of them share. On two hosts are executors, on one the driver, and
on one the driver that waits for its lease.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import hosts as kit
import jvm
import pyspark
import pytest
from hosts import Host, Hosts

from tests.spark.processes.live_stream import LiveStream

#: How often a host of tasks is killed, and switched off.
KILLS = int(os.environ.get("HOSTS_KILLS", 3))
#: How long hosts are parted, in seconds.
PARTED_S = 10
#: How long a standby is waited for, which has to be started on a host that begins anew.
STANDBY_S = 240
#: How far a clock is set wrong, in seconds.
AHEAD_S = 300
#: Of packets to a host, in milliseconds, where the kernel can.
DELAY_MS = 1
#: Two tasks for the injectors and for each of two levels, and one that fills the host.
SLOTS = 7

CONF = {
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": jvm.OPTIONS,
    # An executor that does not answer is given up after seconds, and not after minutes.
    "spark.network.timeout": "10s",
    "spark.network.timeoutInterval": "1s",
    "spark.executor.heartbeatInterval": "1s",
}
WORDS = {"kill": "killed", "switch_off": "switched off"}
DRIVERS, WORKERS = ("driver-1", "driver-2"), ("worker-1", "worker-2")


class Cluster:
    """A standalone cluster: the master outside, and a worker on each of two hosts."""

    def __init__(self, home: Path, hosts: Hosts, daemon: Callable[..., Any]) -> None:
        self._hosts, self._home, self._daemon = hosts, home, daemon
        self._spark = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
        self._started: list[Any] = []
        self.master = f"spark://{hosts.outside}:7077"
        self._start(
            "master", [], "org.apache.spark.deploy.master.Master", "--host", hosts.outside,
            "--port", "7077", "--webui-port", "0", SPARK_LOCAL_IP=hosts.outside,
            words="I have been elected leader",
        )  # fmt: skip
        for name in WORKERS:
            self.start_worker(name)

    def start_worker(self, name: str, ahead_s: int = 0) -> None:
        """Start a worker on a host, whose clock may be wrong."""
        host = self._hosts[name]
        number = len(self._started)
        self._start(
            f"{name}-{number}", host.within, "org.apache.spark.deploy.worker.Worker",
            "--host", host.address, "--webui-port", "0", "--cores", str(SLOTS), "--memory", "1g",
            "--work-dir", str(host.folder / "work"), self.master,
            words="Successfully registered with master",
            SPARK_LOCAL_DIRS=str(host.folder / "local"), **host.environment(ahead_s),
        )  # fmt: skip

    def _start(
        self, name: str, within: list[str], *command: str, words: str, **others: str
    ) -> None:
        command = (*within, self._spark, *command)
        started = self._daemon([*command], self._home / f"{name}.log", **others)
        self._started.append(started)
        deadline = time.monotonic() + 60
        while words not in started.output():
            assert started.alive(), started.output()
            assert time.monotonic() < deadline, started.output()
            time.sleep(0.05)

    def end(self) -> None:
        for process in self._started:
            process.end()


class Scene:
    """Hosts, cluster, stream; and how long it took to be back."""

    def __init__(self, root: Path, hosts: Hosts, cluster: Cluster, program: Any) -> None:
        self.hosts, self.cluster = hosts, cluster
        self.back: dict[str, list[float]] = defaultdict(list)
        self._program = program
        self.stream = LiveStream(
            root, self._start_driver, master=cluster.master, conf=CONF, lease="2 s",
            options={"marks": "1 s", "standby": True}, filled=True,
        )  # fmt: skip

    def _start_driver(self, what: Path | str, folder: Path, *, on: str) -> Any:
        host = self.hosts[on]
        return self._program(what, folder, within=host.within, **host.environment())

    @property
    def taken_over(self) -> int:
        return self.stream.log().count("the standby takes over")

    def at_work(self) -> Host:
        """Return the host of the tasks that work, which have all of it."""
        busy = self.stream.at_work()
        found = [self.hosts[name] for name in WORKERS if busy & set(self.hosts[name].pids())]
        assert len(found) == 1, f"tasks work on {[host.name for host in found]}"
        return found[0]

    def standby_host(self) -> Host:
        """Return the other one."""
        (name,) = set(WORKERS) - {self.at_work().name}
        return self.hosts[name]

    def measure(self, what: str, fault: Callable[[], None], *, from_its_end: bool = False) -> float:
        """Let something happen, and wait until all keys have new records; return how long.

        Args:
            what: In words.
            fault: Happens.
            from_its_end: Whether time counts from when it is over.
        """
        before, began = self.taken_over, time.monotonic()
        fault()
        now = time.monotonic()
        since = now if from_its_end else began
        took = now + self.stream.wait_until_back(now) - since
        by = ", the standby takes over" if self.taken_over > before else ""
        self.back[what + by].append(took)
        _say(f"{what}{by}: back after {took:.2f} s")
        return took

    def table(self) -> str:
        lines = ["what happens | times | p50, s | longest, s", "---|---|---|---"]
        lines += [
            f"{what} | {len(times)} | {statistics.median(times):.2f} | {max(times):.2f}"
            for what, times in self.back.items()
        ]
        return "\n".join(lines)


def part(hosts: Hosts, one: str, other: str) -> None:
    """Let two hosts not hear each other for a while."""
    hosts.part(one, other)
    try:
        time.sleep(PARTED_S)
    finally:
        hosts.join(one, other)


def _say(words: str) -> None:
    sys.stdout.write(f"{words}\n")
    sys.stdout.flush()


@pytest.fixture
def scene(tmp_path: Path, program: Any, daemon: Any) -> Iterator[Scene]:
    if missing := kit.missing():
        pytest.skip(f"there are no hosts: {missing}")
    hosts = Hosts(tmp_path / "network", [*DRIVERS, *WORKERS])
    if problem := hosts.delay(DELAY_MS):
        _say(f"packets take no longer than on one machine: {problem}")
    cluster = None
    try:
        cluster = Cluster(tmp_path, hosts, daemon)
        made = Scene(tmp_path, hosts, cluster, program)
        yield made
        made.stream.end()
    finally:
        if cluster is not None:
            cluster.end()
        hosts.close()


@pytest.mark.timeout(1800 + 240 * KILLS)
def test_whatever_befalls_its_hosts_a_run_has_the_outputs_of_no_fault(scene: Scene) -> None:
    hosts, cluster, stream = scene.hosts, scene.cluster, scene.stream
    stream.start(on="driver-1")
    stream.wait_until_back(time.monotonic())
    stream.wait_for_standby(STANDBY_S)
    # Both queries have tasks on both hosts: Spark spreads them.
    scene.measure("a host with tasks of both queries is killed", hosts["worker-1"].kill)
    cluster.start_worker("worker-1")
    for kind in ("kill", "switch_off"):
        for _ in range(KILLS):
            stream.wait_for_standby(STANDBY_S)
            host = scene.at_work()
            scene.measure(f"a host is {WORDS[kind]}", getattr(host, kind))
            host.switch_on()
            cluster.start_worker(host.name)
    stream.check_so_far()

    stream.wait_for_standby(STANDBY_S)
    host = scene.at_work()
    scene.measure(
        f"a host was cut off the driver for {PARTED_S} s, counted from its end",
        partial(part, hosts, "driver-1", host.name),
        from_its_end=True,
    )

    stream.wait_for_standby(STANDBY_S)
    waits = scene.standby_host()
    scene.measure("the host of the standby is killed", waits.kill)
    cluster.start_worker(waits.name, AHEAD_S)
    stream.wait_for_standby(STANDBY_S)
    host = scene.at_work()
    scene.measure(f"a host is killed; the other's clock is {AHEAD_S} s ahead", host.kill)
    cluster.start_worker(host.name)

    stream.wait_for_standby(STANDBY_S)
    stream.start(on="driver-2")
    stream.wait_for("holds the lease of", STANDBY_S)
    scene.measure("the host of the driver is killed", hosts["driver-1"].kill)
    rows = stream.finish()
    _say(f"\n{scene.table()}\n{rows} rows, none lost, none doubled")
