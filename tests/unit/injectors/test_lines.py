"""Rows of lines: integers in columns of times."""

from __future__ import annotations

import datetime as dt
import json

import pyarrow as pa
import pytest

import millrace as mr
from millrace.injectors.lines import RowMaker, as_it_is, json_object
from millrace.injectors.schema import arrow_schema, batch_of, column_names
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


@pytest.mark.parametrize("unit", [None, "s", "ms", "us", "ns"])
def test_many_lines_at_once_are_what_each_of_them_is(unit):
    schema = "n int, ok boolean, x double, name string, data binary, at timestamp, beside long"
    given = column_names(schema)[:-1]
    texts = [
        ['{"n": 1, "ok": true, "x": 2, "name": "\\u00e9", "data": "d", "at": 7, "more": {}}', "{}"],
        ['{"at": "2026-11-20T09:00:00+01:00"}', '{"at": null, "name": null}'],
        ['{"at": "2026-11-20T09:00:00Z"}', '{"at": 1700000000000000000}' if unit == "ns" else "{}"],
        ['{"at": 1}', '{"at": 2}', '{"at": -3}'],
        ['{"beside": 5}', "{}"],
        ['{"name": 5}', '{"name": true}'],
        [],
    ]
    for lines in texts:
        data = [text.encode() for text in lines]
        beside = {"beside": [90 + n for n in range(len(data))]}
        parses = [json_object, lambda line: json_object(line)]
        if not any("beside" in text for text in lines):
            parses.append(lambda line: tuple(json_object(line).get(name) for name in given))
        makers = [RowMaker(schema, parse, unit, "Files") for parse in parses]
        rows = [makers[0].row(data[n], "", {"beside": 90 + n}) for n in range(len(data))]
        by_one = [batch_of([[v] for v in row], arrow_schema(schema), "") for row in rows]
        for maker in makers:
            at_once = maker.batch(data, str, beside)
            assert at_once.num_rows == len(data)
            assert at_once.to_pylist() == [batch.to_pylist()[0] for batch in by_one]


@pytest.mark.parametrize("found", [(1,), (1, 2, 3), ["x", None], {"n": 1, "at": "no time"}])
def test_what_a_function_gives_is_as_long_as_the_schema(found):
    maker = RowMaker("n int, at timestamp", lambda line: found if line == b"1" else (7, None))

    with pytest.raises(RecordRejected, match="line 1: "):
        maker.batch([b"0", b"1"], lambda n: f"line {n}")


def test_what_stands_beside_is_not_counted_in_another_unit():
    maker = RowMaker("n int, written timestamp", json_object, "s")
    lines, beside = [b'{"n": 1}', b'{"n": 2, "written": 5}'], {"written": [7_000_000, 0]}

    for count in (1, 2):
        found = maker.batch(lines[:count], str, {"written": beside["written"][:count]})
        times = found.column("written").cast(pa.int64()).to_pylist()
        assert times == [7_000_000, 5_000_000][:count]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b'{"n": "x"}', "values that are not int32"),
        (b'{"n": 3000000000}', "values that are not int32"),
        (b'{"n": 1', "DecodeError"),
        (b"[1]", "expected a JSON object"),
        (b'{"at": "2026-11-20T09:00:00"}', "no time zone"),
        (b'{"at": 1700000000000}', "January 1970"),
        (b"\xff", "Error"),
    ],
)
def test_the_one_of_many_that_is_wrong_is_named(line, words):
    maker = RowMaker("n int, at timestamp", json_object)
    with pytest.raises(RecordRejected, match=f"(?s)line 1: .*{words}"):
        maker.batch([b'{"n": 1, "at": 5}', line, b"{}"], lambda n: f"line {n}")


def test_messages_may_stay_as_they_are():
    made = RowMaker("value binary, k int, more string", as_it_is).batch(
        [b"x", b""], str, {"k": [1, 2]}
    )
    assert made.to_pydict() == {"value": [b"x", b""], "k": [1, 2], "more": [None, None]}


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
