"""Leases on a checkpoint, by a clock that a test moves."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import millrace as mr
from millrace.compile.build import build
from millrace.epochlog.run_log import RunLog
from millrace.inspect import Lease
from millrace.model.errors import CheckpointMismatch, RunFailed, StoreError, ZombieWriter
from millrace.store import open_location
from millrace.store.mailbox import Mailbox

TERM_S = 4.0


class Clock:
    """Stands still but for who waits; what happens meanwhile a test says."""

    def __init__(self) -> None:
        self.now = 100.0
        self.meanwhile = list[Any]()

    def __call__(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        self.now += seconds
        if self.meanwhile:
            self.meanwhile.pop(0)()


@pytest.fixture
def clock() -> Clock:
    return Clock()


def lease(checkpoint: Path, clock: Clock) -> Lease:
    """Return a lease that a thread does not renew, as no term passes by the machine's clock."""
    made = Lease(checkpoint, "clicks", term="4 s", clock=clock, pause=clock.pause)
    made._renew_until_released = lambda: None  # type: ignore[method-assign]
    return made


def mailbox(checkpoint: Path) -> Mailbox:
    return open_location(checkpoint).mailbox


def test_the_first_has_it_at_once_and_the_checkpoint_is_made(tmp_path: Path, clock: Clock) -> None:
    first = lease(tmp_path / "ckpt", clock)
    assert first.acquire()
    assert clock.now == 100.0
    assert mailbox(tmp_path / "ckpt").names() == ["lease-000000001"]


def test_one_that_is_not_renewed_for_a_term_is_the_next_ones(tmp_path: Path, clock: Clock) -> None:
    first, second = lease(tmp_path, clock), lease(tmp_path, clock)
    assert first.acquire()
    clock.meanwhile = [first.renew, lambda: None, first.renew]
    assert second.acquire()
    # Renewed after one and three seconds, and seen then.
    assert clock.now == 100.0 + 3 + TERM_S
    assert mailbox(tmp_path).names() == ["lease-000000002"]


def test_who_was_paused_for_longer_finds_that_it_is_another_ones(
    tmp_path: Path, clock: Clock
) -> None:
    first, second = lease(tmp_path, clock), lease(tmp_path, clock)
    assert first.acquire()
    assert second.acquire()
    assert not first.renew()
    first.release()
    assert second.renew(), "what the first gives back is not the second's"
    third = lease(tmp_path, clock)
    clock.meanwhile = [second.renew] * 3
    assert third.acquire()
    assert clock.now > 100.0 + 2 * TERM_S


def test_who_has_it_already_waits_for_nobody(tmp_path: Path, clock: Clock) -> None:
    first = lease(tmp_path, clock)
    assert first.acquire()
    clock.meanwhile = [first.renew] * 8
    assert first.acquire()
    assert clock.now == 100.0


def test_when_its_run_is_stopped_nobody_goes_on(tmp_path: Path, clock: Clock) -> None:
    first, second = lease(tmp_path, clock), lease(tmp_path, clock)
    assert first.acquire()
    clock.meanwhile = [first.renew, first.release]
    assert not second.acquire()
    assert clock.now == 102.0
    second.release()
    assert lease(tmp_path, clock).acquire(), "who asks for it later starts the run again"


def test_when_its_run_has_failed_another_goes_on_at_once(tmp_path: Path, clock: Clock) -> None:
    first, second = lease(tmp_path, clock), lease(tmp_path, clock)

    assert first.acquire()
    clock.meanwhile = [lambda: first.release(RunFailed("bad record"))]
    assert second.acquire()
    assert clock.now == 101.0


def test_when_its_run_was_superseded_by_one_without_a_lease_nobody_goes_on(
    tmp_path: Path, clock: Clock
) -> None:
    first, second = lease(tmp_path, clock), lease(tmp_path, clock)
    assert first.acquire()
    clock.meanwhile = [lambda: first.release(ZombieWriter("a newer run has claimed it"))]
    assert not second.acquire()


def test_who_waits_is_called_at_each_look_while_it_is_anothers(
    tmp_path: Path, clock: Clock
) -> None:
    first, second = lease(tmp_path, clock), lease(tmp_path, clock)
    looks: list[float] = []
    assert first.acquire(lambda _: looks.append(clock.now))
    assert not looks, "nobody held it"
    clock.meanwhile = [first.renew]
    assert second.acquire(lambda _: looks.append(clock.now))
    assert looks == [100.0 + n for n in range(int(1 + TERM_S))]


def test_of_several_that_wait_one_has_it(tmp_path: Path, clock: Clock) -> None:
    first, *others = (lease(tmp_path, clock) for _ in range(3))
    assert first.acquire()
    second, third = others
    # Between the look of the second and its put, the third puts.
    look, raced = second._last, list[bool]()

    def last() -> Any:
        found = look()
        if clock.now - 100.0 >= TERM_S and not raced:
            raced.append(third.acquire())
        return found

    second._last = last  # type: ignore[method-assign]
    clock.meanwhile = [lambda: None] * 4
    assert second.acquire()
    assert raced == [True]
    # The third renewed it no more: the second waited another term.
    assert clock.now >= 100.0 + 2 * TERM_S


def test_who_waits_reads_one_message_at_a_look_and_hears_of_the_run(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = lease(tmp_path, clock), lease(tmp_path, clock)
    assert first.acquire()
    first.generation = 7
    requests, heard = list[str](), list[int]()
    for name in ("names", "read"):
        made = getattr(Mailbox, name)

        def counted(mailbox: Mailbox, *given: Any, made: Any = made, name: str = name) -> Any:
            requests.append(name)
            return made(mailbox, *given)

        monkeypatch.setattr(Mailbox, name, counted)
    clock.meanwhile = [first.renew] * 5 + [first.release]
    assert not second.acquire(lambda term: heard.append(term.generation))
    assert heard == [0] + [7] * 5
    first_look, release = ["names", "read"], ["names", "read"]
    assert requests == first_look + ["read"] * 5 + release + ["read"]


def test_one_that_was_left_beside_the_next_is_not_taken_for_the_last(
    tmp_path: Path, clock: Clock
) -> None:
    first, second, third = (lease(tmp_path, clock) for _ in range(3))
    assert first.acquire()
    stale = mailbox(tmp_path).read("lease-000000001")
    assert stale is not None

    def taken_and_left() -> None:
        first.release(RunFailed("bad record"))
        assert second.acquire()
        mailbox(tmp_path).replace("lease-000000001", stale)

    clock.meanwhile = [lambda: None, taken_and_left, *[second.renew] * 9, second.release]
    assert not third.acquire(), "it waited for the second"


def test_a_thread_renews_it_until_it_is_given_back(tmp_path: Path) -> None:
    first = Lease(tmp_path, "clicks", term="0.4 s")
    assert first.acquire()
    deadline = time.monotonic() + 30
    while (found := first._last()[1]) is None or found.renewed < 3:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    first.release()
    names = [thread.name for thread in threading.enumerate()]
    assert "millrace-lease" not in names
    ended = first._last()[1]
    assert ended is not None
    assert ended.ended == "done"


def test_a_run_without_a_lease_is_warned_of(
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    p = mr.Pipeline("clicks")
    p.inject("numbers", format=int)
    p.sink("numbers", mr.sinks.Memory())
    RunLog(build(p), open_location(tmp_path, pipeline="clicks"), intervals=2)
    assert lease(tmp_path, clock).acquire()
    assert "had no lease, and has not said that it ended" in caplog.text


def test_that_of_another_pipeline_is_refused(tmp_path: Path) -> None:
    Lease(tmp_path, "clicks")
    with pytest.raises(CheckpointMismatch, match="clicks"):
        Lease(tmp_path, "views")


def test_who_waits_leaves_alone_what_the_run_is_writing(tmp_path: Path) -> None:
    state = open_location(tmp_path, pipeline="clicks")

    def pieces() -> Iterator[bytes]:
        yield b"one"
        Lease(tmp_path, "clicks")  # a standby starts
        yield b"two"

    assert state.snapshots.put("count", 0, 1, pieces())


def test_a_lease_that_cannot_be_seen_for_a_while_is_not_anothers(
    tmp_path: Path, clock: Clock
) -> None:
    """As where the directory of the checkpoint is not mounted for longer than a term."""
    first = lease(tmp_path / "ckpt", clock)
    assert first.acquire()
    (tmp_path / "ckpt").rename(tmp_path / "away")
    clock.pause(2 * TERM_S)
    with pytest.raises(StoreError, match="it has gone"):
        first.renew()
    (tmp_path / "away").rename(tmp_path / "ckpt")
    assert first.renew()
