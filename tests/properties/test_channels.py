"""Many records are fresh where each of them is, whoever sent them; channels move as far."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.kernel.channels import Channels, number_of, sender_of
from millrace.kernel.families import ChannelRow
from millrace.kernel.record_ids import FIRST_INJECTED, ROW_BITS, WEAK_ORIGIN

INTERVALS = (0, 3, 5_000)

commits = st.sampled_from([0, 1, 2, 3, 1 << 30, 1 << 31])
produced = commits.map(lambda number: 3 << 48 | number)
weak = commits.map(lambda number: 3 << 48 | WEAK_ORIGIN | number)
injected = commits.map(lambda number: FIRST_INJECTED + 1 << 48 | number)


@st.composite
def turns(draw):
    """Records of several senders, or, as mostly, of one; for intervals near each other, or not."""
    kind, part = draw(st.sampled_from([produced, weak, injected])), draw(st.sampled_from([1, 1, 0]))
    origins = [st.just(draw(kind)), kind, st.one_of(produced, weak, injected)]
    origin = draw(st.sampled_from(origins))
    row = st.integers(0, 9).map(lambda row: part << ROW_BITS | row)
    sequence = draw(st.sampled_from([row, st.one_of(row, st.integers(0, 9))]))
    interval = st.sampled_from(draw(st.sampled_from([INTERVALS[:1], INTERVALS[:2], INTERVALS])))
    return draw(st.lists(st.tuples(interval, origin, sequence), min_size=1, max_size=8))


@given(st.lists(turns(), min_size=1, max_size=5), st.booleans())
def test_many_are_fresh_where_each_is(given_, consumes_weak):
    many, few = Channels(weak=consumes_weak), Channels(weak=consumes_weak)
    for channels in (many, few):
        for interval in INTERVALS:
            channels.load(interval, [ChannelRow(3, 1, 2, 4)])
    for turn in given_:
        seen: dict[tuple[int, int], tuple[int, int]] = {}
        flags = many.fresh(
            *(np.array(column, np.int64) for column in zip(*turn, strict=True)),
            lambda sender, number, seen=seen: seen.update(
                {sender: max(number, seen.get(sender, number))}
            ),
        )
        expected: dict[int, bool] = {}
        for interval in INTERVALS:
            mine = [n for n, (at, _, _) in enumerate(turn) if at == interval]
            flags_of = few.fresh_few(interval, [turn[n][1:] for n in mine])
            expected.update(zip(mine, flags_of, strict=True))
        found = [True] * len(turn) if flags is None else flags.tolist()
        assert found == [expected[n] for n in range(len(turn))]
        assert (flags is None) == all(found)
        assert many.take() == few.take()
        for _, origin, sequence in turn:
            sender = sender_of(origin, sequence)
            if consumes_weak or not origin & WEAK_ORIGIN:
                assert seen[sender] >= number_of(origin, sequence)
        numbers = {number_of(origin, sequence) for _, origin, sequence in turn}
        assert set(seen.values()) <= numbers


@pytest.mark.parametrize("known", [(0, 4), (0, 5)])
def test_one_that_was_consumed_is_seen_among_many_that_were_not(known):
    """The first of many is as far as the channel has come, or one before that."""
    channels = Channels()
    channels.load(7, [ChannelRow(FIRST_INJECTED, 0, *known)])
    sequences = np.arange(4, 10)
    flags = channels.fresh(
        np.full(6, 7), np.full(6, FIRST_INJECTED << 48), sequences, lambda *_: None
    )
    assert flags.tolist() == (sequences > known[1]).tolist()
