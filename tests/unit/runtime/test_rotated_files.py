"""Rotated logs in real time: each line once, whatever is renamed, and whenever tasks die."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import millrace as mr
from millrace.injectors.follower import Polling
from tests.live import InEpochs, Kept, Live


class Logs(mr.sources.Files):
    """Files that are looked at whenever a task has a turn."""

    def follow(self, places: Mapping[str, Any], *, most: int = 100_000) -> Polling:
        return Polling(self, places, most=most, clock=itertools.count().__next__)


class Counted(mr.Computation):
    inputs = {"lines": mr.by(lambda value: value["n"] % 3)}
    outputs = {"seen": int}

    def process_record(self, record: mr.Record) -> None:
        self.produce("seen", record.value["n"])


class Log:
    """A log file, of which lines are written; its time is that of the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.now_s = 1_000_000
        self.written = 0

    def write(self, name: str, count: int) -> None:
        self.now_s += 1
        with (self.folder / name).open("a") as file:
            for _ in range(count):
                file.write(json.dumps({"n": self.written, "at": self.written}) + "\n")
                self.written += 1
        os.utime(self.folder / name, (self.now_s, self.now_s))

    def rotate(self) -> None:
        for n in (2, 1):
            if (self.folder / f"app.log.{n}").exists():
                (self.folder / f"app.log.{n}").rename(self.folder / f"app.log.{n + 1}")
        (self.folder / "app.log").rename(self.folder / "app.log.1")


@pytest.mark.parametrize("pattern", ["*", "*.log"])
@pytest.mark.parametrize("plane", ["real time", "then epochs"])
def test_each_line_of_a_rotated_log_is_read_once(tmp_path: Path, pattern: str, plane: str) -> None:
    log, kept, p = Log(tmp_path), Kept(), mr.Pipeline("logs")
    files = Logs(
        tmp_path,
        schema="n long, at long",
        pattern=pattern,
        grows="10 s",
        rotated=True,
        clock=lambda: log.now_s * mr.SECOND,
    )
    p.inject("lines", files, timestamp="at")
    p.add(Counted)
    p.sink("seen", kept)
    live = Live(p)
    log.write("app.log", 5)
    live.boot()
    live.plane.settle(live.clock_us)
    for round_ in range(4):
        log.write("app.log", 2)
        log.rotate()
        if round_ == 1:
            live.boot()  # all tasks die; what was read since the mark is read again, renamed
        log.write("app.log", 3)
        live.plane.settle(live.clock_us)
        log.write("app.log.1", 1)
        live.plane.settle(live.clock_us)
        if round_ == 2:
            live.plane.mark(live.clock_us)
    log.now_s += 100
    if plane == "real time":
        live.finish()
        assert live.coordinator.ended
    else:
        live.plane.settle(live.clock_us)
        live.plane.end(live.clock_us)
        log.write("app.log", 4)
        log.rotate()
        log.write("app.log", 4)
        log.now_s += 100
        InEpochs(live).run(live.clock_us, draining=True)
    assert sorted(int(row["value"]) for row in kept.rows) == list(range(log.written))
