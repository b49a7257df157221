"""What a status looks like: as text, in a line, in a notebook."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest

import millrace as mr
from millrace.injectors.advance import Backlog
from millrace.inspect import ComputationLoad, KeyShare
from millrace.kernel.results import CallStats, Counters, HookTimes
from millrace.spark.status import Status
from millrace.spark.status_text import as_line

NINE = 1_795_165_200 * mr.SECOND  # 2026-11-20T09:00:00Z

BEFORE_ANYTHING = Status(
    pipeline="zeitgeist",
    state="running",
    epoch=-1,
    generation=1,
    low_watermarks={"Counter": mr.MIN_TIMESTAMP},
    oldest_work={},
    wall_timers={},
    moved={},
    newest={},
    injected={},
    dead_letters={},
    refused_low_watermarks={},
    dropped={},
    idle={},
    missing={},
    counters={"Counter": Counters()},
    records_per_second=0.0,
    epoch_seconds=0.0,
    task_seconds=0.0,
    replayed=0,
    repaired=0,
    rebuilt=0,
    recovered_bytes=0,
    damaged=0,
    snapshots=0,
    snapshot_bytes=0,
    collected=0,
    housekeeping_failures=0,
    stuck=[],
)


def status(**changed: Any) -> Status:
    return dataclasses.replace(BEFORE_ANYTHING, **changed)


IN_THE_MIDDLE = status(
    epoch=41,
    generation=2,
    low_watermarks={"Counter": NINE, "Alarm[bold]": NINE - 90 * mr.MINUTE},
    oldest_work={"Counter": NINE + 30 * mr.SECOND},
    newest={"searches": NINE + 5 * mr.SECOND},
    injected={"searches": 1_234_567},
    counters={
        "Counter": Counters(records=1_234_567, timers=12, productions=12),
        "Alarm[bold]": Counters(
            records=12, late=3, worst_lateness_us=61_500_000, counted={"dropped": 2}
        ),
    },
    records_per_second=12_345.6,
    epoch_seconds=0.3812,
)


def test_text_is_aligned_and_has_times_for_people() -> None:
    assert str(IN_THE_MIDDLE).splitlines() == [
        "pipeline       zeitgeist",
        "state          running",
        "epoch          41 was the last to complete, in 381 ms",
        "generation     2",
        "records        1,234,567, 12,346 a second in the last epochs",
        "low watermark  2026-11-20T07:30:00Z, 1 h 30 min behind the newest record",
        "late           3, the worst by 1 min 1.5 s",
        "",
        "injected stream    records         newest record",
        "searches         1,234,567  2026-11-20T09:00:05Z",
        "",
        "computation    records  late  timers fired  productions         low watermark      behind",
        "Counter      1,234,567     0            12           12  2026-11-20T09:00:00Z         5 s",
        "Alarm[bold]         12     3             0            0  2026-11-20T07:30:00Z  1 h 30 min",
        "",
        "computation           oldest work",
        "Counter      2026-11-20T09:00:30Z",
        "Alarm[bold]                     -",
        "",
        "computation  counted itself  count",
        "Alarm[bold]         dropped      2",
    ]


def test_before_anything_it_says_so() -> None:
    assert str(BEFORE_ANYTHING).splitlines() == [
        "pipeline       zeitgeist",
        "state          running",
        "epoch          none has completed yet",
        "generation     1",
        "records        0",
        "low watermark  before time",
        "",
        "computation  records  late  timers fired  productions  low watermark",
        "Counter            0     0             0            0    before time",
    ]


def test_the_end_of_time_has_its_name_everywhere() -> None:
    ended = status(
        state="drained",
        epoch=2,
        low_watermarks={"Counter": mr.MAX_TIMESTAMP},
        newest={"searches": NINE},
        injected={"searches": 1},
    )

    assert str(ended).count("end of time") == 2
    assert "behind" not in str(ended)
    for shown in (str(ended), repr(ended), ended._repr_html_()):
        assert str(mr.MAX_TIMESTAMP) not in shown
    assert repr(ended) == (
        "<Status of zeitgeist: drained, epoch 2, 1 record, low watermark at the end of time>"
    )


def test_what_is_rare_is_shown_when_it_is_there() -> None:
    shown = str(
        status(
            dead_letters={"searches": 2, "Counter": 1},
            idle={"searches": ["a", "b"]},
            missing={"searches": ["c"]},
            wall_timers={"Counter": NINE},
            counters={"Counter": Counters(dead_letters=1, duplicates_filtered=4)},
            replayed=1,
            rebuilt=2,
            recovered_bytes=5_000_000,
            damaged=1,
            snapshots=3,
            snapshot_bytes=2_048,
            housekeeping_failures=1,
        )
    )

    for line in (
        "idle            searches: a, b",
        "never heard of  searches: c",
        "recovery        1 commit of earlier attempts replayed, 2 caches built again, 4.8 MiB read "
        "for that, 1 damaged or missing",
        "housekeeping    3 snapshots of 2.0 KiB, 1 failure, see the log",
        "searches               0             2",
    ):
        assert line in shown
    for column in ("duplicates", "dead letters", "next wall timer"):
        assert column in shown
        assert column not in str(BEFORE_ANYTHING)


def test_repr_is_one_short_line() -> None:
    assert repr(IN_THE_MIDDLE) == (
        "<Status of zeitgeist: running, epoch 41, 1,234,567 records, 12,346/s, 1 h 30 min behind, "
        "3 late, low watermark 2026-11-20T07:30:00Z>"
    )
    assert repr(BEFORE_ANYTHING) == (
        "<Status of zeitgeist: running, no epoch yet, 0 records, no low watermark yet>"
    )


def test_a_line_says_what_went_wrong() -> None:
    bad = status(dead_letters={"searches": 2, "Counter": 1}, epoch=3)

    assert "0 records, 3 dead letters, no" in as_line(bad)


def test_a_line_says_when_an_epoch_takes_long() -> None:
    assert ", epoch 42 for 75 s, low" in as_line(IN_THE_MIDDLE, under_way=75.2)
    assert "epoch 42" not in as_line(IN_THE_MIDDLE, under_way=0.3)
    stopped = dataclasses.replace(IN_THE_MIDDLE, state="stopped")
    assert "epoch 42" not in as_line(stopped, under_way=75.2)
    assert "/s" not in as_line(stopped)


def test_a_notebook_gets_tables_and_no_markup_of_a_user() -> None:
    shown = dataclasses.replace(IN_THE_MIDDLE, pipeline="<script>alert(1)</script>")._repr_html_()

    assert shown.count("<table>") == shown.count("</table>") == 4
    assert "<script>" not in shown
    assert "&lt;script&gt;" in shown
    assert "2026-11-20T09:00:30Z</td>" in shown


@pytest.mark.parametrize(
    ("epoch_seconds", "words"),
    [(0.00049, "0.49 ms"), (0.0123, "12 ms"), (1.2345, "1.2 s"), (75.04, "1 min 15 s")],
)
def test_durations_have_no_digits_that_nobody_reads(epoch_seconds: float, words: str) -> None:
    shown = str(status(epoch=0, epoch_seconds=epoch_seconds))

    assert f"0 was the last to complete, in {words}\n" in shown


def test_load_is_a_table_of_hot_keys_and_two_columns() -> None:
    hot = [KeyShare("tea", 0.41), KeyShare("coffee", 0.06), KeyShare("milk", 0.01)]
    load = ComputationLoad(
        seconds=83.0,
        committed_bytes=10_000,
        state_rows=7,
        state_bytes=3 << 20,
        busiest=0.5,
        hottest=hot,
        times=HookTimes({-10: 60, 0: 39, 7: 1}),
    )
    shown = str(status(load={"Counter": load}))

    assert "hottest key" not in str(BEFORE_ANYTHING)
    assert "user code" not in str(BEFORE_ANYTHING)
    assert [line.split() for line in shown.splitlines() if "about" in line] == [
        ["Counter", "tea", "about", "41%"],
        ["Counter", "coffee", "about", "6%"],
    ]
    assert re.search(r"p50, p95, p99 of a call +state\nCounter +0.977 ms, 1 s, 1 s +3.0 MiB", shown)
    assert re.search(r"user code\nCounter .* 1 min 23 s\n", shown)
    assert max(map(len, shown.splitlines())) <= 100


def test_of_what_was_not_called_there_are_no_times() -> None:
    """A grouping that is kept as columns has a load, and calls nothing."""
    load = ComputationLoad(
        seconds=83.0, committed_bytes=1, state_rows=1, state_bytes=1, busiest=1.0, hottest=[],
        times=HookTimes(),
    )  # fmt: skip
    shown = str(status(load={"Counter": load}))

    assert "of a call" not in shown


def test_what_waits_and_what_came_is_said_where_it_is_known() -> None:
    load = ComputationLoad(
        seconds=0.0, committed_bytes=0, state_rows=0, state_bytes=0, busiest=0.0, hottest=[],
        cache_hits=197, cache_misses=3,
    )  # fmt: skip
    found = str(
        status(
            injected={"a": 5},
            injected_bytes={"a": 2048},
            received_bytes={"Counter": 1024},
            backlog={"a": Backlog(records=7), "b": Backlog(files=2, size=512)},
            load={"Counter": load},
        )
    ).splitlines()
    table = [line.split("  ") for line in found[found.index("") + 1 :]]
    cells = [[cell.strip() for cell in row if cell] for row in table]

    assert cells[:3] == [
        ["injected stream", "records", "bytes", "newest record", "backlog"],
        ["a", "5", "2.0 KiB", "-", "7 records"],
        ["b", "0", "-", "-", "2 files, 512 bytes"],
    ]
    assert any("1.0 KiB" in line for line in found)
    assert "98.5%" in found[-1]


def test_calls_to_services_are_two_columns() -> None:
    calls = CallStats(made=1_200, retried=3, durations={-5: 1_200}, breaker_open_us=61_500_000)
    shown = str(status(calls={"Counter": calls}))

    assert "service" not in str(BEFORE_ANYTHING)
    assert "1,200 (3 retried, paused for 1 min 1.5 s: the service is down)" in shown
    assert "p50, p95, p99 of a service" in shown


def test_dead_letters_of_a_stream_are_shown_where_a_computation_has_its_name() -> None:
    one = status(
        injected={"events": 9, "other": 1},
        dead_letters={"events": 1, "stream events": 2, "other": 3},
        counters={"events": Counters(records=7, dead_letters=1)},
    )
    lines = [line.split() for line in str(one).splitlines()]
    at = next(n for n, words in enumerate(lines) if words[:2] == ["injected", "stream"])
    assert lines[at][2:5] == ["records", "dead", "letters"]
    assert [words[:3] for words in lines[at + 1 : at + 3]] == [
        ["events", "9", "2"],
        ["other", "1", "3"],
    ]
