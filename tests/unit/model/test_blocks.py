"""What a block of many keys' records makes of the columns that it is given."""

import datetime as dt
import re
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

import millrace as mr

AT = 1_700_000_000_123_000
UTC_MS = pa.timestamp("ms", "UTC")


class Reading(msgspec.Struct):
    key: str


def produced(**columns: Any) -> tuple[list[int], list[str]]:
    """Return the times of what is produced at these times, or keys, and reasons of dead letters."""

    class Producing(mr.ColumnComputation):
        inputs = {"readings": mr.by("key")}
        outputs = {"out": int}

        def process_batch(self, block: mr.KeyBlock) -> None:
            block.produce("out", [1], **columns)

    p = mr.Pipeline("p")
    p.inject("readings", format=Reading)
    p.add(Producing)
    p.dead_letter("letters")
    with mr.testing.Harness(p) as h:
        h.inject("readings", [(Reading("a"), AT)])
        letters = [letter.value.reason for letter in h.outputs("letters")]
        return [out.timestamp for out in h.outputs("out")], letters


@pytest.mark.parametrize(
    "times",
    [
        [AT],
        np.array([AT], float),
        np.array([AT // 1_000], "datetime64[ms]"),
        np.array([AT * 1_000 + 7], "datetime64[ns]"),
        pa.array([AT // 1_000], UTC_MS),
        pa.chunked_array([pa.array([AT // 1_000], UTC_MS)]),
        [dt.datetime.fromtimestamp(AT / 1e6, dt.UTC)],
    ],
    ids=lambda times: getattr(times, "dtype", getattr(times, "type", type(times[0]))),
)
def test_times_may_be_columns_of_instants_in_any_unit(times: Any) -> None:
    assert produced(timestamps=times) == ([AT], [])


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"timestamps": [AT + 0.5]}, "timestamps: .*truncated"),
        ({"timestamps": [None]}, "timestamps: .*null"),
        ({"timestamps": pa.array([None], pa.int64())}, "timestamps: 1 of its 1 values are null"),
        ({"timestamps": pa.array([AT], pa.timestamp("us"))}, "timestamps: .*no time zone"),
        ({"timestamps": ["noon"]}, "timestamps: a column of integers was expected, not of string"),
        ({"timestamps": [True]}, "timestamps: a column of integers was expected, not of bool"),
        ({"timestamps": 5}, "timestamps: a column was expected"),
        ({"key_of": [0.5]}, "key_of: .*truncated"),
        ({"key_of": [None]}, "key_of: .*null"),
    ],
)
def test_what_is_no_column_of_times_or_positions_is_refused(
    columns: dict[str, Any], message: str
) -> None:
    times, [reason] = produced(**columns)
    assert times == []
    assert re.search(message, reason)


@pytest.mark.parametrize(
    ("kind", "column", "message"),
    [
        (int, [1.5], "column of int64 was expected: .*truncated"),
        (int, [1 << 64], "column of int64 was expected"),
        (int, [True], "column of int64 was expected"),
        (int, ["5"], "column of int64 was expected"),
        (dt.datetime, [dt.datetime(2026, 11, 22)], "no time zone"),
        (dt.datetime, pa.array([AT], pa.timestamp("us")), "no time zone"),
    ],
)
def test_state_that_a_cell_would_refuse_is_refused(kind: Any, column: Any, message: str) -> None:
    class Keeping(mr.ColumnComputation):
        inputs = {"readings": mr.by("key")}
        cell = mr.ValueState(kind)

        def process_batch(self, block: mr.KeyBlock) -> None:
            block.set_state(cell=column)

    p = mr.Pipeline("p")
    p.inject("readings", format=Reading)
    p.add(Keeping)
    p.dead_letter("letters")
    with mr.testing.Harness(p) as h:
        h.inject("readings", [(Reading("a"), AT)])
        assert re.search(message, h.outputs("letters")[0].value.reason)
        assert list(h.checkpoint()["Keeping"].scan()) == []
