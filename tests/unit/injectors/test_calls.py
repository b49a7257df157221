"""Calls: from the mailbox of a checkpoint into offsets, each once."""

import pickle
from typing import Any

import pytest
from obstore.store import MemoryStore

from millrace.injectors.signal_injector import SignalInjector, put_call
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
