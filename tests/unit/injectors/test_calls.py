"""Calls: from the mailbox of a checkpoint into offsets, each once."""

import pickle
from typing import Any

import pytest
from obstore.store import MemoryStore

from millrace.injectors import signal_injector
from millrace.injectors.advance import Advance, Advances
from millrace.injectors.offsets import SourceOffset
from millrace.injectors.signal_injector import (
    SignalInjector,
    calls_in,
    put_call,
    reserve_numbers,
)
from millrace.model.errors import StoreError
from millrace.store import BucketOptions, BucketUrl, LocalHardState, Mailbox, ObjectBlobs

STREAM = "look.calls"


@pytest.fixture
def mailbox(tmp_path: Any) -> Mailbox:
    return LocalHardState.create_or_open(tmp_path / "ckpt", pipeline="p").mailbox


def calls(tmp_path: Any, stream: str = STREAM) -> SignalInjector:
    """Return them as another process has them, which looks at once."""
    made = SignalInjector(stream)
    made.bind(str(tmp_path / "ckpt"))
    return pickle.loads(pickle.dumps(made))


def test_calls_are_read_once_in_order_whoever_asks(tmp_path: Any, mailbox: Mailbox) -> None:
    put_call(mailbox, STREAM, [b"sa"])
    put_call(mailbox, STREAM, [b"sb", b"sc"])
    first = calls(tmp_path).advance("calls", None).offset
    # Of who was left behind: it decides the same.
    assert calls(tmp_path).advance("calls", None).offset == first
    put_call(mailbox, STREAM, [b"sd"])
    second = calls(tmp_path).advance("calls", first).offset

    reading = SignalInjector(STREAM)  # a task's, which asks nobody
    assert [key for key, _ in reading.read("calls", None, first)] == [b"sa", b"sb", b"sc"]
    assert [key for key, _ in reading.read("calls", first, second)] == [b"sd"]
    assert calls(tmp_path).advance("calls", second).offset == second


def test_what_offsets_hold_is_removed_and_its_number_never_given_again(
    tmp_path: Any, mailbox: Mailbox
) -> None:
    offset = None
    for key in (b"sa", b"sb", b"sc"):
        put_call(mailbox, STREAM, [key])
        offset = calls(tmp_path).advance("calls", offset).offset
    assert len(mailbox.names()) == 2  # that of the offset before goes when the next is asked for
    assert calls(tmp_path).advance("calls", offset).offset == offset == [3, ["7363"]]

    assert len(mailbox.names()) == 1
    put_call(mailbox, STREAM, [b"sd"])
    assert calls(tmp_path).advance("calls", offset).offset == [4, ["7364"]]


@pytest.mark.parametrize("made", [1, 57, 58])
def test_a_copy_of_a_checkpoint_that_had_calls_has_calls_of_its_own(
    tmp_path: Any, mailbox: Mailbox, made: int
) -> None:
    """As many as the original had, or fewer or more; and one that was read in part, too."""
    read = [57, ["7361"]]
    reserve_numbers(mailbox, {STREAM: {"millrace-calls": SourceOffset(0, read)}, "other": {}})
    for _ in range(made):
        put_call(mailbox, STREAM, [b"sb"])
    offset: Any = calls(tmp_path).advance("calls", read).offset
    assert offset == [57 + made, ["7362"] * made]
    assert calls(tmp_path).advance("calls", offset).offset == offset

    within = Advances(read).decided(Advance([59, ["7361"]])).offset
    reserve_numbers(mailbox, {"next.calls": {"millrace-calls": SourceOffset(0, within)}})
    assert calls_in(mailbox, "next.calls") == [59]


def test_two_streams_do_not_take_each_others_calls(tmp_path: Any, mailbox: Mailbox) -> None:
    put_call(mailbox, STREAM, [b"sa"])

    assert calls(tmp_path, "look.calls-for-all").advance("calls", None).offset == [0, []]


def test_a_mailbox_that_cannot_be_read_makes_calls_wait(
    tmp_path: Any, mailbox: Mailbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_call(mailbox, STREAM, [b"sa"])
    with monkeypatch.context() as patched:

        def fails(_self: Any) -> list[str]:
            raise StoreError("no route")

        patched.setattr(Mailbox, "names", fails)
        assert calls(tmp_path).advance("calls", None).offset == [0, []]

    assert calls(tmp_path).advance("calls", [0, []]).offset == [1, ["7361"]]


def test_without_a_checkpoint_there_are_none() -> None:
    assert SignalInjector(STREAM).advance("calls", None).offset == [0, []]
    assert [one.offset for one in SignalInjector(STREAM).until_now("calls")] == [[0, []]]


def test_of_two_equal_calls_at_once_both_count() -> None:
    """An object store knows the writers of a message by its content alone."""
    store, url = MemoryStore(), BucketUrl("s3", "b", "ckpt")
    one, other = (Mailbox(ObjectBlobs(url, BucketOptions(), store=store)) for _ in range(2))
    names = one.names

    def overtaken() -> list[str]:
        found = names()
        put_call(other, STREAM, [b"sa"])
        return found

    one.names = overtaken  # type: ignore[method-assign]
    put_call(one, STREAM, [b"sa"])
    assert len(other.names()) == 2


class Bucket:
    """Calls to a checkpoint in an object store, and a clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        store, url = MemoryStore(), BucketUrl("s3", "b", "ckpt")
        self.mailbox = Mailbox(ObjectBlobs(url, BucketOptions(), store=store))
        self.listed, self.at_s = 0, 0.0
        names = self.mailbox.names

        def counted() -> list[str]:
            self.listed += 1
            return names()

        monkeypatch.setattr(self.mailbox, "names", counted)
        monkeypatch.setattr(signal_injector, "mailbox_at", lambda _: self.mailbox)
        monkeypatch.setattr("millrace.store.mailbox.time.monotonic", lambda: self.at_s)
        self.calls = SignalInjector(STREAM)
        self.calls.bind("s3://b/ckpt")

    def put(self, key: bytes) -> None:
        listed = self.listed
        put_call(self.mailbox, STREAM, [key])
        self.listed = listed

    def asked(self, offset: Any, *, at_s: float) -> Any:
        self.at_s = at_s
        return self.calls.advance("calls", offset).offset


def test_a_bucket_is_listed_when_somebody_has_called_and_else_once_a_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bucket, offset = Bucket(monkeypatch), [0, list[str]()]
    for at_s in (0.0, 2.0, 4.0, 6.0):
        assert bucket.asked(offset, at_s=at_s) == offset
    assert bucket.listed == 1
    bucket.put(b"sa")
    assert bucket.asked(offset, at_s=7.0) == offset, "asked whether somebody has, every two seconds"
    assert bucket.asked(offset, at_s=8.0) == [1, ["7361"]]
    assert bucket.asked([1, ["7361"]], at_s=10.0) == [1, ["7361"]]
    assert bucket.listed == 2
    bucket.asked([1, ["7361"]], at_s=68.0)
    assert bucket.listed == 3, "who has called has perhaps died before that was said"


def test_a_call_that_was_found_and_not_taken_is_found_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bucket = Bucket(monkeypatch)
    bucket.put(b"sa")
    assert bucket.asked(None, at_s=0.0) == [1, ["7361"]]
    assert bucket.asked(None, at_s=2.0) == [1, ["7361"]]


def test_of_many_calls_those_that_one_offset_does_not_name_are_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bucket = Bucket(monkeypatch)
    monkeypatch.setattr(signal_injector, "_MOST", 2)
    for key in (b"sa", b"sb", b"sc"):
        bucket.put(key)
    first = bucket.asked(None, at_s=0.0)
    assert first == [2, ["7361", "7362"]]
    assert bucket.asked(first, at_s=2.0) == [3, ["7363"]]


def test_a_call_counts_though_nobody_could_be_told_of_it(
    mailbox: Mailbox, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    def fails(_self: Any) -> None:
        raise StoreError("no route")

    monkeypatch.setattr(Mailbox, "ring", fails)
    put_call(mailbox, STREAM, [b"sa"])
    assert calls(tmp_path).advance("calls", [0, []]).offset == [1, ["7361"]]
