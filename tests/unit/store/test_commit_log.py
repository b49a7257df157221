from __future__ import annotations

import json
import pickle
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from logs import append

from millrace.model.errors import InvariantViolation
from millrace.store import Commit, CommitLog, HardState, LocalHardState
from millrace.store.commit_log import _together

Make = Callable[..., Commit]
Python = Callable[..., "subprocess.Popen[str]"]


def test_an_empty_log_has_no_commit(state: HardState) -> None:
    assert state.commits.read("count", 0, 1) is None
    assert not state.commits.exists("count", 0, 1)
    assert state.commits.numbers("count") == {}


def test_a_commit_is_read_back_as_it_was_appended(state: HardState) -> None:
    whole = Commit(
        "zählen/✓", 2**40, 2**40, 3, 4, [(b"Sk", b"\x00\xff"), (b"Sk", None)], b"p", b"r"
    )
    assert append(state, [whole]) == [True]
    assert state.commits.read("zählen/✓", 2**40, 2**40) == whole
    assert state.commits.exists("zählen/✓", 2**40, 2**40)


def test_of_two_attempts_the_first_counts_whole(state: HardState, commit: Make) -> None:
    first, second = (state.commits.of_task("count", 7, 0) for _ in range(2))
    assert first.read(0, 1) is None
    assert second.read(0, 1) is None
    assert first.put([commit(1), commit(1, interval=1)])
    assert not second.put([commit(1, (b"Sk", b"w")), commit(1, (b"Sk", b"w"), interval=2)])
    assert second.read(0, 1) == commit(1)
    assert second.read(2, 1) is None
    assert (first.over, second.over) == (False, True)
    assert state.commits.numbers("count") == {0: [1], 1: [1]}


def test_an_attempt_that_comes_later_finds_what_was_committed(
    state: HardState, commit: Make
) -> None:
    state.commits.of_task("count", 7, 3).put([commit(1)])
    again = state.commits.of_task("count", 7, 3)
    assert again.over
    assert again.read(0, 1) == commit(1)
    for other in (state.commits.of_task("count", 7, 2), state.commits.of_task("other", 7, 3)):
        assert not other.over


def test_the_same_commits_again_do_not_win_again(state: HardState, commit: Make) -> None:
    assert append(state, [commit(1)]) == [True]
    assert append(state, [commit(1)]) == [False]


def test_what_all_commits_of_a_task_begin_with_is_read_with_each(
    state: HardState, commit: Make
) -> None:
    table = [(b"M%d" % n, bytes(1000)) for n in range(100)]
    commits = [commit(1, *table, (b"Sk", b"%d" % n), interval=n) for n in range(3)]
    state.commits.of_task("count", 1, 0).put(commits)
    assert [state.commits.read("count", n, 1) for n in range(3)] == commits
    assert state.commits.of_task("count", 1, 0).read(2, 1) == commits[2]


def test_of_two_segments_with_one_commit_the_one_of_the_later_epoch_counts(
    state: HardState, commit: Make
) -> None:
    """The other is an attempt's that was left behind: its task had no work in that epoch."""
    state.commits.of_task("count", 2, 0).put([commit(1)])
    assert state.commits.read("count", 0, 1) == commit(1)
    state.commits.of_task("count", 1, 0).put([commit(1, (b"Sk", b"of a zombie"))])
    for log in (state.commits, CommitLog(state.blobs, state.incarnations)):
        assert log.numbers("count") == {0: [1]}
        assert log.read("count", 0, 1) == commit(1)
    state.commits.remove("count", 0, [1])
    assert state.blobs.names("commits/count") == []


def test_several_numbers_of_one_interval_may_be_put_at_once(state: HardState, commit: Make) -> None:
    assert state.commits.of_task("count", 1, 0).put([commit(1), commit(2), commit(3)])
    assert state.commits.read("count", 0, 3) == commit(3)
    assert state.commits.read("count", 0, 4) is None


def test_computations_and_intervals_have_logs_of_their_own(state: HardState) -> None:
    commits = [Commit(name, i, 1, 1, 1, []) for name in ("a", "A/a", "") for i in (0, 1)]
    assert append(state, commits) == [True] * 6
    assert not state.commits.exists("a", 2, 1)
    assert state.commits.read("", 1, 1) == commits[5]


@pytest.mark.parametrize(("interval", "number"), [(0, 0), (0, -1), (-1, 1)])
def test_impossible_identities_are_refused(state: HardState, interval: int, number: int) -> None:
    with pytest.raises(InvariantViolation, match="numbers start at 1 and intervals at 0"):
        append(state, [Commit("count", interval, number, 1, 1, [])])


def test_a_number_twice_in_one_segment_is_refused(state: HardState, commit: Make) -> None:
    with pytest.raises(InvariantViolation, match="a number is used once"):
        state.commits.of_task("count", 1, 0).put([commit(1), commit(2), commit(1)])
    assert not state.commits.exists("count", 0, 1)


def test_a_large_commit(state: HardState, commit: Make) -> None:
    large = commit(1, (b"Sk", bytes(20_000_000)), (b"Sl", b"x"))
    state.commits.of_task("count", 1, 0).put([commit(1, interval=1), large, commit(1, interval=2)])
    assert state.commits.read("count", 0, 1) == large
    assert state.commits.read("count", 2, 1) == commit(1, interval=2)


def test_of_many_threads_one_wins_each_segment(state: HardState, commit: Make) -> None:
    def attempt(name: int) -> list[bool]:
        return [
            append(state, [commit(number, (b"Sk", b"%d" % name))])[0] for number in range(1, 51)
        ]

    with ThreadPoolExecutor(4) as pool:
        won = list(pool.map(attempt, range(4)))
    assert [sum(row) for row in zip(*won, strict=True)] == [1] * 50


APPEND = """
import json, sys
from millrace.store import Commit, LocalHardState
path, name = sys.argv[1:]
state = LocalHardState.open(path)
print("ready", flush=True)
sys.stdin.readline()
won = [
    state.commits.of_task("count", n, 0).put(
        [Commit("count", i, n, 1, 1, [], name.encode()) for i in range(3)]
    )
    for n in range(1, 101)
]
print(json.dumps(won))
"""


def test_of_two_processes_one_wins_each_segment(tmp_path: Path, python: Python) -> None:
    state = LocalHardState.create_or_open(tmp_path / "c", pipeline="p")
    processes = {name: python(APPEND, state.path, name) for name in "ab"}
    for process in processes.values():
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes.values():
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    won = {name: json.loads(process.communicate()[0]) for name, process in processes.items()}
    for n in range(100):
        assert won["a"][n] != won["b"][n]
        for i in range(3):
            found = state.commits.read("count", i, n + 1)
            assert found is not None
            assert found.productions == (b"a" if won["a"][n] else b"b")


def test_a_local_state_is_pickled_as_its_path_and_uuid(tmp_path: Path, commit: Make) -> None:
    state = LocalHardState.create_or_open(tmp_path / "c", pipeline="p")
    append(state, [commit(1)])
    copy = pickle.loads(pickle.dumps(state))
    assert copy.uuid == state.uuid
    assert copy.commits.read("count", 0, 1) == commit(1)
    assert append(copy, [commit(1)]) == [False]
    assert len(pickle.dumps(state)) < 1000


class Listed(list[int]):
    """Numbers that are not searched one by one: an interval of much state has thousands of them."""

    def __contains__(self, number: object) -> bool:
        raise AssertionError(f"all were searched for {number}")


def test_numbers_before_a_gap_are_those_that_were_put() -> None:
    assert _together(Listed([1, 2, 6]), [3, 4, 8, 9]) == [1, 2, 6, 8, 9]
