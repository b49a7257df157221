"""How a changed pipeline takes over from one that runs; what a run on Spark is stands aside."""

from __future__ import annotations

import threading
from typing import Any

import msgspec
import pytest

import millrace as mr
from millrace.model.errors import CheckpointMismatch, PipelineError, UpdateFailed
from millrace.spark.updating import Started, Wanted
from millrace.store import MemoryHardState
from millrace.windmill.epochs import Epochs


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
    """A run that says what is done with it."""

    def __init__(self, *, broken: tuple[mr.Pipeline, ...] = ()) -> None:
        self.first, self.said, self._broken = pipeline("a"), list[Any](), broken
        self.named: dict[str, mr.Pipeline] = {}
        self.epochs = Epochs(self.first.build(), MemoryHardState(), intervals=1)
        # Under way: it is finished before the other begins.
        assert self.epochs.begin(0, wall_time_us=0, injectors={}) is not None
        self.started = Started(self.first, self.again, self.load)

    def stop(self, timeout: Any) -> None:
        self.said.append(("stop", timeout))

    def again(self, other: mr.Pipeline, **options: Any) -> str:
        self.said.append(("start", other, options))
        if other in self._broken:
            raise ValueError("no such source")
        return "another run"

    def load(self, application: str) -> mr.Pipeline:
        self.said.append(("load", application))
        return self.named[application]

    def outside(self, application: str, **options: Any) -> str:
        about = msgspec.json.encode(Wanted(application, options)).decode()
        return self.started.update_from_outside(self, self.epochs, about)

    def update(self, other: mr.Pipeline, **options: Any) -> Any:
        return self.started.update(self, self.epochs, other, 7, options)


def test_the_run_ends_and_the_changed_pipeline_begins_with_other_options() -> None:
    run, more = Run(), pipeline("a", "b")
    assert run.update(more, tasks=3) == "another run"
    assert run.said == [("stop", 7), ("start", more, {"tasks": 3})]
    with pytest.raises(PipelineError, match="is being updated, or has been"):
        run.update(more)


def test_what_cannot_go_on_is_found_before_anything_is_ended() -> None:
    run = Run()
    with pytest.raises(CheckpointMismatch, match=r"p\.remove\('a'\).*\n(.*\n)*The run goes on"):
        run.update(pipeline("b"))
    with pytest.raises(PipelineError, match="neither computations nor sinks"):
        run.update(pipeline())
    assert run.said == []
    assert run.update(pipeline("a", "b")) == "another run"


def test_where_it_does_not_start_the_one_that_ran_is_started_again() -> None:
    bad = pipeline("a", "b")
    run = Run(broken=(bad,))
    with pytest.raises(UpdateFailed, match="no such source\nThe one that ran was st") as failed:
        run.update(bad, tasks=3)
    assert failed.value.run == "another run"
    assert run.said[1:] == [("start", bad, {"tasks": 3}), ("start", run.first, {})]


def test_where_neither_starts_both_reasons_are_said() -> None:
    bad = pipeline("a", "b")
    run = Run(broken=(bad,))
    run._broken = (bad, run.first)
    with pytest.raises(UpdateFailed, match="Nor could the one that ran: no such source") as failed:
        run.update(bad)
    assert failed.value.run is None


def test_from_outside_the_code_is_loaded_and_who_has_the_handle_finds_the_heir() -> None:
    run, more = Run(), pipeline("a", "b")
    run.named["jobs.py:more"] = more
    assert run.started.settled() is None
    assert run.outside("jobs.py:more", tasks=3) == "jobs.py:more has taken over"
    assert run.said == [
        ("load", "jobs.py:more"),
        ("stop", 60_000_000),
        ("start", more, {"tasks": 3}),
    ]
    assert run.started.settled() == "another run"
    with pytest.raises(PipelineError, match="is being updated, or has been"):
        run.outside("jobs.py:more")


def test_from_outside_what_cannot_go_on_leaves_the_run_as_it_was() -> None:
    run = Run()
    run.named["jobs.py:other"] = pipeline("b")
    with pytest.raises(CheckpointMismatch, match="The run goes on as it was"):
        run.outside("jobs.py:other")
    with pytest.raises(KeyError):
        run.outside("jobs.py:missing")
    assert run.said == [("load", "jobs.py:other"), ("load", "jobs.py:missing")]
    assert run.started.settled() is None


def test_from_outside_where_it_does_not_start_the_heir_is_the_one_that_ran() -> None:
    bad = pipeline("a", "b")
    run = Run(broken=(bad,))
    run.named["jobs.py:bad"] = bad
    with pytest.raises(UpdateFailed, match="The one that ran was st"):
        run.outside("jobs.py:bad")
    assert run.started.settled() == "another run"

    alone = Run()
    alone.named["jobs.py:bad"] = bad
    alone._broken = (bad, alone.first)
    with pytest.raises(UpdateFailed, match="Nothing runs"):
        alone.outside("jobs.py:bad")
    with pytest.raises(UpdateFailed, match="Nothing runs"):  # who waits for the run is told
        alone.started.settled()


def test_who_waits_meanwhile_waits_for_the_heir() -> None:
    run, more = Run(), pipeline("a", "b")
    run.named["jobs.py:more"] = more
    waiting, found = threading.Event(), list[Any]()

    def wait() -> None:
        waiting.set()
        found.append(run.started.settled())

    waiter = threading.Thread(target=wait)

    def again(_other: mr.Pipeline, **_options: Any) -> str:
        waiter.start()
        assert waiting.wait(60)
        assert run.started.settled() is None  # who takes over waits for nobody
        assert found == []
        return "the heir"

    run.started.again = again
    run.outside("jobs.py:more")
    waiter.join(60)
    assert found == ["the heir"]
