"""A program that waits for a lease has a query wait, too, that fits what goes on now."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import millrace as mr
from millrace.epochlog.reader import end_of
from millrace.epochlog.run_log import RunLog
from millrace.injectors.watermark_publisher import WatermarkPublisher
from millrace.inspect.lease import Term
from millrace.model.errors import CheckpointUnwritable, LeaseReleased, PipelineError, RunFailed
from millrace.options import RealtimeOptions, with_defaults
from millrace.spark import realtime_setup, start
from millrace.spark.realtime_setup import RealtimeSetup
from millrace.spark.start import SparkStarter, _Opening, lease_term
from millrace.store import open_location


class Counted(mr.Computation):
    inputs = {"in": mr.by(str)}

    def process_record(self, record: mr.Record) -> None: ...


def pipeline(*names: str) -> mr.Pipeline:
    p = mr.Pipeline("p")
    p.inject("in", format=str)
    for name in names:
        p.add(Counted, name=name)
    return p


class Beside:
    """Stands for a query that waits."""

    def __init__(self, plan: Any, tasks: int) -> None:
        self.plan, self.tasks = plan, tasks
        self.failure: Exception | None = None
        self.ready, self.ended = True, False

    def end(self) -> None:
        self.ended = True

    def wait(self) -> None:
        assert self.ended


class Setup(RealtimeSetup):
    """A plane that starts queries which do nothing."""

    def __init__(self) -> None:
        self.sources, self.queries = [], list[Beside]()
        self._spark: Any = None
        self._levels, self._counted = 1, 0

    def stand_by(self, plan: Any, tasks: int, changed: Any) -> Any:
        self.beside = Beside(plan, tasks)  # type: ignore[assignment]
        self.queries.append(self.beside)  # type: ignore[arg-type]
        return self.beside


class Waiting:
    """A program that waits for the lease of a checkpoint, and how it looks after what waits."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        p = pipeline("counted")
        self.setup, self.now, self.prepared = Setup(), 100.0, list[int]()
        self.left: int | None = None
        self.slots, self.reads = 5, 0
        opening: Any = object.__new__(_Opening)
        opening._spark = SimpleNamespace(conf=SimpleNamespace(get=lambda name: name))
        opening._pipeline, opening._topology = p, p.build()
        opening._checkpoint, opening._setup = str(root / "ckpt"), self.setup
        opening._options = with_defaults(RealtimeOptions, {"lease": True})
        opening._scratch, opening._owner = root / "scratch", "this program"
        opening._before = opening._lease = opening._started = opening._scrapes = None
        opening._allowed, opening._tasks = None, 2
        opening._look_at, opening._ready_logged, opening._term = 0.0, False, None
        opening._looked_at_run, opening._quieting, opening._intervals = -1, None, 4
        opening._realtime = True
        opening.prepare = self._prepare
        opening._has_as_many = lambda _: self.left in (None, opening._tasks)
        opening._plan = lambda topology, *_, **__: SimpleNamespace(topology=topology)
        opening._console = SimpleNamespace(begin=lambda: None, end=lambda: None)
        self.opening = opening
        monkeypatch.setattr(start, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(start, "tasks_left", lambda *_: self.left)
        monkeypatch.setattr(start, "end_of", self._end_of)
        monkeypatch.setattr(
            realtime_setup, "has_slots", lambda _spark, wanted, _counted: self.slots > wanted
        )

    def _prepare(self) -> None:
        self.opening._tasks = self.left or 2
        self.prepared.append(self.opening._tasks)

    def _end_of(self, log: Any, _known: Any) -> Any:
        self.reads += 1
        return end_of(log)

    def claim(self, *names: str) -> RunLog:
        """Claim the checkpoint, as the run does that this program waits for."""
        state = open_location(self.opening._checkpoint, pipeline="p")
        return RunLog(pipeline(*names).build(), state, intervals=1)

    def look(self, generation: int = 0) -> Beside:
        """Look after it, some time later; return the query that waits.

        Args:
            generation: Of the run that holds the lease.
        """
        self.now += 10
        self.opening._keep_ready(Term("another", 1, 0, generation=generation))
        return self.setup.queries[-1]


@pytest.fixture
def waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Waiting:
    return Waiting(tmp_path, monkeypatch)


def test_a_query_is_started_once(waiting: Waiting, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "millrace")
    waiting.claim("counted")
    query = waiting.look()
    assert waiting.look() is waiting.look() is query
    assert caplog.text.count("all tasks are started, and wait for the lease") == 1


def test_another_is_started_when_it_has_failed(
    waiting: Waiting, caplog: pytest.LogCaptureFixture
) -> None:
    waiting.claim("counted")
    query = waiting.look()
    query.failure = RuntimeError("an executor was lost")
    assert waiting.look() is not query
    assert query.ended
    assert "the waiting tasks have failed, others start: an executor was lost" in caplog.text


def test_it_waits_on_while_the_checkpoint_cannot_be_read(
    waiting: Waiting, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting.claim("counted")
    query = waiting.look()

    def fail(*_: Any) -> Any:
        raise CheckpointUnwritable("the bucket is away")

    with monkeypatch.context() as patch:
        patch.setattr(waiting.opening, "_foreseen", fail)
        assert waiting.look() is query
    assert "this program is not ready to take over: the bucket is away" in caplog.text
    assert waiting.look() is query
    assert not query.ended


def test_another_is_started_when_the_checkpoint_has_other_numbers(waiting: Waiting) -> None:
    waiting.claim("counted")
    query = waiting.look()
    waiting.claim("before", "counted")
    changed = waiting.look()
    assert changed is not query
    assert query.ended
    # What the run before added has the next number, and keeps it.
    assert waiting.opening._started[1].computations == {"counted": 0, "before": 1}
    waiting.claim("before", "counted")
    assert waiting.look() is changed, "a run that began again has the same"


def test_the_log_is_read_again_when_another_run_holds_the_lease(waiting: Waiting) -> None:
    run_log = waiting.claim("counted")
    query = waiting.look(run_log.generation)
    assert waiting.look(run_log.generation) is query
    assert waiting.reads == 2, "no epoch had begun, which says how many tasks there are"
    manifest = run_log.begin(0, wall_time_us=0, injectors={}, live=2)
    assert manifest is not None
    run_log.complete(manifest, [])
    waiting.look(run_log.generation)
    assert waiting.look(run_log.generation) is query
    assert waiting.reads == 3
    changed = waiting.claim("before", "counted").generation
    assert waiting.look(changed) is not query
    assert waiting.reads == 4


def test_another_is_started_when_there_are_other_tasks(waiting: Waiting) -> None:
    waiting.claim("counted")
    query = waiting.look()
    waiting.left, waiting.slots = 3, 7
    assert waiting.look().tasks == 3
    assert query.ended
    assert waiting.prepared == [3]


def test_without_slots_it_waits_without_a_query(waiting: Waiting) -> None:
    waiting.claim("counted")
    waiting.slots = 4
    waiting.opening._keep_ready(Term("another", 1, 0))
    assert waiting.setup.queries == []
    waiting.slots = 5
    assert waiting.look().tasks == 2


def test_what_waits_is_taken_if_its_numbers_are_those_of_the_claim(waiting: Waiting) -> None:
    waiting.claim("counted")
    query = waiting.look()
    waiting.opening._run_log = waiting.claim("counted")
    assert waiting.opening._plan_as_claimed() is query.plan
    assert not query.ended
    waiting.opening._run_log = waiting.claim("before", "counted")
    assert waiting.opening._plan_as_claimed() is not query.plan
    assert query.ended


class Held:
    """A lease that is held, or whose holder has ended."""

    def __init__(self, *, acquired: bool) -> None:
        self.acquired, self.released = acquired, list[Any]()

    def acquire(self, waiting: Any) -> bool:
        waiting(Term("another", 1, 0))
        return self.acquired

    def release(self, failure: Any = None) -> None:
        self.released.append(failure)


def test_when_the_run_was_stopped_nothing_waits_any_more(
    waiting: Waiting, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting.claim("counted")
    monkeypatch.setattr(start, "Lease", lambda *_, **__: Held(acquired=False))
    with pytest.raises(LeaseReleased, match="was stopped or drained, so its standbys end too"):
        waiting.opening.wait_for_lease()
    assert waiting.setup.queries[0].ended


def test_a_lease_is_given_back_when_the_run_cannot_begin(
    waiting: Waiting, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, failure = Held(acquired=True), RunFailed("no such table")
    monkeypatch.setattr(start, "Lease", lambda *_, **__: held)
    assert waiting.opening.wait_for_lease() is held
    assert waiting.prepared == [], "the query that waits is taken"
    with pytest.raises(RunFailed), waiting.opening._given_up():
        raise failure
    assert held.released == [failure]
    assert waiting.setup.queries[0].ended


def test_where_no_query_waits_it_is_prepared_again(
    waiting: Waiting, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting.claim("counted")
    waiting.slots = 0
    monkeypatch.setattr(start, "Lease", lambda *_, **__: Held(acquired=True))
    waiting.opening.wait_for_lease()
    assert waiting.prepared == [2]


def test_of_an_update_the_run_before_keeps_it(
    waiting: Waiting, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(acquired=True)
    waiting.opening._lease, waiting.opening._before = held, object()
    with pytest.raises(RunFailed), waiting.opening._given_up():
        raise RunFailed("no such table")
    assert held.released == []


def test_what_is_held_back_while_other_tasks_start_stays_so_when_they_take_over(
    waiting: Waiting,
) -> None:
    before, publisher = WatermarkPublisher({}), WatermarkPublisher({})
    waiting.opening.optional, waiting.opening._publisher = True, publisher
    waiting.opening._before = SimpleNamespace(publisher=before)
    before.throttle.pause("words")
    waiting.opening.claim()
    assert publisher.throttle.asked() == (["words"], {})


def test_an_update_cannot_change_it() -> None:
    starter = SparkStarter(
        SimpleNamespace(), {"checkpoint": "ckpt", "realtime": True}, lease=Held(acquired=True)
    )
    for options in ({"lease": "3 s"}, {"checkpoint": "other"}):
        with pytest.raises(PipelineError, match="the lease of a run, and with it the checkpoint"):
            starter.changed(options)
    assert starter.changed({"marks": "1 s"}).lease is starter.lease


@pytest.mark.parametrize(("lease", "term"), [(True, None), (False, None), ("1 s", "1 s")])
def test_the_term_is_as_it_was_given(lease: Any, term: Any) -> None:
    assert lease_term(lease) == term


@pytest.mark.parametrize("lease", ["0 s", 0, -5, "soon"])
def test_a_term_that_is_none_is_refused(lease: Any) -> None:
    with pytest.raises(PipelineError, match="lease"):
        lease_term(lease)
