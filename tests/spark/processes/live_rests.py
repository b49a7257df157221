"""A program that remaps key intervals, and keeps savepoints, of a run in real time under load.

Its cases are those of ``test_live_rests.py``.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql import SparkSession

import millrace as mr
from millrace.model.errors import MillraceError
from millrace.model.keys import encode_key, hash_key
from millrace.spark.asks import RemapAsked, ask
from millrace.store import open_location
from tests.spark.processes.live_pipeline import Counting
from tests.spark.processes.live_program import Case


class Load:
    """Rows that come all the time, until it is left."""

    def __init__(self, case: Case, rows: int) -> None:
        self._case = case
        self._rows = rows
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._feed)

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _feed(self) -> None:
        while not self._over.wait(0.02):
            self._rows += 10
            self._case.input.allow(self._rows)


def refusal(act: Any) -> str:
    """Return how something is refused."""
    try:
        act()
    except MillraceError as error:
        return f"{type(error).__name__}: {error}"
    return "not refused"


def rested(case: Case) -> dict[str, Any]:
    """Remap and keep savepoints under load."""
    checkpoint = str(case.folder / "checkpoint")
    mailbox = open_location(checkpoint, pipeline="numbers").mailbox
    run = case.start(realtime=True, intervals=4)
    case.input.allow(500)
    assert run.process_available("90 s")

    def asked(what: str, about: str) -> list[Any]:
        answer = ask(mailbox, what, run._run.run_log.generation, about=about, timeout_s=120)
        return ["no answer"] if answer is None else [answer.done, answer.text]

    def intervals(name: str) -> list[int]:
        return [one.id for one in mr.ops.open_checkpoint(checkpoint)[name].intervals]

    def processes() -> list[Any]:
        return [
            [where, hello.pid]
            for where, hello in sorted(run._run.engine._control_loop._hosts.items())
        ]

    found: dict[str, Any] = {}
    queries = {run.query.id}
    found["processes"] = [processes()]
    with Load(case, 500):
        found["remapped"] = run.remap("Counting", [mr.ops.Split(0), mr.ops.Merge(2, 3)])
        found["intervals"] = intervals("Counting")
        about = msgspec.json.encode(RemapAsked("Passing", [(1, None)])).decode()
        found["asked"] = asked("remap", about)
        found["refused"] = refusal(lambda: run.remap("Counting", [mr.ops.Split(0)]))
        found["epoch"] = run.savepoint("before")
        found["twice"] = refusal(lambda: run.savepoint("before"))
        found["kept"] = asked("savepoint", "asked")
        found["snapshot"] = run.snapshot()
        found["processes"].append(processes())
        found["queries"] = len(queries | {run.query.id})
    assert run.process_available("90 s")
    found["counts"] = case.counts()
    found["rows before"] = case.input.allowed()
    with Load(case, found["rows before"]):
        found |= killed(run)
    assert run.process_available("90 s")
    found["counts after it"] = case.counts()
    found["rows since"] = case.input.allowed() - found["rows before"]
    found["state"] = run.status().state
    run.stop()
    found["stopped"] = mr.ops.remap_checkpoint(checkpoint, "Counting", [mr.ops.Split(1)])
    found["over"] = refusal(lambda: run.remap("Passing", [mr.ops.Split(0)]))
    found["savepoints"] = sorted(mr.ops.savepoints(checkpoint))
    for name in found["savepoints"]:
        kept = mr.ops.open_checkpoint(f"{checkpoint}/savepoints/{name}")
        counted = sum(one.cells["count"] for one in kept["Counting"].scan())
        found[f"in {name}"] = [counted, kept.overview.streams["numbers"].injected]
    return found


def killed(run: Any) -> dict[str, Any]:
    """Kill a worker process while all rest, and let the run go on when it knows of that."""
    done = []

    def kill() -> int:
        host = run._run.engine._control_loop._hosts[1, 0]
        done.append(os.kill(host.pid, signal.SIGKILL))
        while run._run.engine._control_loop._hosts.get((1, 0)) is host:
            time.sleep(0.01)
        return len(done)

    times, took = run._run.engine._quiesce.ask(kill)
    return {"done at a rest": times, "took": took}


class Skewed(Counting):
    """Takes long for some keys, which are neighbours: all in the first half of the hashes."""

    def process_record(self, record: mr.Record) -> None:
        if hash_key(encode_key(self.key)) < 1 << 63:
            time.sleep(0.0005)
        super().process_record(record)


def balanced(case: Case) -> dict[str, Any]:
    """Let key intervals follow a load that is one task's at first."""
    checkpoint = str(case.folder / "checkpoint")
    how = mr.ops.Balance(above=1.1, intervals=8)
    options: dict[str, Any] = {"realtime": True, "marks": "500 ms", "intervals": 4, "balance": how}
    run = case.start(case.pipeline(Skewed()), **options)
    case.input.allow(500)
    assert run.process_available("90 s")
    before, query = mr.ops.open_checkpoint(checkpoint)["Counting"].intervals, run.query.id
    # The rest at which intervals are split is short, and the next one half a minute away.
    control_loop = run._run.engine._control_loop
    incarnation = control_loop.incarnation
    until = time.monotonic() + 60
    with Load(case, 500):
        while time.monotonic() < until and not run._run.engine._balancer._balancer.splits:
            time.sleep(0.1)
        while time.monotonic() < until and control_loop.incarnation in (None, incarnation):
            time.sleep(0.1)
    assert run.process_available("90 s")
    load = run.status().load["Counting"]
    found = {
        "splits": run._run.engine._balancer._balancer.splits,
        "load": [load.busiest > 0, load.seconds > 0],
        "moved": mr.ops.open_checkpoint(checkpoint)["Counting"].intervals != before,
        "the same query": run.query.id == query,
        "counts": case.counts(),
    }
    run.stop()
    return found


def ended(case: Case) -> dict[str, Any]:
    """Have Spark's batch, the run and the input end while all rest."""
    found: dict[str, Any] = {}
    run = case.start(realtime=True, marks="500 ms", spark_batch="1 s")
    query, rows = run.query.id, case.input.allowed()
    for n in (1, 2):
        case.input.allow(rows + 100 * n)
        assert run.process_available("90 s")
        # Longer than a batch of Spark is.
        found["batch"] = run._run.engine._quiesce.ask(lambda: time.sleep(1.5))[1]
    found["after batches"] = [case.counts(), run.query.id == query]

    stopping = threading.Thread(target=run.stop)

    def stop() -> int:
        stopping.start()
        while not run._run.engine._giving_up:
            time.sleep(0.01)
        return 7

    found["stopped"] = run._run.engine._quiesce.ask(stop)
    stopping.join()
    found["state"] = run.status().state
    run = case.start(realtime=True, marks="500 ms")
    case.input.allow(rows + 300)
    assert run.process_available("90 s")
    run._run.engine._quiesce.ask(lambda: run._run.engine._control_loop.end(draining=True))
    found["drained"] = [run.wait("60 s"), run.status().state, case.counts()]
    return found


def again(case: Case, savepoint: str, rows: int) -> dict[str, Any]:
    """Go on from a savepoint, with what came since."""
    checkpoint = str(case.folder / "checkpoint")
    mr.ops.copy_checkpoint(savepoint, checkpoint)
    case.input.allow(rows)
    run = case.start(realtime=True)
    done = run.process_available("90 s")
    run.stop()
    counts = {
        one.key: one.cells["count"] for one in mr.ops.open_checkpoint(checkpoint)["Counting"].scan()
    }
    return {"done": done, "counts": sorted(counts.values())}


def main(spark: SparkSession, root: Path) -> dict[str, Any]:
    case = Case(spark, root, "rested")
    found = rested(case)
    rows = case.input.allowed()
    savepoint = str(case.folder / "checkpoint" / "savepoints" / "before")
    found["again"] = again(Case(spark, root, "again"), savepoint, rows)
    found["rows"] = rows
    case = Case(spark, root, "balanced")
    found["balanced"] = balanced(case)
    found["ended"] = ended(case)
    return found
