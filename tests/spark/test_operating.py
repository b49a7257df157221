"""A stuck key, a hot key, a late feed and a crashing record in one run: found and mended.

By what an operator has: the command line, Prometheus and the dashboard. None of it stops the run.
With ``PICTURES=docs/pictures`` it takes those of docs/how-to/find-what-is-stuck.md and
dead-letters.md, which needs Chromium.
"""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families

import millrace as mr
from millrace.cli.main import main

AIRPORTS = [f"A{n:02}" for n in range(40)]


class Check(mr.Computation):
    """Lets flights pass; of some delays it hangs, or its process dies."""

    inputs = {"flights": mr.by("flight")}
    outputs = {"delays": dict}

    def process_record(self, record: mr.Record) -> None:
        if record.value["delay"] == 404:
            ask_gate()
        if record.value["delay"] == 500:
            os.kill(os.getpid(), signal.SIGSEGV)
        self.produce("delays", {"airport": record.value["airport"], "delay": record.value["delay"]})


def ask_gate() -> None:
    while True:
        time.sleep(1)  # it waits for an answer that does not come


class Spread(mr.CombineFn):
    """How far the delays of an airport are apart; nothing that is combined before the shuffle."""

    accumulator = tuple[int, int]

    def create(self) -> tuple[int, int]:
        return 10**9, -(10**9)

    def add(self, accumulator: tuple[int, int], value: int) -> tuple[int, int]:
        return min(accumulator[0], value), max(accumulator[1], value)

    def merge(self, accumulator: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
        return min(accumulator[0], other[0]), max(accumulator[1], other[1])

    def extract(self, accumulator: tuple[int, int]) -> int:
        return accumulator[1] - accumulator[0]


class Operator:
    """Who has a shell, a browser and Prometheus, and nothing else of the run."""

    def __init__(self, checkpoint: str, metrics: int, dashboard: str) -> None:
        self._checkpoint = checkpoint
        self._metrics = metrics
        self._dashboard = dashboard

    def shell(self, command: str, *arguments: str) -> str:
        """Return what ``millrace COMMAND CHECKPOINT ...`` says."""
        given = CliRunner().invoke(main, [command, self._checkpoint, *arguments])
        assert given.exit_code == 0, given.output
        return given.output

    def metric(self, name: str, of: str = "") -> float:
        """Return a metric of the run, or of a computation or stream; 0 if it has none."""
        try:
            url = f"http://127.0.0.1:{self._metrics}/metrics"
            with urllib.request.urlopen(url, timeout=60) as answer:
                families = text_string_to_metric_families(answer.read().decode())
        except urllib.error.URLError:
            return 0.0  # between two runs
        samples = [sample for family in families for sample in family.samples]
        return next(
            (
                sample.value
                for sample in samples
                if sample.name == f"millrace_{name}" and of in {"", *sample.labels.values()}
            ),
            0.0,
        )

    def page(self) -> dict[str, Any]:
        """Return what the dashboard shows."""
        with urllib.request.urlopen(f"{self._dashboard}api/now", timeout=60) as answer:
            shown: dict[str, Any] = json.load(answer)
        return shown

    def wait(self, reached: Callable[[], Any]) -> None:
        """Look again and again, for two minutes at the most."""
        until = time.monotonic() + 120
        while not reached():
            assert time.monotonic() < until, f"{self.page()}\n{self.shell('status')}"
            threading.Event().wait(0.2)

    def picture(self, name: str, part: str) -> None:
        """Take a part of the dashboard, in Chromium, if pictures are asked for."""
        if folder := os.environ.get("PICTURES"):
            _picture(self._dashboard, part, Path(folder) / f"{name}.png")


@pytest.mark.timeout(400)
def test_four_faults_are_found_and_mended_while_the_run_goes_on(
    tools: Any, caplog: pytest.LogCaptureFixture
) -> None:
    feed = tools.feed("flight long, airport string, delay long, feed string, at long")
    spans, in_parts, rejects = tools.Kept(), tools.Kept(), tools.Kept()
    draw, base = random.Random(11), time.time_ns() // 1000 // mr.MINUTE * mr.MINUTE - 20 * mr.MINUTE
    flights = iter(range(10**6))

    def pipeline(*, parts: bool = False) -> mr.Pipeline:
        p = mr.Pipeline("flights")
        p.inject(
            "flights", feed.stream, timestamp="at", low_watermark=mr.BoundedDelay("5 s"),
            process="feed", expected=["east", "west"],
        )  # fmt: skip
        p.add(Check)
        windows = p.stream("delays").key_by("airport").window(mr.FixedWindows("5 min"))
        windows.aggregate(Spread(), "delay").to("spans")
        p.sink("spans", spans)
        if parts:
            p.drain("spans")
            windows.aggregate(Spread(), "delay", fanout=4).to("spans in parts")
            p.sink("spans in parts", in_parts)
        p.dead_letter("rejects")
        p.sink("rejects", rejects)
        return p

    def fly(feeds: str, seconds: range, *, count: int = 3, delay: int | None = None) -> None:
        rows = []
        for second in seconds:
            for _ in range(count):
                airport = "JFK" if draw.random() < 0.6 else draw.choice(AIRPORTS)
                late = draw.randrange(60) if delay is None else delay
                for name in feeds.split():
                    rows.append((next(flights), airport, late, name, base + second * mr.SECOND))
        feed.add(*rows)

    run = tools.start(
        pipeline(), clock=lambda: time.time_ns() // 1000, metrics=_free_port(), stuck_after="1 s",
        time_limit="10 s",
    )  # fmt: skip
    dashboard = run.dashboard()
    operator = Operator(tools.checkpoint, run.metrics_port, dashboard.url)
    generation = run.status().generation

    # A feed is late: the other goes on for ten minutes.
    fly("east west", range(60))
    fly("east", range(60, 660))
    lag, status = "low_watermark_lag_seconds", operator.page
    operator.wait(lambda: operator.metric(lag, "spans") > 500)
    operator.wait(lambda: "'west'" in str(status()["culprit"]))
    assert "stream 'flights', process 'west'" in operator.shell("explain-watermark")
    operator.picture("operating-late-feed", "graph")
    fly("west", range(60, 660))
    operator.wait(lambda: operator.metric(lag, "spans") < 30)

    # A key is hot.
    operator.wait(lambda: operator.metric("hottest_key_ratio", "spans") > 0.4)
    assert "JFK" in operator.shell("status").partition("hottest key")[2]
    operator.wait(lambda: [one["key"] for one in status()["hot"]][:1] == ["JFK"])
    operator.picture("operating-hot-key", "hot")
    run._starter.load = lambda _: pipeline(parts=True)
    said = CliRunner().invoke(main, ["update", "flights.py:parts", tools.checkpoint])
    assert (said.exit_code, "has taken over" in said.output) == (0, True), said.output
    fly("east west", range(660, 960), count=5)
    operator.wait(lambda: 0 < operator.metric("hottest_key_ratio", "spans in parts.parts") < 0.3)

    # A call hangs; it is ended at its limit, and its flight is set aside.
    fly("east", range(960, 961), count=1, delay=404)
    operator.wait(lambda: operator.metric("stuck_calls", "Check") == 1)
    operator.wait(lambda: ["in ask_gate" in one["stack"] for one in status()["stuck"]] == [True])
    assert "Check, key " in operator.shell("status").partition("stuck")[2]
    operator.wait(lambda: operator.metric("dead_letters_total", "Check") == 1)

    # A record ends its process: it is found in the last attempt, and set aside.
    with caplog.at_level(logging.WARNING, "millrace"):
        fly("east", range(961, 962), count=1, delay=500)
        operator.wait(lambda: operator.metric("dead_letters_total", "Check") == 2)
    assert "a worker process died" in caplog.text
    operator.picture("operating-dead-letter", "tiles")

    # All else went its way, in the one process that was started; the update was its second run.
    fly("east west", range(962, 1300))
    tools.step(run)
    assert run.status().generation == generation + 1
    records = run.status().counters["Check"].records
    assert records == next(flights) == sum(run.status().injected.values())
    assert [value["reason"].split(":")[0] for value in rejects.values] == [
        "TimeLimitExceeded", "ProcessKilled"
    ]  # fmt: skip
    for kept in (spans, in_parts):
        assert {key for key, *_ in kept.rows} >= {"JFK", *AIRPORTS}
    assert "stopped" in operator.shell("stop")
    dashboard.close()


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def _picture(url: str, part: str, file: Path) -> None:
    from selenium import webdriver
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.wait import WebDriverWait

    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"):
        options.add_argument(argument)
    options.add_argument("--window-size=1200,1000")
    service = webdriver.ChromeService("/usr/bin/chromedriver")
    with webdriver.Chrome(options=options, service=service) as driver:
        driver.get(url)
        WebDriverWait(driver, 60).until(
            lambda _: "Epochs " in driver.find_element(By.ID, "time-words").text
        )
        driver.find_element(By.ID, part).screenshot(str(file))
