"""Consumed: what of a batch is new, by sender and number."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.connectors.postgres.live_writer import Consumed, senders_of
from millrace.kernel.record_ids import ROW_BITS
from millrace.model.errors import InvariantViolation


def halves(records: list[tuple[int, int, int]]) -> tuple[np.ndarray, np.ndarray]:
    """Return ids of records given by sender, commit and index."""
    origins = [((sender % 2) << 48) | commit for sender, commit, _ in records]
    sequences = [(sender << ROW_BITS) | index for sender, _, index in records]
    return np.array(origins, np.int64), np.array(sequences, np.int64)


RECORDS = st.tuples(st.integers(0, 3), st.integers(1, 4), st.integers(0, 3))


@given(batches=st.lists(st.lists(RECORDS, min_size=1, max_size=12), max_size=6))
def test_a_record_is_new_if_it_is_above_all_that_came_from_its_sender(
    batches: list[list[tuple[int, int, int]]],
) -> None:
    consumed, last = Consumed({}), dict[int, tuple[int, int]]()
    for drawn in batches:
        # Each sender's in its order; among one another in any.
        ordered = {sender: sorted({r for r in drawn if r[0] == sender}) for sender in range(4)}
        turn = [sender for sender, *_ in dict.fromkeys(drawn)]
        records = [ordered[sender].pop(0) for sender in turn]
        news = consumed.news(*halves(records))

        expected = [record[1:] > last.get(record[0], (-1, -1)) for record in records]
        assert news.fresh.tolist() == expected
        for record, fresh in zip(records, expected, strict=True):
            if fresh:
                last[record[0]] = record[1:]
        consumed.add(news)


@pytest.mark.parametrize("second", [(1, 2, 0), (1, 1, 5)], ids=["again", "before"])
def test_records_out_of_their_senders_order_are_an_error(second: tuple[int, int, int]) -> None:
    records = [(1, 2, 0), (0, 1, 1), second]
    with pytest.raises(InvariantViolation, match="came out of order at a sink"):
        Consumed({}).news(*halves(records))


def test_senders_of_productions_and_of_processes_differ() -> None:
    records = [(0, 1, 0), (1, 1, 0), (2, 1, 0), (3, 9, 2)]
    assert len(set(senders_of(*halves(records)).tolist())) == 4
