"""The real-time plane on Spark, in a program that was started with the settings it needs."""

from __future__ import annotations

import re
from typing import Any

import pytest


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory, live_driver: Any) -> dict[str, Any]:
    """What the program has found, case by case."""
    result: dict[str, Any] = live_driver("live_program", tmp_path_factory.mktemp("realtime"))
    return result


def test_what_is_there_is_processed_and_seen(found: dict[str, Any]) -> None:
    case = found["undisturbed"]
    assert case["first"] == (True, "right")
    assert case["state"] == "running"
    assert case["injected"] == {"numbers": 2000}
    assert case["low watermark"] == 1_700_000_000_000_000 + 999_000 - 1_000_000
    assert "Pinned by the injector of stream 'numbers', process 'a'" in case["why"]
    assert "not finished" not in case["why"]
    assert case["explained"] == "sources, by columns: keys are encoded and hashed all at once"
    assert case["shown"] == ["running", True, 2000], "the dashboard has the same"


def test_it_says_where_the_time_of_a_record_goes(found: dict[str, Any]) -> None:
    steps = found["undisturbed"]["steps"]
    first = [f"level 1, {step}" for step in ("on the way", "before its turn", "turn")]
    assert list(steps)[:4] == ["injectors, turn", *first]
    assert all(0 < p50 <= p95 <= p99 for p50, p95, p99 in steps.values())


def test_a_stream_is_held_back_and_read_again(found: dict[str, Any]) -> None:
    case = found["undisturbed"]
    assert case["paused"] == (True, {"numbers": 2000}, {"numbers": "paused"})
    assert case["limited"] == [True, {"numbers": 3000}, {}]


def test_a_run_goes_on_where_another_was_stopped(found: dict[str, Any]) -> None:
    case = found["undisturbed"]
    assert case["stopped"] == ("stopped", "right")
    assert case["second"] == (True, "right")
    assert (case["drained"], case["end"]) == (True, "drained")


def test_the_end_of_sparks_batch_changes_nothing(found: dict[str, Any]) -> None:
    """Nor does a worker that is killed; segments are beside the bucket that has the rest."""
    case = found["batches"]
    assert (case["incarnations"], case["counts"], case["state"]) == (3, "right", 180)
    assert case["segments"] > 0
    assert "FORMAT" in case["folders in the bucket"]
    assert "incarnations" not in case["folders in the bucket"]


def test_a_standby_takes_over_at_once_and_another_is_started_behind_it(
    found: dict[str, Any],
) -> None:
    case = found["standby"]
    assert case["right"] == [True] * 6
    assert case["counts"] == "right"
    assert max(case["away"]) < 1.5
    assert [why[-1] for why in case["why"]] == [
        f"{seconds:.{1 if seconds >= 1 else 2}f} s until the standby had taken up what there was"
        for seconds in case["away"]
    ], "nothing waits for Spark"
    assert case["undisturbed"], "one that is lost while it waits disturbs nobody"
    assert case["stopped"] == ("stopped", "")


def test_changed_pipelines_take_over_from_plane_to_plane(found: dict[str, Any]) -> None:
    *first, way = found["switched"][:5]
    assert first == [True, "right"] * 2
    assert way == "to drop what it keeps, say so: p.remove('Parities')"
    assert found["switched"][5:] == [True, "right"]


def test_user_code_that_fails_for_good_ends_the_run_with_its_error(found: dict[str, Any]) -> None:
    case = found["failing"]
    assert "Counting" in case["message"]
    assert "ZeroDivisionError: bad 42" in case["message"]
    assert "in process_record" in case["log"]
    assert case["state"] == "failed"


def test_a_record_that_ends_its_process_is_found_and_nothing_else_is_lost(
    found: dict[str, Any],
) -> None:
    case = found["poisoned"]
    assert case["seen"] == [True, "right"] * 2
    # The first attempt kills a worker, the second one a child that looks.
    assert case["ended"] == 1
    assert case["counted"] == [1200, 1]
    (letter,) = case["letters"]
    assert letter["computation"] == "Passing"
    assert "signal SIGSEGV" in letter["reason"]
    assert "in process_record" in letter["error"]
    assert case["sent"] == [
        "1 dead letter is sent again\n",
        "0 dead letters are sent again; 1 were sent before\n",
    ]
    assert case["again"] == ["right", 1, "right"]


def test_the_key_at_which_a_task_hangs_is_said_while_it_hangs(found: dict[str, Any]) -> None:
    hung = found["failing"]["hung"]
    assert re.search(r"is at computation 'Counting', key 2, .*, for \d+ s at the least", hung)
    assert re.search(r"task [01] of level 1 \(process \d+ on host", hung)


def test_what_cannot_be_is_refused_before_the_checkpoint_is_touched(found: dict[str, Any]) -> None:
    slots, trigger, pacemaker, frame, checkpoint = found["refused"]
    assert "slots: 9 tasks can run at once, and 28 must" in slots
    assert 'master("local[28]")' in slots
    assert "tasks=2" in slots
    assert "realtime=True, trigger=" in trigger
    assert "pacemaker='rabbit': expected a Kafka topic" in pacemaker
    assert "stream 'rows' is read from DataFrame" in frame
    assert checkpoint == "checkpoint False"


def test_an_undisturbed_run_says_nothing_on_the_console_but_what_it_is_to_say(
    found: dict[str, Any],
) -> None:
    # Before that Spark may tell yet how tasks of the program before this one were ended.
    _, query, console = found["console"].partition("ResolveWriteToStream")
    assert query
    assert "numbers: stopped, epoch" in console
    assert "Traceback" not in console
    assert " ERROR " not in console
    assert "Row size" not in console
