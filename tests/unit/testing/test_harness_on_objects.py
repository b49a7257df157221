"""The kernel over a checkpoint of objects: the same outputs as over any other hard state."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from obstore.store import MemoryStore

import millrace as mr
from millrace.store import BucketOptions, BucketUrl, ObjectBlobs, ObjectHardState
from millrace.testing import harness


class Count(mr.Computation):
    inputs = {"words": mr.by("word")}
    outputs = {"counts": int}
    seen = mr.ValueState(int)

    def process_record(self, record: mr.Record) -> None:
        self.seen.set((self.seen.get() or 0) + 1)
        self.set_timer("told", at=record.timestamp + 10)

    def process_timer(self, timer: mr.Timer) -> None:
        self.produce("counts", self.seen.get())


class Objects(ObjectHardState):
    """A state of objects in memory, which the Harness can set aside to check replays."""

    def copy(self) -> Objects:
        bucket = in_memory()
        for name in self._bucket.names(""):
            assert bucket.put_if_absent(name, self._bucket.read(name) or b"")
        return Objects(bucket, self.format)


def in_memory() -> ObjectBlobs:
    return ObjectBlobs(BucketUrl.parse("s3://bucket/c"), BucketOptions(), store=MemoryStore())


def outputs() -> Iterator[list[object]]:
    p = mr.Pipeline("words")
    p.inject("words")
    p.add(Count)
    with mr.testing.Harness(p) as h:
        for number in range(6):
            words = [({"word": f"w{key}"}, 100 * number) for key in range(20)]
            h.inject("words", words)
            h.crash()
            h.advance_watermark("words", 100 * number + 50)
            yield h.outputs("counts")


def test_the_same_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = list(outputs())
    made: list[ObjectHardState] = []

    def in_objects() -> ObjectHardState:
        made.append(Objects.create_or_open(in_memory(), pipeline="words"))
        return made[0]

    monkeypatch.setattr(harness, "MemoryHardState", in_objects)
    assert list(outputs()) == wanted
    assert len(wanted[-1]) == 120
    assert made[0].epochs.last() > 6
    assert made[0].size("commits") > 1000
