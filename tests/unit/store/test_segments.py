from __future__ import annotations

import struct
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import msgspec
import pytest

from millrace.model.errors import CheckpointMismatch, DamagedStore, InvariantViolation
from millrace.store import Commit, Identity, decode_segment, encode_segment, segments
from millrace.store.commit import identity
from millrace.store.segments import (
    HEADER_BYTES,
    IndexEntry,
    Segment,
    encode_frame,
    encode_header,
    encode_index,
    entries_of,
    seed_of,
)

COMMITS = [
    Commit("count", 0, 1, 1, 1, [(b"Sa", b"1"), (b"Sb", None)], b"productions", b"report"),
    Commit("count", 1, 7, 1, 1, []),
    Commit("über", 0, 1, 1, 1, [(b"Tx", b"")]),
]
NAMES = [(commit.computation, commit.interval, commit.number) for commit in COMMITS]


def opened(data: bytes) -> Segment:
    return Segment("s", len(data), lambda start, stop: data[start:stop])


def entries(data: bytes) -> list[IndexEntry]:
    return [entry for frame in opened(data).index() for entry in entries_of(frame)]


def read_commit(data: bytes, name: Identity) -> Commit:
    """Read one commit as who knows the index does."""
    entry = next(entry for entry in entries(data) if entry.identity == name)
    return opened(data).commit(entry)


def test_every_commit_is_found() -> None:
    data = encode_segment(COMMITS)
    assert [read_commit(data, name) for name in NAMES] == COMMITS
    assert [entry.identity for entry in entries(data)] == NAMES
    assert list(decode_segment(data)) == COMMITS


def test_a_segment_of_nothing() -> None:
    assert list(decode_segment(encode_segment([]))) == []


def test_a_number_twice_is_refused() -> None:
    with pytest.raises(InvariantViolation, match="'count' in one segment"):
        encode_segment([COMMITS[0], COMMITS[0]])


def readings(data: bytes) -> list[Commit | None]:
    """What a damaged segment gives: each commit, or None where it is refused as damaged."""
    found: list[Commit | None] = []
    for name in NAMES:
        try:
            found.append(read_commit(data, name))
        except DamagedStore:
            found.append(None)
    return found


def assert_refused_and_never_wrong(data: bytes) -> None:
    found = readings(data)
    with pytest.raises(DamagedStore):
        decode_segment(data)
    if None not in found:
        with pytest.raises(DamagedStore):
            opened(data).check_heads()
    assert all(commit in (None, whole) for commit, whole in zip(found, COMMITS, strict=True))


def test_every_flipped_bit_is_found_and_nothing_wrong_is_read() -> None:
    whole = encode_segment(COMMITS)
    for offset in range(len(whole)):
        for bit in range(8):
            data = bytearray(whole)
            data[offset] ^= 1 << bit
            assert_refused_and_never_wrong(bytes(data))


def test_every_overwritten_byte_is_found() -> None:
    whole = encode_segment(COMMITS)
    for offset in range(len(whole)):
        for value in {0, 0xFF, 0x90, ord("M")} - {whole[offset]}:
            assert_refused_and_never_wrong(
                whole[:offset] + bytes([value]) + whole[offset + 1 :],
            )


def test_every_truncation_is_found() -> None:
    whole = encode_segment(COMMITS)
    for length in range(len(whole)):
        assert readings(whole[:length]) == [None] * 3
        assert readings(whole[length + 1 :]) == [None] * 3


def test_bytes_removed_from_or_put_into_the_middle_are_found() -> None:
    whole = encode_segment(COMMITS)
    for offset in range(1, len(whole)):
        assert_refused_and_never_wrong(whole[: offset - 1] + whole[offset:])
        assert_refused_and_never_wrong(whole[:offset] + b"\x00" + whole[offset:])


def test_what_is_cut_off_says_where() -> None:
    whole = encode_segment(COMMITS)
    with pytest.raises(DamagedStore, match=r"segment ckpt/7: damaged at offset .* an index of all"):
        decode_segment(whole[:-5], "ckpt/7")
    with pytest.raises(DamagedStore, match="ckpt/7: damaged at offset 0: expected a header of 40"):
        decode_segment(b"", "ckpt/7")


def test_a_segment_of_another_name_is_refused() -> None:
    whole = encode_segment(COMMITS, "commits/count/7")
    assert decode_segment(whole, "ckpt", "commits/count/7") == COMMITS
    with pytest.raises(DamagedStore, match="copied or renamed"):
        decode_segment(whole, "ckpt", "commits/Count/7")


def test_a_newer_format_is_refused_as_newer_and_not_as_damaged() -> None:
    newer = struct.pack("<4sHH", b"MRSG", 3, 3 ^ 0xFFFF) + encode_segment(COMMITS)[8:]
    with pytest.raises(CheckpointMismatch, match="format 3 at offset 4, this Millrace reads for"):
        read_commit(newer, NAMES[0])


#: Commits that begin alike: two rows and a deletion are of all, what comes then of each.
TABLE = [(b"Ma", b"1"), (b"Mb", None), (b"Mc", b"22")]
ALIKE = [
    Commit("count", 0, 1, 1, 1, [*TABLE, (b"Sa", b"1"), (b"Ma", b"2")], b"p", b"r", 5, 6),
    Commit("count", 1, 9, 1, 1, [*TABLE]),
    Commit("count", 2, 4, 1, 1, [*TABLE, (b"Sa", b"2")], previous=7, chain=8),
]


def test_what_all_commits_begin_with_is_written_once_if_it_is_much() -> None:
    table = [(b"M%d" % n, bytes([n]) * 1000) for n in range(100)]
    commits = [msgspec.structs.replace(one, mutations=table + one.mutations) for one in ALIKE]
    data, lone = encode_segment(commits), encode_segment(commits[:1])

    assert len(data) < 110_000
    assert not opened(lone).index()[0].shared
    assert not opened(encode_segment(ALIKE)).index()[0].shared  # too little
    assert not opened(encode_segment([*commits, COMMITS[1]])).index()[0].shared
    assert [read_commit(data, identity(one)) for one in commits] == commits
    assert list(decode_segment(data)) == commits
    assert [entry.identity[1] for entry in entries(data)] == [0, 1, 2]


def test_no_damage_to_what_is_written_once_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "_SHARED_BYTES", 1)
    whole = encode_segment(ALIKE)

    def refused(data: bytes) -> None:
        found = []
        for one in ALIKE:
            try:
                found.append(read_commit(data, identity(one)))
            except DamagedStore:
                found.append(None)
        with pytest.raises(DamagedStore):
            decode_segment(data)
        assert all(read in (None, one) for read, one in zip(found, ALIKE, strict=True))

    for offset in range(len(whole)):
        for bit in range(8):
            data = bytearray(whole)
            data[offset] ^= 1 << bit
            refused(bytes(data))
        refused(whole[:offset])
        refused(whole[offset + 1 :])
        refused(whole[:offset] + b"\x00" + whole[offset:])


@pytest.mark.parametrize("change", ["names", "offset", "lengths", "checksums"])
def test_a_whole_index_that_says_something_else_is_refused(change: str) -> None:
    """What a faulty writer could do; the checksums are right."""
    header = encode_header("")
    seed = seed_of(header)
    frame, index = encode_frame(COMMITS[:1], b"", seed, HEADER_BYTES)
    if change == "names":
        index.names = [("count", 0, 2)]
    elif change == "offset":
        index.offset += 1
    elif change == "lengths":
        index.lengths[0] -= 1
    else:
        index.checksums[0] ^= 1
    whole = header + frame + encode_index([index], seed, HEADER_BYTES + len(frame))
    with pytest.raises(DamagedStore, match="damaged at offset"):
        opened(whole).commit(entries(whole)[0])


def test_frames_are_of_their_place_and_segment() -> None:
    header, other = encode_header("a"), encode_header("a")
    seed = seed_of(header)
    first, _ = encode_frame(COMMITS[:1], b"note", seed, HEADER_BYTES)
    second, _ = encode_frame(COMMITS[1:], b"", seed, HEADER_BYTES + len(first))
    groups = [frame.group() for frame in opened(header + first + second).all()]
    assert groups == [(COMMITS[:1], b"note"), (COMMITS[1:], b"")]
    for data, whole in (
        (header + second + first, 0),
        (other + first + second, 0),
        (header + first + first, 1),
    ):
        assert len([*opened(data).frames()]) == whole


def test_a_newer_field_at_the_end_of_a_commit_is_passed_over() -> None:
    fields = [*msgspec.structs.astuple(COMMITS[0]), "new"]
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(fields), type=Commit) == COMMITS[0]


def test_reading_one_commit_of_a_large_segment_reads_little() -> None:
    commits = [Commit("c", i, 1, 1, 1, [(b"Sk", bytes(1_000_000))]) for i in range(20)]
    commits[3] = Commit("c", 3, 1, 1, 1, [(b"Sk", b"small")])
    whole = encode_segment(commits)
    read = [0]

    def counted(start: int, stop: int) -> bytes:
        read[0] += stop - start
        return whole[start:stop]

    large = Segment("s", len(whole), counted)
    found = entries_of(large.index()[0])
    assert large.commit(found[3]) == commits[3]
    assert read[0] < 70_000
    assert large.commit(found[19]) == commits[19]


def test_a_footer_larger_than_the_first_read() -> None:
    commits = [Commit("c" * 100, i, 1, 1, 1, []) for i in range(1000)]
    assert list(decode_segment(encode_segment(commits))) == commits


def test_a_segment_is_read_while_another_one_is() -> None:
    data, held, go_on = encode_segment(COMMITS), Event(), Event()

    def slowly(start: int, stop: int) -> bytes:
        held.set()
        go_on.wait(60)
        return data[start:stop]

    with ThreadPoolExecutor(2) as pool:
        slow = pool.submit(lambda: Segment("s", len(data), slowly).seed)
        held.wait(60)
        other = Segment("s", len(data), lambda start, stop: data[start:stop])
        try:
            assert pool.submit(lambda: other.seed).result(10) == seed_of(data[:HEADER_BYTES])
        finally:
            go_on.set()
        assert slow.result(60) == other.seed
