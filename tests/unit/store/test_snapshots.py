from __future__ import annotations

import pytest

from millrace.model.errors import CheckpointMismatch, DamagedStore
from millrace.store import SnapshotHead, decode_snapshot, encode_snapshot

HEAD = SnapshotHead("count", 5, 7, 2**53 - 1)
PARTS = [[(b"Va", b"1"), (b"Vb", b"")], [(b"Vc", b"x" * 100)]]


def whole(pieces=None) -> tuple[SnapshotHead, list[tuple[bytes, bytes]]]:
    head, parts = decode_snapshot(encode_snapshot(HEAD, PARTS) if pieces is None else pieces, "s")
    return head, [row for part in parts for row in part]


DATA = b"".join(encode_snapshot(HEAD, PARTS))


def test_rows_come_back_however_the_bytes_are_cut() -> None:
    rows = [row for part in PARTS for row in part]
    for size in (1, 7, len(DATA)):
        pieces = [DATA[start : start + size] for start in range(0, len(DATA), size)]
        assert whole(pieces) == (HEAD, rows)


def test_a_snapshot_of_nothing() -> None:
    assert whole(encode_snapshot(HEAD, [])) == (HEAD, [])


def test_every_damaged_bit_and_every_truncation_is_found() -> None:
    damaged = [DATA[:length] for length in range(len(DATA))]
    damaged += [DATA + b"\x00", DATA + DATA, b"\x00" + DATA]
    for offset in range(len(DATA)):
        for bit in range(8):
            copy = bytearray(DATA)
            copy[offset] ^= 1 << bit
            damaged.append(bytes(copy))
    for data in damaged:
        with pytest.raises(DamagedStore, match=r"snapshot s: .* damaged before offset"):
            whole([data])


@pytest.mark.parametrize("order", [(0, 2, 1, 3), (0, 1, 1, 2, 3), (0, 1, 3), (1, 2, 3), (0, 1, 2)])
def test_moved_repeated_and_missing_frames_are_found(order: tuple[int, ...]) -> None:
    header, *frames = encode_snapshot(HEAD, PARTS)
    with pytest.raises(DamagedStore):
        whole([header, *(frames[index] for index in order)])


def test_rows_out_of_order_are_found() -> None:
    with pytest.raises(DamagedStore, match="expected ascending rows"):
        whole(encode_snapshot(HEAD, [[(b"Vb", b"")], [(b"Va", b"")]]))


def test_a_newer_format_is_told_from_damage() -> None:
    with pytest.raises(CheckpointMismatch, match="format 2 at offset 4"):
        whole([DATA[:4] + b"\x02\x00\xfd\xff" + DATA[8:]])
