"""What runs a pipeline in real time is killed, paused, cut off: its outputs are those of no fault.

On a cluster of two executors, while rows flow. By default ten faults, always the same. ``make
chaos-realtime`` goes on with round after round, each with mixes and faults of its own.
"""

from __future__ import annotations

import os
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import hosts
import jvm
import pytest

from tests.spark.processes import live_faults, live_network
from tests.spark.processes.live_faults import Scene
from tests.spark.processes.live_stream import LiveStream
from tests.spark.processes.mixes import MIXES

SEED = int(os.environ.get("CHAOS_SEED", 20130832))
#: Rounds go on until so much was killed, and so much was paused; the first is finished anyway.
KILLS = int(os.environ.get("CHAOS_KILLS", 1))
PAUSES = int(os.environ.get("CHAOS_PAUSES", 0))
#: Begins no further round after so long.
MINUTES = float(os.environ.get("CHAOS_MINUTES", "inf"))
#: Faults of a round; of ten, six kill, two pause, one fills the disk, one cuts off an executor.
FAULTS = int(os.environ.get("CHAOS_FAULTS", 10))
#: The longest pause, in seconds.
LONGEST_S = float(os.environ.get("CHAOS_LONGEST", 5))
#: After so many seconds key intervals are split or merged, again and again; 0: never.
REMAPS_S = float(os.environ.get("CHAOS_REMAPS", 5))
#: The same of the number of tasks, which others take over with.
SCALES_S = float(os.environ.get("CHAOS_SCALES", 0))
#: The same of updates, by each of which a computation comes or goes.
UPDATES_S = float(os.environ.get("CHAOS_UPDATES", 0))
#: Of ten rounds, so many have a driver that waits for the lease, and its term.
LEASES = float(os.environ.get("CHAOS_LEASES", 0))
TERM = "4 s"
#: A task that does nothing for so long is ended: pauses are shorter, and longer.
HANG_LIMIT_S = 10
#: So many of the mixes are in a pipeline.
MIXED = 3
#: Of ten rounds, so many have a standby.
STANDBY = float(os.environ.get("CHAOS_STANDBY", 0.5))
#: Before so many of ten faults a standby that is not ready is waited for.
WAITED = 0.6
#: Of ten faults, so many come while the run is not back from the one before.
AMID = 0.25

CONF = {
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": jvm.OPTIONS,
    # An executor that does not answer is given up after seconds, and not after minutes.
    "spark.network.timeout": "10s",
    "spark.network.timeoutInterval": "1s",
    "spark.executor.heartbeatInterval": "1s",
}


@pytest.fixture
def scenes(tmp_path: Path, program: Any, postgres: Any) -> Iterator[Callable[..., Scene]]:
    """Make a scene, after the end of the one before it."""
    missing = hosts.missing()
    if missing:
        _say(f"no disk is filled, and nothing cut off: {missing}")
    with ExitStack() as ends:

        def make(number: int, draw: random.Random) -> Scene:
            ends.close()
            postgres.clear()
            root = tmp_path / f"round-{number}"
            root.mkdir()
            network = disk = None
            conf, environment = dict(CONF), {"PGPASSWORD": postgres.password}
            if not missing:
                disk = live_network.Disk(root / "disk")
                ends.callback(disk.close)
                network = live_network.Network(root / "network")
                ends.callback(network.close)
                conf["spark.driver.host"] = environment["SPARK_LOCAL_IP"] = network.host
                conf["spark.executorEnv.JAVA_HOME"] = str(network.java_home)
            standby = draw.random() < STANDBY
            lease = TERM if LEASES and draw.random() < LEASES else ""
            stream = LiveStream(
                root,
                program,
                # Each with the slots for half of the tasks, which are there twice with a standby,
                # and with more if others are to be started beside those that work.
                master=f"local-cluster[2,{7 if standby else 5 if SCALES_S else 4},1024]",
                conf=conf,
                options={"hang_limit": f"{HANG_LIMIT_S} s", "marks": "1 s", "standby": standby},
                remaps=REMAPS_S,
                scales=SCALES_S,
                updates=UPDATES_S,
                lease=lease,
                mixes=draw.sample(list(MIXES), MIXED),
                conninfo=f"host={postgres.passfile.parent} port={postgres.port} "
                f"user={postgres.user} dbname=postgres",
                environment=environment,
            )
            ends.callback(stream.end)
            return Scene(stream, draw, LONGEST_S, network, disk)

        yield make


class Tally:
    """What was done, and what came of it."""

    def __init__(self) -> None:
        self.done: Counter[str] = Counter()
        self.mixes: Counter[str] = Counter()
        self.back: list[float] = []
        self.rows = self.taken_over = self.scaled = self.updated = self.leases = 0

    def add(self, fault: live_faults.Fault, back_s: float | None) -> None:
        self.done[fault.__name__] += 1
        if back_s is not None:
            self.back.append(back_s)

    def of(self, kind: Any) -> int:
        return sum(self.done[fault.__name__] for fault in kind)

    def text(self) -> str:
        back = sorted(self.back)
        p50, p99 = statistics.median(back), back[min(len(back) - 1, len(back) * 99 // 100)]
        mixes = ", ".join(f"{name} {count}" for name, count in sorted(self.mixes.items()))
        return (
            f"{self.of(live_faults.KILLS)} kills, {self.of(live_faults.PAUSES)} pauses, "
            f"{self.done['fill_disk']} full disks, {self.done['cut_network']} networks cut\n"
            f"mixes: {mixes}\n"
            f"back after {p50:.1f} s (p50), {p99:.1f} s (p99); a standby took over "
            f"{self.taken_over} times\n"
            f"other tasks were asked for {self.scaled} times, {self.updated} updates were done\n"
            f"a driver that waited took over {self.leases} times\n"
            f"{self.rows} rows, none lost, none doubled\n"
        )


def _say(words: str) -> None:
    sys.stdout.write(f"{words}\n")
    sys.stdout.flush()


@pytest.mark.timeout(900 + 60 * max(KILLS, 5 * PAUSES, FAULTS))
def test_whatever_befalls_them_pipelines_have_the_outputs_of_no_fault(
    scenes: Callable[..., Scene],
) -> None:
    tally = Tally()
    deadline = time.monotonic() + 60 * MINUTES
    number = 0
    while (
        tally.of(live_faults.KILLS) < KILLS or tally.of(live_faults.PAUSES) < PAUSES
    ) and time.monotonic() < deadline:
        seed = SEED + number
        draw = random.Random(seed)
        scene = scenes(number, draw)
        names = [mix.name for mix in scene.stream.mixes]
        names_of_round = "; ".join(names)
        names_of_round += "; a standby" if scene.stream.options["standby"] else ""
        names_of_round += "; a driver that waits" if scene.stream.lease else ""
        _say(f"round {number}: {names_of_round}\n  again: {again(seed)}")
        try:
            run_round(scene, draw, tally)
        except BaseException:
            _say(f"failed: {again(seed)}")
            raise
        tally.mixes.update(names)
        number += 1
    _say(tally.text())


def again(seed: int) -> str:
    """Return the command that runs a round again."""
    return (
        f"make chaos-realtime SEED={seed} KILLS=1 PAUSES=0 FAULTS={FAULTS} "
        f"LONGEST={LONGEST_S:g} REMAPS={REMAPS_S:g} SCALES={SCALES_S:g} STANDBY={STANDBY:g} "
        f"UPDATES={UPDATES_S:g} LEASES={LEASES:g}"
    )


def run_round(scene: Scene, draw: random.Random, tally: Tally) -> None:
    """Start a pipeline, let all befall it that is drawn, and compare its outputs."""
    stream = scene.stream
    faults = live_faults.drawn(draw, FAULTS, scene.disk is not None)
    stream.start()
    stream.wait_until_back(time.monotonic())
    for n, fault in enumerate(faults, 1):
        if stream.options["standby"] and draw.random() < WAITED:
            stream.wait_for_standby()
        if stream.lease:
            stream.start_waiting()
            if draw.random() < WAITED:
                stream.wait_until_waiting()
        # Somewhere between two marks, or in one.
        time.sleep(draw.random())
        befallen = fault(scene)
        now = time.monotonic()
        amid = n < len(faults) and draw.random() < AMID
        # What is seen after now is of those that work now.
        back_s = None if amid else now + stream.wait_until_back(now) - befallen.since
        tally.add(fault, back_s)
        back = "and before it was back" if back_s is None else f"back after {back_s:.1f} s"
        _say(f"  {n}: {befallen.how}, {back}")
        if n == len(faults) // 2:
            stream.check_so_far()
    tally.rows += stream.finish()
    log = stream.log()
    assert not REMAPS_S or log.count("'Counting' has ") > 0
    assert "another incarnation has begun, after" in log
    tally.taken_over += log.count("the standby takes over")
    tally.scaled += log.count("tasks a level: ")
    tally.updated += log.count("updated: ")
    tally.leases += stream.take_overs
