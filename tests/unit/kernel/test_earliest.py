"""When the first timer of an interval is due after a bundle, and what is read to know that."""

from collections.abc import Iterator

import millrace as mr
from millrace.kernel import timer_families
from millrace.kernel.row_codec import key_row
from millrace.kernel.timers import KeyRows, earliest_us
from millrace.store import Commit, MemoryCache
from millrace.store.write_buffer import AheadCache, AheadView

PREFIX = timer_families.timers(mr.LOW_WATERMARK)
KEY_ROW = key_row(bytes(8), b"sk")


def timer_row(at_us: int) -> bytes:
    named = timer_families.timer_named(KEY_ROW, mr.LOW_WATERMARK, b"st")
    return timer_families.timer_rows(named, KEY_ROW, mr.LOW_WATERMARK, (at_us, None, 100))[0]


class CountedRows(dict[bytes, bytes | None]):
    """Rows that count how often one of them is looked at."""

    looked = 0

    def __getitem__(self, row: bytes) -> bytes | None:
        self.looked += 1
        return super().__getitem__(row)


def after_bundle(
    view: AheadView, before_us: int, freed: tuple[int, ...], timed: tuple[int, ...] = ()
) -> int:
    key_rows = KeyRows()
    key_rows.view = view
    key_rows.freed = [timer_row(at_us) for at_us in freed]
    key_rows.timed = [timer_row(at_us) for at_us in timed]
    key_rows.mutations = dict.fromkeys(key_rows.freed) | dict.fromkeys(key_rows.timed, b"v")
    return earliest_us(key_rows, PREFIX, before_us)


def behind(*pending_us: int) -> tuple[AheadCache, CountedRows]:
    """Return a cache that is behind: 1,000 timers have fired since, and some are pending."""
    cache = AheadCache("c", 0, MemoryCache("c", 0))
    rows = [(timer_row(at_us), b"v") for at_us in (*range(1000), *pending_us)]
    cache.keep(Commit("c", 0, 1, 1, 1, rows), size=1)
    cache.keep(Commit("c", 0, 2, 1, 1, [(timer_row(n), None) for n in range(1000)]), size=1)
    cache.rows = counted = CountedRows(cache.rows)
    return cache, counted


def views(*pending_us: int) -> Iterator[tuple[AheadView, CountedRows]]:
    cache, counted = behind(*pending_us)
    with cache.view() as view:
        assert isinstance(view, AheadView)
        yield view, counted


def test_timers_that_have_fired_are_not_walked_to_find_the_first() -> None:
    for view, counted in views(1000, 1001, 1002):
        assert after_bundle(view, 1000, freed=(1000, 1001)) == 1002
        assert counted.looked <= 3


def test_only_timers_before_those_that_the_bundle_set_are_looked_at() -> None:
    for view, counted in views(*range(1000, 1100)):
        assert after_bundle(view, 1000, freed=tuple(range(1000, 1100)), timed=(1001,)) == 1001
        assert counted.looked <= 1
        assert after_bundle(view, 1000, freed=(1000,), timed=(1000, 1005)) == 1000
        assert after_bundle(view, 1000, freed=(1001,), timed=(1005,)) == 1000
        assert counted.looked <= 1


def test_timers_of_the_end_of_time_are_not_walked() -> None:
    for view, counted in views(mr.MAX_TIMESTAMP):
        freed = (mr.MAX_TIMESTAMP,)
        assert after_bundle(view, mr.MAX_TIMESTAMP, freed=freed) == mr.MAX_TIMESTAMP
        assert counted.looked == 0
