"""What a run's status says as metrics, to Prometheus and in a file."""

import json
import logging
import os
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import millrace as mr
from millrace.dashboard.watcher import services_in
from millrace.inspect import ComputationLoad, KeyShare
from millrace.kernel.results import CallStats, HookTimes
from millrace.model.errors import PipelineError
from millrace.spark.metrics import lines as lines_module
from millrace.spark.metrics.lines import MetricLines
from millrace.spark.metrics.prometheus import Scrapes
from millrace.spark.metrics.table import values
from millrace.store import open_location
from tests.unit.spark.test_status_text import BEFORE_ANYTHING, IN_THE_MIDDLE, NINE, status

pytest.importorskip("prometheus_client")


@pytest.fixture
def scrapes() -> Iterator[Scrapes]:
    opened = Scrapes(0)
    yield opened
    opened.close()


def scraped(scrapes: Scrapes) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{scrapes.port}/metrics", timeout=10) as answer:
        said = answer.read().decode()
    lines = [line for line in said.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def test_a_scrape_says_what_the_status_says(scrapes: Scrapes) -> None:
    scrapes.serve(lambda: IN_THE_MIDDLE)
    found = scraped(scrapes)

    labels = 'computation="Counter",pipeline="zeitgeist"'
    assert found[f"millrace_records_total{{{labels}}}"] == 1_234_567
    assert found[f"millrace_low_watermark_timestamp_seconds{{{labels}}}"] == NINE / mr.SECOND
    assert found[f"millrace_low_watermark_lag_seconds{{{labels}}}"] == 5
    assert found['millrace_late_records_total{computation="Alarm[bold]",pipeline="zeitgeist"}'] == 3
    assert (
        found['millrace_injected_records_total{pipeline="zeitgeist",stream="searches"}'] == 1234567
    )
    assert found['millrace_epoch{pipeline="zeitgeist"}'] == 41
    assert found['millrace_up{pipeline="zeitgeist"}'] == 1


def test_what_is_not_known_yet_is_left_out(scrapes: Scrapes) -> None:
    scrapes.serve(lambda: BEFORE_ANYTHING)

    assert not any("low_watermark" in name or "newest" in name for name in scraped(scrapes))


def test_names_that_are_markup_to_prometheus_are_escaped(scrapes: Scrapes) -> None:
    name = 'a"}\nmillrace_up 7'
    scrapes.serve(lambda: status(injected={name: 1}))
    found = scraped(scrapes)

    assert "millrace_up" not in found
    assert any(r"a\"}\nmillrace_up 7" in shown for shown in found)


def test_who_asks_and_never_reads_keeps_nobody_from_asking(scrapes: Scrapes) -> None:
    scrapes.serve(lambda: IN_THE_MIDDLE)
    silent = [socket.create_connection(("127.0.0.1", scrapes.port)) for _ in range(3)]
    for one in silent[1:]:
        one.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")

    assert scraped(scrapes)
    for one in silent:
        one.close()


def test_a_port_in_use_is_refused_with_what_to_do(scrapes: Scrapes) -> None:
    with pytest.raises(PipelineError, match=r"metrics=.*in use.*Give another one, or 0"):
        Scrapes(scrapes.port)


@pytest.mark.parametrize("where", ["loopback", "a:b", 70_000, "", -1])
def test_what_is_no_port_is_refused(where: Any) -> None:
    with pytest.raises(PipelineError, match="expected a port, such as 9464"):
        Scrapes(where)


def test_lines_in_the_checkpoint_are_rotated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = len(json.dumps(values(IN_THE_MIDDLE)))
    monkeypatch.setattr(lines_module, "_BYTES_MAX", 3 * one)
    lines = MetricLines(tmp_path)
    for epoch in range(40):
        lines.add(status(epoch=epoch, injected={"100%s": epoch}), epoch * mr.SECOND)
    lines.close()
    files = sorted(path.name for path in (tmp_path / "metrics").iterdir())
    last = json.loads((tmp_path / "metrics" / "epochs.jsonl").read_text().splitlines()[-1])

    assert files == ["epochs.jsonl", *(f"epochs.jsonl.{n}" for n in range(1, 5))]
    assert (last["epoch"], last["at"], last["injected_records"]) == (
        39, 39 * mr.SECOND, {"100%s": 39}
    )  # fmt: skip


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="only Linux says what is open")
def test_no_file_is_open_between_two_lines(tmp_path: Path) -> None:
    """A disk that is to become read-only, or to go, would be busy."""
    lines = MetricLines(tmp_path)
    for epoch in range(2):
        lines.add(status(epoch=epoch), 0)
    still_open = [os.path.realpath(file) for file in Path("/proc/self/fd").iterdir()]
    assert not [path for path in still_open if path.startswith(str(tmp_path))]
    assert len((tmp_path / "metrics" / "epochs.jsonl").read_text().splitlines()) == 2


@pytest.mark.parametrize("in_the_way", ["metrics", "metrics/epochs.jsonl/directory"])
def test_lines_that_cannot_be_written_are_left_out_and_that_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, in_the_way: str
) -> None:
    (tmp_path / in_the_way).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / in_the_way).write_text("")
    lines = MetricLines(tmp_path)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            lines.add(IN_THE_MIDDLE, 0)
    lines.close()

    assert [record.message for record in caplog.records] == [
        f"metrics cannot be written to {tmp_path / 'metrics' / 'epochs.jsonl'}"
    ]


def test_load_is_by_computation_and_only_lines_in_the_checkpoint_name_keys(
    tmp_path: Path, scrapes: Scrapes
) -> None:
    hot = [KeyShare('"tea"}', 0.41)]
    load = ComputationLoad(
        seconds=1.5,
        committed_bytes=9,
        state_rows=7,
        state_bytes=70,
        busiest=0.5,
        intervals={3: 0.5, 0: 0.25},
        hottest=hot,
        times=HookTimes({-10: 60, 0: 39, 7: 1}, 150.5),
    )
    one = status(load={"Counter": load})
    scrapes.serve(lambda: one)
    found = scraped(scrapes)
    lines = MetricLines(tmp_path)
    lines.add(one, 0)
    line = json.loads((tmp_path / "metrics" / "epochs.jsonl").read_text())

    assert values(one)["hottest_key_ratio"] == {"Counter": 0.41}
    assert any('millrace_state_rows{computation="Counter"' in shown for shown in found)
    assert not any("tea" in shown for shown in found)
    assert line["hottest_keys"] == {"Counter": {'"tea"}': 0.41}}
    assert line["interval_shares"] == {"Counter": {"3": 0.5, "0": 0.25}}
    assert line["user_code_seconds"] == {"Counter": 1.5}
    assert line["hook_duration_seconds"] == {
        "Counter": {"p50": 2.0**-10, "p95": 1.0, "p99": 1.0},
    }
    assert line["hook_calls"] == {"Counter": {"-10": 60, "0": 39, "7": 1}}
    labels = 'computation="Counter",le="{}",pipeline="zeitgeist"'
    below = {
        le: found[f"millrace_hook_duration_seconds_bucket{{{labels.format(le)}}}"]
        for le in ("0.00048828125", "0.0009765625", "0.5", "1.0", "64.0", "+Inf")
    }
    assert list(below.values()) == [0, 60, 60, 99, 99, 100]
    of = 'computation="Counter",pipeline="zeitgeist"'
    assert found[f"millrace_hook_duration_seconds_count{{{of}}}"] == 100
    assert found[f"millrace_hook_duration_seconds_sum{{{of}}}"] == 150.5


def test_calls_to_services_are_counted_and_timed(tmp_path: Path, scrapes: Scrapes) -> None:
    calls = CallStats(
        made=9, retried=2, answered=6, failed=1, durations={-5: 8, 2: 1}, in_flight=2, waiting=7,
        seconds=3.2, breaker_open_us=1_500_000,
    )  # fmt: skip
    one = status(calls={"Score": calls})
    scrapes.serve(lambda: one)
    found = scraped(scrapes)
    state = open_location(tmp_path / "ckpt", pipeline="zeitgeist")
    lines = MetricLines(tmp_path / "ckpt")
    lines.add(one, 0)
    line = json.loads((tmp_path / "ckpt" / "metrics" / "epochs.jsonl").read_text())

    of = 'computation="Score",pipeline="zeitgeist"'
    assert found[f"millrace_service_calls_total{{{of}}}"] == 9
    assert found[f"millrace_service_call_retries_total{{{of}}}"] == 2
    assert found[f"millrace_service_responses_total{{{of}}}"] == 6
    assert found[f"millrace_service_failures_total{{{of}}}"] == 1
    assert found[f"millrace_service_calls_in_flight{{{of}}}"] == 2
    assert found[f"millrace_service_breaker_open_seconds{{{of}}}"] == 1.5
    assert found[f"millrace_service_call_duration_seconds_count{{{of}}}"] == 9
    assert found[f"millrace_service_call_duration_seconds_sum{{{of}}}"] == 3.2
    assert line["service_call_duration_seconds"] == {
        "Score": {"p50": 2.0**-5, "p95": 4.0, "p99": 4.0}
    }
    assert line["service_calls_waiting"] == {"Score": 7}
    assert services_in(state) == [
        {
            "computation": "Score", "made": 9, "retried": 2, "failed": 1, "flying": 2,
            "waiting": 7, "paused": 1.5, "p50": 2.0**-5, "p95": 4.0, "p99": 4.0,
        }
    ]  # fmt: skip
