"""What a function of a batch answers: columns of NumPy, pandas and Arrow as Python's values."""

import datetime as dt
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import millrace as mr
from millrace.runtime.call_batches import responses_of

#: As integers of nanoseconds: one before 1970, and one with what is finer than a microsecond.
NANOSECONDS = [-1, 1_500]
TIMES = [dt.datetime(1969, 12, 31, 23, 59, 59, 999_999), dt.datetime(1970, 1, 1, 0, 0, 0, 1)]
IN_UTC = [each.replace(tzinfo=dt.UTC) for each in TIMES]


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (np.array(NANOSECONDS, "datetime64[ns]"), TIMES),
        (np.array([0, 1_500], "timedelta64[ns]"), [dt.timedelta(0), dt.timedelta(microseconds=1)]),
        (np.array([1, "NaT"], "datetime64[s]"), [dt.datetime(1970, 1, 1, 0, 0, 1), None]),
        (pd.Series(pd.to_datetime(NANOSECONDS, utc=True)), IN_UTC),
        (pd.Series(pd.to_datetime(NANOSECONDS)), TIMES),
        (pa.array(NANOSECONDS, pa.timestamp("ns", "UTC")), IN_UTC),
        (pa.chunked_array([[-1], [1_500]], pa.timestamp("ns", "UTC")), IN_UTC),
        (pa.table({"at": pa.array(NANOSECONDS, pa.timestamp("ns", "UTC"))}),
         [{"at": each} for each in IN_UTC]),
        (pd.Series([1, None], dtype="Int64"), [1, None]),
        (pd.Series(["a", None], dtype="string"), ["a", None]),
        (pd.Series(["a", None], dtype="category"), ["a", None]),
        (pd.Series([1.5, 2.0]), [1.5, 2.0]),
    ],
)  # fmt: skip
def test_values_are_those_of_python(answer: Any, expected: list[Any]) -> None:
    responses = responses_of(answer, 2, "label")
    assert responses == expected
    assert not [one for one in responses if isinstance(one, pd.Timestamp)]


class Reading(msgspec.Struct):
    sensor: str
    at: int


class Stamps(mr.ColumnComputation):
    inputs = {"a": mr.by("sensor")}
    outputs = {"stamps": dt.datetime}

    def process_batch(self, block: Any) -> None:
        nanoseconds = block.records["at"].to_numpy()
        block.produce("stamps", nanoseconds.astype("datetime64[ns]"))


def test_a_block_of_columns_may_produce_times_in_nanoseconds() -> None:
    p = mr.Pipeline("stamps")
    p.inject("a", format=Reading)
    p.add(Stamps)
    with mr.testing.Harness(p) as h:
        h.inject("a", [(Reading("s", at), n) for n, at in enumerate(NANOSECONDS)])
        assert [out.value for out in h.outputs("stamps")] == IN_UTC
