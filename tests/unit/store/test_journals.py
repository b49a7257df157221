"""What holds for the journals of every kind of hard state."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from logs import append

from millrace.model.errors import CheckpointUnwritable, DamagedStore, ZombieWriter
from millrace.store import Commit, Group, HardState, Journal, JournalName, MemoryCache, bring

Make = Callable[..., Commit]


def begun(state: HardState, session: int = 1) -> None:
    assert state.journals.seal(session) is not None


def written(state: HardState, journal: Journal, *groups: Group) -> None:
    for group in groups:
        journal.append(group.commits, group.note)


def read(state: HardState) -> dict[JournalName, list[Group]]:
    return {name: list(state.journals.groups(name)) for name in state.journals.names()}


def test_names_sort_as_groups_came_and_are_told_from_other_names() -> None:
    names = [JournalName(1, 1, 0, 2), JournalName(1, 2, 0, 1), JournalName(2, 0, 0, 1)]
    assert sorted(names, key=str) == sorted(names) == names
    assert JournalName.parse(str(JournalName(10**9, 100, 10**5, 10**9))) == (
        10**9, 100, 10**5, 10**9,
    )  # fmt: skip
    for other in ("00000008.seal", "lost+found", "1-1-1-1", "00000007-02-0003-00000012.tmp"):
        assert JournalName.parse(other) is None


def test_a_checkpoint_without_journals(state: HardState) -> None:
    assert (state.journals.last(), state.journals.names()) == (0, [])
    assert state.journals.superseded(1)
    assert not state.commits.exists("count", 0, 1)


def test_a_session_begins_once(state: HardState) -> None:
    sealing = state.journals.seal(1)
    assert sealing is not None
    assert (sealing.session, sealing.lengths, sealing.notes) == (1, {}, {})
    assert state.journals.seal(1) is None
    assert state.journals.last() == 1
    assert not state.journals.superseded(1)
    begun(state, 2)
    assert state.journals.superseded(1)
    assert state.journals.seal(1) is None
    assert (state.journals.last(), state.journals.superseded(2)) == (2, False)


def test_a_session_whose_begin_was_cut_off_has_used_its_number(state: HardState) -> None:
    begun(state, 1)
    begun(state, 3)
    assert state.journals.seal(2) is None
    assert state.journals.last() == 3


def test_groups_are_there_once_they_are_sealed(state: HardState, commit: Make) -> None:
    begun(state)
    first = Group([commit(1, (b"Sk", b"v"), (b"Sk", None)), commit(1, interval=7)], b"one")
    second, third = Group([commit(2)], b""), Group([], b"a note alone")
    journal = state.journals.create(1, 2, 3, 1)
    written(state, journal, first, second, third)
    assert journal.name == JournalName(1, 2, 3, 1)
    assert read(state) == {}
    assert state.commits.read("count", 0, 1) is None
    sealing = state.journals.seal(2)
    assert sealing is not None
    assert sealing.notes == {"00000001-02-0003-00000001": b"a note alone"}
    assert read(state) == {journal.name: [first, second, third]}


def test_what_is_appended_after_the_seal_does_not_exist(state: HardState, commit: Make) -> None:
    begun(state)
    journal = state.journals.create(1, 1, 0, 1)
    journal.append([commit(1)], b"in time")
    begun(state, 2)
    journal.append([commit(2)], b"late")
    state.journals.create(1, 1, 0, 2).append([commit(3)], b"later")
    for session in (3, 4):
        sealing = state.journals.seal(session)
        assert sealing is not None
        assert sealing.notes == {str(journal.name): b"in time"}
        assert read(state) == {journal.name: [Group([commit(1)], b"in time")]}
        assert state.commits.numbers("count") == {0: [1]}


def test_a_seal_says_what_the_seals_before_it_said(state: HardState, commit: Make) -> None:
    groups = {}
    for session in (1, 2, 3):
        begun(state, session)
        journal = state.journals.create(session, 1, 0, 1)
        group = groups[journal.name] = Group([commit(session)], b"%d" % session)
        written(state, journal, group)
    begun(state, 4)
    assert read(state) == {name: [group] for name, group in groups.items()}
    assert [state.commits.read("count", 0, n) for n in (1, 2, 3, 4)] == [
        commit(1), commit(2), commit(3), None,
    ]  # fmt: skip


def test_a_note_is_of_the_last_group_of_a_task_whatever_part_it_is_in(
    state: HardState, commit: Make
) -> None:
    begun(state)
    state.journals.create(1, 1, 0, 1).append([commit(1)], b"old")
    state.journals.create(1, 1, 0, 2).append([commit(2)], b"last")
    state.journals.create(1, 1, 0, 3).close()
    state.journals.create(1, 1, 1, 1).append([], b"another task's")
    sealing = state.journals.seal(2)
    assert sealing is not None
    assert sealing.notes == {
        "00000001-01-0000-00000002": b"last",
        "00000001-01-0001-00000001": b"another task's",
    }
    assert [name.part for name in state.journals.names() if name.task == 0] == [1, 2]


def test_sessions_that_write_nothing_leave_nothing(state: HardState) -> None:
    for session in range(1, 5):
        begun(state, session)
        state.journals.create(session, 1, 0, 1).close()
    begun(state, 5)
    assert (state.journals.names(), state.journals.last()) == ([], 5)


def test_a_journal_has_one_writer(state: HardState, commit: Make) -> None:
    begun(state)
    journal = state.journals.create(1, 1, 0, 1)
    journal.append([commit(1)])
    with pytest.raises(ZombieWriter, match="another attempt at task 0 of level 1"):
        state.journals.create(1, 1, 0, 1)
    journal.append([commit(2)])
    begun(state, 2)
    assert state.commits.numbers("count") == {0: [1, 2]}


def test_a_closed_journal_takes_nothing(state: HardState, commit: Make) -> None:
    begun(state)
    journal = state.journals.create(1, 1, 0, 1)
    journal.append([commit(1)])
    journal.close()
    journal.close()
    with pytest.raises(CheckpointUnwritable, match="closed"):
        journal.append([commit(2)])
    begun(state, 2)
    assert state.commits.numbers("count") == {0: [1]}


def test_a_slot_of_its_own_comes_before_a_journal(state: HardState, commit: Make) -> None:
    append(state, [commit(1), commit(2)])
    begun(state)
    state.journals.create(1, 1, 0, 1).append([commit(3), commit(1, interval=4)])
    begun(state, 2)
    assert append(state, [commit(4)]) == [True]
    assert [state.commits.exists("count", 0, n) for n in range(6)] == [
        False, True, True, True, True, False,
    ]  # fmt: skip
    assert state.commits.numbers("count") == {0: [1, 2, 3, 4], 4: [1]}
    assert state.commits.numbers("other") == {}


def test_commits_are_found_in_journals_before_and_after_slots(
    state: HardState, commit: Make
) -> None:
    """As after a checkpoint has gone from live tasks to epochs and back."""
    begun(state)
    state.journals.create(1, 1, 0, 1).append([commit(1), commit(2)])
    begun(state, 2)
    append(state, [commit(3)])
    state.journals.create(2, 1, 0, 1).append([commit(4)])
    begun(state, 3)
    assert [n for n in range(6) if state.commits.exists("count", 0, n)] == [1, 2, 3, 4]
    assert state.commits.numbers("count") == {0: [1, 2, 3, 4]}
    assert state.commits.remove("count", 0, [1, 2, 3, 4]) == 1
    assert state.commits.numbers("count") == {0: [4]}


def test_a_cache_is_brought_through_slots_and_journals(state: HardState, commit: Make) -> None:
    append(state, [commit(1, (b"Sa", b"slot"))])
    begun(state)
    for part in (1, 2):
        state.journals.create(1, 1, 0, part).append([commit(part + 1, (b"Sb", b"%d" % part))])
    begun(state, 2)
    cache = MemoryCache("count", 0)
    assert bring(cache, state, "count", 0, 3).deltas_applied == 3
    with cache.view() as view:
        assert list(view.scan(b"A", b"[")) == [(b"Sa", b"slot"), (b"Sb", b"2")]


def test_commits_in_journals_are_removed_with_the_journal(state: HardState, commit: Make) -> None:
    append(state, [commit(1)])
    begun(state)
    for part in (1, 2):
        state.journals.create(1, 1, 0, part).append([commit(part + 1)])
    begun(state, 2)
    assert state.commits.remove("count", 0, [1, 2, 3]) == 1
    assert [state.commits.exists("count", 0, n) for n in (1, 2, 3)] == [False, True, True]
    first, second = state.journals.names()
    state.journals.remove([first, first, JournalName(9, 9, 9, 9)])
    assert state.journals.names() == [second]
    assert [state.commits.exists("count", 0, n) for n in (1, 2, 3)] == [False, False, True]
    sealing = state.journals.seal(3)
    assert sealing is not None
    assert list(sealing.lengths) == [str(second)]


def test_the_index_is_of_the_last_seal_that_was_asked_for(state: HardState, commit: Make) -> None:
    begun(state)
    state.journals.create(1, 1, 0, 1).append([commit(1)])
    begun(state, 2)
    state.journals.create(2, 1, 0, 1).append([commit(2)])
    assert not state.commits.exists("count", 0, 2)
    begun(state, 3)
    assert state.commits.read("count", 0, 2) == commit(2)


def test_what_journals_cover(state: HardState, commit: Make) -> None:
    begun(state)
    journal = state.journals.create(1, 1, 0, 1)
    journal.append([commit(3), commit(8, interval=2)])
    journal.append([commit(4), Commit("sum", 0, 1, 1, 1, [])])
    state.journals.create(1, 1, 1, 1).append([], b"note")
    begun(state, 2)
    assert state.journals.covered() == {
        JournalName(1, 1, 0, 1): {"count": {0: 4, 2: 8}, "sum": {0: 1}},
        JournalName(1, 1, 1, 1): {},
    }


def test_a_commit_in_two_journals_is_damage(state: HardState, commit: Make) -> None:
    begun(state)
    for task in (0, 1):
        state.journals.create(1, 1, task, 1).append([commit(1)])
    begun(state, 2)
    with pytest.raises(DamagedStore, match=r"commit 1 of interval 0 of computation 'count' is in"):
        state.commits.exists("count", 0, 1)


def test_groups_of_a_journal_that_is_not_sealed_or_gone(state: HardState, commit: Make) -> None:
    begun(state)
    journal = state.journals.create(1, 1, 0, 1)
    journal.append([commit(1)])
    with pytest.raises(DamagedStore, match="seal 1 does not name it"):
        state.journals.groups(journal.name)
    begun(state, 2)
    state.journals.remove([journal.name])
    with pytest.raises(DamagedStore, match="it has gone"):
        state.journals.groups(journal.name)


def test_a_journal_that_is_collected_while_it_is_read_is_no_damage(
    state: HardState, commit: Make
) -> None:
    begun(state)
    groups = [Group([commit(1)], b""), Group([commit(2)], b"")]
    journal = state.journals.create(1, 1, 0, 1)
    written(state, journal, *groups)
    begun(state, 2)
    read = state.journals.groups(journal.name)
    state.journals.remove([journal.name])
    assert list(read) in ([], groups)


def test_a_large_group(state: HardState, commit: Make) -> None:
    begun(state)
    commits = [commit(1, (b"Sk", bytes(3_000_000)), interval=interval) for interval in range(3)]
    journal = state.journals.create(1, 1, 0, 1)
    journal.append(commits, bytes(1_000))
    journal.append([commit(2)])
    begun(state, 2)
    assert [state.commits.read("count", interval, 1) for interval in range(3)] == commits
    assert state.commits.read("count", 0, 2) == commit(2)


def test_sealing_while_tasks_of_the_session_before_go_on(state: HardState, commit: Make) -> None:
    """Level 2 has a commit of what level 1 committed, whenever lengths are taken."""
    begun(state)
    up, down = (state.journals.create(1, level, 0, 1) for level in (1, 2))
    files = state.journals._files  # type: ignore[attr-defined]
    sizes, written = files.sizes, 0

    def going_on() -> dict[JournalName, int]:
        nonlocal up, down, written
        found = sizes()
        written += 1
        up = state.journals.create(1, 1, 0, written + 1)
        up.append([Commit("up", 0, written, 1, 1, [])])
        down.append([Commit("down", 0, written, 1, 1, [])])
        down = state.journals.create(1, 2, 0, written + 1)
        return found

    for _ in range(3):
        going_on()
    files.sizes = going_on
    begun(state, 2)
    del files.sizes
    ups, downs = (state.commits.numbers(name).get(0, []) for name in ("up", "down"))
    assert written > 5
    assert downs == list(range(1, len(downs) + 1))
    assert ups == list(range(1, len(ups) + 1))
    assert 3 <= len(downs) <= len(ups)
