"""What the driver reads of injectors for an epoch: asked once, written down, and read again."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import millrace as mr
from millrace.epochlog.entries import (
    Completion,
    Manifest,
    decode_entry,
    decode_manifest,
    encode_entry,
)
from millrace.epochlog.run_log import RunLog
from millrace.injectors.offsets import unpacked_piece
from millrace.injectors.rate_limit import EVERYONE
from millrace.injectors.watermark_publisher import WatermarkPublisher
from millrace.model.errors import PipelineError, ZombieWriter
from millrace.runtime.epoch.driver import EpochDriver
from millrace.runtime.epoch.input import EpochInput, lots_of
from millrace.runtime.reports import TaskReport
from millrace.store import MemoryHardState
from millrace.watermark.report import Report

NOBODY: dict[str, frozenset[str]] = {"rows": frozenset()}


class Rows(mr.sources.Injector):
    """Processes that stand where a test says."""

    schema = "n long, at long"

    def __init__(self) -> None:
        self.at: dict[str, tuple[Any, int | None]] = {}

    def processes(self) -> list[str]:
        return [*self.at]

    def advance(self, process: str, offset: Any) -> mr.sources.Advance:
        return mr.sources.Advance(*self.at[process])

    def read(self, process: str, start: Any, end: Any) -> Any:
        raise AssertionError("the driver reads no record")


class Count(mr.Computation):
    inputs = {"rows": mr.by("n")}
    outputs = {"counts": int}
    parallel = 2

    def process_record(self, record: mr.Record) -> None: ...


class Last(mr.Computation):
    inputs = {"counts": mr.by(lambda value: value)}

    def process_record(self, record: mr.Record) -> None: ...


class Case:
    """A driver over memory, whose stages a test counts."""

    def __init__(self) -> None:
        self.rows, self.jobs = Rows(), list[int]()
        p = mr.Pipeline("input")
        p.inject("rows", self.rows, timestamp="at", unit="us")
        p.add(Count)
        p.add(Last)
        self.topology = p.build()
        self.state = MemoryHardState()
        self.begin()

    def begin(self) -> None:
        self.run_log = RunLog(self.topology, self.state, intervals=4)
        publisher = WatermarkPublisher.of(self.run_log.topology)
        self.driver = EpochDriver(self.run_log.topology, self.run_log, publisher)
        self.input = EpochInput(self.run_log.topology, {"rows": self.rows})

    def asked(self, waiting: Any = NOBODY) -> Any:
        return self.input.asked(self.run_log.source_offsets, waiting)

    def epoch(self, clock_us: int = 0, *, draining: bool = False, fails: bool = False) -> Any:
        def stages(manifest: Any) -> tuple[TaskReport, float]:
            if fails:
                raise OSError("the driver dies")
            self.jobs.append(manifest.epoch)
            report = TaskReport()
            for piece in self.input.pieces(manifest, self.run_log.source_offsets)["rows"]:
                report.reached.setdefault("rows", {})[piece.process] = piece.reached, None
            return report, 0.0

        return self.driver.run(
            self.run_log.completed + 1,
            stages,
            wall_time_us=clock_us,
            draining=draining,
            offsets=self.asked(),
            unread=lambda manifest: self.input.unread(
                manifest, self.input.pieces(manifest, self.run_log.source_offsets)
            ),
        )

    def pending(self, computation: str, report: Report) -> None:
        """Have an interval report what waits in it."""
        self.run_log.authority.bulletins[computation].restore({0: report}, (9, 9))


def test_processes_that_stay_are_left_out_and_who_is_held_back_is_not_asked() -> None:
    case = Case()
    case.rows.at = {"a": ((1, 2), None), "b": (5, 70)}
    # As JSON has it, so that who takes the epoch over reads the same.
    assert case.asked() == {"rows": {"a": [[1, 2], None], "b": [5, 70]}}
    assert case.asked({"rows": EVERYONE}) == {"rows": {}} == case.input.unmoved()
    case.epoch()
    assert case.jobs == [0]
    assert case.asked() == {"rows": {"b": [5, 70]}}  # the job took the range, and no promise
    case.rows.at = {"a": ((1, 2), None), "b": (6, None)}
    assert case.asked() == {"rows": {"b": [6, None]}}


def test_an_offset_that_is_no_json_is_refused_by_name() -> None:
    case = Case()
    case.rows.at = {"a": ({1, 2}, None)}
    with pytest.raises(PipelineError, match=r"injector of 'rows': process 'a' .*\{1, 2\}.*no JSON"):
        case.asked()


def test_the_next_driver_reads_an_open_epoch_as_far_as_its_manifest_says() -> None:
    case = Case()
    case.rows.at = {"a": (10, None)}
    with pytest.raises(OSError, match="the driver dies"):
        case.epoch(fails=True)
    case.rows.at = {"a": (25, None)}
    case.begin()
    assert case.run_log.open is not None
    assert decode_manifest(encode_entry(case.run_log.open)).offsets == {"rows": {"a": [10, None]}}
    case.epoch()
    assert case.run_log.source_offsets["rows"]["a"].offset == 10
    case.epoch()
    assert case.run_log.source_offsets["rows"]["a"].offset == 25


def test_what_processes_promise_is_taken_without_a_job() -> None:
    case = Case()
    case.rows.at = {"a": (None, 50), "b": (None, None)}
    turn = case.epoch(clock_us=100)
    assert case.jobs == []
    assert turn.report.is_quiet
    assert set(case.run_log.sources["rows"].processes) == {"a", "b"}
    assert case.run_log.source_offsets["rows"]["a"].process_watermark_us == 50
    case.rows.at = {"a": (None, 50), "b": (None, 70)}
    case.epoch(clock_us=100)
    case.epoch(clock_us=100)
    assert case.run_log.authority.low_watermarks.outputs["Last"] == 50
    # A promise from the future is refused, as a task would.
    case.rows.at = {"a": (None, 400 * mr.DAY), "b": (None, 70)}
    case.epoch(clock_us=100)
    assert case.run_log.sources["rows"].refused_watermarks == 1


@pytest.mark.parametrize(
    ("computation", "report", "clock_us", "promise_us", "due"),
    [
        ("Count", Report(50, timers=1), 100, 49, False),
        ("Count", Report(50, timers=1), 100, 50, True),
        ("Last", Report(50, timers=1), 100, 50, True),
        ("Last", Report(wall_timer_us=100, wall_timers=1), 99, None, False),
        ("Last", Report(wall_timer_us=100, wall_timers=1), 100, None, True),
        ("Count", Report(ids_us=50), 100, 50, True),
        ("Count", Report(hold_us=50), 100, 60, False),
    ],
)
def test_a_job_runs_where_something_is_due(
    computation: str, report: Report, clock_us: int, promise_us: int | None, *, due: bool
) -> None:
    case = Case()
    case.rows.at = {"a": (None, promise_us)}
    case.epoch(clock_us)
    assert case.jobs == []
    case.pending(computation, report)
    case.epoch(clock_us)
    assert case.jobs == [1] * due
    if not due:  # all that waits for a low watermark is due at the end of time
        case.epoch(clock_us, draining=True)
        assert case.jobs == [2] * (report.timers > 0)
        assert case.run_log.drained


def test_an_epoch_without_a_job_keeps_what_tasks_have_to_know() -> None:
    """They stand where the last one that they ran found them."""
    case = Case()
    case.rows.at = {"a": (1, None)}
    case.epoch()
    first = case.run_log.completed
    for clock_us in range(3):
        case.epoch(clock_us)
    case.rows.at = {"a": (2, None)}
    turn = case.epoch()
    assert case.jobs == [0, 4]
    assert turn.manifest.changed.since == 0  # before epoch 0, which they ran last
    assert turn.manifest.follows > first


def test_an_epoch_without_a_job_is_one_entry_of_the_log() -> None:
    case = Case()
    case.rows.at = {"a": (None, 50)}
    case.epoch(clock_us=100)
    case.rows.at = {"a": (1, 50)}
    case.epoch(clock_us=100)
    log = case.state.epochs
    entries = [decode_entry(log.read(number) or b"") for number in range(2, log.last() + 1)]
    assert [(type(entry), entry.epoch) for entry in entries] == [
        (Completion, 0),
        (Manifest, 1),
        (Completion, 1),
    ]
    assert case.jobs == [1]


def test_an_epoch_without_a_job_is_planned_anew_by_who_takes_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def dies(*_: Any, **__: Any) -> None:
        raise OSError("the driver dies")

    case = Case()
    case.rows.at = {"a": (None, 50)}
    with monkeypatch.context() as patch:
        patch.setattr(RunLog, "complete", dies)
        with pytest.raises(OSError, match="the driver dies"):
            case.epoch(clock_us=100)
    case.rows.at = {"a": (7, 60)}
    case.begin()
    assert case.run_log.open is None
    assert case.epoch(clock_us=100).manifest.offsets == {"rows": {"a": [7, 60]}}
    assert case.jobs == [0]


def test_a_run_that_was_superseded_completes_no_epoch_without_a_job() -> None:
    case = Case()
    case.rows.at = {"a": (None, 50)}
    RunLog(case.topology, case.state, intervals=4)
    with pytest.raises(ZombieWriter, match="newer run"):
        case.epoch(clock_us=100)


def test_pieces_are_spread_over_tasks_and_promises_need_none() -> None:
    case = Case()
    case.rows.at = {f"p{n:02}": (n or None, None) for n in range(20)}
    manifest = msgspec.structs.replace(
        case.run_log.begin(0, wall_time_us=0, injectors={}), offsets=case.asked()
    )
    there = case.input.pieces(manifest, case.run_log.source_offsets)
    lots = lots_of(there, tasks=2)
    assert [len(lot) for lot in lots] == [3, 3, 3, 2, 2, 2, 2, 3]
    assert sorted(unpacked_piece(one)[1].process for lot in lots for one in lot) == [*case.rows.at]
    assert [len(lot) for lot in lots_of(there, tasks=1)] == [20]
    assert lots_of({}, tasks=2) == []
