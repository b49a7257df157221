"""Sinks in the driver: rows that came as receipts."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest
from pyspark.sql import Row

import millrace as mr

AT = dt.datetime(2013, 2, 8, 1, 2, 3, 4, tzinfo=dt.UTC)


def receipt(*values: int, epoch: int = 0) -> bytes:
    writing = mr.sinks.Memory().for_tasks().begin(epoch, 0)
    for value in values:
        writing.write(
            pa.RecordBatch.from_pydict(
                {
                    "value": [value],
                    "inner": [{"x": value, "days": [AT.date()]}],
                    "_key": [None],
                    "_timestamp": pa.array([AT], pa.timestamp("us", tz="UTC")),
                    "_id": [b"\x00\xff"],
                }
            )
        )
    return writing.close()


def test_memory_has_rows_as_spark_collects_them() -> None:
    memory = mr.sinks.Memory()
    memory.publish(1, [receipt(3)])
    memory.publish(0, [receipt(1, 2)])

    assert [row.value for row in memory.rows] == [1, 2, 3]
    assert memory.rows[0] == Row(
        value=1,
        inner=Row(x=1, days=[dt.date(2013, 2, 8)]),
        _key=None,
        _timestamp=dt.datetime.fromtimestamp(AT.timestamp()),
        _id=b"\x00\xff",
    )
    assert memory.rows[0].inner.x == 1


def test_memory_replaces_what_an_earlier_attempt_brought() -> None:
    memory = mr.sinks.Memory()
    memory.publish(4, [receipt(1)])
    memory.publish(4, [receipt(1), receipt(2)])

    assert [row.value for row in memory.rows] == [1, 2]


def test_console_prints_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    mr.sinks.Console(2).publish(7, [receipt(1), receipt(2, 3)])

    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "-- epoch 7"
    assert printed[2].startswith("|value|inner")
    assert [line[:7] for line in printed[4:6]] == ["|1    |", "|2    |"]
    assert "|NULL|2013-02-08 01:02:03.000004+00:00|00ff|" in printed[4]
    assert printed[-1] == "and 1 more"
