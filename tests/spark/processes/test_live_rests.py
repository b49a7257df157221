"""A run in real time is remapped, and kept, while records come: all tasks wait, and go on."""

from __future__ import annotations

import re
from typing import Any

import pytest

PAUSE = (
    r"; the run stood still for \d+\.\d+ s: \d+\.\d+ s until all had passed a mark, "
    r"\d+\.\d+ s to do what was asked for, \d+\.\d+ s until all tasks had taken up what they had"
)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory, live_driver: Any) -> dict[str, Any]:
    result: dict[str, Any] = live_driver("live_rests", tmp_path_factory.mktemp("rests"))
    return result


def test_key_intervals_change_under_load_and_each_record_counts_once(
    found: dict[str, Any],
) -> None:
    assert found["remapped"] == 4
    assert found["intervals"] == [4, 5, 1, 6]
    done, said = found["asked"]
    assert done
    assert re.fullmatch(r"Passing has 5 key intervals after epoch \d+" + PAUSE, said)
    assert "interval 0 is not there" in found["refused"]
    assert (found["counts"], found["state"]) == ("right", "running")


def test_a_rest_ends_neither_sparks_query_nor_a_process(found: dict[str, Any]) -> None:
    assert found["queries"] == 1
    before, after = found["processes"]
    assert before == after
    assert len({pid for _, pid in before}) == len(before) == 6


def test_a_process_that_is_killed_at_a_rest_is_replaced_and_what_was_asked_for_is_done_once(
    found: dict[str, Any],
) -> None:
    assert found["done at a rest"] == 1
    assert "until Spark ran all tasks" in found["took"]
    assert (found["counts after it"], found["rows since"] > 0) == ("right", True)


def test_a_stopped_checkpoint_is_remapped_and_a_run_that_has_ended_is_not(
    found: dict[str, Any],
) -> None:
    assert found["stopped"] == 5
    assert found["over"].startswith("PipelineError: this run has ended")


def test_key_intervals_follow_a_skewed_load_and_each_record_counts_once(
    found: dict[str, Any],
) -> None:
    balanced = found["balanced"]
    assert balanced.pop("splits") > 0
    assert balanced == {
        "load": [True, True],
        "moved": True,
        "the same query": True,
        "counts": "right",
    }


def test_sparks_batch_a_run_and_its_input_may_end_at_a_rest(found: dict[str, Any]) -> None:
    ended = found["ended"]
    assert ended["batch"].endswith("until all tasks had taken up what they had")
    assert ended["after batches"] == ["right", True]
    # What was asked for was done, and the run is over.
    assert ended["stopped"] == (7, "the run has ended since")
    assert ended["state"] == "stopped"
    assert ended["drained"] == [True, "drained", "right"]


def test_savepoints_are_whole_and_a_run_goes_on_from_one(found: dict[str, Any]) -> None:
    assert found["twice"].startswith("CheckpointMismatch")
    assert "there is a savepoint 'before'" in found["twice"]
    done, said = found["kept"]
    assert done
    assert re.fullmatch(r"epoch \d+ is kept as savepoint asked" + PAUSE, said)
    assert found["savepoints"] == sorted(["asked", "before", found["snapshot"]])
    for name in found["savepoints"]:
        counted, read = found[f"in {name}"]
        assert counted == read > 0
    assert found["again"] == {"done": True, "counts": [2 * found["rows"] // 10] * 10}
