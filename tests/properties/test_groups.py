"""Groups by whole numbers are what a loop makes of them, however far apart the numbers lie."""

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from millrace.kernel.ordering import arrival_order, coded, lasts

near = st.integers(0, 5)
wide = st.integers(0, 2**62)
numbers = st.one_of(near, wide, st.integers(2**40, 2**40 + 5000))
ids = st.lists(st.tuples(near, st.one_of(near, wide), st.one_of(near, wide)), min_size=1)


@given(st.lists(numbers))
def test_coding_gives_back_every_value(values):
    distinct, places = coded(np.array(values, np.int64))
    assert distinct.tolist() == sorted(set(values))
    assert distinct[places].tolist() == values


@given(ids, st.booleans())
def test_the_last_of_a_group_is_its_highest_pair(found, far):
    codes, highs, lows = (np.array(column, np.int64) for column in zip(*found, strict=True))
    expected = {}
    for code, high, low in found:
        expected[code] = max(expected.get(code, (-1, -1)), (high, low))
    groups, most, last = lasts(codes, 1 << 20 if far else 6, highs, lows)
    assert groups.tolist() == sorted(expected)
    assert list(zip(most.tolist(), last.tolist(), strict=True)) == [
        expected[code] for code in sorted(expected)
    ]


@given(
    st.lists(
        st.tuples(st.one_of(near, st.integers(2**64 - 9, 2**64 - 1), wide), near, near),
        max_size=80,
    )
)
@example([(1, 0, 0), (0, 0, 0)])  # They differ in no bit but those that a position takes.
def test_arrival_order_is_that_of_sorted_triples(found):
    hashes = np.array([hash for hash, _, _ in found], np.uint64)
    origins = np.array([origin for _, origin, _ in found], np.int64)
    sequences = np.array([sequence for _, _, sequence in found], np.int64)
    order = arrival_order(hashes, origins, sequences).tolist()
    assert order == sorted(range(len(found)), key=found.__getitem__)


@given(
    st.lists(
        st.tuples(near, st.integers(0, 200), st.sampled_from([1, 2, 16, 40, 9_000]), near),
        min_size=1,
        max_size=4,
    ),
    st.sampled_from([0, 1, 1 << 40]),
    st.booleans(),
)
@example([(0, 39, 40, 0), (0, 0, 40, 0)], 0, False)  # What comes later ends with the same id.
@example([(0, 9_000, 8_192, 0), (0, 0, 40, 0)], 0, False)  # It begins where another part does.
def test_arrival_order_is_that_of_sorted_triples_where_senders_take_turns(lots, step, repeats):
    """What comes in lots that are in order, each of which may go on anywhere."""
    origins, sequences, hashes = [], [], []
    for origin, first, count, seed in lots:
        origins += [origin] * count
        sequences += [first + n // (2 if repeats else 1) for n in range(count)]
        hashes += [(seed + n * 7) % 5 * step + (n % 3 << 50) for n in range(count)]
    triples = list(zip(hashes, origins, sequences, strict=True))
    order = arrival_order(
        np.array(hashes, np.uint64), np.array(origins, np.int64), np.array(sequences, np.int64)
    )
    assert order.tolist() == sorted(range(len(triples)), key=triples.__getitem__)
