"""Requests to a run, put into its checkpoint's mailbox, and answered there."""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from obstore.store import MemoryStore

from millrace.model.errors import StoreError
from millrace.spark import asks
from millrace.spark.asks import Answer, Listener, Request, RunRequests, ask
from millrace.store import BucketOptions, BucketUrl, LocalHardState, Mailbox, ObjectBlobs


@pytest.fixture(params=["directory", "object store"])
def mailbox(request: pytest.FixtureRequest, tmp_path: Path) -> Mailbox:
    if request.param == "directory":
        return LocalHardState.create_or_open(tmp_path / "ckpt", pipeline="p").mailbox
    blobs = ObjectBlobs(BucketUrl("s3", "b", "ckpt"), BucketOptions(), store=MemoryStore())
    return Mailbox(blobs)


def listener(mailbox: Mailbox, **acts: Callable[[str], str]) -> Listener:
    return Listener(
        mailbox, 3, acts, ended=lambda: "stopped", epoch=lambda: 41, every_s=1.0
    )  # fmt: skip


def asked(
    mailbox: Mailbox, by: Listener, what: str, generation: int = 3, about: str = ""
) -> Answer:
    """Ask, and let the listener look each time that the asker waits."""
    answer = ask(
        mailbox, what, generation, about=about, timeout_s=60, pause=lambda _: by.look()
    )  # fmt: skip
    assert answer is not None
    return answer


def test_a_request_is_done_once_and_answered(mailbox: Mailbox) -> None:
    done: list[str] = []
    by = listener(mailbox, pause=lambda about: f"paused {done.append(about) or about}")
    answer = asked(mailbox, by, "pause", about="words")

    assert (answer.done, answer.text, answer.epoch) == (True, "paused words", 41)
    by.look()
    assert done == ["words"]
    assert mailbox.names() == []


def test_a_request_for_an_earlier_run_is_refused(mailbox: Mailbox) -> None:
    by = listener(mailbox, stop=lambda _: pytest.fail("it is for another run"))
    answer = asked(mailbox, by, "stop", generation=2)

    assert (answer.done, answer.text) == (False, "it is for run 2, and run 3 has taken over")


def test_what_a_run_cannot_do_is_refused_with_what_it_can(mailbox: Mailbox) -> None:
    by = listener(mailbox, stop=str, drain=str)

    assert asked(mailbox, by, "jump").text == "this run cannot 'jump'; it can drain, stop"


def test_what_fails_is_told_to_who_asked(mailbox: Mailbox) -> None:
    def fail(about: str) -> str:
        raise RuntimeError("no such stream")

    answer = asked(mailbox, listener(mailbox, pause=fail), "pause")
    assert (answer.done, answer.text) == (False, "it failed: no such stream")


def test_without_a_run_a_request_is_taken_back(mailbox: Mailbox) -> None:
    assert ask(mailbox, "stop", 3, timeout_s=0) is None
    assert mailbox.names() == []


def test_who_stops_a_run_is_answered_before_its_program_may_end(mailbox: Mailbox) -> None:
    """The thread that stops the run dies with the program; so who closes the run answers."""
    by: Listener
    closed = threading.Event()

    def stop(_: str) -> str:
        by.close()
        closed.set()
        raise SystemExit  # the program has ended

    by = listener(mailbox, stop=stop)
    request = Request("stop", 3, "somebody", 0)
    mailbox.put("1.request", msgspec.json.encode(request))
    with pytest.raises(SystemExit):
        by.look()
    data = mailbox.read("1.answer")

    assert closed.is_set()
    assert data is not None
    assert msgspec.json.decode(data, type=Answer).text == "stopped"


def put(mailbox: Mailbox, what: str, generation: int, name: str = "9") -> None:
    request = Request(what, generation, "somebody", 0)
    mailbox.put(f"{name}.request", msgspec.json.encode(request))


def answered(mailbox: Mailbox, name: str = "9") -> Answer | None:
    data = mailbox.read(f"{name}.answer")
    return None if data is None else msgspec.json.decode(data, type=Answer)


@pytest.mark.parametrize("what", ["update", "fire"])
def test_what_outlives_the_run_is_answered_when_it_is_done(mailbox: Mailbox, what: str) -> None:
    by: Listener

    def update(_: str) -> str:
        by.close()  # the run that was asked has ended, and another begins
        assert answered(mailbox) is None
        return "another took over"

    by = listener(mailbox, **{what: update})
    put(mailbox, what, 3)
    by.look()
    answer = answered(mailbox)
    assert answer is not None
    assert answer.text == "another took over"


def test_a_run_that_ends_before_it_pauses_has_not_paused(mailbox: Mailbox) -> None:
    by: Listener

    def pause(_: str) -> str:
        by.close()
        return "in: paused"

    by = listener(mailbox, pause=pause)
    put(mailbox, "pause", 3)
    by.look()
    answer = answered(mailbox)
    assert answer is not None
    assert (answer.done, answer.text) == (False, "the run is stopped")


def test_what_is_for_a_run_that_has_just_claimed_the_checkpoint_is_left_to_it(
    mailbox: Mailbox,
) -> None:
    before = listener(mailbox, pause=lambda _: pytest.fail("it is for the run after it"))
    put(mailbox, "pause", 4)
    before.look()
    assert answered(mailbox) is None
    acts = {"pause": lambda _: "in: paused"}
    Listener(mailbox, 4, acts, ended=str, epoch=lambda: 42, every_s=1.0).look()
    answer = answered(mailbox)
    assert answer is not None
    assert (answer.done, answer.text) == (True, "in: paused")


@pytest.mark.parametrize("what", ["pause", "stop"])
@pytest.mark.parametrize("fails", [False, True])
def test_what_was_asked_of_a_run_that_is_taken_over_from_is_done_by_the_one_after_it(
    mailbox: Mailbox, what: str, fails: bool
) -> None:
    requests, claimed = RunRequests(), threading.Event()
    rung = list[bytes | None]()

    def lost(_: str) -> str:
        heir.look()  # beside it: whose request that is
        assert answered(mailbox) is None
        claimed.set()
        before.close()
        rung.append(mailbox.rung())
        if fails:
            raise RuntimeError("the run has ended")
        return "nobody reads"

    before = Listener(
        mailbox, 3, {what: lost}, ended=lambda: "stopped", epoch=lambda: 41, every_s=1.0,
        requests=requests, handed_over=claimed.is_set,
    )  # fmt: skip
    done = list[str]()
    acts = {what: lambda _: done.append(what) or "done by the heir"}
    heir = Listener(
        mailbox, 4, acts, ended=lambda: "stopped", epoch=lambda: 42, every_s=1.0, requests=requests
    )
    put(mailbox, what, 3)
    before.look()
    assert answered(mailbox) is None
    assert mailbox.rung() not in rung
    heir.look()
    answer = answered(mailbox)
    assert answer is not None
    assert (answer.done, answer.text, done) == (True, "done by the heir", [what])


def test_what_came_just_before_another_run_of_the_program_took_over_is_done_by_that(
    mailbox: Mailbox,
) -> None:
    requests = RunRequests()
    Listener(mailbox, 3, {}, ended=str, epoch=lambda: 41, every_s=1.0, requests=requests)
    acts = {"pause": lambda _: "in: paused"}
    heir = Listener(mailbox, 4, acts, ended=str, epoch=lambda: 42, every_s=1.0, requests=requests)
    assert asked(mailbox, heir, "pause").done
    assert not asked(mailbox, heir, "pause", generation=2).done


def test_what_was_answered_while_the_heir_looked_is_not_done_again(
    mailbox: Mailbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = RunRequests()
    acts = {"fire": lambda _: "fired"}
    before = Listener(mailbox, 3, acts, ended=str, epoch=lambda: 41, every_s=1.0, requests=requests)
    again = {"fire": lambda _: pytest.fail("it has been fired")}
    heir = Listener(mailbox, 4, again, ended=str, epoch=lambda: 42, every_s=1.0, requests=requests)
    put(mailbox, "fire", 3)
    names = mailbox.names()
    before.look()
    monkeypatch.setattr(mailbox, "names", lambda: names)
    heir.look()


def test_a_mailbox_is_listed_when_somebody_has_rung_and_now_and_then(
    mailbox: Mailbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed, at = list[float](), [0.0]
    names = mailbox.names

    def listing() -> list[str]:
        listed.append(at[0])
        return names()

    def failing(_names: Sequence[str]) -> None:
        if at == [7.0]:
            raise StoreError("no answer")

    monkeypatch.setattr(mailbox, "names", listing)
    monkeypatch.setattr(asks, "time", SimpleNamespace(time_ns=lambda: 0))
    monkeypatch.setattr("millrace.store.mailbox.time.monotonic", lambda: at[0])
    acts = {"pause": str}
    by = Listener(mailbox, 3, acts, ended=str, epoch=lambda: 41, every_s=1.0, seen=failing)
    for at[0] in (0.0, 1.0, 5.0):
        by.look()
    mailbox.put("1.request", msgspec.json.encode(Request("pause", 3, "somebody", 0)))
    mailbox.ring()
    at[0] = 7.0
    with pytest.raises(StoreError):
        by.look()
    for at[0] in (8.0, 9.0, 60.0, 68.0, 69.0):
        by.look()
    assert listed == [0.0, 7.0, 8.0, 68.0]
    assert mailbox.read("1.answer") is not None
    assert "bell" not in names()


def test_what_cannot_be_read_is_refused_and_what_nobody_fetches_is_removed(
    mailbox: Mailbox,
) -> None:
    late = f"{2**52:016d}-x"
    mailbox.put(f"{late}.request", b"stop!")
    mailbox.put("0000000000000001-x.answer", b"{}")
    listener(mailbox).look()
    data = mailbox.read(f"{late}.answer")

    assert data is not None
    assert "it cannot be read" in msgspec.json.decode(data, type=Answer).text
    assert mailbox.names() == [f"{late}.answer", f"{late}.request"]


def test_requests_are_looked_for_again_whatever_went_wrong(tmp_path: Path) -> None:
    errors = [ValueError("a message of another version"), StoreError("away")]
    looked = threading.Event()

    def seen(_names: Sequence[str]) -> None:
        if errors:
            raise errors.pop(0)
        looked.set()

    there = LocalHardState.create_or_open(tmp_path / "ckpt", pipeline="p").mailbox
    by = Listener(there, 3, {}, ended=str, epoch=int, every_s=0.001, seen=seen)
    by.start()
    assert looked.wait(10)
    by.close()
