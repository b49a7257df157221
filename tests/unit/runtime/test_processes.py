"""What rows tell of their processes, whatever their columns hold."""

import pyarrow as pa
import pytest

import millrace as mr
from millrace.injectors.advance import process_watermark
from millrace.model.errors import PipelineError
from millrace.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP
from millrace.runtime.reports import TaskReport, observe_processes
from millrace.watermark.report import ONLY, ProcessState

LATEST_US = 10**15


def noted(process, promised):
    report = TaskReport()
    rows = pa.table({"ts": pa.array(range(len(process))), "process": process, "promised": promised})
    observe_processes(report, "in", rows, LATEST_US)
    stats = report.sources["in"]
    return stats.processes, stats.refused_watermarks


def test_a_name_that_is_not_utf8_is_known_by_its_escapes():
    names = pa.array([b"a", b"\xff", b"\xff", None]).view(pa.string())
    known, refused = noted(names, pa.nulls(4))
    assert known == {"a": ProcessState(0), "\\xff": ProcessState(2), ONLY: ProcessState(3)}
    assert refused == 0


@pytest.mark.parametrize(
    ("promised", "known_us", "refused"),
    [
        (None, MIN_TIMESTAMP, 0),
        (-(1 << 63), MIN_TIMESTAMP, 0),
        (-1, -1, 0),
        (LATEST_US, LATEST_US, 0),
        (LATEST_US + 1, MIN_TIMESTAMP, 1),
        ((1 << 63) - 1, MAX_TIMESTAMP, 0),
    ],
)
def test_a_promise_is_within_the_ends_of_time(promised, known_us, refused):
    known, counted = noted(pa.array(["a"]), pa.array([promised], pa.int64()))
    assert (known["a"].process_watermark_us, counted) == (known_us, refused)


@pytest.mark.parametrize(
    "process_watermark_us", [1 << 63, 10**20_000], ids=["64 bits", "20,000 digits"]
)
def test_what_an_injector_promises_beyond_the_end_of_time_is_its_end(process_watermark_us):
    assert process_watermark("injector Feed", "a", process_watermark_us, None) == MAX_TIMESTAMP
    assert process_watermark("injector Feed", "a", -process_watermark_us, None) == MIN_TIMESTAMP


@pytest.mark.parametrize(
    "process_watermark_us",
    [1.5, "soon", float("nan"), object()],
    ids=["1.5", "text", "nan", "object"],
)
def test_what_an_injector_promises_is_a_time(process_watermark_us):
    with pytest.raises(
        PipelineError, match="injector Feed: process 'a' reported the low watermark"
    ):
        process_watermark("injector Feed", "a", process_watermark_us, None)


def test_the_harness_takes_a_promise_beyond_the_end_of_time():
    p = mr.Pipeline("ends")
    p.inject("in", format=int, low_watermark=mr.WatermarkColumn("until")).key_by(
        lambda _: "k"
    ).window(mr.FixedWindows(10)).sum().to("out")
    with mr.testing.Harness(p, publish=True) as h:
        h.inject("in", [(1, 1)], low_watermark=1 << 70)
        h.inject("in", [])
        assert [output.value for output in h.outputs("out")] == [1]
