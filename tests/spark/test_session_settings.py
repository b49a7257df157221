"""Settings of the user's session do not change what a value is."""

from __future__ import annotations

import datetime as dt

import pytest
from pyspark.sql import functions as F

import millrace as mr
from millrace.model.errors import PipelineError
from millrace.spark.data_types import struct_type

SETTINGS = {
    "spark.sql.session.timeZone": "America/New_York",
    "spark.sql.timestampType": "TIMESTAMP_NTZ",
    "spark.sql.ansi.enabled": "true",
}


@pytest.fixture
def session(spark):
    earlier = {name: spark.conf.get(name, None) for name in SETTINGS}
    for name, value in SETTINGS.items():
        spark.conf.set(name, value)
    yield spark
    for name, value in earlier.items():
        if value is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, value)


class Seen(mr.Computation):
    inputs = {"rows": mr.by("k"), "stepped": mr.by("k")}
    outputs = {"seen": str}

    def process_record(self, record):
        self.produce("seen", repr(record.value))


@pytest.mark.parametrize("format", [dict, None])
def test_a_step_and_a_computation_see_the_same_values(session, format, tmp_path):
    at = "timestamp '2026-11-27 08:30:00Z'"
    frame = session.sql(
        f"SELECT 'a' AS k, {at.replace('timestamp', 'timestamp_ltz')} AS at, map('x', 1) AS m, "
        f"array(struct({at.replace('timestamp', 'timestamp_ltz')} AS t)) AS many, 5L AS us"
    )
    p = mr.Pipeline("settings")
    given = {} if format is None else {"format": format}
    p.inject("rows", frame, timestamp="us", low_watermark=mr.BoundedDelay("1 s"), **given)
    p.inject("others", frame, timestamp="us", low_watermark=mr.BoundedDelay("1 s"), **given).map(
        lambda value: {"k": "a", "seen": repr(value)}
    ).to("stepped")
    p.add(Seen)
    p.sink("seen", mr.sinks.Parquet(str(tmp_path / "seen")))
    p.run_batch(session)
    found = [row.value for row in session.read.parquet(str(tmp_path / "seen")).collect()]
    utc = dt.datetime(2026, 11, 27, 8, 30, tzinfo=dt.UTC)
    value = repr({"k": "a", "at": utc, "m": {"x": 1}, "many": [{"t": utc}]})
    assert sorted(found) == sorted([value, repr({"k": "a", "seen": value})])


def test_a_timestamp_of_ours_is_an_instant(session):
    assert struct_type("at timestamp, `a, b` int").simpleString() == "struct<at:timestamp,a, b:int>"


@pytest.mark.parametrize(
    ("column", "words"),
    [
        ("array(timestamp_ntz '2026-01-01 00:00:00')", "names no instant"),
        ("map(struct(1), 2)", "no dict has keys of struct"),
    ],
)
def test_a_column_that_python_has_no_values_for_is_refused_by_name(session, column, words):
    frame = session.range(1).select(F.expr(column).alias("v"), F.col("id").alias("us"))
    p = mr.Pipeline("refused")
    p.inject("rows", frame, timestamp="us", low_watermark=mr.BoundedDelay("1 s"))
    p.sink("rows", print)
    with pytest.raises(PipelineError, match=f"stream 'rows': column 'v' is .*{words}"):
        p.run_batch(session)
