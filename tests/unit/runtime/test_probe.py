"""Calls of user code that end their process, found by a child that runs into them."""

import contextlib
import mmap
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import millrace as mr
from millrace.model.errors import ProcessKilled
from millrace.runtime.stuck import Probe, _name
from millrace.store import Commit, LmdbCache, lmdb_environments
from millrace.testing import Harness


class Fragile(mr.Computation):
    """Ends its process in the way that a record asks for."""

    inputs = {"events": mr.by("key")}
    outputs = {"out": str}
    seen = mr.BagState(str)

    def process_record(self, record: mr.Record) -> None:
        self.seen.add(record.value["do"])
        if record.value["do"] == "timer":
            self.set_timer("fatal", at=record.timestamp + 1)
            self.set_timer("good", at=record.timestamp + 2)
        do(record.value["do"])
        self.produce("out", f"{record.key} {sorted(self.seen)}")

    def process_timer(self, timer: mr.Timer) -> None:
        do("SIGSEGV" if timer.tag == "fatal" else "")
        self.produce("out", timer.tag)


def do(what: str) -> None:
    if what == "SIGSEGV":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif what == "exit":
        os._exit(0)
    elif what == "hang":
        WHILE_HUNG.pass_s(2)
        signal.pause()
    elif what == "raise":
        raise LookupError("not here")


class SharedClock:
    """Seconds that processes share: each look passes one of those that were given to pass."""

    def __init__(self) -> None:
        self._left = mmap.mmap(-1, 1)
        self._now_s = 0.0

    def pass_s(self, seconds: int) -> None:
        self._left[0] = seconds

    def __call__(self) -> float:
        if self._left[0]:
            self._left[0] -= 1
            self._now_s += 1.0
        return self._now_s


WHILE_HUNG = SharedClock()


def harness(probe: Probe | None = None) -> Harness:
    p = mr.Pipeline("p")
    p.inject("events", format=dict)
    p.add(Fragile)
    p.dead_letter("rejects")
    h = Harness(p, intervals=1)
    h._process._runtime.execution.carefully(probe or Probe(60.0))
    return h


def events(key: str, *orders: str) -> list[tuple[Any, int]]:
    return [({"key": key, "do": order}, 5) for order in orders]


def letters(h: Harness) -> list[Any]:
    return [output.value for output in h.outputs("rejects")]


def out(h: Harness) -> list[str]:
    return [output.value for output in h.outputs("out")]


def test_what_ends_the_process_becomes_dead_letters_and_nothing_else_is_lost() -> None:
    with harness() as h:
        h.inject("events", [
            *events("ann", "a", "SIGSEGV", "b", "exit", "raise", "c"), *events("bob", "d")
        ])  # fmt: skip

        assert sorted(out(h)) == [
            "ann ['a', 'b', 'c']", "ann ['a', 'b']", "ann ['a']", "bob ['d']"
        ]  # fmt: skip
        assert sorted((letter.reason, letter.key, letter.stream) for letter in letters(h)) == [
            ("LookupError: not here", "'ann'", "events"),
            ("ProcessKilled: it ends the process that it runs in: exit status 0", "'ann'",
             "events"),
            ("ProcessKilled: it ends the process that it runs in: signal SIGSEGV", "'ann'",
             "events"),
        ]  # fmt: skip
        [killed] = [letter for letter in letters(h) if "SIGSEGV" in letter.reason]
        # Where it was, as the child saw it.
        assert "Fatal Python error: Segmentation fault" in killed.error
        assert "in do" in killed.error


def test_so_does_a_timer() -> None:
    with harness() as h:
        h.inject("events", events("ann", "timer"))
        h.advance_watermark("events", 10)

        assert out(h) == ["ann ['timer']", "good"]
        [letter] = letters(h)
        assert (letter.value, letter.stream) == ("'fatal'", "")
        assert "signal SIGSEGV" in letter.reason


def test_a_child_that_hangs_is_killed_at_the_time_limit() -> None:
    # Its second is looked at twice: where the call is seen first, and where it is seen again.
    with harness(Probe(0.5, clock=WHILE_HUNG)) as h:
        h.inject("events", events("ann", "a", "hang", "b"))

        assert out(h) == ["ann ['a']", "ann ['a', 'b']"]
        [letter] = letters(h)
        assert "it was killed after 0.5 s, in which it did not return" in letter.reason


def test_the_time_limit_of_a_call_does_not_end_what_comes_before_it() -> None:
    """Else the parent would run the call that hangs, or dies, itself."""
    clock, calls = SharedClock(), list[str]()
    probe = Probe(0.5, clock=clock)
    timer = mr.Timer("soon", 5, mr.WALL_TIME)
    parent = os.getpid()

    def hook(_: Any) -> None:
        if os.getpid() != parent:
            os.kill(os.getpid(), signal.SIGSEGV)
        calls.append("in the parent")

    def run() -> None:
        clock.pass_s(5)
        while clock._left[0]:
            time.sleep(0.001)
        probe.call(hook, "ann", timer)

    probe.look(run)

    with pytest.raises(ProcessKilled, match="SIGSEGV"):
        probe.call(hook, "ann", timer)
    assert calls == []


def test_after_its_time_bundles_are_run_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    with harness() as h:
        probe = Probe(lasts_s=10.0, clock=lambda: now[0])
        h._process._runtime.execution.carefully(probe)
        looked = list[str]()
        monkeypatch.setattr(probe, "look", lambda _: looked.append("looked"))
        h.inject("events", events("ann", "a"))
        now[0] = 10.0
        h.inject("events", events("ann", "b"))

        assert looked == ["looked"]
        assert len(out(h)) == 2


def test_a_death_in_between_is_laid_to_no_call() -> None:
    """What Millrace itself does after a call may end the process too."""
    probe, calls = Probe(), list[str]()
    timer = mr.Timer("soon", 5, mr.WALL_TIME)

    def run() -> None:
        probe.call(lambda _: None, "ann", timer)
        os.kill(os.getpid(), signal.SIGSEGV)

    probe.look(run)
    probe.call(lambda given: calls.append(given.tag), "ann", timer)

    assert calls == ["soon"]


def test_a_child_reads_the_view_of_its_parent_whose_cache_goes_on(
    tmp_path: Path, writer: Callable[[], object]
) -> None:
    """Killed after reading, while another process frees the pages that the view has."""
    cache, rows = LmdbCache(tmp_path, "count", 0, "uuid"), ROWS
    timer, read_all = mr.Timer("soon", 5, mr.WALL_TIME), mmap.mmap(-1, 1)
    with cache.view() as view:

        def hook(_: Any) -> None:
            for n, found in enumerate(view.scan(b"S", b"T")):
                if n == 500:
                    writer()
                assert found == rows[n]
            read_all[0] = 1
            os.kill(os.getpid(), signal.SIGKILL)

        probe = Probe()
        probe.look(lambda: probe.call(hook, "ann", timer))

        assert read_all[0] == 1
        with pytest.raises(ProcessKilled, match="SIGKILL"):
            probe.call(hook, "ann", timer)
        # The writer looks for readers that are gone, and must not take this one's view for one.
        writer()
        assert list(view.scan(b"S", b"T")) == rows
    assert cache.position == 41
    lmdb_environments.close_all()


ROWS = [(b"S%04d" % n, b"%d" % n * 30) for n in range(1000)]


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[Callable[[], object]]:
    """Return what has another process write the rows of a cache anew, twenty times."""
    cache = LmdbCache(tmp_path, "count", 0, "uuid")
    cache.apply(Commit("count", 0, 1, 1, 1, ROWS))
    ours, its = socket.socketpair()
    if (child := os.fork()) == 0:
        with contextlib.suppress(BaseException):
            while its.recv(1) == b"w":
                for _ in range(20):
                    rows = [(name, b"new" * 40) for name, _ in ROWS]
                    cache.apply(Commit("count", 0, cache.position + 1, 1, 1, rows))
                lmdb_environments.close_all()
                its.send(b"w")
        os._exit(0)

    def write() -> object:
        ours.send(b"w")
        return ours.recv(1)

    yield write
    ours.send(b"e")
    os.waitpid(child, 0)
    ours.close()
    its.close()


def test_a_timer_is_known_by_the_encodings_of_its_key_and_tag() -> None:
    assert _name(0.0, mr.Timer(-0.0, at=1)) == _name(-0.0, mr.Timer(0.0, at=1))
    long = "x" * 100_000
    timers = [
        mr.Timer(f"{long}1", at=1),
        mr.Timer(f"{long}2", at=1),
        mr.Timer(f"{long}2", at=2),
        mr.Timer(f"{long}2", at=2, domain=mr.WALL_TIME),
        mr.Timer(f"{long}2", at=2, percentile=50),
    ]
    assert (
        len({_name(key, timer) for key in ("a", f"{long}a", f"{long}b") for timer in timers}) == 15
    )
