"""How a changed pipeline takes over from one that runs; what a run on Spark is stands aside."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

import millrace as mr
from millrace.epochlog.entries import LiveMark
from millrace.epochlog.run_log import RunLog
from millrace.model.errors import (
    CheckpointMismatch,
    CheckpointUnwritable,
    DamagedStore,
    PipelineError,
    StoreError,
    UpdateFailed,
    ZombieWriter,
)
from millrace.spark.asks import UpdateAsked, acts_of
from millrace.spark.engine import UpdateResult
from millrace.spark.handle import Handle
from millrace.store import MemoryHardState


class Counted(mr.Computation):
    inputs = {"in": mr.by(str)}
    outputs = {"out": str}

    def process_record(self, record: mr.Record) -> None: ...


def pipeline(*names: str) -> mr.Pipeline:
    p = mr.Pipeline("p")
    p.inject("in", format=str)
    for name in names:
        p.add(Counted, name=name)
    return p


class Run:
    """A run on which all is said that is done with it."""

    def __init__(self, said: list[Any], pipeline: mr.Pipeline) -> None:
        self.said = said
        self.run_log = RunLog(pipeline.build(), MemoryHardState(), intervals=1)
        # Under way: it is finished before the other begins.
        assert self.run_log.begin(0, wall_time_us=0, injectors={}) is not None
        self.updating = threading.Lock()
        self.update: Any = None
        self.engine = self
        self.active, self.stopping, self.handed_over = True, False, False
        self.lost: list[Exception] = []

    def hand_over(self, successor: Any, timeout: Any) -> Any:
        if self.lost:
            raise self.lost.pop()
        self.said.append(("stop", timeout))
        self.stopping = self.handed_over = True
        successor.claim()
        return successor.begin()

    def stop(self, _timeout: Any) -> None:
        self.stopping = True

    def went_on(self) -> UpdateResult:
        return UpdateResult("0.2 s: 0.2 s for it", 0.2)

    def publish(self, update: Any, requests: Any) -> None:
        self.update, self.requests = update, requests

    def wait_until(self, _reached: Any, _timeout: Any) -> bool:
        return True


class Starter:
    """How runs are started; it says what is."""

    def __init__(self, program: Program, options: dict[str, Any]) -> None:
        self._program, self._options = program, options

    def run(self, pipeline: mr.Pipeline, *, again: bool = False) -> Any:
        if again and self._program.superseded:
            raise ZombieWriter("a newer run has claimed the checkpoint")
        self._program.said.append(("start", pipeline, self._options))
        self._program.starting()
        if pipeline in self._program.broken:
            raise ValueError("no such source")
        run = Run(self._program.said, pipeline)
        self._program.run_made(run)
        return run

    def successor(self, pipeline: mr.Pipeline, before: Any) -> Any:
        return SimpleNamespace(
            claim=lambda: self._program.claiming(),
            begin=lambda: self.run(pipeline),
            close=lambda: self._program.said.append("closed"),
        )

    def load(self, application: str) -> mr.Pipeline:
        self._program.said.append(("load", application))
        return self._program.named[application]

    def scaled(self, tasks: int) -> Starter:
        return Starter(self._program, {**self._options, "first": tasks})

    def changed(self, options: dict[str, Any]) -> Starter:
        if "taskss" in options:
            raise PipelineError("there is no such option")
        return Starter(self._program, {**self._options, **options})


class Program:
    """A program that has started a pipeline, and has its handle."""

    def __init__(self, *broken: mr.Pipeline) -> None:
        self.first, self.said, self.broken = pipeline("a"), list[Any](), list(broken)
        self.named: dict[str, mr.Pipeline] = {}
        self.starting: Any = lambda: None
        self.claiming: Any = lambda: None
        self.run_made: Any = lambda _run: None
        #: Whether another program has claimed the checkpoint.
        self.superseded = False
        self.handle = Handle()
        starter: Any = Starter(self, {})
        self.handle._begin(self.first, starter)
        self.said.clear()

    @property
    def run(self) -> Any:
        return self.handle._run

    def outside(self, application: str, **options: Any) -> str:
        about = msgspec.json.encode(UpdateAsked(application, options)).decode()
        return acts_of(self.run, self.run.update)["update"](about)


def test_the_run_ends_and_the_changed_pipeline_begins_with_other_options() -> None:
    program, more = Program(), pipeline("a", "b")
    before = program.run
    assert program.handle.updated is None
    heir = program.handle.update(more, timeout=7, tasks=3)
    assert heir._run.requests is before.requests
    assert heir.updated == ("0.2 s: 0.2 s for it", 0.2)
    assert program.said == [("stop", 7), ("start", more, {"tasks": 3})]
    assert program.run is before
    assert heir._run is not before
    with pytest.raises(PipelineError, match="is being updated, or has been"):
        program.handle.update(more)
    assert isinstance(heir.update(pipeline("a", "b", "c"), intervals=8), Handle)
    assert program.said[-1][2] == {"tasks": 3, "intervals": 8}


def test_what_cannot_go_on_is_found_before_anything_is_ended() -> None:
    program = Program()
    with pytest.raises(CheckpointMismatch, match=r"p\.remove\('a'\).*\n(.*\n)*The run goes on"):
        program.handle.update(pipeline("b"))
    with pytest.raises(PipelineError, match="neither computations nor sinks"):
        program.handle.update(pipeline())
    with pytest.raises(PipelineError, match="there is no such option"):
        program.handle.update(pipeline("a", "b"), taskss=3)
    assert program.said == []
    program.handle.update(pipeline("a", "b"))


def test_what_live_tasks_have_under_way_is_no_hindrance() -> None:
    program, more = Program(), pipeline("a", "b")
    run_log = RunLog(program.first.build(), MemoryHardState(), intervals=1)
    manifest = run_log.begin(0, wall_time_us=0, injectors={}, live=2)
    assert manifest is not None
    left = LiveMark(tasks=2, incarnation=1)
    run_log.complete(manifest, [], {}, live=left, goes_on=True)
    program.run.run_log = run_log
    with pytest.raises(CheckpointMismatch, match="The run goes on as it was"):
        program.handle.update(pipeline("b"))
    program.handle.update(more)
    assert program.said[-1] == ("start", more, {})


@pytest.mark.parametrize("lost", [UpdateFailed("its tasks were lost"), PipelineError("ended")])
def test_what_fails_before_the_other_has_the_checkpoint_leaves_the_run_as_it_was(
    lost: Exception,
) -> None:
    program, more = Program(), pipeline("a", "b")
    before = program.run
    before.lost.append(lost)
    with pytest.raises(type(lost)) as failed:
        program.handle.update(more)
    assert program.run is before
    assert program.said == ["closed"]
    assert getattr(failed.value, "run", program.handle) is program.handle
    program.handle.update(more)
    assert program.said[1:] == [("stop", 60_000_000), ("start", more, {})]


def test_where_it_does_not_start_the_one_that_ran_is_started_again() -> None:
    bad = pipeline("a", "b")
    program = Program(bad)
    with pytest.raises(UpdateFailed, match="no such source\nThe one that ran was st") as failed:
        program.handle.update(bad, tasks=3)
    assert failed.value.run._pipeline is program.first
    assert program.said[1:] == [("start", bad, {"tasks": 3}), ("start", program.first, {})]


def test_where_neither_starts_both_reasons_are_said() -> None:
    bad = pipeline("a", "b")
    program = Program(bad)
    program.broken.append(program.first)
    with pytest.raises(UpdateFailed, match="Nor could the one that ran: no such source") as failed:
        program.handle.update(bad)
    assert failed.value.run is None


def test_from_outside_the_code_is_loaded_and_who_has_the_handle_has_the_heirs() -> None:
    program, more, third = Program(), pipeline("a", "b"), pipeline("a", "b", "c")
    program.named |= {"jobs.py:more": more, "jobs.py:third": third}
    before = program.run
    assert program.outside("jobs.py:more", tasks=3) == (
        "jobs.py:more has taken over after epoch -1; the run stood still for 0.2 s: 0.2 s for it"
    )
    assert program.said == [
        ("load", "jobs.py:more"),
        ("stop", 60_000_000),
        ("start", more, {"tasks": 3}),
    ]
    heir = program.run
    assert heir is not before
    with pytest.raises(PipelineError, match="is being updated, or has been"):
        program.handle._hand_over(program.handle, more, {}, 7) if heir.updating.acquire() else None
    heir.updating.release()
    # What takes over may be taken over from, outside and in the program.
    assert program.outside("jobs.py:third").startswith("jobs.py:third has taken over after ")
    assert program.said[-1] == ("start", third, {"tasks": 3})
    program.handle.update(pipeline("a", "b", "c", "d"))


def test_from_outside_what_cannot_go_on_leaves_the_run_as_it_was() -> None:
    program = Program()
    program.named["jobs.py:other"] = pipeline("b")
    before = program.run
    with pytest.raises(CheckpointMismatch, match="The run goes on as it was"):
        program.outside("jobs.py:other")
    with pytest.raises(KeyError):
        program.outside("jobs.py:missing")
    assert program.said == [("load", "jobs.py:other"), ("load", "jobs.py:missing")]
    assert program.run is before


def test_from_outside_where_it_does_not_start_the_handle_has_the_one_that_ran() -> None:
    bad = pipeline("a", "b")
    program = Program(bad)
    program.named["jobs.py:bad"] = bad
    before = program.run
    with pytest.raises(UpdateFailed, match="The one that ran was st"):
        program.outside("jobs.py:bad")
    assert program.run is not before
    assert program.said[-1] == ("start", program.first, {})
    assert program.handle.wait()

    alone = Program(bad)
    alone.named["jobs.py:bad"] = bad
    alone.broken.append(alone.first)
    with pytest.raises(UpdateFailed, match="Nothing runs"):
        alone.outside("jobs.py:bad")
    with pytest.raises(UpdateFailed, match="Nothing runs"):  # who waits for the run is told
        alone.handle.wait()


def test_other_tasks_of_the_same_pipeline_take_over_and_the_handle_has_them() -> None:
    program = Program()
    before = program.run
    before.scale(3).join()
    assert program.said == [("stop", 60_000_000), ("start", program.first, {"first": 3})]
    assert program.run is not before
    before.scale(4).join()  # asked for just before, of who has ended
    assert program.said[2:] == []
    program.run.scale(2).join()
    assert program.said[-1] == ("start", program.first, {"first": 2})
    program.handle.update(pipeline("a", "b"), tasks=5)
    assert program.said[-1][2] == {"first": 2, "tasks": 5}


def test_where_other_tasks_cannot_take_over_the_run_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    program = Program()
    before = program.run
    before.lost.append(UpdateFailed("its tasks were lost"))
    before.scale(3).join()
    assert program.run is before
    assert "there are not 3 tasks a level now: its tasks were lost" in caplog.text
    with before.updating:
        before.scale(3).join()
    assert "this run is being updated" in caplog.text
    assert program.said == ["closed"]
    before.scale(3).join()
    assert program.run is not before

    alone = Program()
    alone.broken.append(alone.first)
    alone.run.scale(3).join()
    with pytest.raises(UpdateFailed, match="Nothing runs"):  # who waits for the run is told
        alone.handle.wait()


@pytest.mark.parametrize("handed_over", [False, True])
def test_a_run_that_is_drained_meanwhile_has_ended_as_it_was_to(
    handed_over: bool, caplog: pytest.LogCaptureFixture
) -> None:
    program = Program()
    program.named["jobs.py:first"] = program.first
    before = program.run

    def drained() -> None:
        before.run_log.drained = before.stopping = True
        if not handed_over:  # its engine finds that it does not go on any more
            before.handed_over = False
            before.said.clear()
        raise CheckpointMismatch("its input ended")

    program.claiming = drained
    before.scale(3).join()
    assert program.said == [("stop", 60_000_000), "closed"][not handed_over :]
    assert program.run is before
    assert program.handle.wait()
    assert "tasks a level now" not in caplog.text
    with pytest.raises(CheckpointMismatch, match="its input ended"):
        program.outside("jobs.py:first")
    assert program.handle.wait()


def test_a_run_that_is_stopped_meanwhile_is_not_started_again() -> None:
    program = Program()
    before = program.run
    before.lost.append(UpdateFailed("the run goes on as it was"))
    before.stopping = True
    with pytest.raises(UpdateFailed, match="the run goes on as it was") as failed:
        program.handle.update(program.first)
    assert failed.value.run is program.handle
    assert program.said == ["closed"]


@pytest.mark.parametrize("refusal", [CheckpointUnwritable("full"), StoreError("away")])
def test_a_checkpoint_that_refuses_the_one_that_ran_is_waited_for(refusal: StoreError) -> None:
    bad = pipeline("a", "b")
    program = Program(bad)
    refusals = [refusal, refusal]

    def starting() -> None:
        if refusals and program.said[-1][1] is program.first:
            raise refusals.pop()

    pauses = list[float]()
    stopped: Any = SimpleNamespace(wait=pauses.append)
    program.starting, program.handle._stopped = starting, stopped
    with pytest.raises(UpdateFailed, match=r"no such source\nThe one that ran was st") as failed:
        program.handle.update(bad)
    assert failed.value.run._pipeline is program.first
    assert program.said[2:] == [("start", program.first, {})] * 3
    assert pauses == [0.1, 0.2]


@pytest.mark.parametrize("refusal", [CheckpointUnwritable("full"), DamagedStore("no claim")])
def test_it_is_not_waited_for_by_who_is_stopped_or_where_it_is_damaged(refusal: StoreError) -> None:
    bad = pipeline("a", "b")
    program = Program(bad)
    stopping = list[threading.Thread]()

    def starting() -> None:
        if program.said[-1][1] is program.first:
            if isinstance(refusal, CheckpointUnwritable) and not stopping:
                stopping.append(threading.Thread(target=program.handle.stop))
                stopping[0].start()
            raise refusal

    program.starting = starting
    with pytest.raises(UpdateFailed, match=r"(?s)no such source.*(full|no claim).*Nothing runs"):
        program.handle.update(bad)
    for thread in stopping:
        thread.join()
    assert len(stopping) == isinstance(refusal, CheckpointUnwritable)


def test_where_another_run_has_the_checkpoint_nothing_is_started() -> None:
    def claiming() -> None:
        raise ZombieWriter("a newer run has claimed the checkpoint")

    def failing() -> None:  # of something else, and then it is not started again either
        raise CheckpointMismatch("left by as many tasks")

    ways: list[Callable[[Program], object]] = [
        lambda program: program.handle.update(program.first),
        lambda program: program.outside("jobs.py:first"),
        lambda program: program.run.scale(3).join(),
    ]
    for way, refused in itertools.product(ways, (claiming, failing)):
        program = Program()
        program.named["jobs.py:first"] = program.first
        program.claiming, program.superseded = refused, True
        with suppress(ZombieWriter):
            way(program)
        assert program.said[-1:] == [("stop", 60_000_000)], "the one that ran is not started again"
        with pytest.raises(ZombieWriter):  # who waits for the run is told
            program.handle.wait()


def test_who_waits_meanwhile_waits_for_the_heir() -> None:
    program, more = Program(), pipeline("a", "b")
    program.named["jobs.py:more"] = more
    waiting, found = threading.Event(), list[Any]()

    def wait() -> None:
        waiting.set()
        found.append(program.handle._that_stays())

    waiter = threading.Thread(target=wait)
    before = program.run

    def starting() -> None:
        waiter.start()
        assert waiting.wait(60)
        assert program.handle._that_stays() is before  # who takes over waits for nobody
        assert found == []

    program.starting = starting
    program.outside("jobs.py:more")
    waiter.join(60)
    assert found == [program.run]
    assert program.run is not before


def test_what_is_paused_while_others_take_over_is_paused_of_them() -> None:
    program, paused = Program(), list[Any]()
    before = program.run

    def pause(stream: str) -> None:
        paused.append((before, stream))
        before.scale(3).join()

    before.pause = pause
    program.run_made = lambda run: setattr(run, "pause", lambda s: paused.append((run, s)))
    program.handle.pause("words")
    assert paused == [(before, "words"), (program.run, "words")]
    assert program.run is not before
    program.handle.pause("more")
    assert paused[2:] == [(program.run, "more")]
