"""Remaps of an interval map: the next map has no hole, and new ids."""

from __future__ import annotations

from typing import Any, cast

import pytest

from millrace.watermark.intervals import HASH_SPACE, IntervalMap
from millrace.watermark.map_change import Merge, Split, remapped

QUARTERS = IntervalMap.uniform(4)
QUARTER = HASH_SPACE // 4


def test_children_have_new_ids_and_their_parents_hashes() -> None:
    made = remapped(QUARTERS, [Merge(1, 2), Split(3, HASH_SPACE - 1)], first_id=10)

    assert [(one.id, one.start, one.end) for one in made.intervals.intervals] == [
        (0, 0, QUARTER),
        (10, QUARTER, 3 * QUARTER),
        (11, 3 * QUARTER, HASH_SPACE - 1),
        (12, HASH_SPACE - 1, HASH_SPACE),
    ]
    assert made.parents == {10: (1, 2), 11: (3,), 12: (3,)}


@pytest.mark.parametrize(
    ("remaps", "said"),
    [
        ([Split(0, 0)], "expected a hash above 0 and below"),
        ([Split(0, QUARTER)], "expected a hash above 0 and below"),
        ([Merge(0, 2)], "expected neighbours"),
        ([Merge(1, 0)], "expected neighbours"),
        ([Merge(1, 1)], "interval 1 is in another"),
        ([Merge(0, 1), Split(0, 7)], "interval 0 is in another"),
        ([Split(9)], "interval 9 is not there"),
        ([Split(0, cast(Any, "7"))], "expected a hash above 0 and below"),
        ([3], r"3: expected mr\.ops\.Split\(3\) or mr\.ops\.Merge\(3, 4\)"),
    ],
)
def test_what_is_no_remap_of_the_map_is_refused(remaps: list[Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        remapped(QUARTERS, remaps, first_id=10)
