"""A run over any engine: one that this program drives, without Spark."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import pytest

import millrace as mr
from millrace.balance.load import RunLoads
from millrace.balance.preparation import Preparation
from millrace.balance.task_count import TaskRange
from millrace.compile.build import build
from millrace.epochlog.run_log import RunLog
from millrace.injectors.rate_limit import held_in
from millrace.injectors.watermark_publisher import WatermarkPublisher
from millrace.inspect.lease import Lease
from millrace.model.declarations import Declarations
from millrace.model.errors import PipelineError, RunFailed, StoreError
from millrace.runtime.stuck import NO_LIMITS
from millrace.spark.asks import acts_of
from millrace.spark.console import Quiet
from millrace.spark.engine import Engine, RemapResult, RunParts
from millrace.spark.handle import Handle
from millrace.spark.housekeeping import Housekeeping
from millrace.spark.metrics.lines import MetricLines
from millrace.spark.progress_display import ProgressTarget
from millrace.spark.run import Run
from millrace.store import EpochLog, LocalBlobs, Mailbox, MemoryHardState


class Driven(Engine):
    """Has tasks that end as the test says."""

    plane: ClassVar[str] = "by hand"

    def __init__(self, *ends: BaseException | None, tries: int) -> None:
        super().__init__()
        self.ends, self.tries, self.said = list(ends), tries, list[str]()
        self.stopped = threading.Event()

    def launch(self) -> None:
        self.said.append("launch")

    def watch(self) -> BaseException | None:
        if not self.ends:
            assert self.stopped.wait(60)
            return None
        end = self.ends.pop(0)
        if isinstance(end, KeyError):
            raise end
        return end

    def again(self, failure: BaseException) -> bool:
        self.tries -= 1
        if self.tries == 0:
            self.run.fail(failure)
        return self.tries > 0

    def hang_up(self) -> None:
        self.said.append("hang up")

    def process_available(self, timeout: Any) -> bool:
        return True

    def end_input(self) -> None:
        self.stopped.set()

    def stop(self, timeout: Any) -> None:
        self.said.append("stop")
        self.stopped.set()

    def hold_back(self) -> None:
        self.said.append("hold back")

    def end_if_superseded(self) -> None:
        self.said.append("superseded?")

    def quiesced_epoch(self) -> tuple[int, str]:
        return -1, ""

    def remap(self, name: str, preparation: Preparation) -> RemapResult:
        return RemapResult(2, 0, "0.1 s")


class Rows(mr.sources.Injector):
    schema = "n long, at long"

    def processes(self) -> list[str]:
        return ["a"]

    def advance(self, process: str, offset: Any) -> mr.sources.Advance:
        return mr.sources.Advance(offset)

    def read(self, process: str, start: Any, end: Any) -> Any:
        yield from ()


class Counted(mr.Computation):
    inputs = {"in": mr.by("n")}

    def process_record(self, record: mr.Record) -> None: ...


class Starter:
    def __init__(self, folder: Path, engine: Engine, lease: Any = None) -> None:
        self._folder, self._engine, self._lease = folder, engine, lease

    def run(self, pipeline: Declarations, *, again: bool = False) -> Run:
        topology, state = build(pipeline), MemoryHardState()
        run_log = RunLog(topology, state, intervals=2)
        spark: Any = None
        parts = RunParts(
            topology=topology,
            run_log=run_log,
            loads=RunLoads(run_log),
            publisher=WatermarkPublisher.of(topology),
            housekeeping=Housekeeping(state),
            plan=spark,
            tasks=1,
            allowed=TaskRange(1, 1),
            limits=NO_LIMITS,
            attempts=3,
            balance=None,
            explanation=spark,
            clock=lambda: 0,
            console=Quiet(spark),
            progress_target=ProgressTarget.NOWHERE,
            scrapes=None,
            lines=MetricLines(None),
            mailbox=Mailbox(LocalBlobs(self._folder)),
            scratch=self._folder / "scratch",
            lease=self._lease,
        )
        run = Run(parts, self._engine)
        run.launch()
        return run


@pytest.fixture
def started(tmp_path: Path) -> Any:
    p = mr.Pipeline("p")
    p.inject("in", Rows(), timestamp="at", unit="us", low_watermark=mr.ArrivalTime(0))
    p.add(Counted)

    def start(engine: Engine, lease: Any = None) -> Handle:
        handle, starter = Handle(), Starter(tmp_path, engine, lease)
        handle._begin(p, starter)  # type: ignore[arg-type]
        return handle

    return start


def test_tasks_are_launched_again_while_the_engine_says_so(started: Any) -> None:
    engine = Driven(OSError("one"), OSError("two"), None, tries=5)
    run = started(engine)
    assert run.wait("60 s") is True
    assert engine.said == ["launch"] * 3 + ["hang up"]
    assert run.status().state == "stopped"


def test_who_waits_is_told_what_the_engine_gave_up_for(started: Any) -> None:
    run = started(Driven(OSError("one"), OSError("two"), tries=2))
    with pytest.raises(RunFailed, match="pipeline 'p' stopped: OSError: two"):
        run.wait("60 s")
    assert run.status().state == "failed"


def test_a_store_that_does_not_say_who_has_it_hides_no_failure(
    started: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_: EpochLog) -> int:
        raise StoreError("no route")

    run = started(Driven(OSError("two"), tries=1))
    monkeypatch.setattr(EpochLog, "last", refused)
    with pytest.raises(RunFailed, match="pipeline 'p' stopped: OSError: two"):
        run.wait("60 s")


def test_an_engine_that_fails_itself_fails_the_run(started: Any) -> None:
    engine = Driven(KeyError("gone"), tries=2)
    with pytest.raises(RunFailed, match="KeyError: 'gone'"):
        started(engine).wait("60 s")
    assert engine.said == ["launch", "hang up"]


def test_a_stop_ends_the_tasks_and_then_the_run(started: Any) -> None:
    engine = Driven(tries=1)
    run = started(engine)
    assert run.wait("0 s") is False
    assert run.status().state == "running"
    run.stop()
    assert engine.said == ["launch", "stop", "hang up"]
    assert (run.status().state, run.wait()) == ("stopped", True)


def test_a_lease_is_given_back_before_the_run_is_over(started: Any, tmp_path: Path) -> None:
    for number, (end, ended) in enumerate([(None, "done"), (OSError("lost"), "given up")]):
        lease = Lease(tmp_path / f"{number}", "p")
        assert lease.acquire()
        run = started(Driven(end, tries=1), lease)
        with suppress(RunFailed):
            run.wait("60 s")
        term = lease._last()[1]
        assert term is not None
        assert term.ended == ended


def test_a_run_that_another_follows_leaves_it_the_lease(started: Any, tmp_path: Path) -> None:
    lease = Lease(tmp_path / "lease", "p")
    assert lease.acquire()
    run = started(Driven(tries=1), lease)
    run._run.handed_over = True
    run.stop()
    term = lease._last()[1]
    assert term is not None
    assert term.ended == ""
    lease.release()


def test_what_waits_is_counted_where_it_may_be_read(started: Any) -> None:
    run = started(Driven(None, tries=1))._run
    assert run.waiting_records() is None
    run._backlog._found = {
        "paused": mr.sources.Backlog(records=1),
        "limited": mr.sources.Backlog(records=10),
        "files": mr.sources.Backlog(files=3),
    }
    run.publisher.throttle.pause("paused")
    run.publisher.throttle.limit("limited", 1.0)
    assert run.waiting_records() is None
    run._backlog._found |= {name: mr.sources.Backlog(records=100) for name in ("one", "other")}
    assert run.waiting_records() == 200


def test_what_may_be_asked_for_is_one_table_for_every_engine(started: Any) -> None:
    engine = Driven(tries=1)
    run = started(engine)
    acts = acts_of(run._run, lambda _application, _options: None)
    assert sorted(acts) == [
        "drain", "fire", "pause", "rate-limit", "remap", "resume", "savepoint", "snapshot",
        "status", "stop", "update",
    ]  # fmt: skip
    assert acts["pause"]("in") == "in: paused"
    assert acts["resume"]("in") == "in: read as it comes"
    assert acts["rate-limit"]("in=2.5") == "in: 2.5 records a second"
    assert acts["remap"]('{"computation": "Counted", "splits": [[0, null]]}') == (
        "Counted has 2 key intervals after epoch 0; the run stood still for 0.1 s"
    )
    assert engine.said.count("hold back") == 3
    with pytest.raises(PipelineError, match="a run by hand has no tasks that stay in a process"):
        run.hosts  # noqa: B018
    assert acts["stop"]("") == "stopped"
    with pytest.raises(PipelineError, match="the run is stopped, and reads nothing"):
        acts["pause"]("in")


def test_who_looks_into_the_checkpoint_is_told_what_is_held_back(
    started: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = started(Driven(tries=0))
    mailbox, generation = Mailbox(LocalBlobs(tmp_path)), run.status().generation
    run.limit_rate("in", 2.5)
    assert held_in(mailbox, generation) == {"in": "2.5 records a second"}
    run.pause("in")
    assert held_in(mailbox, generation) == run.status().held_back == {"in": "paused"}

    # It takes over from a run that was asked before.
    run._run.launch()
    assert held_in(mailbox, generation) == {"in": "paused"}
    run.resume("in")
    assert held_in(mailbox, generation) == {}

    def fails(*_: Any) -> None:
        raise StoreError("no route")

    monkeypatch.setattr(Mailbox, "replace", fails)
    run.pause("in")
    assert run.status().held_back == {"in": "paused"}
    assert "explain-watermark does not know of it: no route" in caplog.text
    monkeypatch.undo()
    run.stop()
