"""What is special to a checkpoint of objects; the rest is in the suite for every store."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from obstore.store import MemoryStore

from millrace.model.errors import CheckpointMismatch, DamagedStore, PipelineError
from millrace.store import (
    BucketOptions,
    BucketUrl,
    Commit,
    ObjectBlobs,
    ObjectHardState,
    SegmentName,
    decode_segment,
    open_location,
)

Make = Callable[..., Commit]


@pytest.fixture
def bucket() -> ObjectBlobs:
    return ObjectBlobs(BucketUrl.parse("s3://bucket/c"), BucketOptions(), store=MemoryStore())


def altered(bucket: ObjectBlobs, name: str, data: bytes) -> None:
    """Do what no client of ours does: replace an object."""
    bucket.remove([name])
    assert bucket.put_if_absent(name, data)


def test_layout(bucket: ObjectBlobs, commit: Make) -> None:
    state = ObjectHardState.create_or_open(bucket, pipeline="zeitgeist")
    state.commits.of_task("count", 41, 3).put([commit(1), commit(18, interval=255)])
    state.commits.of_grown("count", SegmentName(7, 2, 3, 12)).put([commit(1, interval=9)])
    state.epochs.append(1, b'{"epoch": 1}')
    state.snapshots.put("count", 0, 1, [b"rows"])
    assert bucket.names("") == [
        "FORMAT",
        "commits/count/00000000000c-00000003.00000007",
        "commits/count/000000000029-00000003",
        "epochs/0000000001.json",
        "snapshots/count/00000000-000000000001",
    ]
    first, second = (bucket.read("epochs/0000000001.json") or b"").splitlines()
    assert json.loads(first) == {"epoch": 1}
    assert json.loads(second).keys() == {"number", "xxh3_64", "attempt"}
    segment = bucket.read("commits/count/000000000029-00000003") or b""
    assert list(decode_segment(segment)) == [commit(1), commit(18, interval=255)]


def test_opening_again_gives_the_same_state(bucket: ObjectBlobs) -> None:
    first = ObjectHardState.create_or_open(bucket, pipeline="p")
    again = ObjectHardState.create_or_open(bucket, pipeline="p")
    assert again.uuid == first.uuid == ObjectHardState.open(bucket, uuid=first.uuid).uuid
    assert first.url == "s3://bucket/c"


def test_refused_and_nothing_written(bucket: ObjectBlobs) -> None:
    with pytest.raises(DamagedStore, match=r"s3://bucket/c: there is no FORMAT object"):
        ObjectHardState.open(bucket, uuid="1-2")
    with pytest.raises(
        CheckpointMismatch, match=r"s3://bucket/c: no checkpoint, host .* finds no F"
    ):
        ObjectHardState.open(bucket)
    assert bucket.put_if_absent("thesis.doc", b"mine")
    with pytest.raises(CheckpointMismatch, match=r"such as 'thesis.doc'.*no FORMAT"):
        ObjectHardState.create_or_open(bucket, pipeline="p")
    assert bucket.names("") == ["thesis.doc"]
    bucket.remove(["thesis.doc"])
    made = ObjectHardState.create_or_open(bucket, pipeline="p")
    with pytest.raises(CheckpointMismatch, match="belongs to pipeline 'p', this pipeline is 'q'"):
        ObjectHardState.create_or_open(bucket, pipeline="q")
    with pytest.raises(CheckpointMismatch, match=f"is {made.uuid}, the run was started with 1-2"):
        ObjectHardState.open(bucket, uuid="1-2")
    altered(bucket, "FORMAT", b'{"format": 99, "created_by": "7.0"}')
    with pytest.raises(CheckpointMismatch, match=r"format 99, written by Millrace 7\.0"):
        ObjectHardState.create_or_open(bucket, pipeline="p")


def test_every_damaged_bit_and_every_truncation_is_found(bucket: ObjectBlobs, commit: Make) -> None:
    state = ObjectHardState.create_or_open(bucket, pipeline="p")
    state.epochs.append(1, b"{}")
    state.commits.of_task("count", 2, 0).put([commit(2, (b"Sk", b"v"))])

    reads = {
        "epochs/0000000001.json": lambda: state.epochs.read(1),
        "commits/count/000000000002-00000000": lambda: state.commits.of_task("count", 2, 0).read(
            0, 2
        ),
    }
    for name, read in reads.items():
        whole = bucket.read(name) or b""
        damaged = [whole[:length] for length in range(len(whole))]
        for offset in range(len(whole)):
            for bit in range(8):
                copy = bytearray(whole)
                copy[offset] ^= 1 << bit
                damaged.append(bytes(copy))
        for data in damaged:
            altered(bucket, name, data)
            with pytest.raises((DamagedStore, CheckpointMismatch)):
                read()


def test_a_zombie_that_puts_into_a_collected_slot_takes_its_entry_back(bucket: ObjectBlobs) -> None:
    live = ObjectHardState.create_or_open(bucket, pipeline="p").epochs
    zombie = ObjectHardState.open(bucket).epochs
    live.append(1, b"1")
    assert zombie.last() == 1  # and it pauses
    for number in range(2, 6):
        live.append(number, b"%d" % number)
    live.remove_before(5)
    assert not zombie.append(2, b"zombie")
    assert (live.first(), live.last()) == (5, 5)
    assert bucket.names("epochs") == ["epochs/0000000005.json", "epochs/COLLECTED"]


def test_segments_in_a_directory_of_their_own(
    bucket: ObjectBlobs, commit: Make, tmp_path: Path
) -> None:
    apart = str(tmp_path / "mounted" / "segments")
    state = ObjectHardState.create_or_open(bucket, pipeline="p", segments=apart)
    place = tmp_path / "mounted" / "segments" / state.uuid
    state.incarnations.seal(1)
    with contextlib.closing(state.incarnations.grow(1, 0, 0, 1)) as segment:
        segment.append([commit(1)])
    assert bucket.names("") == ["FORMAT"]
    assert (place / "incarnations" / str(SegmentName(1, 0, 0, 1))).is_file()
    assert (place / "CHECKPOINT").read_text() == "s3://bucket/c\n"
    assert state.size("incarnations") > 0

    state.incarnations.seal(2)

    # Every other host finds them by the checkpoint alone, as does the next driver.
    for other in (
        ObjectHardState.open(bucket, uuid=state.uuid),
        ObjectHardState.create_or_open(bucket, pipeline="p"),
        ObjectHardState.create_or_open(bucket, pipeline="p", segments=apart),
    ):
        assert other.incarnations.names() == [SegmentName(1, 0, 0, 1)]


def test_what_a_killed_driver_left_beside_segments_goes_with_the_next_one(
    bucket: ObjectBlobs, tmp_path: Path
) -> None:
    state = ObjectHardState.create_or_open(bucket, pipeline="p", segments=str(tmp_path))
    left = tmp_path / state.uuid / "tmp" / "4711-0123456789abcdef.tmp"
    left.write_bytes(b"half a seal")

    ObjectHardState.open(bucket, uuid=state.uuid)
    assert left.exists(), "a worker removes nothing"
    ObjectHardState.create_or_open(bucket, pipeline="p")
    assert not left.exists()


def test_an_append_is_a_request_only_where_segments_are_objects(
    bucket: ObjectBlobs, tmp_path: Path
) -> None:
    other = ObjectBlobs(BucketUrl.parse("s3://bucket/d"), BucketOptions(), store=MemoryStore())
    mounted = ObjectHardState.create_or_open(bucket, pipeline="p", segments=str(tmp_path / "j"))
    assert not mounted.incarnations.far
    assert ObjectHardState.create_or_open(other, pipeline="p").incarnations.far


def test_a_host_without_the_directory_of_segments_is_told(
    bucket: ObjectBlobs, tmp_path: Path
) -> None:
    apart = str(tmp_path / "segments")
    state = ObjectHardState.create_or_open(bucket, pipeline="p", segments=apart)
    with pytest.raises(CheckpointMismatch, match=r"this start says segments='/e"):
        ObjectHardState.create_or_open(bucket, pipeline="p", segments="/elsewhere")
    shutil.rmtree(apart)
    Path(apart, state.uuid, "incarnations").mkdir(parents=True)  # not the one that was mounted
    for opening in (ObjectHardState.open, partial(ObjectHardState.create_or_open, pipeline="p")):
        with pytest.raises(DamagedStore, match=r"has no CHECKPOINT there. All hosts of the run"):
            opening(bucket)


def test_where_segments_are_is_chosen_when_a_checkpoint_is_made(
    bucket: ObjectBlobs, tmp_path: Path
) -> None:
    ObjectHardState.create_or_open(bucket, pipeline="p")
    assert json.loads(bucket.read("FORMAT") or b"")["format"] == 1
    with pytest.raises(CheckpointMismatch, match=r"are in the checkpoint.*TARGET --segments /mnt"):
        ObjectHardState.create_or_open(bucket, pipeline="p", segments="/mnt")
    with pytest.raises(PipelineError, match="on the same disk: leave segments= out"):
        open_location(tmp_path / "c", pipeline="p", segments=tmp_path)
    assert not (tmp_path / "c").exists()
    with pytest.raises(PipelineError, match="expected a directory that all hosts have mounted"):
        open_location("s3://bucket/c", pipeline="p", segments="s3://bucket/segments")
