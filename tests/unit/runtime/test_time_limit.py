"""User code that takes too long is ended, and nothing else is."""

import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

import millrace as mr
from millrace.kernel import results
from millrace.model.errors import TimeLimitExceeded, UserCodeError
from millrace.runtime.stuck import Stuck, TimeLimit, Watch
from millrace.testing import Harness, exceed_time_limit

LIMIT_S = 20.0


class Asks(mr.Computation):
    """Asks a service that may hang, and catches what it raises."""

    inputs = {"events": mr.by("key")}
    outputs = {"answers": str}
    seen = mr.BagState(str)
    asked = threading.Semaphore(0)
    answer = threading.Semaphore(0)

    def process_record(self, record: mr.Record) -> None:
        self.seen.add(record.value["name"])
        if record.value["name"] == "slow timer":
            self.set_timer("slow", at=record.timestamp + 1)
        elif record.value["name"] == "slow":
            self.ask()
        self.produce("answers", f"{record.value['name']} {sorted(self.seen)}")

    def process_timer(self, timer: mr.Timer) -> None:
        self.ask()

    def ask(self) -> None:
        try:
            self.asked.release()
            self.answer.acquire()
        except Exception:  # noqa: BLE001
            self.produce("answers", "went on")


class Watched:
    """A Harness in the main thread, and in another the watch, by a clock of its own."""

    def __init__(self, h: Harness) -> None:
        self.h = h
        self.now = 0.0
        self.told: list[Stuck] = []
        self.over = threading.Event()
        limit = TimeLimit(LIMIT_S)
        before = signal.getsignal(signal.SIGRTMIN)
        self.give_back = lambda: signal.signal(signal.SIGRTMIN, before)
        limit.install()
        self.watch = Watch(
            h._process._runtime.execution.running,
            10.0,
            self.told.append,
            lambda: None,
            limit=limit,
            clock=lambda: self.now,
        )

    def looking(self, *at: float) -> threading.Thread:
        """Return a thread that looks at some times once user code hangs, and then on and on.

        What it ends may be in a finalizer at that moment, which swallows what is raised there.
        """

        def look() -> None:
            Asks.asked.acquire()
            for self.now in at:
                self.watch.look()
            while not self.over.wait(0.01):
                self.watch.look()

        thread = threading.Thread(target=look)
        thread.start()
        return thread


@pytest.fixture(params=[False, True], ids=["", "timed"])
def watched(request: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    p = mr.Pipeline("p")
    p.inject("events", format=dict)
    p.add(Asks)
    p.dead_letter("rejects")
    with Harness(p) as h:
        if request.param:
            h._process._runtime.execution._seconds = time.perf_counter
            monkeypatch.setattr(results, "_BETWEEN", 0)  # each bundle's calls are
        watched = Watched(h)
        yield watched
        watched.give_back()


def events(*names: str, key: str = "ann") -> list[tuple[Any, int]]:
    return [({"key": key, "name": name}, 5) for name in names]


def letters(h: Harness) -> list[Any]:
    return [output.value for output in h.outputs("rejects")]


def test_a_record_that_takes_too_long_becomes_a_dead_letter_and_the_rest_goes_on(
    watched: Watched,
) -> None:
    thread = watched.looking(0.0, LIMIT_S - 0.1, LIMIT_S)
    h = watched.h
    h.inject("events", [*events("first", "slow", "last"), *events("other", key="bob")])
    watched.over.set()
    thread.join()

    assert sorted(output.value for output in h.outputs("answers")) == [
        "first ['first']",
        "last ['first', 'last']",
        "other ['other']",
    ]
    [letter] = letters(h)
    assert letter.reason == (
        "TimeLimitExceeded: a call of user code took longer than 20 s, which is its time limit"
    )
    assert "in ask" in letter.error
    assert (letter.key, letter.stream, letter.timestamp) == ("'ann'", "events", 5)
    assert h.counters("Asks").dead_letters == 1
    # Asked once: what took too long is not tried again.
    assert not Asks.asked.acquire(blocking=False)


def test_so_does_a_timer(watched: Watched) -> None:
    h = watched.h
    h.inject("events", events("slow timer"))
    thread = watched.looking(0.0, LIMIT_S)
    h.advance_watermark("events", 10)
    watched.over.set()
    thread.join()

    [letter] = letters(h)
    assert (letter.value, letter.stream) == ("'slow'", "")
    assert not Asks.asked.acquire(blocking=False)


def test_without_dead_letters_the_error_says_what_took_too_long() -> None:
    class Hangs(mr.Computation):
        inputs = {"events": mr.by("key")}
        outputs = {}

        def process_record(self, record: mr.Record) -> None:
            exceed_time_limit()

    p = mr.Pipeline("p")
    p.inject("events", format=dict)
    p.add(Hangs)
    with (
        Harness(p) as h,
        pytest.raises(UserCodeError, match=r"of Hangs raised TimeLimitExceeded: .*\n.*'ann'"),
    ):
        h.inject("events", events("slow"))


def test_only_the_call_that_was_meant_is_ended() -> None:
    """A signal may come late: when the call has returned, or Millrace's own code runs."""
    limit = TimeLimit(LIMIT_S, send=lambda *_: None)
    main = threading.main_thread().ident
    assert main is not None

    def frame_of(code: str, file: str) -> Any:
        found: dict[str, Any] = {}
        exec(compile(code, file, "exec"), {"found": found, "sys": __import__("sys")})
        return found["frame"]

    meant = frame_of("found['frame'] = sys._getframe()", "users.py")
    other = frame_of("found['frame'] = sys._getframe()", "users.py")
    limit.interrupted(0, meant)  # nobody was meant
    limit.end(meant, main)
    limit.interrupted(0, other)  # it has returned
    limit.interrupted(0, meant)  # and is meant no more
    limit.end(meant, main)
    with pytest.raises(TimeLimitExceeded):
        limit.interrupted(0, meant)

    import millrace.kernel.machine as ours

    kernel = frame_of("found['frame'] = sys._getframe()", ours.__file__)
    limit.end(kernel, main)
    limit.interrupted(0, kernel)
