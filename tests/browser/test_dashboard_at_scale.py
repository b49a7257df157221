"""The dashboard in Chromium where there is much: epochs of a week, and key intervals."""

import json
from pathlib import Path
from typing import Any

import msgspec
from dashboard_scene import Flights

from millrace.dashboard import Dashboard
from millrace.dashboard.metrics_file import over_time
from millrace.dashboard.points import Points
from millrace.inspect import Checkpoint
from millrace.store import LocalHardState


def test_a_page_that_is_left_open_keeps_no_more(browser, dashboard, flights):
    """A week's epochs at the server, which sends what it keeps; and then hundreds at the page."""
    history = _history_of_a_week(flights)
    assert 500 < len(history["epoch"]) <= 1_024
    assert len(history["parts"]["epoch"]) == 120
    script = Path(__file__).with_name("many_epochs.js").read_text()
    with browser.first_running(script.replace("HISTORY", json.dumps(history))):
        browser.open(dashboard.url)
    sizes = []
    for epochs in (300, 500):  # before the first, charts of all that is furthest behind are made
        browser.run(f"window.pulses.until = {epochs}")
        browser.wait(lambda n=epochs: browser.run("return window.pulses.drawn") >= n)
        sizes.append(browser.memory())
    assert f"to {19_999 + 500}." in browser.until("Epochs ", "time-words")
    before, after = sizes
    assert after["nodes"] <= before["nodes"] + 25, sizes
    assert after["listeners"] <= before["listeners"] + 5, sizes
    assert after["bytes"] < before["bytes"] + 200_000, sizes


def test_ten_thousand_intervals_and_more_are_there_within_a_second(browser, run, tmp_path):
    flights = Flights(tmp_path / "wide", epochs=2, intervals=16_384)
    flights.go_on(2)
    took = []
    with (
        Dashboard(flights.state, "wide", run, alive=lambda _: True) as served,
        browser.first_running(_FIRST_SHOWN),
    ):
        for _ in range(3):  # the machine may be busy once
            browser.open(served.url)
            browser.until("16,384 key intervals", "heat-words")
            took.append(browser.run("return window.shownAt"))
    assert min(took) < 1_000, took


#: Says when a text was first in an element, in milliseconds since the page was asked for.
_FIRST_SHOWN = """
addEventListener('DOMContentLoaded', () => {
  const words = document.getElementById('heat-words');
  new MutationObserver(() => {
    if (words.textContent.startsWith('16,384 ')) window.shownAt ??= performance.now();
  }).observe(words, { childList: true });
});
"""


def _history_of_a_week(flights: Flights) -> dict[str, Any]:
    """Return what the server answers when more epochs have passed than it keeps."""
    points = Points()
    done = Checkpoint(flights.state).ended.completion
    assert done is not None
    for epoch in range(20_000):
        wall_us = done.wall_time_us + epoch * 30_000_000
        points._add(msgspec.structs.replace(done, epoch=epoch, wall_time_us=wall_us))
    line = {"at": 1, "epoch_duration_seconds": 0.4, "epoch_part_seconds": {"tasks": 0.4}}
    folder = flights.path.parent / "a-week"
    state = LocalHardState.create_or_open(folder, pipeline="flights")
    (folder / "metrics").mkdir()
    lines = "".join(json.dumps(line | {"epoch": n}) + "\n" for n in range(20_000))
    (folder / "metrics" / "epochs.jsonl").write_text(lines)
    return {**points.columns(), "parts": over_time(state)["parts"]}
