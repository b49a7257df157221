"""Rows of a key interval: what is packed is unpacked, in the order that is documented."""

from __future__ import annotations

import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from millrace.kernel import families, row_codec, timer_families
from millrace.model.errors import DamagedStore
from millrace.model.keys import encode_key, hash_key
from millrace.model.time import MAX_TIMESTAMP
from millrace.store import ROW_BYTES_MAX, Commit, MemoryCache

# Few and short, so that one is a prefix of another; and longer than a row takes.
KEYS = st.one_of(
    st.text("a\0\xff", max_size=3), st.integers(-2, 2), st.text("k", min_size=155, max_size=170)
).map(encode_key)
PARTS = st.one_of(st.binary(max_size=3), st.binary(min_size=157, max_size=165))
INSTANTS = st.one_of(st.integers(-2, 2), st.integers(-MAX_TIMESTAMP, MAX_TIMESTAMP))
NUMBERS = st.integers(1, 2**48)
CELLS = st.integers(0, 255)
HOLDS = st.none() | INSTANTS
PERCENTILES = st.sampled_from([50, 99, 100])


def named(key: bytes) -> bytes:
    return row_codec.key_row(struct.pack(">Q", hash_key(key)), key)


KEY_ROWS = KEYS.map(named)
LAST = PARTS.map(row_codec.last_part)


@st.composite
def timers(draw: st.DrawFn) -> timer_families.TimerRow:
    key = draw(KEYS)
    clock = draw(st.sampled_from([0, 1, timer_families.clock_of(0, 99)]))
    return timer_families.TimerRow(clock, draw(INSTANTS), named(key), draw(PARTS), key, draw(HOLDS))


@st.composite
def holds(draw: st.DrawFn) -> timer_families.HoldRow:
    key = draw(KEYS)
    domain = draw(st.sampled_from([None, 0, 1]))
    part = b"" if domain is None else draw(LAST)
    return timer_families.HoldRow(draw(INSTANTS), named(key), domain, part, key)


FAMILIES: dict[type, st.SearchStrategy[families.Row]] = {
    families.ValuesRow: st.builds(families.ValuesRow, KEY_ROWS, st.binary(max_size=3)),
    families.EntryRow: st.builds(families.EntryRow, KEY_ROWS, CELLS, PARTS, st.binary(max_size=3)),
    families.BlockRow: st.builds(
        families.BlockRow, KEY_ROWS, CELLS, NUMBERS, st.lists(st.binary(max_size=3))
    ),
    timer_families.TimerRow: timers(),
    timer_families.TagRow: st.builds(
        timer_families.TagRow,
        KEY_ROWS,
        st.sampled_from([0, 1]),
        LAST,
        st.tuples(INSTANTS, HOLDS, PERCENTILES),
    ),
    timer_families.HoldRow: holds(),
    timer_families.KeyHoldRow: st.builds(timer_families.KeyHoldRow, KEY_ROWS, INSTANTS),
    families.IdRow: st.builds(
        families.IdRow, st.binary(min_size=8, max_size=8), st.binary(min_size=16, max_size=16)
    ),
    families.IdBatchRow: st.builds(
        families.IdBatchRow, NUMBERS, INSTANTS, st.binary(min_size=24, max_size=24)
    ),
    families.ExpiryRow: st.builds(families.ExpiryRow, INSTANTS, NUMBERS),
    families.ChunkRow: st.builds(
        families.ChunkRow, INSTANTS, NUMBERS, st.integers(0, 2**16 - 1), st.binary(max_size=3)
    ),
}
ANY = st.one_of(*FAMILIES.values())


def order(row: families.Row) -> tuple[object, ...]:
    """What a family documents its rows to be ordered by."""
    match row:
        case families.ValuesRow() | timer_families.KeyHoldRow():
            return (row.key_row,)
        case families.EntryRow():
            return (row.key_row, row.cell, row_codec.last_part(row.entry))
        case timer_families.TimerRow():
            return (row.clock, row.at_us, row.key_row, row_codec.last_part(row.tag))
        case timer_families.TagRow():
            return (row.key_row, row.domain, row.part)
        case timer_families.HoldRow():
            return (row.at_us, row.key_row, -1 if row.domain is None else row.domain, row.part)
        case families.BlockRow():
            return row[:3]
        case families.ChunkRow():
            return row[:3]
        case families.IdBatchRow():
            return row[:2]
    return tuple(row)


@given(ANY)
def test_a_row_is_unpacked_as_it_was_packed(row: families.Row) -> None:
    packed = row.pack()

    assert families.unpack(*packed) == row
    assert type(families.unpack(*packed)) is type(row)
    assert len(packed[0]) <= ROW_BYTES_MAX


@pytest.mark.parametrize("family", FAMILIES)
@given(data=st.data())
def test_rows_sort_as_the_family_says(family: type, data: st.DataObject) -> None:
    drawn = data.draw(st.lists(FAMILIES[family], max_size=8))

    by_bytes = sorted(drawn, key=lambda row: row.pack()[0])

    assert [order(row) for row in by_bytes] == sorted(map(order, drawn))  # type: ignore[type-var]


@given(st.lists(ANY, max_size=12))
def test_families_are_disjoint_and_a_scan_of_one_finds_all_of_it(drawn: list[families.Row]) -> None:
    stored = dict(row.pack() for row in drawn)
    cache = MemoryCache("c", 0)
    cache.apply(Commit("c", 0, 1, 1, 1, list(stored.items())))

    with cache.view() as view:
        assert dict(row_codec.everything(view)) == stored
        for letter, family in families.FAMILIES.items():
            found = {row for row, _ in row_codec.scan(view, letter)}
            assert found == {row.pack()[0] for row in drawn if isinstance(row, family)}


@given(st.lists(st.tuples(KEYS, CELLS, PARTS), max_size=8), KEYS, CELLS)
@example([(b"sab", 0, b"c"), (b"sa", 0, b"bc")], b"sa", 0)
def test_a_map_of_one_key_holds_no_row_of_another(
    drawn: list[tuple[bytes, int, bytes]], key: bytes, cell: int
) -> None:
    entries = [families.EntryRow(named(k), c, entry, b"") for k, c, entry in drawn]
    prefix = families.map_prefix(named(key), row_codec.BYTE[cell])

    found = {row.entry for row in entries if row.pack()[0].startswith(prefix)}

    assert found == {entry for k, c, entry in drawn if (k, c) == (key, cell)}


@given(timers())
def test_rows_of_one_timer_lead_to_one_another(timer: timer_families.TimerRow) -> None:
    by_time = timer.pack()[0]
    by_tag = timer.tag_row()

    assert timer_families.TagRow.unpack(*by_tag.pack()).timer_row() == by_time
    assert timer_families.timer_named(timer.key_row, timer.domain, timer.tag) == by_tag.pack()[0]
    hold = timer.hold_row()
    made = timer_families.timer_rows(by_tag.pack()[0], timer.key_row, timer.domain, timer.setting)
    assert made == (by_time, None if hold is None else hold.pack()[0])
    if hold is not None:
        assert hold.tag_row() == by_tag.pack()[0]


@given(KEY_ROWS, INSTANTS)
def test_rows_of_one_hold_of_a_key_lead_to_one_another(key_row: bytes, at_us: int) -> None:
    row, _ = timer_families.HoldRow(at_us, key_row, None, b"", b"").pack()

    assert (
        timer_families.KeyHoldRow(key_row, at_us).hold_row()
        == row
        == timer_families.key_hold(at_us, key_row)
    )


@given(KEYS, st.binary())
def test_a_row_says_its_key_unless_it_is_too_long(key: bytes, rest: bytes) -> None:
    key_row = named(key)

    assert row_codec.key_in(key_row) == (key if len(key) <= row_codec.WHOLE else None)
    assert row_codec.key_row_end(b"V" + key_row + rest, 1) == 1 + len(key_row)


@given(st.lists(st.none() | st.binary(max_size=3), min_size=1, max_size=5))
def test_values_of_a_key_come_back_one_by_one(cells: list[bytes | None]) -> None:
    assert families.unpack_values(families.pack_values(cells), len(cells)) == cells


def test_a_row_of_no_family_is_refused() -> None:
    with pytest.raises(DamagedStore, match="begins with none of BCGHIJMQTUVX"):
        families.unpack(b"Zzz", b"")
