"""The engine of epochs that the driver begins, over memory; the jobs are stand-ins."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import millrace as mr
from millrace.balance.load import RunLoads
from millrace.balance.task_count import TaskRange
from millrace.compile.build import build
from millrace.epochlog.run_log import RunLog
from millrace.injectors.offsets import unpacked_piece
from millrace.injectors.watermark_publisher import WatermarkPublisher
from millrace.model.errors import (
    CheckpointMismatch,
    InputLost,
    PipelineError,
    RunFailed,
    ZombieWriter,
)
from millrace.runtime.epoch.driver import EpochDriver
from millrace.runtime.epoch.input import EpochInput
from millrace.runtime.reports import TaskReport
from millrace.runtime.stuck import NO_LIMITS
from millrace.spark import driven_engine, epoch_engine
from millrace.spark.console import Quiet
from millrace.spark.driven_engine import DrivenEngine, DrivenSetup
from millrace.spark.engine import RunParts
from millrace.spark.handle import Handle
from millrace.spark.housekeeping import Housekeeping
from millrace.spark.metrics.lines import MetricLines
from millrace.spark.progress_display import ProgressTarget
from millrace.spark.run import Run
from millrace.store import LocalBlobs, Mailbox, MemoryHardState


class Rows(mr.sources.Injector):
    schema = "n long, at long"

    def __init__(self) -> None:
        self.there: int | Exception = 0
        self.step = 1 << 30
        self.answers, self.asked = threading.Event(), threading.Event()
        self.answers.set()

    def processes(self) -> list[str]:
        return ["a"]

    def advance(self, process: str, offset: Any) -> mr.sources.Advance:
        self._answer()
        if isinstance(self.there, Exception):
            raise self.there
        return mr.sources.Advance(min(self.there, (offset or 0) + self.step) or None)

    def split(self, process: str, start: Any, end: Any) -> Any:
        self._answer()
        return [(start, end)]

    def _answer(self) -> None:
        if not self.answers.is_set():
            self.asked.set()
            assert self.answers.wait(60)

    def read(self, process: str, start: Any, end: Any) -> Any:
        yield from ()


class Count(mr.Computation):
    inputs = {"rows": mr.by("n")}

    def process_record(self, record: mr.Record) -> None: ...


class Session:
    """A session whose jobs a test runs; one that is interrupted fails as Spark's does."""

    def __init__(self) -> None:
        self.read: list[tuple[Any, Any]] = []
        self.hangs = threading.Event()
        self.hung, self.interrupted = threading.Event(), threading.Event()
        self.error: Exception | None = None
        self.tags: list[str] = []
        self.records_from = 0

    #: Of its context: it has not been stopped.
    defaultParallelism = 2  # noqa: N815  Spark's

    @property
    def sparkContext(self) -> Session:
        return self

    def addJobTag(self, tag: str) -> None:
        self.tags.append(tag)

    def cancelJobsWithTag(self, tag: str) -> None:
        assert tag in self.tags
        self.interrupted.set()

    def range(self, *_: int) -> None:
        return None

    def job(self, _plan: Any, _rows: Any, manifest: Any, _sinks: Any, **how: Any) -> Any:
        if self.hangs.is_set():
            self.hung.set()
            assert self.interrupted.wait(60)
            raise RuntimeError("Job 7 cancelled part of cancelled job tag")
        if self.error is not None:
            raise self.error
        report = TaskReport()
        for stream, piece in (unpacked_piece(one) for lot in how["lots"] for one in lot):
            self.read.append(piece.between)
            if piece.reached >= self.records_from:
                report.source(stream).count(1, 0)
            reached = piece.reached, piece.process_watermark_us
            report.reached.setdefault(stream, {})[piece.process] = reached
        return report, 0.0


class Runs:
    """Runs on one checkpoint."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.rows = folder, Rows()
        self.state = MemoryHardState()
        self.pipeline = mr.Pipeline("p")
        self.pipeline.inject("rows", self.rows, timestamp="at", unit="us")
        self.pipeline.add(Count)
        self.now_us = 0
        self.handles: list[Handle] = []

    def start(self, session: Session, *, look_s: float = 0.001) -> Handle:
        self.session, topology = session, build(self.pipeline)
        run_log = RunLog(topology, self.state, intervals=2)
        nothing: Any = None
        parts = RunParts(
            topology=topology,
            run_log=run_log,
            loads=RunLoads(run_log),
            publisher=WatermarkPublisher.of(topology),
            housekeeping=Housekeeping(self.state),
            plan=nothing,
            tasks=1,
            allowed=TaskRange(1, 1),
            limits=NO_LIMITS,
            attempts=3,
            balance=None,
            explanation=nothing,
            clock=lambda: self.now_us,
            console=Quiet(nothing),
            progress_target=ProgressTarget.NOWHERE,
            scrapes=None,
            lines=MetricLines(None),
            mailbox=Mailbox(LocalBlobs(self.folder)),
            scratch=self.folder / "scratch",
        )
        spark: Any = session
        input = EpochInput(topology, {"rows": self.rows})
        engine = DrivenEngine(parts, input, session=spark, spark=spark, look_s=look_s, readers=2)
        run = Run(parts, engine)

        class Started:
            def run(self, _: Any, *, again: bool = False) -> Run:
                run.launch()
                return run

        handle, starter = Handle(), Started()
        handle._begin(nothing, starter)  # type: ignore[arg-type]
        self.handles.append(handle)
        return handle


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    made = Runs(tmp_path)

    def job(*given: Any, **how: Any) -> Any:
        return made.session.job(*given, **how)

    monkeypatch.setattr(epoch_engine, "run_patiently", job)
    yield made
    made.rows.answers.set()
    for handle in made.handles:
        if handle._run.active:
            handle.stop()


def test_what_is_there_is_read_by_a_job_and_nothing_by_none(runs: Runs) -> None:
    session = Session()
    run = runs.start(session)
    assert run.process_available("60 s")
    assert (session.read, run.status().epoch >= 0) == ([], True)
    runs.rows.there = 5
    assert run.process_available("60 s")
    runs.rows.there = 9
    assert run.process_available("60 s")
    assert session.read == [(None, 5), (5, 9)]
    assert run.drain("60 s")
    assert run.status().state == "drained"


def test_input_is_there_until_no_offset_moves(runs: Runs) -> None:
    """Of three steps, only the last has a record; sources are looked at where somebody asks."""
    session = Session()
    run = runs.start(session, look_s=60)
    assert run.process_available("60 s")
    session.records_from, runs.rows.there, runs.rows.step = 3, 3, 1
    assert run.process_available("60 s")
    assert session.read == [(None, 1), (1, 2), (2, 3)]


def test_what_stands_still_is_seen_in_one_turn(runs: Runs) -> None:
    run = runs.start(Session(), look_s=60)
    assert run.process_available("60 s")
    epoch = run.status().epoch
    assert run.process_available("60 s")
    assert run.status().epoch == epoch + 1


@pytest.mark.parametrize("call", ["advance", "split"])
def test_a_stop_does_not_wait_for_an_injector_that_does_not_answer(
    runs: Runs, call: str, caplog: pytest.LogCaptureFixture
) -> None:
    session, rows, before = Session(), runs.rows, set(threading.enumerate())
    run = runs.start(session, look_s=60)
    assert run.process_available("60 s")
    epoch, rows.there = run.status().epoch, 5
    if call == "advance":
        rows.answers.clear()
    else:
        advance = rows.advance

        def and_then_hang(process: str, offset: Any) -> mr.sources.Advance:
            try:
                return advance(process, offset)
            finally:
                rows.answers.clear()

        rows.advance = and_then_hang  # type: ignore[method-assign]
    assert not run.process_available("0 s")
    assert rows.asked.wait(60)
    run.stop("10 ms")
    assert (run.status().state, run.status().epoch) == ("stopped", epoch)
    assert "the injector of 'rows' has not answered for" in caplog.text

    # It answers later: nothing comes of it.
    rows.answers.set()
    for thread in set(threading.enumerate()) - before:
        if thread.name == "millrace-run":
            thread.join(60)
    assert session.read == []
    if call == "split":
        rows.advance = advance  # type: ignore[method-assign]
    run = runs.start(session)
    assert run.process_available("60 s")
    assert session.read == [(None, 5)]


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The clock and the low watermark of each epoch, in s; that follows the clock in steps."""
    epochs: list[tuple[int, int]] = []
    run = EpochDriver.run

    def watched(self: EpochDriver, *given: Any, **how: Any) -> Any:
        turn = run(self, *given, **how)
        assert turn is not None
        manifest = turn.manifest
        epochs.append((manifest.wall_time_us // mr.SECOND, manifest.injectors["rows"] // mr.SECOND))
        return turn

    monkeypatch.setattr(EpochDriver, "run", watched)
    return epochs


def by_the_clock(runs: Runs) -> Handle:
    runs.pipeline = mr.Pipeline("p")
    policy = mr.ArrivalTime("1 s", every="10 s")
    runs.pipeline.inject("rows", runs.rows, timestamp="at", unit="us", low_watermark=policy)
    runs.pipeline.add(Count)
    runs.now_us = 100 * mr.SECOND
    handle = runs.start(Session())
    assert handle.process_available("60 s")
    return handle


def test_by_the_clock_a_low_watermark_moves_at_once_if_nothing_was_there(
    runs: Runs, published: list[tuple[int, int]]
) -> None:
    handle = by_the_clock(runs)
    runs.now_us = 113 * mr.SECOND
    assert handle.process_available("60 s")
    assert {low for now, low in published if now == 113} == {109}


def test_by_the_clock_a_low_watermark_waits_until_what_was_there_is_read(
    runs: Runs, published: list[tuple[int, int]]
) -> None:
    def advance(process: str, offset: Any) -> mr.sources.Advance:
        return mr.sources.Advance(5 if runs.now_us == 113 * mr.SECOND else None)

    runs.rows.advance = advance  # type: ignore[method-assign]
    handle = by_the_clock(runs)
    runs.now_us = 113 * mr.SECOND
    assert handle.process_available("60 s")
    assert [low for now, low in published if now == 113][:2] == [99, 109]


def test_a_paused_stream_is_not_asked(runs: Runs) -> None:
    session = Session()
    run = runs.start(session)
    run.pause("rows")
    runs.rows.there = 5
    assert run.process_available("60 s")
    assert session.read == []
    run.resume("rows")
    assert run.process_available("60 s")
    assert session.read == [(None, 5)]


def test_another_pipeline_goes_on_between_two_epochs(runs: Runs) -> None:
    session, pauses = Session(), list[Any]()

    def begin(downtime: Any) -> Run:
        pauses.append(downtime.back("until the next epoch could begin"))
        return runs.start(session)._run

    run = runs.start(Session())
    runs.rows.there = 5
    assert run.process_available("60 s")
    successor: Any = SimpleNamespace(claim=lambda: None, begin=begin)
    heir = run._run.engine.hand_over(successor, "60 s")
    assert (run.status().state, runs.handles[-1]._run) == ("stopped", heir)
    assert "to claim the checkpoint" in pauses[0]
    runs.rows.there = 9
    assert runs.handles[-1].process_available("60 s")
    assert session.read == [(5, 9)]


def test_an_idle_run_that_is_superseded_ends_long_before_its_next_epoch(runs: Runs) -> None:
    run = runs.start(Session())
    assert run.process_available("60 s")
    heir = runs.start(Session())
    with pytest.raises(ZombieWriter):
        run.wait("30 s")
    runs.rows.there = 5
    assert heir.process_available("60 s")
    assert heir.status().state == "running"


def test_one_that_is_refused_there_leaves_the_run_as_it_was(runs: Runs) -> None:
    def refuse() -> None:
        raise CheckpointMismatch("computation 'Count' is gone")

    session = Session()
    run = runs.start(session)
    assert run.process_available("60 s")
    successor: Any = SimpleNamespace(claim=refuse)
    with pytest.raises(CheckpointMismatch):
        run._run.engine.hand_over(successor, "60 s")
    runs.rows.there = 5
    assert run.process_available("60 s")
    assert (session.read, run.status().state) == ([(None, 5)], "running")


def test_a_job_is_interrupted_after_the_timeout_and_the_next_run_does_its_epoch(
    runs: Runs, caplog: pytest.LogCaptureFixture
) -> None:
    hanging, session = Session(), Session()
    run = runs.start(hanging)
    assert run.process_available("60 s")
    hanging.hangs.set()
    runs.rows.there = 5
    assert hanging.hung.wait(60)
    epoch = run.status().epoch
    run.stop("1 ms")
    assert (run.status().state, run.status().epoch) == ("stopped", epoch)
    assert "the epoch under way was not finished: Job 7 cancelled" in caplog.text
    runs.rows.there = 9
    run = runs.start(session)
    assert run.process_available("60 s")
    assert session.read == [(None, 5), (5, 9)]  # as far as it was to read, and then the rest


def test_a_session_that_is_closed_as_the_run_ends_is_interrupted_no_more(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was asked again between its end and the run's, and raised in the program that stops."""
    hanging, closed, may_end = Session(), threading.Event(), threading.Event()

    def close(*_: Any, **__: Any) -> None:
        closed.set()
        assert may_end.wait(60)

    def interrupt(tag: str) -> None:
        if closed.is_set():
            raise RuntimeError("[INVALID_HANDLE.SESSION_CLOSED] Session was closed.")
        hanging.interrupted.set()

    monkeypatch.setattr(driven_engine, "close_session", close)
    hanging.cancelJobsWithTag = interrupt  # type: ignore[method-assign]
    run = runs.start(hanging)
    assert run.process_available("60 s")
    hanging.hangs.set()
    runs.rows.there = 5
    assert hanging.hung.wait(60)
    raised: list[BaseException] = []

    def stop() -> None:
        try:
            run.stop("1 ms")
        except BaseException as error:  # noqa: BLE001  the test says which
            raised.append(error)

    stopping = threading.Thread(target=stop)
    stopping.start()
    assert closed.wait(60)
    stopping.join(0.3)  # it asks every tenth of a second
    may_end.set()
    stopping.join(60)
    assert raised == []
    assert run.status().state == "stopped"


@pytest.mark.parametrize(
    ("where", "error", "kind", "said"),
    [
        ("source", InputLost("the log was cut"), RunFailed, "InputLost: the log was cut"),
        ("job", RuntimeError("executor 3 is gone"), RunFailed, "RuntimeError: executor 3 is gone"),
        ("job", RuntimeError("No module named 'millrace'"), PipelineError, "set PYSPARK_PYTHON"),
    ],
)
def test_a_failure_ends_the_run_and_is_told_to_who_waits(
    runs: Runs, where: str, error: Exception, kind: Any, said: str
) -> None:
    session = Session()
    run = runs.start(session)
    if where == "source":
        runs.rows.there = error
    else:
        session.error, runs.rows.there = error, 5
    with pytest.raises(kind, match=said):
        run.wait("60 s")
    assert run.status().state == "failed"


def _setup(**injected: Any) -> DrivenSetup:
    setup = object.__new__(DrivenSetup)  # without a session
    setup.sources = [
        type("Source", (), {"stream": type("Stream", (), {"name": name}), "injector": injector})
        for name, injector in injected.items()
    ]
    return setup


@pytest.mark.parametrize("read", [False, True])
def test_a_stream_does_not_change_its_kind_of_source(runs: Runs, *, read: bool) -> None:
    """From an injector to Spark, and back: nothing knows how far it was read."""
    session = Session()
    run = runs.start(session)
    runs.rows.there = 5 if read else 0
    assert run.process_available("60 s")
    run.stop()
    run_log = RunLog(build(runs.pipeline), runs.state, intervals=2)
    assert run_log.base == run_log.completed + 1  # Spark's offsets would begin anew
    _setup(rows=runs.rows).check_claimed(run_log)

    def refused(check: Callable[[], None], said: str) -> None:
        if not read:
            check()  # it had no record, so that there is nothing to lose
            return
        with pytest.raises(CheckpointMismatch, match=said):
            check()

    refused(lambda: _setup(rows=None).check_claimed(run_log), r"\['rows'\] were.*now Spark's own")
    run_log.source_offsets = {}  # as of a stream that Spark has read
    refused(lambda: _setup(rows=runs.rows).check_claimed(run_log), r"now an mr\.sources\.Injector")
    manifest = run_log.begin(run_log.completed + 1, wall_time_us=0, injectors={})
    assert manifest is not None
    with pytest.raises(CheckpointMismatch, match=rf"epoch {manifest.epoch} .*is unfinished"):
        _setup(rows=runs.rows).check_claimed(run_log)
