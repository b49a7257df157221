"""Key intervals: half-open, covering the hash space once, owned by one task each."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.watermark.intervals import HASH_SPACE, IntervalMap, KeyInterval

COUNTS = [1, 2, 16, 256]


def uint64(*hashes):
    return np.array(hashes, dtype=np.uint64)


@pytest.mark.parametrize("count", COUNTS)
def test_uniform_intervals_cover_the_hash_space_in_equal_parts(count):
    intervals = IntervalMap.uniform(count).intervals

    assert intervals[0].start == 0
    assert intervals[-1].end == HASH_SPACE
    assert {interval.end - interval.start for interval in intervals} == {HASH_SPACE // count}
    assert [interval.id for interval in intervals] == list(range(count))


@pytest.mark.parametrize("count", [0, -1, 3, 6, 100])
def test_a_count_that_is_no_power_of_two_is_refused(count):
    with pytest.raises(ValueError, match="power of two"):
        IntervalMap.uniform(count)


@pytest.mark.parametrize("count", COUNTS)
def test_every_edge_belongs_to_the_interval_that_starts_there(count):
    map = IntervalMap.uniform(count)
    starts = uint64(*(interval.start for interval in map.intervals))
    lasts = uint64(*(interval.end - 1 for interval in map.intervals))

    assert map.locate(starts).tolist() == list(range(count))
    assert map.locate(lasts).tolist() == list(range(count))


def test_a_hash_is_located_by_its_top_bits_in_a_uniform_map():
    hashes = np.random.default_rng(7).integers(0, 2**64, 1_000, dtype=np.uint64)

    located = IntervalMap.uniform(16).locate(hashes)

    assert (located == (hashes >> np.uint64(60)).astype(np.intp)).all()


def test_an_uneven_map_is_located_by_its_own_edges():
    map = IntervalMap(
        [KeyInterval(9, 100, HASH_SPACE), KeyInterval(4, 0, 10), KeyInterval(7, 10, 100)]
    )

    assert map.locate(uint64(0, 9, 10, 99, 100, HASH_SPACE - 1)).tolist() == [0, 0, 1, 1, 2, 2]
    assert [interval.id for interval in map.intervals] == [4, 7, 9]


@given(
    st.sets(
        st.one_of(
            st.integers(1, HASH_SPACE - 1),
            st.integers(1, 64).map(lambda cell: cell << 52),
            st.integers(1 << 63, (1 << 63) + 4),
            st.just(HASH_SPACE - 1),
        ),
        max_size=40,
    )
)
def test_many_hashes_lie_where_each_of_them_does(cuts):
    edges = [0, *sorted(cuts), HASH_SPACE]
    map = IntervalMap([KeyInterval(n, *ends) for n, ends in enumerate(itertools.pairwise(edges))])
    near = [edge + step for edge in edges for step in (-1, 0, 1)]
    hashes = [hash for hash in near if 0 <= hash < HASH_SPACE]
    many = uint64(*(hashes * (1_000 // len(hashes) + 1)))

    assert map.locate(many).tolist() == [map.place_of(int(hash)) for hash in many]


@pytest.mark.parametrize(
    "intervals",
    [
        [],
        [KeyInterval(0, 1, HASH_SPACE)],
        [KeyInterval(0, 0, HASH_SPACE - 1)],
        [KeyInterval(0, 0, 10), KeyInterval(1, 11, HASH_SPACE)],
        [KeyInterval(0, 0, 11), KeyInterval(1, 10, HASH_SPACE)],
        [KeyInterval(0, 0, HASH_SPACE), KeyInterval(1, 0, HASH_SPACE)],
    ],
    ids=["none", "no start", "no end", "gap", "overlap", "twice"],
)
def test_what_does_not_cover_the_hash_space_once_is_refused(intervals):
    with pytest.raises(ValueError, match="do not cover the hash space once"):
        IntervalMap(intervals)


def test_two_intervals_with_one_id_are_refused():
    with pytest.raises(ValueError):
        IntervalMap([KeyInterval(0, 0, 10), KeyInterval(0, 10, HASH_SPACE)])


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("tasks", [1, 2, 3, 5, 16, 17, 300])
def test_each_interval_is_owned_by_exactly_one_task(count, tasks):
    map = IntervalMap.uniform(count)

    owned = [place for task in range(tasks) for place in map.owned(task, tasks)]
    assert owned == list(range(count))
    assert all(place * tasks // count == n for n in range(tasks) for place in map.owned(n, tasks))


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("tasks", [1, 2, 3, 5, 16, 17, 300])
def test_a_hash_goes_to_the_task_that_owns_its_interval(count, tasks):
    map = IntervalMap.uniform(count)
    for task in range(tasks):
        for interval in [map.intervals[place] for place in map.owned(task, tasks)]:
            edges = uint64(interval.start, interval.end - 1)
            assert map.task_of(edges, tasks).tolist() == [task, task]


@pytest.mark.parametrize(("count", "tasks"), [(16, 3), (256, 7), (16, 16)])
def test_tasks_own_about_equally_many(count, tasks):
    sizes = [len(IntervalMap.uniform(count).owned(task, tasks)) for task in range(tasks)]

    assert max(sizes) - min(sizes) <= 1
