"""Copies of a checkpoint, and savepoints: what goes on from one does what the original would."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from obstore.store import LocalStore

import millrace as mr
from millrace.cli.main import main
from millrace.injectors.signal_injector import SignalInjector, put_call
from millrace.inspect import checkpoint_copies
from millrace.model.errors import (
    CheckpointMismatch,
    CheckpointUnwritable,
    NotKept,
    PipelineError,
)
from millrace.store import BucketUrl, Snapshots, object_blobs, open_location
from tests.live import Feeds, InEpochs, Kept, Live

ROWS = 24


class Event(msgspec.Struct):
    key: int
    at: int


class Counted(mr.Computation):
    inputs = {"events": mr.by("key")}
    outputs = {"counts": int}
    count = mr.ValueState(int)

    def process_record(self, record: mr.Record) -> None:
        self.count.set(self.count.get(0) + 1)
        self.produce("counts", self.count.get())


class Shop:
    """A run by epochs over a checkpoint on disk, in this process."""

    def __init__(self, path: Path, source: Feeds) -> None:
        self.kept, p = Kept(), mr.Pipeline("shop")
        policy = mr.BoundedDelay("5 s")
        p.inject("events", source, timestamp="at", low_watermark=policy, format=Event)
        p.add(Counted)
        p.sink("counts", self.kept)
        state: Any = open_location(path, pipeline="shop")
        self.live = Live(p, tasks=1, state=state)
        self.epochs = InEpochs(self.live)

    def epoch(self, limit: int) -> None:
        self.live.feed(limit)
        self.epochs.run(self.live.clock_us)

    @property
    def counts(self) -> Counter[int]:
        return Counter(row["value"] for row in self.kept.rows)


def feeds() -> Feeds:
    rows = [(n % 5, 1_000_000 * n) for n in range(ROWS)]
    return Feeds("key long, at long", {"p0": rows})


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    made = Shop(tmp_path / "ckpt", feeds())
    for limit in (6, 12, 18):
        made.epoch(limit)
    return made


def rest(*counted: int) -> Counter[int]:
    """What comes of the rows from the first number to the end."""
    (first,) = counted
    found, keys = Counter[int](), Counter[int]()
    for n in range(ROWS):
        keys[n % 5] += 1
        if n >= first:
            found[keys[n % 5]] += 1
    return found


def run(*arguments: Any) -> Any:
    return CliRunner().invoke(main, ["checkpoint", *map(str, arguments)])


@pytest.mark.parametrize(("epoch", "first"), [(None, 18), (1, 12), (0, 6)])
def test_a_copy_goes_on_from_its_epoch_and_the_original_from_its_own(
    shop: Shop, tmp_path: Path, epoch: int | None, first: int
) -> None:
    before = {path: path.read_bytes() for path in (tmp_path / "ckpt").rglob("*.json")}
    how = [] if epoch is None else ["--epoch", epoch]
    said = run("copy", tmp_path / "ckpt", tmp_path / "copy", *how)
    assert said.exit_code == 0, said.output
    assert said.output.endswith(f"after epoch {2 if epoch is None else epoch}\n")
    assert {path: path.read_bytes() for path in (tmp_path / "ckpt").rglob("*.json")} == before

    assert run("verify", tmp_path / "copy").exit_code == 0
    copied, there = mr.ops.open_checkpoint(tmp_path / "copy"), mr.ops.open_checkpoint(
        tmp_path / "ckpt", epoch=epoch
    )  # fmt: skip
    assert [*copied["Counted"].scan()] == [*there["Counted"].scan()]
    fork = Shop(tmp_path / "copy", feeds())
    fork.epoch(ROWS)
    assert fork.counts == rest(first)
    shop.epoch(ROWS)
    assert shop.counts == rest(0)
    assert fork.live.state.uuid != shop.live.state.uuid


def test_a_copy_may_have_another_number_of_key_intervals(shop: Shop, tmp_path: Path) -> None:
    ckpt, copy = tmp_path / "ckpt", tmp_path / "copy"
    said = run("copy", ckpt, copy, "--intervals", 3)
    assert said.exit_code
    assert "intervals=3: expected a power of two" in said.output
    assert not copy.exists()

    assert run("copy", ckpt, copy, "--intervals", 16).exit_code == 0
    assert run("verify", copy).exit_code == 0
    there, copied = mr.ops.open_checkpoint(ckpt), mr.ops.open_checkpoint(copy)
    assert [len(one.intervals("Counted")) for one in (there, copied)] == [4, 16]
    assert [*copied["Counted"].scan()] == [*there["Counted"].scan()]
    fork = Shop(copy, feeds())
    fork.epoch(ROWS)
    assert fork.counts == rest(18)


def test_the_query_of_a_copy_is_another(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As a source of Spark's own leaves it, whose offsets are in no completion.
    spark = tmp_path / "ckpt" / "spark"
    for name in ("metadata", "offsets/2", "commits/2"):
        (spark / name).parent.mkdir(parents=True, exist_ok=True)
        (spark / name).write_text('{"id":"the original\'s"}')
    found = checkpoint_copies.ended
    monkeypatch.setattr(
        checkpoint_copies, "ended", lambda *how: _without_source_offsets(found(*how))
    )
    mr.ops.copy_checkpoint(tmp_path / "ckpt", tmp_path / "copy")
    copied = {path.name: path for path in (tmp_path / "copy" / "spark").rglob("*")}
    assert copied.keys() == {"metadata", "offsets", "commits", "2"}
    (query,) = json.loads(copied["metadata"].read_text()).values()
    assert len(query) == 36


def _without_source_offsets(found: Any) -> Any:
    return found._replace(completion=msgspec.structs.replace(found.completion, source_offsets={}))


def test_a_savepoint_is_kept_listed_and_removed_by_name(shop: Shop, tmp_path: Path) -> None:
    ckpt = tmp_path / "ckpt"
    assert mr.ops.add_savepoint(ckpt, "before", epoch=1) == 1
    assert run("savepoint", "add", ckpt, "now").output == f"savepoint now is {ckpt} after epoch 2\n"
    assert run("savepoint", "list", ckpt).output == "before  epoch 1\nnow  epoch 2\n"
    shop.epoch(ROWS)

    mr.ops.copy_checkpoint(ckpt / "savepoints" / "before", tmp_path / "back")
    back = Shop(tmp_path / "back", feeds())
    back.epoch(ROWS)
    assert back.counts == rest(12)
    assert run("savepoint", "remove", ckpt, "before").exit_code == 0
    assert json.loads(run("savepoint", "list", ckpt, "--json").output) == {"now": 2}
    with pytest.raises(CheckpointMismatch, match="no savepoint 'before'; there are now"):
        mr.ops.remove_savepoint(ckpt, "before")
    with pytest.raises(PipelineError, match="cannot name a savepoint"):
        mr.ops.add_savepoint(ckpt, "../elsewhere")


def test_a_copy_that_is_cut_off_is_no_checkpoint(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> bool:
        raise CheckpointUnwritable("the disk is full")

    with monkeypatch.context() as broken:
        broken.setattr(Snapshots, "put", full)
        with pytest.raises(CheckpointUnwritable):
            mr.ops.add_savepoint(tmp_path / "ckpt", "cut")
    cut = tmp_path / "ckpt" / "savepoints" / "cut"
    with pytest.raises(CheckpointMismatch, match="cut off before it was whole"):
        Shop(cut, feeds())
    with pytest.raises(CheckpointMismatch, match="cut off before it was whole"):
        shop.live.pipeline.plan(cut)
    with pytest.raises(CheckpointMismatch, match="there is a copy that was cut off"):
        mr.ops.add_savepoint(tmp_path / "ckpt", "cut")
    assert mr.ops.savepoints(tmp_path / "ckpt") == {}
    mr.ops.remove_savepoint(tmp_path / "ckpt", "cut")
    assert mr.ops.add_savepoint(tmp_path / "ckpt", "cut") == 2
    assert shop.live.state.epochs.last()


def test_a_savepoint_whose_removal_was_cut_off_is_none(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is in nobody's way, and can be removed again."""
    ckpt = tmp_path / "ckpt"
    for name in ("gone", "there"):
        mr.ops.add_savepoint(ckpt, name)

    def killed(path: Path) -> None:
        (path / "epochs" / "0000000002.json").unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            mr.ops.remove_savepoint(ckpt, "gone")

    assert mr.ops.savepoints(ckpt) == {"there": 2}
    mr.ops.remove_savepoint(ckpt, "gone")
    assert mr.ops.add_savepoint(ckpt, "gone") == 2


def test_in_a_bucket_what_is_left_of_a_savepoint_is_none(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a directory. And where there is no checkpoint at all, that is said as it is there."""

    def connect(url: BucketUrl, *_: object, **__: object) -> LocalStore:
        return LocalStore(tmp_path / url.bucket / url.prefix, mkdir=True)

    monkeypatch.setattr(object_blobs, "connect", connect)
    with pytest.raises(CheckpointMismatch, match="s3://bucket/ckpt: no checkpoint, host"):
        mr.ops.copy_checkpoint("s3://bucket/ckpt", tmp_path / "copy")
    mr.ops.copy_checkpoint(tmp_path / "ckpt", "s3://bucket/ckpt")
    for name in ("gone", "there"):
        mr.ops.add_savepoint("s3://bucket/ckpt", name)
    (tmp_path / "bucket" / "ckpt" / "savepoints" / "gone" / "FORMAT").unlink()  # the first to go

    assert mr.ops.savepoints("s3://bucket/ckpt") == {"there": 2}
    mr.ops.remove_savepoint("s3://bucket/ckpt", "gone")
    assert mr.ops.add_savepoint("s3://bucket/ckpt", "gone") == 2


class Desk:
    """A run by epochs whose counts are taken when somebody calls."""

    def __init__(self, path: Path) -> None:
        self.kept, self.path, p = Kept(), path, mr.Pipeline("desk")
        rows = [("red", 1_000_000 * n) for n in range(ROWS)]
        events = p.inject("events", Feeds("team string, at long", {"p0": rows}), timestamp="at")
        trigger = mr.Repeat(mr.OnCall("look"))
        events.key_by("team").window(trigger=trigger).count().to("look")
        p.sink("look", self.kept)
        for injection in p.injections.values():
            if isinstance(injection.source, SignalInjector):
                injection.source.bind(str(path))
        self.live = Live(p, tasks=1, state=open_location(path, pipeline="desk"))
        self.epochs = InEpochs(self.live)

    def calls(self, count: int, limit: int) -> list[int]:
        """Return what is reported after so many calls, and as many rows have come."""
        self.live.feed(limit)
        self.epochs.run(self.live.clock_us)
        for _ in range(count):
            put_call(self.live.state.mailbox, "look.calls", [b"sred"])
        before = len(self.kept.rows)
        self.epochs.run(self.live.clock_us)
        return [row["value"] for row in self.kept.rows[before:]]


def test_a_copy_is_called_before_its_first_epoch_as_often_as_its_original_was(
    tmp_path: Path,
) -> None:
    """The original's calls are read in the copy, too, and new ones are none of them."""
    desk = Desk(tmp_path / "ckpt")
    assert desk.calls(2, limit=5) == [5]
    assert desk.calls(0, limit=7) == []
    assert desk.calls(1, limit=7) == [7]  # a call after the epoch that is copied
    mr.ops.copy_checkpoint(tmp_path / "ckpt", tmp_path / "copy", epoch=3)
    for _ in range(2):
        put_call(open_location(tmp_path / "copy", pipeline="desk").mailbox, "look.calls", [b"sred"])

    copy = Desk(tmp_path / "copy")
    assert copy.calls(0, limit=7) == []
    assert [row["value"] for row in copy.kept.rows] == [7]
    assert copy.calls(1, limit=9) == [9]
    assert desk.calls(1, limit=8) == [8]


@pytest.mark.parametrize("unread", [False, True])
def test_a_checkpoint_that_goes_back_reads_no_call_again_but_one_that_was_not_read(
    tmp_path: Path, unread: bool
) -> None:
    """What somebody called for has been answered, in the history that is left."""
    desk = Desk(tmp_path / "ckpt")
    assert desk.calls(2, limit=5) == [5]
    assert desk.calls(0, limit=7) == []
    mr.ops.add_savepoint(tmp_path / "ckpt", "before")
    assert desk.calls(2, limit=8) == [8]
    if unread:
        put_call(desk.live.state.mailbox, "look.calls", [b"sred"])
    mr.ops.restore_checkpoint(tmp_path / "ckpt", "before", accept=True)

    desk = Desk(tmp_path / "ckpt")
    assert desk.calls(0, limit=7) == []
    assert [row["value"] for row in desk.kept.rows] == [7] * unread
    assert desk.calls(1, limit=9) == [9]


def test_what_cannot_be_copied_is_said(shop: Shop, tmp_path: Path) -> None:
    for source, epoch, words in (
        (tmp_path / "nowhere", None, "no checkpoint"),
        (tmp_path / "ckpt", 7, "epoch 7 is not in the epoch log"),
    ):
        with pytest.raises((CheckpointMismatch, NotKept), match=words):
            mr.ops.copy_checkpoint(source, tmp_path / "copy", epoch=epoch)
    with pytest.raises(CheckpointMismatch, match="there is a checkpoint"):
        mr.ops.copy_checkpoint(tmp_path / "ckpt", tmp_path / "ckpt")
    assert not (tmp_path / "copy").exists()

    live = shop.live
    live.open()
    live.boot()
    live.feed(20)
    live.plane.settle(live.clock_us)
    live.coordinator.mark_soon()
    live.plane.tick(live.clock_us)
    live.plane.settle(live.clock_us)
    with pytest.raises(CheckpointMismatch, match=r"is a mark of live tasks.*run\.stop\(\)"):
        mr.ops.copy_checkpoint(tmp_path / "ckpt", tmp_path / "copy")
    live.plane.end(live.clock_us)
    assert live.coordinator.ended
    mr.ops.copy_checkpoint(tmp_path / "ckpt", tmp_path / "copy", intervals=2)
    fork = Shop(tmp_path / "copy", feeds())
    fork.epoch(ROWS)
    assert fork.counts == rest(20)
