from __future__ import annotations

from collections.abc import Callable

import pytest

from millrace.model.errors import InvariantViolation, StoreError
from millrace.store import ROW_BYTES_MAX, Cache, Caches, Commit

Make = Callable[..., Commit]


def rows(cache: Cache) -> dict[bytes, bytes]:
    with cache.view() as view:
        return dict(view.scan(b"A", b"z"))


def test_an_empty_cache(cache: Cache) -> None:
    assert cache.position == 0
    with cache.view(at=0) as view:
        assert view.position == 0
        assert view.get(b"Sk") is None
        assert view.get_many([b"Sk"]) == [None]
        assert list(view.scan(b"A", b"z")) == []


def test_a_commit_moves_the_position_and_changes_rows(cache: Cache, commit: Make) -> None:
    cache.apply(commit(1, (b"Sa", b"1"), (b"Sb", b"2")))
    cache.apply(commit(2, (b"Sa", None), (b"Sc", b"3"), (b"Sz", None)))
    assert cache.position == 2
    assert rows(cache) == {b"Sb": b"2", b"Sc": b"3"}


def test_a_commit_without_mutations_moves_the_position(cache: Cache, commit: Make) -> None:
    cache.apply(commit(1))
    assert cache.position == 1


def test_a_later_mutation_of_a_row_wins(cache: Cache, commit: Make) -> None:
    cache.apply(commit(1, (b"Sa", b"1"), (b"Sa", None), (b"Sb", None), (b"Sb", b"2")))
    assert rows(cache) == {b"Sb": b"2"}


def test_an_empty_value_is_not_an_absent_row(cache: Cache, commit: Make) -> None:
    cache.apply(commit(1, (b"Sa", b"")))
    with cache.view() as view:
        assert view.get(b"Sa") == b""
        assert view.get_many([b"Sa"]) == [b""]


def test_get_many_answers_row_by_row(cache: Cache, commit: Make) -> None:
    cache.apply(commit(1, *[(b"S%03d" % n, b"%d" % n) for n in range(0, 100, 2)]))
    with cache.view() as view:
        wanted = [b"S%03d" % n for n in range(100)]
        assert view.get_many(wanted) == [None if n % 2 else b"%d" % n for n in range(100)]
        assert view.get_many([]) == []


@pytest.mark.parametrize(
    ("start", "stop", "expected"),
    [
        (b"Sb", b"Sd", [b"Sb", b"Sc"]),
        (b"Sb", b"Sb", []),
        (b"Sd", b"Sb", []),
        (b"Sb\x00", b"Sc\x00", [b"Sc"]),
        (b"T", b"U", []),
        (b"", b"\xff", [b"Sa", b"Sb", b"Sc", b"Sd"]),
        (b"", b"", []),
    ],
)
def test_a_scan_is_half_open_and_ascending(
    cache: Cache, commit: Make, start: bytes, stop: bytes, expected: list[bytes]
) -> None:
    cache.apply(commit(1, *[(row, b"") for row in (b"Sd", b"Sb", b"Sa", b"Sc")]))
    with cache.view() as view:
        assert [row for row, _ in view.scan(start, stop)] == expected


def test_a_scan_may_stop_early_and_start_again(cache: Cache, commit: Make) -> None:
    cache.apply(commit(1, (b"Sa", b""), (b"Sb", b"")))
    with cache.view() as view:
        assert next(view.scan(b"A", b"z")) == (b"Sa", b"")
        assert len(list(view.scan(b"A", b"z"))) == 2


def test_a_view_does_not_see_later_commits(cache: Cache, commit: Make) -> None:
    cache.apply(commit(1, (b"Sa", b"1"), (b"Sb", b"1")))
    with cache.view() as view:
        scan = view.scan(b"A", b"z")
        assert next(scan) == (b"Sa", b"1")
        cache.apply(commit(2, (b"Sa", b"2"), (b"Sb", None), (b"Sc", b"2")))
        cache.apply(commit(3, (b"Sd", b"3")))
        assert list(scan) == [(b"Sb", b"1")]
        assert view.get(b"Sa") == b"1"
        assert view.position == 1
    assert rows(cache) == {b"Sa": b"2", b"Sc": b"2", b"Sd": b"3"}


def test_a_view_outlives_a_clear(cache: Cache, commit: Make) -> None:
    cache.apply(commit(1, (b"Sa", b"1")))
    with cache.view() as view:
        cache.clear()
        assert view.get(b"Sa") == b"1"
    assert rows(cache) == {}


def test_a_view_at_another_commit_is_refused(cache: Cache, commit: Make) -> None:
    cache.apply(commit(1))
    for at in (0, 2):
        with pytest.raises(StoreError, match=f"at commit 1, expected {at}"), cache.view(at=at):
            pass
    with cache.view(at=1):
        pass


def test_an_exception_inside_a_view_is_the_callers(cache: Cache) -> None:
    with pytest.raises(ZeroDivisionError), cache.view() as view:
        _ = 1 / view.position
    assert cache.position == 0


def test_a_commit_that_was_applied_is_not_applied_again(cache: Cache, commit: Make) -> None:
    cache.apply(commit(1, (b"Sa", b"1")))
    cache.apply(commit(2, (b"Sa", b"2")))
    cache.apply(commit(1, (b"Sa", b"1")))
    cache.apply(commit(2, (b"Sa", b"other")))
    assert cache.position == 2
    assert rows(cache) == {b"Sa": b"2"}


@pytest.mark.parametrize("number", [2, 100])
def test_a_gap_is_refused_and_changes_nothing(cache: Cache, commit: Make, number: int) -> None:
    with pytest.raises(StoreError, match=f"at commit 0, asked to apply commit {number}, expected"):
        cache.apply(commit(number, (b"Sa", b"1")))
    assert cache.position == 0
    assert rows(cache) == {}


def test_many_commits_at_once_are_what_they_are_one_by_one(cache: Cache, commit: Make) -> None:
    one, two = commit(1, (b"Sa", b"1"), (b"Sb", b"1")), commit(2, (b"Sa", b"2"), (b"Sb", None))
    cache.apply(one)
    cache.apply(one, two, commit(3, (b"Sc", b"3")))
    assert cache.position == 3
    assert rows(cache) == {b"Sa": b"2", b"Sc": b"3"}


def test_a_gap_among_commits_refuses_all_of_them(cache: Cache, commit: Make) -> None:
    with pytest.raises(StoreError, match="at commit 2, asked to apply commit 4, expected 3"):
        cache.apply(commit(1, (b"Sa", b"1")), commit(2), commit(4))
    assert cache.position == 0
    assert rows(cache) == {}


def test_clear_goes_back_to_the_beginning(cache: Cache, commit: Make) -> None:
    cache.apply(commit(1, (b"Sa", b"1")))
    cache.clear()
    assert cache.position == 0
    assert rows(cache) == {}
    cache.apply(commit(1, (b"Sb", b"1")))
    assert rows(cache) == {b"Sb": b"1"}


def test_the_longest_row(cache: Cache, commit: Make) -> None:
    longest = b"S" * ROW_BYTES_MAX
    cache.apply(commit(1, (longest, b"1")))
    assert rows(cache) == {longest: b"1"}


@pytest.mark.parametrize("row", [b"", b"\x00", b"\x00S", b"S" * (ROW_BYTES_MAX + 1)])
@pytest.mark.parametrize("value", [b"1", None])
def test_malformed_rows_are_refused_and_change_nothing(
    cache: Cache, commit: Make, row: bytes, value: bytes | None
) -> None:
    with pytest.raises(InvariantViolation, match=f"{len(row)} bytes in commit 1 .*expected 1 to"):
        cache.apply(commit(1, (b"Sa", b"1"), (row, value)))
    assert cache.position == 0
    assert rows(cache) == {}


def test_a_commit_of_another_interval_is_refused(cache: Cache, commit: Make) -> None:
    with pytest.raises(
        InvariantViolation, match=r"commit 1 of interval 1 .* the cache of interval 0"
    ):
        cache.apply(commit(1, interval=1))


def test_a_large_value(cache: Cache, commit: Make) -> None:
    value = bytes(range(256)) * 40_000
    cache.apply(commit(1, (b"Sa", value)))
    assert rows(cache) == {b"Sa": value}


def test_intervals_and_computations_are_apart(caches: Caches) -> None:
    names = [("count", 0), ("count", 1), ("Count/", 0), ("", 0)]
    for name, interval in names:
        row = (b"Sa", f"{name}{interval}".encode())
        caches.open(name, interval).apply(Commit(name, interval, 1, 1, 1, [row]))
    for name, interval in names:
        assert rows(caches.open(name, interval)) == {b"Sa": f"{name}{interval}".encode()}
    assert caches.open("count", 1) is caches.open("count", 1)
