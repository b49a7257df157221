"""GetWork: records in order of id, cut by interval and by key."""

import numpy as np
import pytest

from millrace.kernel.bundle import ReceivedRecords
from millrace.watermark.intervals import IntervalMap


def received(*records):
    """Records are (hash, key, origin, sequence); the value says which one it is."""
    hashes, keys, origins, sequences = zip(*records, strict=True) if records else ((),) * 4
    return ReceivedRecords(
        np.array(hashes, dtype=np.uint64),
        list(keys),
        list(range(len(records))),
        np.arange(len(records), dtype=np.int64),
        ["s"] * len(records),
        np.array(origins, dtype=np.int64),
        np.array(sequences, dtype=np.int64),
    )


def cut(arrived, intervals=1):
    """Return interval id -> [(key, its values in order)]."""
    return {
        interval.id: [
            (key, records.values[start:stop])
            for key, start, stop in zip(
                records.encoded, records.cuts, records.cuts[1:], strict=False
            )
        ]
        for interval, records in arrived.by_interval(IntervalMap.uniform(intervals))
    }


def test_nothing_arrives_as_nothing():
    assert cut(received()) == {}


@pytest.mark.parametrize(
    "ids", [[(1, 0), (1, 1), (2, 0)], [(2, 0), (1, 1), (1, 0)], [(1, 1), (2, 0), (1, 0)]]
)
def test_records_of_a_key_are_ordered_by_origin_then_place(ids):
    arrived = received(*((5, b"sk", origin, sequence) for origin, sequence in ids))

    ((_, values),) = cut(arrived)[0]
    assert [ids[n] for n in values] == sorted(ids)


def test_records_with_one_id_keep_the_order_in_which_they_came():
    arrived = received((5, b"sk", 1, 0), (5, b"sk", 0, 0), (5, b"sk", 1, 0))

    assert cut(arrived)[0] == [(b"sk", [1, 0, 2])]


def test_keys_are_cut_apart_and_ordered_by_hash():
    arrived = received((9, b"sb", 0, 0), (1, b"sa", 0, 1), (9, b"sb", 0, 2))

    assert cut(arrived)[0] == [(b"sa", [1]), (b"sb", [0, 2])]


def test_keys_that_share_a_hash_are_kept_apart():
    arrived = received(
        (5, b"sb", 0, 0), (5, b"sa", 0, 1), (5, b"sb", 0, 2), (5, b"sc", 0, 3), (5, b"sa", 0, 4)
    )

    assert cut(arrived)[0] == [(b"sa", [1, 4]), (b"sb", [0, 2]), (b"sc", [3])]


def test_a_collision_does_not_disturb_its_neighbours():
    arrived = received(
        (1, b"sx", 0, 0), (5, b"sb", 0, 1), (5, b"sa", 0, 2), (9, b"sy", 0, 3), (1, b"sx", 0, 4)
    )

    assert cut(arrived)[0] == [(b"sx", [0, 4]), (b"sa", [2]), (b"sb", [1]), (b"sy", [3])]


def test_columns_stay_together_through_a_collision():
    arrived = received((5, b"sb", 7, 0), (5, b"sa", 8, 1), (5, b"sb", 6, 2))
    ((_, records),) = arrived.by_interval(IntervalMap.uniform(1))

    assert records.encoded == [b"sa", b"sb"]
    assert records.cuts == [0, 1, 3]
    rows = zip(
        records.values, records.timestamps, records.origins, records.sequences,
        strict=True,
    )  # fmt: skip
    assert list(rows) == [(1, 1, 8, 1), (2, 2, 6, 2), (0, 0, 7, 0)]


def test_each_record_lands_in_the_interval_of_its_hash():
    quarter = 1 << 62
    edges = [0, quarter - 1, quarter, 2 * quarter - 1, 2 * quarter, 4 * quarter - 1]
    arrived = received(*((edge, b"s%d" % n, 0, n) for n, edge in enumerate(edges)))

    found = {
        interval: [n for _, values in keys for n in values]
        for interval, keys in cut(arrived, 4).items()
    }
    assert found == {0: [0, 1], 1: [2, 3], 2: [4], 3: [5]}


def test_intervals_without_records_do_not_appear():
    assert list(cut(received((0, b"sa", 0, 0), (2**64 - 1, b"sb", 0, 1)), 16)) == [0, 15]


@pytest.mark.parametrize("each", [1, 7, 100])
def test_lots_that_are_in_order_are_put_together_in_runs(each):
    lots = [
        received(*((one + n % each, b"s%02d" % (n % each), one, n) for n in range(3 * each)))
        for one in (500, 0, 250)
    ]
    parts = [lot.take(np.lexsort((lot.sequences, lot.hashes))) for lot in lots]
    ((_, found),) = ReceivedRecords.concat(parts).by_interval(IntervalMap.uniform(1))

    expected = [
        (one, n) for one in (0, 250, 500) for n in sorted(range(3 * each), key=lambda n: n % each)
    ]
    assert [*zip(found.origins, found.sequences, strict=True)] == expected
    assert found.values == [n for _, n in expected]
    assert found.cuts == list(range(0, 9 * each + 1, 3))
    assert found.encoded == [b"s%02d" % n for n in range(each)] * 3


def test_several_lots_are_one():
    together = ReceivedRecords.concat(
        [received((5, b"sk", 2, 0)), received(), received((5, b"sk", 1, 0))]
    )

    assert len(together) == 2
    assert cut(together)[0] == [(b"sk", [0, 0])]
    assert len(ReceivedRecords.concat([])) == 0
