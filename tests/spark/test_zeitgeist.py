"""The demo on the first weeks of 2013, with a rush made up; every flight was counted once.

By numbers that pandas makes of them. That the pipeline finds the same as undisturbed is shown in
the Harness (unit/examples/test_zeitgeist_pipeline.py), and where Spark is killed in
processes/test_evolution.py.
"""

from __future__ import annotations

import inspect
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

import millrace as mr
from millrace.epochlog.entries import Completion, decode_entry
from millrace.store import open_location
from millrace_examples.zeitgeist import flights

ROOT = Path(__file__).parents[2]

#: Each costs the start of another driver: only `make chaos-processes` kills it.
KILLS = 5 if "CHAOS_MINUTES" in os.environ else 0

# Each starts Spark several times; the usual bound would cut them short on a busy machine.
pytestmark = pytest.mark.timeout(1200)


def first_weeks(everything: pd.DataFrame) -> pd.DataFrame:
    """Leave five weeks, and on one Tuesday let four flights leave Newark in place of each."""
    january = (everything["month"] == 1) & (everything["day"] >= 8)
    rows = everything[january | ((everything["month"] == 2) & (everything["day"] <= 13))]
    tuesday = (rows["month"] == 2) & (rows["day"] == 5) & rows["hour"].between(12, 15)
    return pd.concat([rows, *[rows[tuesday & (rows["origin"] == "EWR")]] * 3])


SCRIPT = f"""
import sys
from pathlib import Path

import pandas as pd

from examples.zeitgeist import demo, flights

{inspect.getsource(first_weeks)}
everything = flights.read_scheduled
flights.read_scheduled = lambda: first_weeks(everything())
out = Path(sys.argv[1])
demo.run_demo(out, checkpoint=out / "checkpoint")
"""


class Demo:
    """A process of the demo."""

    def __init__(self, out: Path) -> None:
        out.mkdir(exist_ok=True)
        self._out = out
        self._log = out / "log"
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(Path(mr.__file__).parents[1])]),
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        for name in ("SPARK_HOME", "PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET"):
            environment.pop(name, None)
        with self._log.open("a") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", SCRIPT, str(out)],
                stdout=log, stderr=log, cwd=out, env=environment, start_new_session=True,
            )  # fmt: skip

    def entries(self) -> int:
        return len(list((self._out / "checkpoint" / "epochs").glob("*.json")))

    def wait_for_entries(self, more: int) -> None:
        wanted, deadline = self.entries() + more, time.monotonic() + 120
        while self.entries() < wanted and self.process.poll() is None:
            assert time.monotonic() < deadline, self._log.read_text()
            time.sleep(0.01)

    def kill(self) -> bool:
        """Kill it; return whether it was still at work."""
        if self.process.poll() is not None:
            return False
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        return True

    def finish(self) -> pd.DataFrame:
        try:
            assert self.process.wait(280) == 0, self._log.read_text()
        finally:
            self.kill()
        return pd.read_parquet(self._out / "anomalies.parquet")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, pd.DataFrame]:
    """Where the demo wrote, and the anomalies that it found, although it may have been killed."""
    draw = random.Random(20130209)
    out = tmp_path_factory.mktemp("zeitgeist") / "out"
    for _ in range(KILLS):
        demo = Demo(out)
        demo.wait_for_entries(draw.randrange(2, 8))
        # Somewhere within the epoch that is under way.
        time.sleep(draw.random() * 0.5)
        assert demo.kill()
    return out, Demo(out).finish()


def test_the_storm_of_february_is_a_dip_at_all_three_airports(
    found: tuple[Path, pd.DataFrame],
) -> None:
    _, anomalies = found
    dips = anomalies[anomalies["kind"] == "dip"]
    storm = dips[
        (dips["start"] < pd.Timestamp("2013-02-09 18:00", tz="UTC"))
        & (dips["end"] > pd.Timestamp("2013-02-08 18:00", tz="UTC"))
    ]
    assert {"EWR", "JFK", "LGA"} <= set(storm["key"])


def test_the_rush_is_a_spike_and_has_the_flights_of_its_hours(
    found: tuple[Path, pd.DataFrame],
) -> None:
    _, anomalies = found
    spikes = anomalies[anomalies["kind"] == "spike"]
    assert all(key.startswith("EWR") for key in spikes["key"])
    (spike,) = spikes[spikes["key"] == "EWR"].itertuples()
    assert spike.start == pd.Timestamp("2013-02-05 17:00", tz="UTC")  # noon in New York

    flown = flights.arrivals(first_weeks(flights.read_scheduled()))
    scheduled = flown[flown["origin"] == "EWR"]["scheduled"]

    def left(weeks_ago: int) -> int:
        shift = pd.Timedelta(weeks=weeks_ago)
        return int(scheduled.between(spike.start - shift, spike.end - shift, "left").sum())

    assert spike.actual == left(0)
    assert spike.expected == pytest.approx(sum(map(left, range(1, 5))) / 4, rel=0.1)
    assert spike.actual > 3 * spike.expected


def test_the_run_is_drained_and_has_counted_late_flights(
    found: tuple[Path, pd.DataFrame],
) -> None:
    out, _ = found
    log = open_location(str(out / "checkpoint")).epochs
    last = decode_entry(log.read(log.last()) or b"")

    assert isinstance(last, Completion)
    assert last.drained
    flown = flights.arrivals(first_weeks(flights.read_scheduled()))
    read = sum(stats.records for stats in last.sources.values())
    assert read == 2 * len(flown) > 30_000
    assert last.counters["WindowCounter"].late > 0


def test_no_anomaly_is_found_twice(found: tuple[Path, pd.DataFrame]) -> None:
    _, anomalies = found
    assert not anomalies.duplicated(["key", "kind", "start"]).any()
