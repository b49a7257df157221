"""What waits in sources, as they are asked beside a run."""

import os
import time

import pytest

import millrace as mr
from millrace.compile.build import build
from millrace.injectors.advance import Backlog, along, decision
from millrace.injectors.offsets import SourceOffset
from millrace.injectors.signal_injector import BacklogProbe, asking, backlog_of


class Silent(mr.sources.Injector):
    """Does not say how much waits."""

    schema = "n long, at long"

    def processes(self):
        return ["a", "b"]

    def advance(self, process, offset):
        return mr.sources.Advance(offset)

    def read(self, process, start, end):
        return []


class Log(Silent):
    """Two processes of ten records each."""

    def backlog(self, process, offset):
        return Backlog(records=10 - (offset or 0))


class Half(Silent):
    """Of one of its processes it cannot tell."""

    def backlog(self, process, offset):
        return Backlog(records=5) if process == "a" else None


WITHIN = along(3, [decision(3, mr.sources.Advance(8))])
WITHIN_READ = {"millrace-within": [3, [[8, None]], 2]}


@pytest.mark.parametrize(
    ("injector", "places", "expected"),
    [
        (Log(), {}, 20),
        (Log(), {"a": SourceOffset(0, 10), "b": SourceOffset(1, 4)}, 6),
        (Log(), {"a": SourceOffset(0, WITHIN), "b": SourceOffset(1, 10)}, 7),
        (
            Log(),
            {"a": SourceOffset(0, WITHIN_READ), "b": SourceOffset(1, 10)},
            5,
        ),  # two rows of it were read
        (Half(), {}, None),
    ],
)
def test_a_stream_has_what_its_processes_have(injector, places, expected):
    found = backlog_of(injector, places)
    assert (None if found is None else found.records) == expected


def test_only_sources_that_can_tell_are_asked():
    p = mr.Pipeline("p")
    for name, source in (("silent", Silent()), ("log", Log())):
        p.inject(name, source, timestamp="at", format=int)
        p.sink(name, mr.sinks.Memory())
    sources = asking(build(p), lambda: {"log": {"a": SourceOffset(0, 9), "b": SourceOffset(1, 9)}})
    waiting = BacklogProbe(sources)

    assert (list(sources), waiting.now()) == (["log"], {})
    waiting.ask("log")
    assert waiting.now() == {"log": Backlog(records=2)}


def test_a_source_that_fails_says_nothing_and_the_others_do():
    answers = iter([Backlog(records=1), OSError("away"), Backlog(records=3)])

    def ask():
        answer = next(answers)
        if isinstance(answer, OSError):
            raise answer
        return answer

    waiting = BacklogProbe({"a": ask, "b": lambda: Backlog(records=7)})
    waiting.ask("b")
    said = []
    for _ in range(3):
        waiting.ask("a")
        said.append(waiting.now())
    b = {"b": Backlog(records=7)}
    assert said == [b | {"a": Backlog(records=1)}, b, b | {"a": Backlog(records=3)}]


def test_connections_of_the_one_that_is_asked_are_its_own():
    class Connected(Log):
        def __init__(self):
            self.connection = object()

        def __getstate__(self):
            return {"connection": None}

        def backlog(self, process, offset):
            return Backlog(records=0 if self.connection is None else 99)

    p = mr.Pipeline("p")
    p.inject("log", Connected(), timestamp="at", format=int)
    p.sink("log", mr.sinks.Memory())
    assert asking(build(p), dict)["log"]() == Backlog(records=0)


def test_files_have_what_was_not_read_of_them(tmp_path):
    files = mr.sources.Files(tmp_path, schema="n long, at long", bytes_per_epoch=20, grows="1 h")
    (tmp_path / "1.json").write_text('{"n": 1, "at": 5}\n' * 3)
    (tmp_path / "2.json").write_text('{"n": 1, "at": 5}\n')
    (tmp_path / "_being written").write_text("x" * 99)
    os.utime(tmp_path / "1.json", (1, 1))
    process = str(tmp_path)

    assert files.backlog(process, None) == Backlog(files=2, size=4 * 18)
    offset = files.advance(process, None).offset
    assert files.backlog(process, offset) == Backlog(files=1, size=2 * 18)
    for _ in range(4):
        offset = files.advance(process, offset).offset
    assert files.backlog(process, offset) == Backlog(files=0, size=0)
    with (tmp_path / "2.json").open("a") as file:
        file.write('{"n": 2, "at": 6}\n')
    assert files.backlog(process, offset) == Backlog(files=1, size=18)


def test_kafka_has_the_offsets_up_to_the_end():
    kafka = mr.sources.Kafka("localhost:1", "t")
    kafka._bounds = {"t-0": (3, 12)}

    assert kafka.backlog("t-0", 7) == Backlog(records=5)
    assert kafka.backlog("t-0", None) == Backlog(records=9)  # the others were removed
    assert kafka.backlog("t-0", 0) == Backlog(records=9)


def test_it_is_asked_at_once_when_it_is_started():
    waiting = BacklogProbe({"a": lambda: Backlog(records=1)})
    waiting.start()
    until = time.monotonic() + 10
    while not waiting.now() and time.monotonic() < until:
        pass
    waiting.close()
    assert waiting.now() == {"a": Backlog(records=1)}
