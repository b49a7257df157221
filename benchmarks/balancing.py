"""What a balancer does with 500,000 key intervals and 10,000 tasks, and when machines are lost.

A simulation with a balancer of single intervals (``benchmarks/owners.py``), the real maps and
authority.
Loads and sizes of intervals are drawn from log-normal laws, and loads wander; a tenth of a percent
of the intervals have a task's share of load each, half of it of one key. Three phases: from equal
counts of intervals a task to an even load; then 1 % of the machines, ten tasks each, are lost for
an hour; then they are back. Between two rounds every interval that has an owner reports; what a
lost task owned pins the low watermark until its new owner reports.

It checks in each round that the low watermark never moves back, and never passes what an interval
has not done yet, nor a hole between parents that are gone and children that have not reported.

It is a simulation: what moving an interval costs is in its bytes, and nobody waits for a disk.

Run it with ``python -m benchmarks.balancing``; it needs no Spark and takes some minutes.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.table import Table

import millrace as mr
from benchmarks.machine import describe
from benchmarks.owners import Move, OwnerBalance, balance, carried_out
from millrace.balance.policy import Weight
from millrace.watermark.authority import Authority
from millrace.watermark.intervals import IntervalMap, KeyInterval
from millrace.watermark.report import Report

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_TASKS_A_MACHINE = 10
_BYTES = 10 << 20
#: A hot interval has about a task's share of load, and a key of it so much of that.
_HOT_LOAD, _HOT_SHARE = 100.0, 0.5


@dataclass(frozen=True)
class Round:
    """One round.

    Attributes:
        phase: What has happened.
        minute: When, from the beginning of all.
        tasks: That there are.
        intervals: After it.
        worst: Load of the task with the most before it, in shares of a task.
        idle: Load of the task with the least, likewise.
        moves: Of intervals whose owner was there.
        given: Of intervals whose owner was gone.
        splits: Likewise.
        merges: Likewise.
        bytes: Of state that got another owner.
        behind_s: How far the low watermark was behind before it.
        balancer_s: CPU time of the balancer and the new map.
        authority_s: CPU time of the authority, with reports of all.
    """

    phase: str
    minute: int
    tasks: int
    intervals: int
    worst: float
    idle: float
    moves: int
    given: int
    splits: int
    merges: int
    bytes: int
    behind_s: float
    balancer_s: float
    authority_s: float


class Cluster:
    """Intervals, their load and state, and who owns them."""

    def __init__(self, intervals: int, tasks: int, minutes: int, seed: int) -> None:
        self._drawn = np.random.default_rng(seed)
        step = (1 << 64) // intervals
        ids = range(intervals)
        self._map = IntervalMap(
            [
                KeyInterval(n, n * step, (n + 1) * step if n + 1 < intervals else 1 << 64)
                for n in ids
            ]
        )
        self._owners = {n: n * tasks // intervals for n in ids}
        self._base = self._drawn.normal(0.0, 1.0, intervals)
        self._bytes = _BYTES * self._drawn.lognormal(0.0, 0.5, intervals)
        hot = self._drawn.choice(intervals, intervals // 1_000, replace=False).tolist()
        self._base[hot] = math.log(_HOT_LOAD)
        self._load = self._base.copy()
        self._hot = {n: (n * step + step // 3, _HOT_SHARE) for n in hot}
        self.tasks = list(range(tasks))
        self._how = OwnerBalance(
            moves=intervals // 200, splits=intervals // 200, intervals=intervals
        )
        self._next_id = intervals
        self._minutes, self._now = minutes, 0
        self._authority = Authority(_topology())
        self._authority.cover("Count", ids)
        self._done = dict.fromkeys(ids, 0)  # interval -> up to when its work is done, in us
        self._published = mr.MIN_TIMESTAMP

    def round(self, phase: str) -> Round:
        """Let a round's time pass, then balance."""
        self._now += self._minutes
        authority_s, low_watermark = self._report()
        weights = self._weights()
        by_task = dict.fromkeys(self.tasks, 0.0)
        for interval, task in self._owners.items():
            if task in by_task:
                by_task[task] += weights[interval].load
        share = sum(weight.load for weight in weights.values()) / len(by_task)
        began = time.process_time()
        asked = balance(
            self._map, self._owners, weights, self.tasks, self._how, self._bytes.astype(np.int64)
        )
        made, owners = carried_out(self._map, self._owners, asked.remaps, first_id=self._next_id)
        balancer_s = time.process_time() - began
        moved = [one.interval for one in asked.remaps if isinstance(one, Move)]
        given = [n for n in moved if self._owners[n] not in by_task]
        kinds = Counter(type(one).__name__ for one in asked.remaps)
        self._take(made.intervals, made.parents)
        self._owners = owners
        return Round(
            phase, self._now, len(self.tasks), len(self._map), max(by_task.values()) / share,
            min(by_task.values()) / share, len(moved) - len(given), len(given), kinds["Split"],
            kinds["Merge"], int(self._bytes[moved].sum()),
            (self._now * mr.MINUTE - low_watermark) / mr.SECOND, balancer_s, authority_s,
        )  # fmt: skip

    def _report(self) -> tuple[float, int]:
        """Have all that have an owner report; return CPU seconds, and the low watermark."""
        now_us, there = self._now * mr.MINUTE, set(self.tasks)
        late = self._drawn.integers(0, 10 * mr.SECOND, len(self._owners)).tolist()
        reports = {}
        for (interval, task), behind_us in zip(self._owners.items(), late, strict=True):
            if task in there:
                self._done[interval] = now_us - behind_us
                reports[interval] = Report(now_us - behind_us)
        began = time.process_time()
        after = self._authority.advance({"events": now_us}, {"Count": reports}, (1, self._now))
        spent = time.process_time() - began
        return spent, self._check(after.outputs["Count"])

    def _check(self, shown: int) -> int:
        assert self._published <= shown <= min(self._done.values()), "the low watermark leads"
        self._published = shown
        return shown

    def _take(self, intervals: IntervalMap, parents: dict[int, tuple[int, ...]]) -> None:
        """Take another map: children have their parents' work, and report it when they have run."""
        size = self._next_id + len(parents)
        grown = [np.resize(old, size) for old in (self._base, self._load, self._bytes)]
        self._base, self._load, self._bytes = grown
        pieces = Counter(of for of in parents.values())
        for child, of in parents.items():
            share = 1.0 / pieces[of]
            if len(of) == 1 and of[0] in self._hot:
                at, hot = self._hot[of[0]]
                one = intervals.intervals[intervals.places[child]]
                inside = one.start <= at < one.end
                rest = 0.0 if one.end - one.start == 1 else (1.0 - hot) / 2
                share = rest + (hot if inside else 0.0)
                if inside:
                    self._hot[child] = at, hot / share
            self._base[child] = math.log(
                max(1e-9, share * sum(math.exp(self._base[n]) for n in of))
            )
            self._load[child] = math.log(
                max(1e-9, share * sum(math.exp(self._load[n]) for n in of))
            )
            self._bytes[child] = share * sum(self._bytes[n] for n in of)
            self._done[child] = min(self._done[n] for n in of)
        for of in set(parents.values()):
            for n in of:
                self._done.pop(n)
                self._hot.pop(n, None)
        self._next_id, self._map = size, intervals
        if parents:
            self._authority.cover("Count", (one.id for one in intervals.intervals))
            # Children have not reported: whatever the injector says, nothing new may be shown.
            ahead = self._now * mr.MINUTE + 1
            after = self._authority.advance({"events": ahead}, {}, (1, self._now))
            assert after.outputs["Count"] == self._published, "the low watermark passes a hole"

    def _weights(self) -> dict[int, Weight]:
        """Return what intervals cost; it wanders."""
        noise = self._drawn.normal(0.0, 0.1, len(self._load))
        self._load = self._base + 0.9 * (self._load - self._base) + noise
        loads = np.exp(self._load).tolist()
        return {
            n: Weight(loads[n], (self._hot[n],) if n in self._hot else ()) for n in self._owners
        }


def simulated(intervals: int, tasks: int, minutes: int, seed: int = 7) -> list[Round]:
    """Return the rounds of all three phases, one each so many minutes."""
    cluster = Cluster(intervals, tasks, minutes, seed)
    rounds = []
    every = list(cluster.tasks)
    machines = max(1, tasks // _TASKS_A_MACHINE // 100)
    lost = np.random.default_rng(seed).choice(tasks // _TASKS_A_MACHINE, machines, replace=False)
    for phase, length in (("settling", 30), ("1 % of machines lost", 60), ("back", 30)):
        gone = set(lost.tolist()) if "lost" in phase else set()
        cluster.tasks = [task for task in every if task // _TASKS_A_MACHINE not in gone]
        for _ in range(length // minutes):
            rounds.append(cluster.round(phase))
            print(rounds[-1], flush=True)
    return rounds


def main() -> None:
    """Simulate, print a table, write results and a picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--intervals", type=int, default=500_000)
    parser.add_argument("--tasks", type=int, default=10_000)
    parser.add_argument("--minutes", type=int, default=5, help="between two rounds")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    machine = describe()
    rounds = simulated(arguments.intervals, arguments.tasks, arguments.minutes)
    Console(width=150).print(_table(rounds))
    started = dt.datetime.fromisoformat(machine["at"])
    named = Path(__file__).parent / "results" / f"balancing-{started:%Y-%m-%d-%H%M}.json"
    results: dict[str, Any] = {"benchmark": "balancing", "machine": machine}
    results["rounds"] = [asdict(one) for one in rounds]
    out = arguments.out or named
    out.write_text(json.dumps(results, indent=1) + "\n")
    _picture(rounds).savefig(out.with_suffix(".png"), dpi=110)


def _table(rounds: Sequence[Round]) -> Table:
    table = Table(
        "minute", "phase", "intervals", "most", "least", "given", "moves", "splits", "merges",
        "GB moved", "behind", "balancer", "authority",
    )  # fmt: skip
    for one in rounds:
        table.add_row(
            f"{one.minute}", one.phase, f"{one.intervals:,}", f"{one.worst:.2f}", f"{one.idle:.2f}",
            f"{one.given:,}", f"{one.moves:,}", f"{one.splits:,}", f"{one.merges:,}",
            f"{one.bytes / 1e9:.1f}", f"{one.behind_s:.0f} s", f"{one.balancer_s:.1f} s",
            f"{one.authority_s:.1f} s",
        )  # fmt: skip
    return table


def _picture(rounds: Sequence[Round]) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 6.5), layout="constrained")
    load, moves, behind = figure.subplots(3, sharex=True)
    minutes = [one.minute for one in rounds]
    load.plot(minutes, [one.worst for one in rounds], marker=".", label="busiest task")
    load.plot(minutes, [one.idle for one in rounds], marker=".", label="idlest task")
    load.axhline(1.25, color="grey", linewidth=0.8, linestyle=":", label="nothing is done below")
    load.set_ylabel("load, in shares")
    load.set_ylim(0, 1.3 * max(one.worst for one in rounds))
    load.legend(loc="upper center", ncols=4)
    width = 0.8 * (minutes[1] - minutes[0])
    below = np.zeros(len(rounds))
    for name, counts in (
        ("given away", [one.given for one in rounds]),
        ("moves", [one.moves for one in rounds]),
        ("splits", [one.splits for one in rounds]),
        ("merges", [one.merges for one in rounds]),
    ):
        moves.bar(minutes, counts, width, bottom=below, label=name)
        below += counts
    moves.set_ylabel("remaps a round")
    moves.legend(loc="upper center", ncols=4)
    behind.plot(minutes, [one.behind_s for one in rounds], marker=".")
    behind.set_ylabel("low watermark\nbehind, s")
    behind.set_ylim(bottom=0)
    behind.set_xlabel("minutes")
    for axes in (load, moves, behind):
        for before, one in pairwise(rounds):
            if one.phase != before.phase:
                middle = (before.minute + one.minute) / 2
                axes.axvline(middle, color="black", linewidth=0.8)
                if axes is load:
                    axes.text(middle, 0.05, f" {one.phase}", va="bottom")
    tasks, intervals = rounds[0].tasks, rounds[0].intervals
    figure.suptitle(f"{intervals:,} key intervals, {tasks:,} tasks, 1 % of machines lost an hour")
    return figure


def _topology() -> Any:
    class Count(mr.Computation):
        inputs = {"events": mr.by_key()}

        def process_record(self, record: mr.Record) -> None:
            """Do nothing."""

    p = mr.Pipeline("balancing")
    p.inject("events")
    p.add(Count)
    return p.build()


if __name__ == "__main__":
    main()
