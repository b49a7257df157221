from __future__ import annotations

import os
import struct
from pathlib import Path

import msgspec
import pytest
import xxhash

from millrace.model.errors import CheckpointMismatch, DamagedStore, InvariantViolation
from millrace.store import Commit, encode_segment, read_commit, read_index, segment
from millrace.store.segment import RangedSegment

COMMITS = [
    Commit("count", 0, 1, 1, 1, [(b"Sa", b"1"), (b"Sb", None)], b"productions", b"report"),
    Commit("count", 1, 7, 1, 1, []),
    Commit("über", 0, 1, 1, 1, [(b"Tx", b"")]),
]
NAMES = [(commit.computation, commit.interval, commit.number) for commit in COMMITS]


@pytest.fixture(params=["bytes", "file"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> bytes | Path:
    data = encode_segment(COMMITS)
    if request.param == "bytes":
        return data
    (tmp_path / "segment").write_bytes(data)
    return tmp_path / "segment"


def test_every_commit_is_found(source: bytes | Path) -> None:
    assert [read_commit(source, *name) for name in NAMES] == COMMITS
    assert [entry.identity for entry in read_index(source)] == NAMES


def test_a_segment_of_nothing() -> None:
    assert read_index(encode_segment([])) == []


def test_a_commit_that_is_not_in_it(source: bytes | Path) -> None:
    with pytest.raises(DamagedStore, match=r"does not hold commit 2 of interval 0 .*'count'"):
        read_commit(source, "count", 0, 2)


def test_a_missing_file_is_the_callers_business(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_commit(tmp_path / "none", "count", 0, 1)


def test_a_number_twice_is_refused() -> None:
    with pytest.raises(InvariantViolation, match="'count' in one append"):
        encode_segment([COMMITS[0], COMMITS[0]])


def readings(data: bytes) -> list[Commit | None]:
    """What a damaged segment gives: each commit, or None where it is refused as damaged."""
    found: list[Commit | None] = []
    for name in NAMES:
        try:
            found.append(read_commit(data, *name))
        except DamagedStore:
            found.append(None)
    return found


def assert_refused_and_never_wrong(data: bytes) -> None:
    found = readings(data)
    assert None in found
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


def test_the_same_in_a_file(tmp_path: Path) -> None:
    whole = encode_segment(COMMITS)
    path = tmp_path / "segment"
    path.write_bytes(whole[:-5])
    with pytest.raises(DamagedStore, match=f"{path}: trailer damaged at offset"):
        read_commit(path, *NAMES[0])
    path.write_bytes(b"")
    with pytest.raises(DamagedStore, match=f"{path}: size damaged at offset 0: expected 24 bytes"):
        read_commit(path, *NAMES[0])


def test_a_newer_format_is_refused_as_newer_and_not_as_damaged() -> None:
    newer = struct.pack("<4sHH", b"MRSG", 3, 3 ^ 0xFFFF) + encode_segment(COMMITS)[8:]
    with pytest.raises(CheckpointMismatch, match="format 3 at offset 4, this Millrace reads for"):
        read_commit(newer, *NAMES[0])


#: Commits that begin alike: two rows and a deletion are of all, what comes then of each.
TABLE = [(b"Ma", b"1"), (b"Mb", None), (b"Mc", b"22")]
ALIKE = [
    Commit("count", 0, 1, 1, 1, [*TABLE, (b"Sa", b"1"), (b"Ma", b"2")], b"p", b"r", 5, 6),
    Commit("count", 1, 9, 1, 1, [*TABLE]),
    Commit("count", 2, 4, 1, 1, [*TABLE, (b"Sa", b"2")], previous=7, chain=8),
]


def test_what_all_commits_begin_with_is_written_once_if_it_is_much(tmp_path: Path) -> None:
    table = [(b"M%d" % n, bytes([n]) * 1000) for n in range(100)]
    commits = [msgspec.structs.replace(one, mutations=table + one.mutations) for one in ALIKE]
    data, apart = encode_segment(commits, sharing=True), encode_segment(commits)

    assert len(data) < 110_000 < 3 * 100_000 < len(apart)
    (tmp_path / "segment").write_bytes(data)
    for whole in (data, tmp_path / "segment", apart):
        assert [read_commit(whole, "count", one.interval, one.number) for one in commits] == commits
        assert [entry.interval for entry in read_index(whole)] == [0, 1, 2]
    for few in (commits[:1], ALIKE, [*commits, COMMITS[1]]):
        assert encode_segment(few, sharing=True) == encode_segment(few)


def test_no_damage_to_what_is_written_once_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment, "_SHARED_BYTES", 1)
    whole = encode_segment(ALIKE, sharing=True)

    def refused(data: bytes) -> None:
        found = []
        for one in ALIKE:
            try:
                found.append(read_commit(data, "count", one.interval, one.number))
            except DamagedStore:
                found.append(None)
        assert None in found
        assert all(read in (None, one) for read, one in zip(found, ALIKE, strict=True))

    for offset in range(len(whole)):
        for bit in range(8):
            data = bytearray(whole)
            data[offset] ^= 1 << bit
            refused(bytes(data))
        refused(whole[:offset])
        refused(whole[offset + 1 :])
        refused(whole[:offset] + b"\x00" + whole[offset:])


def test_who_reads_single_blocks_refuses_what_is_written_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(segment, "_SHARED_BYTES", 1)
    whole = encode_segment(ALIKE, sharing=True)
    with pytest.raises(DamagedStore, match="expected commits alone"):
        RangedSegment("s", len(whole), lambda start, stop: whole[start:stop]).index()


def test_a_file_under_another_commits_name_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "00000000-000000000002"
    path.write_bytes(encode_segment(COMMITS))
    with pytest.raises(DamagedStore, match="copied or renamed"):
        read_commit(path, "count", 0, 2)


def test_a_whole_footer_with_a_wrong_index_is_refused() -> None:
    """What a faulty writer could do; the checksums are right."""
    block = msgspec.msgpack.encode(COMMITS[0])
    digest = xxhash.xxh3_64_intdigest
    for entry, data in [
        (["count", 0, 2, 8, len(block), digest(block)], block),  # Another commit's block.
        (["count", 0, 1, 9, len(block), digest(block)], block),
        (["count", 0, 1, 8, len(block) - 1, digest(block[:-1])], block),
        (["count", 0, 1, 8, 3, digest(b"\xc1..")], b"\xc1.."),
        (["count", 0, 1, 8, -1, 0], b""),
        ("not an index", block),
    ]:
        footer = msgspec.msgpack.encode([entry])
        whole = struct.pack("<4sHH", b"MRSG", 1, 1 ^ 0xFFFF) + data + footer
        whole += struct.pack("<IQ4s", len(footer), digest(footer), b"MRSG")
        with pytest.raises(DamagedStore, match="damaged at offset"):
            read_commit(whole, "count", 0, entry[2] if isinstance(entry, list) else 1)


def test_a_newer_field_at_the_end_of_a_commit_is_passed_over() -> None:
    fields = [*msgspec.structs.astuple(COMMITS[0]), "new"]
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(fields), type=Commit) == COMMITS[0]


def test_reading_one_commit_of_a_large_file_reads_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits = [Commit("c", i, 1, 1, 1, [(b"Sk", bytes(1_000_000))]) for i in range(20)]
    commits[3] = Commit("c", 3, 1, 1, 1, [(b"Sk", b"small")])
    path = tmp_path / "segment"
    path.write_bytes(encode_segment(commits))
    read = [0]
    pread = os.pread

    def counted(fd: int, length: int, offset: int) -> bytes:
        data = pread(fd, length, offset)
        read[0] += len(data)
        return data

    monkeypatch.setattr(os, "pread", counted)
    assert read_commit(path, "c", 3, 1) == commits[3]
    assert read[0] < 70_000
    assert read_commit(path, "c", 19, 1) == commits[19]


def test_a_footer_larger_than_the_first_read(tmp_path: Path) -> None:
    commits = [Commit("c" * 100, i, 1, 1, 1, []) for i in range(1000)]
    path = tmp_path / "segment"
    path.write_bytes(encode_segment(commits))
    assert read_commit(path, "c" * 100, 999, 1) == commits[999]
    assert read_commit(path, "c" * 100, 0, 1) == commits[0]
