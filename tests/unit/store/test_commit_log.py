from __future__ import annotations

import json
import pickle
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from millrace.model.errors import InvariantViolation
from millrace.store import Commit, HardState, LocalHardState

Make = Callable[..., Commit]
Python = Callable[..., "subprocess.Popen[str]"]


def test_an_empty_log_has_no_commit(state: HardState) -> None:
    assert state.commits.read("count", 0, 1) is None
    assert not state.commits.exists("count", 0, 1)
    assert state.commits.append([]) == []


def test_a_commit_is_read_back_as_it_was_appended(state: HardState) -> None:
    whole = Commit(
        "zählen/✓", 2**40, 2**40, 3, 4, [(b"Sk", b"\x00\xff"), (b"Sk", None)], b"p", b"r"
    )
    assert state.commits.append([whole]) == [True]
    assert state.commits.read("zählen/✓", 2**40, 2**40) == whole
    assert state.commits.exists("zählen/✓", 2**40, 2**40)


def test_a_taken_slot_keeps_the_first_commit(state: HardState, commit: Make) -> None:
    first, second = commit(1, (b"Sk", b"first")), commit(1, (b"Sk", b"second"))
    assert state.commits.append([first]) == [True]
    assert state.commits.append([second]) == [False]
    assert state.commits.read("count", 0, 1) == first


def test_the_same_commit_again_does_not_win_again(state: HardState, commit: Make) -> None:
    once = commit(1)
    assert state.commits.append([once]) == [True]
    assert state.commits.append([once]) == [False]


def test_commits_of_one_append_win_and_lose_independently(state: HardState, commit: Make) -> None:
    state.commits.append([commit(1, (b"Sk", b"first"), interval=1)])
    commits = [commit(1, (b"Sk", b"second"), interval=interval) for interval in range(3)]
    assert state.commits.append(commits) == [True, False, True]
    values = [state.commits.read("count", interval, 1) for interval in range(3)]
    assert [found and found.mutations for found in values] == [
        [(b"Sk", b"second")],
        [(b"Sk", b"first")],
        [(b"Sk", b"second")],
    ]


def test_several_numbers_of_one_interval_may_be_appended_at_once(
    state: HardState, commit: Make
) -> None:
    assert state.commits.append([commit(1), commit(2), commit(3)]) == [True, True, True]
    assert state.commits.read("count", 0, 3) == commit(3)
    assert state.commits.read("count", 0, 4) is None


def test_computations_and_intervals_have_logs_of_their_own(state: HardState) -> None:
    commits = [Commit(name, i, 1, 1, 1, []) for name in ("a", "A/a", "") for i in (0, 1)]
    assert state.commits.append(commits) == [True] * 6
    assert not state.commits.exists("a", 2, 1)
    assert state.commits.read("", 1, 1) == commits[5]


def test_more_commits_than_a_file_may_have_links(state: HardState, commit: Make) -> None:
    commits = [commit(1, interval=interval) for interval in range(1001)]
    assert all(state.commits.append(commits))
    assert state.commits.read("count", 1000, 1) == commits[1000]


@pytest.mark.parametrize(("interval", "number"), [(0, 0), (0, -1), (-1, 1)])
def test_impossible_identities_are_refused(state: HardState, interval: int, number: int) -> None:
    with pytest.raises(InvariantViolation, match="numbers start at 1 and intervals at 0"):
        state.commits.append([Commit("count", interval, number, 1, 1, [])])


def test_a_number_twice_in_one_append_is_refused(state: HardState, commit: Make) -> None:
    with pytest.raises(InvariantViolation, match="a number is used once"):
        state.commits.append([commit(1), commit(2), commit(1)])
    assert not state.commits.exists("count", 0, 1)


def test_a_large_commit(state: HardState, commit: Make) -> None:
    large = commit(1, (b"Sk", bytes(20_000_000)), (b"Sl", b"x"))
    state.commits.append([commit(1, interval=1), large, commit(1, interval=2)])
    assert state.commits.read("count", 0, 1) == large
    assert state.commits.read("count", 2, 1) == commit(1, interval=2)


def test_of_many_threads_one_wins_each_slot(state: HardState, commit: Make) -> None:
    def attempt(name: int) -> list[bool]:
        return [
            state.commits.append([commit(number, (b"Sk", b"%d" % name))])[0]
            for number in range(1, 51)
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
    state.commits.append([Commit("count", i, n, 1, 1, [], name.encode()) for i in range(3)])
    for n in range(1, 101)
]
print(json.dumps(won))
"""


def test_of_two_processes_one_wins_each_slot(tmp_path: Path, python: Python) -> None:
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
        for i in range(3):
            assert won["a"][n][i] != won["b"][n][i]
            found = state.commits.read("count", i, n + 1)
            assert found is not None
            assert found.productions == (b"a" if won["a"][n][i] else b"b")


def test_a_local_state_is_pickled_as_its_path_and_uuid(tmp_path: Path, commit: Make) -> None:
    state = LocalHardState.create_or_open(tmp_path / "c", pipeline="p")
    state.commits.append([commit(1)])
    copy = pickle.loads(pickle.dumps(state))
    assert copy.uuid == state.uuid
    assert copy.commits.read("count", 0, 1) == commit(1)
    assert copy.commits.append([commit(1)]) == [False]
    assert len(pickle.dumps(state)) < 1000
