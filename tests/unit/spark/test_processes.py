"""What a task notes of the processes that its rows came by."""

import pyarrow as pa

import millrace as mr
from millrace.runtime.reports import TaskReport, observe_processes
from millrace.watermark.report import ProcessState

NEVER = mr.MIN_TIMESTAMP


def noted(*rows, latest=1000):
    report = TaskReport()
    names = ("process", "ts", "promised")
    schema = pa.schema([("process", pa.string()), ("ts", pa.int64()), ("promised", pa.int64())])
    for some in rows:
        table = pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in some], schema)
        observe_processes(report, "s", table, latest)
    return report.sources.get("s")


def test_the_newest_and_the_highest_promise_of_each_count():
    report = noted([("a", 5, 1), ("b", 7, None), ("a", 3, 2)], [("a", None, None), ("a", 6, 1)])

    assert report.processes == {"a": ProcessState(6, 2), "b": ProcessState(7, NEVER)}


def test_rows_without_a_name_came_by_the_only_process():
    assert noted([(None, 5, None)]).processes == {"": ProcessState(5, NEVER)}


def test_a_promise_is_refused_beyond_what_the_clock_allows():
    report = noted([("a", None, 1000), ("b", None, 1001), ("c", None, mr.MAX_TIMESTAMP)])

    assert report.refused_watermarks == 1
    assert report.processes == {
        "a": ProcessState(NEVER, 1000),
        "b": ProcessState(NEVER, NEVER),
        "c": ProcessState(NEVER, mr.MAX_TIMESTAMP),
    }


def test_no_rows_say_nothing():
    assert noted([]) is None
