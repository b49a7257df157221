"""The year of `evolution` on Spark, each version taking over from one at work, with real kills."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import pytest

import millrace as mr
from millrace_examples.zeitgeist import evolution, evolving, flights
from millrace_examples.zeitgeist.pipeline import build
from millrace_examples.zeitgeist.records import Anomaly, Departure

SEED = 20130701

#: `make evolution`: all routes, killed so often on the way.
KILLS = int(os.environ.get("EVOLUTION_KILLS", 0))

#: Small routes: those had episodes before July, after it, or over it.
ROUTES = ("EWR-ALB", "EWR-BDL", "EWR-CMH", "EWR-PVD", "EWR-ROC", "LGA-BTV", "LGA-CVG", "LGA-ORF")

MODULE = "millrace_examples.zeitgeist.evolving"


class Year:
    """The program of the year, in processes one after the other, and what was found."""

    def __init__(self, program: Callable[..., Any], out: Path) -> None:
        self._program = program
        self._out = out
        self._processes: list[Any] = []
        there = flights.arrivals(flights.read_scheduled())
        if not KILLS:
            there = there[(there["origin"] + "-" + there["destination"]).isin(ROUTES)]
        self.files = evolving.prepare(there, out, days=evolving.DAYS if KILLS else 14)

    def start(self, checkpoint: str, cores: int) -> Any:
        self._processes.append(
            self._program(
                MODULE, self._out, "--checkpoint", str(self.at(checkpoint)),
                "--cores", str(cores), "--intervals", "4",
                log=f"log-{len(self._processes)}",
            )
        )  # fmt: skip
        return self._processes[-1]

    def at(self, checkpoint: str) -> Path:
        return self._out / checkpoint

    def end(self) -> None:
        for process in self._processes:
            process.end()

    def wait_for(self, process: Any, words: str, checkpoint: str, more: int) -> None:
        """Wait until it has said that, and has begun or ended so many epochs since; or it ended."""
        log = self.at(checkpoint) / "epochs"
        deadline = time.monotonic() + 300
        wanted: int | None = None

        def newest() -> int:
            return max((int(file.stem) for file in log.glob("*.json")), default=0)

        while process.alive() and (wanted is None or newest() < wanted):
            assert time.monotonic() < deadline, process.output()
            if wanted is None and words in process.output():
                wanted = newest() + more
            time.sleep(0.005)

    def through(self, checkpoint: str, cores: int, kills: list[str], draw: random.Random) -> Any:
        """Run, killed on the way; return the process, at work or, after the year, ended."""
        process = self.start(checkpoint, cores)
        for how in kills:
            self.wait_for(process, "runs", checkpoint, draw.randrange(3, 12))
            # Somewhere within the epoch, or the update, that is under way.
            time.sleep(draw.random() * 0.4)
            _kill(process, how)
            if not process.alive():
                process = self.start(checkpoint, cores)
        return process

    def found(self, stream: str, copied: int) -> pd.DataFrame:
        """Return a sink's rows: of the first checkpoint until its copy was made, then of that."""
        parts = []
        for checkpoint in ("first", "copy"):
            for folder in (self._out / "found" / checkpoint / stream).glob("epoch=*"):
                epoch = int(folder.name.partition("=")[2])
                if (epoch <= copied) == (checkpoint == "first"):
                    parts += [pd.read_parquet(file) for file in folder.glob("*.parquet")]
        return pd.concat(parts, ignore_index=True)

    def time_of(self, month: str) -> int:
        """Return by when, in event time, the version of a month has taken over at the latest."""
        before = [file for file in self.files if file.stem < f"departed-2013-{month}-01"]
        return int(pd.read_parquet(self.files[len(before)])["departed"].max().value) // 1000


def _kill(process: Any, how: str) -> None:
    if how == "driver":
        process.end()
        return
    words = {"JVM": ["java"], "python": ["pyspark", "daemon"]}[how]
    for pid in process.find(*words):
        os.kill(pid, signal.SIGKILL)
    if how == "JVM":
        process.process.wait(60)


def _us(day: str) -> int:
    return int(pd.Timestamp(day, tz="UTC").value) // 1000


@pytest.fixture
def year(program: Callable[..., Any], tmp_path: Path) -> Iterator[Year]:
    made = Year(program, tmp_path)
    yield made
    made.end()


def test_a_year_of_versions_finds_what_the_final_code_finds(year: Year) -> None:
    draw = random.Random(SEED)
    kills = ["python", "JVM", "driver"]

    # One core and four key intervals, until Spark is killed in the middle of April's version.
    first = year.through("first", 1, ["python"] if not KILLS else draw.choices(kills, k=1), draw)
    year.wait_for(first, "april runs", "first", draw.randrange(1, 4))
    _kill(first, "JVM")
    assert first.process.returncode == 1
    assert "Error" in first.output()
    mr.ops.copy_checkpoint(year.at("first"), year.at("copy"), intervals=16)
    copied = mr.ops.open_checkpoint(str(year.at("copy"))).epoch
    last = year.through("copy", 2, draw.choices(kills, k=KILLS), draw)
    assert last.process.wait(900) == 0, last.output()
    assert "july runs" in last.output()

    final = _final_code(year)
    expected = final.comparable(final.anomalies)
    rows = year.found("anomalies", copied).to_dict("records")
    found = [Anomaly(**{name: row[name] for name in Anomaly.__struct_fields__}) for row in rows]
    assert final.comparable(found) == expected
    assert len(final.anomalies) > len(expected) >= 5
    # Each day of the tally is there once, across updates, kills and the copy.
    tallies = year.found("tallies", copied)
    assert not tallies.duplicated(["key", "bucket"]).any()
    whole = range(year.time_of("03") + mr.DAY, _us("2013-05-30"))
    counted = {
        (row.key, row.bucket): row.n
        for row in tallies.rename(columns={"count": "n"}).itertuples()
        if row.bucket in whole
    }
    assert counted == {at: n for at, n in final.tallies.items() if at[1] in whole}
    assert len(counted) > 400


class Final(NamedTuple):
    """What the final code finds that runs from the start.

    Attributes:
        anomalies: All of them.
        tallies: What a tally from the start would have said.
        heard: From when on a detector can judge a key that is there since July.
    """

    anomalies: list[Anomaly]
    tallies: Counter[tuple[str, int]]
    heard: dict[str, int]

    def comparable(self, anomalies: list[Anomaly]) -> list[Anomaly]:
        """Return, in order, those that July's detectors must have found."""
        found = [one for one in anomalies if one.start >= self.heard.get(one.key, 2**62)]
        return sorted(found, key=lambda one: (one.start, one.key, one.kind))


def _final_code(year: Year) -> Final:
    since = year.time_of("07")
    tallies, heard = Counter[tuple[str, int]](), dict[str, int]()
    with mr.testing.Harness(build(), publish=True) as h:
        for file in year.files:
            departures = []
            for row in pd.read_parquet(file).itertuples():
                at = int(row.scheduled.value) // 1000
                for key in row.origin, f"{row.origin}-{row.destination}":
                    departures.append((Departure(key), at))
            h.inject("departures", departures)
        h.advance_watermark("departures", mr.MAX_TIMESTAMP)
        for count in (output.value for output in h.outputs("counts")):
            tallies[count.key, count.bucket - count.bucket % mr.DAY] += count.count
        for prediction in (o.value for o in h.outputs("models") if o.timestamp >= since):
            first = heard.get(prediction.key, 2**62)
            heard[prediction.key] = max(min(prediction.bucket, first), since + evolution.BLIND_US)
        return Final([output.value for output in h.outputs("anomalies")], tallies, heard)
