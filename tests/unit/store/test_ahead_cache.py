"""Commits in memory over caches: what is read is as if the caches had them, and so they will."""

from __future__ import annotations

from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.model.errors import DamagedCache
from millrace.store import AheadCache, AheadCaches, Commit, MemoryCache, MemoryCaches
from millrace.store import write_buffer as module

ROWS = [b"Ta", b"Tb", b"V1", b"V2", b"V3", b"W"]
WRITTEN = st.lists(st.tuples(st.sampled_from(ROWS), st.none() | st.binary(max_size=3)), max_size=8)
STEPS = st.one_of(
    st.tuples(st.sampled_from(["wait", "durable"]), st.integers(0, 1), WRITTEN),
    st.tuples(st.sampled_from(["turn", "mark", "lose"]), st.just(0), st.just([])),
)


class Counted(MemoryCache):
    """A cache that counts how often it is written and opened."""

    written = opened = 0

    def apply(self, *commits, **more):
        self.written += 1
        super().apply(*commits, **more)

    def view(self, at=None):
        self.opened += 1
        return super().view(at)


def commit(number: int, rows, interval: int = 0) -> Commit:
    return Commit("c", interval, number, 1, 1, rows, previous=number - 1, chain=number)


@given(
    st.lists(STEPS, max_size=30),
    st.sampled_from([1, 3, 64]),
    st.sampled_from([0, 900, 1 << 20]),
    st.sampled_from([2, 500]),
)
def test_rows_are_read_as_if_the_caches_had_every_commit(steps, turns, room, few):
    with mock.patch.object(module, "_FEW_ROWS", few):
        play(steps, turns, room)


def play(steps, turns: int, room: int) -> None:
    below = MemoryCaches()
    caches = AheadCaches(below, b"V", turns=turns, kept_bytes=room, known_bytes=room)
    rows: list[dict[bytes, bytes]] = [{}, {}]
    made, durable = [0, 0], [0, 0]
    for what, interval, written in steps:
        if what in ("wait", "durable"):
            # Of one interval all commits wait, or none does: a computation is weak, or it is not.
            interval = 0 if what == "wait" else 1
            made[interval] += 1
            one = commit(made[interval], written, interval)
            for row, value in written:
                rows[interval][row] = value
            rows[interval] = {r: v for r, v in rows[interval].items() if v is not None}
            if what == "wait":
                caches.wait(one)
            else:
                caches.durable([one])
                durable = list(made)
        elif what == "turn":
            caches.durable([])
            durable = list(made)
        elif what == "mark":
            caches.forward()
            assert [below.open("c", n).position for n in (0, 1)] == durable
        else:
            for n in (0, 1):
                caches.open("c", n).forget()
        for n in (0, 1):
            assert below.open("c", n).position <= durable[n]  # a failure takes back the rest
            assert caches.open("c", n).cache_position[:2] == (made[n], made[n])
            with caches.open("c", n).view(at=made[n]) as view:
                assert view.get_many(ROWS) == [rows[n].get(row) for row in ROWS]
                assert [view.get(row) for row in ROWS] == [rows[n].get(row) for row in ROWS]
                assert list(view.scan(b"A", b"z")) == sorted(rows[n].items())
                scanned = [row for row in sorted(rows[n].items()) if row[0] < b"V"]
                assert list(view.scan(b"T", b"V")) == scanned
                assert [row for part in view.everything() for row in part] == sorted(
                    rows[n].items()
                )
    caches.durable([])
    caches.forward()
    assert [dict(below.open("c", n)._rows) for n in (0, 1)] == rows


def ahead(turns: int = 4) -> tuple[AheadCaches, Counted]:
    below = MemoryCaches()
    cache = below._open["c", 0] = Counted("c", 0)
    return AheadCaches(below, b"V", turns=turns), cache


def test_a_row_that_every_turn_writes_comes_to_its_cache_once_in_so_many():
    caches, below = ahead(turns=4)
    for n in range(1, 13):
        caches.durable([commit(n, [(b"V1", b"%d" % n)])])
        with caches.open("c", 0).view(at=n) as view:
            assert view.get_many([b"V1"]) == [b"%d" % n]
    assert (below.written, below.opened, below.position) == (3, 0, 12)


def test_of_many_caches_one_a_turn_is_brought_forward():
    below = MemoryCaches()
    caches = AheadCaches(below, b"V", turns=3)
    caches.durable([commit(1, [(b"V1", b"")], n) for n in range(5)])
    positions = []
    for _ in range(6):
        caches.durable([])
        positions.append(sum(below.open("c", n).position for n in range(5)))
    assert positions == [0, 1, 2, 3, 4, 5]


def test_a_commit_of_many_rows_is_not_kept():
    caches, below = ahead()
    caches.durable([commit(1, [(b"V1", b"1")])])
    many = [(b"V%04d" % n, b"2") for n in range(module._FEW_ROWS + 1)]
    caches.durable([commit(2, many)])
    assert (below.written, below.position) == (1, 2)
    with caches.open("c", 0).view(at=2) as view:
        assert view.get_many([b"V0007", b"V1"]) == [b"2", b"1"]


def test_what_is_not_durable_yet_comes_to_no_cache_at_a_mark():
    caches, below = ahead()
    caches.durable([commit(1, [(b"V1", b"1")])])
    caches.wait(commit(2, [(b"V1", b"2")]))
    caches.forward()
    assert (below.position, [one.number for one in caches.commits]) == (0, [2])
    caches.durable([])
    caches.forward()
    assert (below.position, caches.commits, caches.size_bytes) == (2, [], 0)


def test_a_cache_that_somebody_cleared_is_found_out_by_the_first_row_that_is_not_in_memory():
    caches, below = ahead()
    caches.durable([commit(1, [(b"V1", b"1")])])
    caches.forward()
    below.clear()
    with caches.open("c", 0).view(at=1) as view:
        assert view.get(b"V1") == b"1"
        with pytest.raises(DamagedCache, match="at commit 0, expected 1"):
            view.get(b"V2")
    assert caches.open("c", 0).position == 0  # so that it is brought forward again


class Altered:
    """A view that finds a row altered; its cache is wiped then, as :class:`LmdbCache` does.

    Args:
        cache: The cache.
        swallowed: Whether user code catches what is raised, so that it is raised at the end.
    """

    def __init__(self, cache: MemoryCache, *, swallowed: bool) -> None:
        self._cache = cache
        self._swallowed = swallowed

    def __enter__(self):
        return self

    def __exit__(self, *raised):
        if self._swallowed:
            raise DamagedCache("a row was altered")

    def get(self, _row):
        self._cache.clear()
        if not self._swallowed:
            raise DamagedCache("a row was altered")


@pytest.mark.parametrize("swallowed", [False, True])
def test_where_a_cache_stands_that_was_found_damaged_is_asked_again(swallowed, monkeypatch):
    caches, below = ahead()
    below.apply(commit(1, [(b"V1", b"1")]))
    assert caches.open("c", 0).position == 1
    monkeypatch.setattr(below, "view", lambda _: Altered(below, swallowed=swallowed))

    def look():
        with caches.open("c", 0).view(at=1) as view:
            view.get(b"V1")

    with pytest.raises(DamagedCache):
        look()
    assert caches.open("c", 0).position == 0  # so that it is made again


def test_a_cache_that_cannot_be_brought_forward_is_read_no_more(caplog):
    caches, below = ahead()
    caches.durable([commit(1, [(b"V1", b"1")])])
    caches.forward()
    below.clear()
    caches.durable([commit(2, [(b"V1", b"2")])])
    caches.forward()
    assert "brought forward later" in caplog.text
    assert caches.open("c", 0).position == 0


def test_rows_that_caches_have_leave_memory_when_it_is_full_the_longest_unwritten_first():
    below = MemoryCaches()
    caches = AheadCaches(below, b"V", known_bytes=2 * (150 + 1000))
    for n in range(3):
        caches.durable([commit(1, [(b"V1", b"x" * 900)], n)])
        caches.forward()
    assert [len(caches.open("c", n).rows) for n in range(3)] == [0, 1, 1]


def test_rows_that_are_deleted_leave_memory_when_their_cache_knows():
    caches, below = ahead()
    caches.durable([commit(1, [(b"V1", b"1"), (b"V2", b"2"), (b"V3", b"3")])])
    caches.durable([commit(2, [(b"V1", None), (b"V2", None)])])
    caches.durable([commit(3, [(b"V2", b"4")])])
    assert caches.open("c", 0).rows == {b"V1": None, b"V2": b"4", b"V3": b"3"}
    caches.forward()
    assert caches.open("c", 0).rows == dict(below._rows) == {b"V2": b"4", b"V3": b"3"}


def test_commits_that_take_more_memory_than_there_is_do_not_wait_for_their_turn():
    below = MemoryCaches()
    caches = AheadCaches(below, b"V", kept_bytes=1500)
    for n in range(3):
        caches.durable([commit(1, [(b"V1", b"x" * 900)], n)])
    assert [below.open("c", n).position for n in range(3)] == [1, 1, 0]


def test_a_cache_says_of_itself_what_the_one_below_does():
    below = MemoryCache("c", 0)
    below.apply(commit(1, [(b"V1", b"1")]))
    cache = AheadCache("c", 0, below)
    assert (cache.cache_position, cache.size_bytes) == (below.cache_position, below.size_bytes)
    cache.clear()
    cache.load(7, 3, [[(b"V2", b"2")]])
    assert (cache.position, below.position) == (7, 7)
    with cache.view() as view:
        assert (view.get(b"V2"), view.size) == (b"2", (1, 3))
