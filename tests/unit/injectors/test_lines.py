"""Rows of lines: integers in columns of times."""

from __future__ import annotations

import datetime as dt
import json

import pytest

import millrace as mr
from millrace.injectors.lines import RowMaker, json_object
from millrace.model.errors import RecordRejected

EVENT = dt.datetime(2026, 11, 22, 6, 30, tzinfo=dt.UTC)


def row(at, unit=None):
    maker = RowMaker("at timestamp", json_object, unit, "Files")
    return maker.row(json.dumps({"at": at}).encode(), "here")


@pytest.mark.parametrize(("unit", "per_s"), [("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9)])
def test_an_integer_of_a_unit_is_an_instant(unit, per_s):
    assert row(int(EVENT.timestamp()) * per_s, unit) == (EVENT,)


def test_without_a_unit_it_is_in_microseconds():
    assert row(int(EVENT.timestamp()) * 10**6) == (EVENT,)
    assert row(5) == (dt.datetime(1970, 1, 1, 0, 0, 0, 5, tzinfo=dt.UTC),)


@pytest.mark.parametrize(("unit", "per_s"), [("s", 1), ("ms", 10**3)])
def test_what_is_hardly_in_microseconds_is_refused_if_nobody_says_so(unit, per_s):
    number = int(EVENT.timestamp()) * per_s
    with pytest.raises(RecordRejected, match=rf'January 1970.*Files\(unit="{unit}"\)'):
        row(number)
    assert row(number, "us") == (
        dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(0, 0, number),
    )


def test_files_take_a_unit_and_the_harness_counts_in_that_of_the_injection(tmp_path):
    (tmp_path / "1.json").write_text('{"query": "tea", "at": 1700000000123}\n')
    for schema, files, inject in (
        ("query string, at timestamp", {"unit": "ms"}, {}),
        ("query string, at long", {}, {"unit": "ms"}),
    ):
        p = mr.Pipeline("p")
        p.inject("queries", mr.Files(tmp_path, schema=schema, **files), timestamp="at", **inject)
        p.sink("queries", print)
        with mr.testing.Harness(p) as h:
            h.poll("queries")
            assert [out.timestamp for out in h.outputs("queries")] == [1_700_000_000_123_000]
