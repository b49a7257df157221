"""Rows of lines: integers in columns of times."""

from __future__ import annotations

import datetime as dt
import enum
import json
import math
from decimal import Decimal

import pyarrow as pa
import pytest

import millrace as mr
from millrace.connectors.files.lines import RowMaker, as_it_is, json_object
from millrace.injectors.columns import column_names
from millrace.injectors.refusals import column_of, refusals_of, without_refusals
from millrace.model.errors import PipelineError, RecordRejected

EVENT = dt.datetime(2026, 11, 22, 6, 30, tzinfo=dt.UTC)


def row(at, unit=None):
    maker = RowMaker("at timestamp", json_object, unit, "Files")
    made = without_refusals(maker.batch([json.dumps({"at": at}).encode()], str))
    (found,) = made.column("at").to_pylist()
    return (found,)


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
        [
            '{"n": 1, "ok": true, "x": 2, "name": "\\u00e9", "data": "ZA==", "at": 7, "more": {}}',
            "{}",
        ],
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
        by_one = [makers[0].batch([data[n]], str, {"beside": [90 + n]}) for n in range(len(data))]
        for maker in makers:
            at_once = maker.batch(data, str, beside)
            assert at_once.num_rows == len(data)
            assert at_once.to_pylist() == [batch.to_pylist()[0] for batch in by_one]


@pytest.mark.parametrize("found", [(1,), (1, 2, 3), ["x", None], {"n": 1, "at": "no time"}])
def test_what_a_function_gives_is_as_long_as_the_schema(found):
    maker = RowMaker("n int, at timestamp", lambda line: found if line == b"1" else (7, None))

    with pytest.raises(RecordRejected, match="line 1: "):
        without_refusals(maker.batch([b"0", b"1"], lambda n: f"line {n}"))


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
        (b"[1]", "Expected `object`, got `array`"),
        (b'{"at": "2026-11-20T09:00:00"}', "no time zone"),
        (b'{"at": 1700000000000}', "January 1970"),
        (b"\xff", "Error"),
    ],
)
def test_the_one_of_many_that_is_wrong_is_named(line, words):
    maker = RowMaker("n int, at timestamp", json_object)
    with pytest.raises(RecordRejected, match=f"(?s)line 1: .*{words}"):
        without_refusals(maker.batch([b'{"n": 1, "at": 5}', line, b"{}"], lambda n: f"line {n}"))


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
        p.inject(
            "queries", mr.sources.Files(tmp_path, schema=schema, **files), timestamp="at", **inject
        )
        p.sink("queries", print)
        with mr.testing.Harness(p) as h:
            h.poll("queries")
            assert [out.timestamp for out in h.outputs("queries")] == [1_700_000_000_123_000]


def read(line, schema, unit=None, parse=json_object):
    (found,) = RowMaker(schema, parse, unit, "Files").batch([line], str).to_pylist()
    return found["v"]


@pytest.mark.parametrize("neighbour", [b'{"v": "2026-11-27T00:00:00Z"}', b'{"n": "5"}', b"{}"])
def test_a_time_finer_than_microseconds_is_cut_off_whatever_stands_beside_it(neighbour):
    line = b'{"v": "2026-11-27T09:59:59.9999996Z"}'
    maker = RowMaker("v timestamp, n string, t string", json_object)
    for lines in ([line], [line, neighbour], [line, b'{"t": 7}'], [line, b'{"n": {"a": [1.50]}}']):
        at = maker.batch(lines, str).column("v")[0].as_py()
        assert at == dt.datetime(2026, 11, 27, 9, 59, 59, 999999, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("long", "19.0", 19),
        ("long", "1e3", 1000),
        ("tinyint", "-128", -128),
        ("double", "19", 19.0),
        ("double", '"NaN"', math.nan),
        ("double", '"-Infinity"', -math.inf),
        ("float", "0.5", 0.5),
        ("string", '{"a": [1, 2.50, null, true]}', '{"a":[1,2.50,null,true]}'),
        ("string", "19.90", "19.90"),
        ("string", "false", "false"),
        ("binary", '"ZA=="', b"d"),
        ("date", '"2026-11-27"', dt.date(2026, 11, 27)),
        ("decimal(30, 2)", "1234567890123456789012345678.91", "1234567890123456789012345678.91"),
        ("decimal(5, 2)", '"19.9"', "19.90"),
        ("array<timestamp>", '["2026-11-22T06:30:00Z", null]', [EVENT, None]),
        ("struct<at: timestamp, n: int>", '{"n": 1.0}', {"at": None, "n": 1}),
        ("map<string, decimal(4, 1)>", '{"a": 1.5, "b": null}', [("a", "1.5"), ("b", None)]),
        ("map<string, struct<n: int>>", '{"a": {"n": 1}}', [("a", {"n": 1})]),
        ("map<int, string>", '{"1": "a", "-2": null}', [(1, "a"), (-2, None)]),
        ("map<date, int>", '{"2026-11-27": 1}', [(dt.date(2026, 11, 27), 1)]),
    ],
)
def test_a_type_holds_what_json_has_for_it(kind, text, value):
    found = read(b'{"v": %s}' % text.encode(), f"v {kind}")
    if kind.startswith(("decimal", "map<string, dec")):
        found = json.loads(json.dumps(found, default=str))
        value = json.loads(json.dumps(value))
    assert found == value or (math.isnan(found) and math.isnan(value))


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("long", "19.99"),
        ("long", "true"),
        ("long", '"5"'),
        ("long", "9223372036854775808"),
        ("long", "1e999999999"),
        ("tinyint", "128"),
        ("smallint", "-32769"),
        ("int", "2147483648"),
        ("double", "9007199254740993"),
        ("double", "1e400"),
        ("double", "true"),
        ("float", "1e39"),
        ("float", "16777217"),
        ("array<float>", "[1e39]"),
        ("boolean", "1"),
        ("boolean", '"true"'),
        ("string", '"\\ud800"'),
        ("binary", '"no base64"'),
        ("binary", "5"),
        ("date", '"2026-11-27T00:00:00Z"'),
        ("date", "5"),
        ("decimal(5, 2)", "19.999"),
        ("decimal(5, 2)", "1234.5"),
        ("decimal(5, 2)", "1e999999999"),
        ("array<int>", "[1.5]"),
        ("array<int>", '{"0": 1}'),
        ("struct<n: int>", '{"n": 1.5}'),
        ("struct<at: timestamp>", '{"at": "2026-11-22T06:30:00"}'),
        ("map<string, int>", '{"a": "1"}'),
        ("map<string, int>", "[1]"),
        ("timestamp", "true"),
        ("timestamp", "1.5"),
        ("timestamp", '"2026-11-22"'),
        ("timestamp", "1e999999999"),
    ],
)
def test_what_a_type_cannot_hold_is_refused_and_never_bent(kind, text):
    lines = [b"{}", b'{"v": %s}' % text.encode()]
    maker = RowMaker(f"v {kind}", json_object)
    with pytest.raises(RecordRejected, match="line 1: "):
        without_refusals(maker.batch(lines, lambda n: f"line {n}"))


@pytest.mark.parametrize(
    ("text", "unit", "us"),
    [
        ("1700000000.5", "s", 1_700_000_000_500_000),
        ("1700000000.1234567", "s", 1_700_000_000_123_456),
        ("-0.0000001", "s", -1),
        ("1700000000000.25", "ms", 1_700_000_000_000_250),
        ("1.7e9", "s", 1_700_000_000_000_000),
        ("1700000000000000999.5", "ns", 1_700_000_000_000_000),
        ("1700000000000000.9", "us", 1_700_000_000_000_000),
    ],
)
def test_a_number_with_a_fraction_is_a_time_of_its_unit(text, unit, us):
    at = read(b'{"v": %s}' % text.encode(), "v timestamp", unit)
    assert at == dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=us)


class Color(str, enum.Enum):  # noqa: UP042  # whose text Python gives as "Color.RED"
    RED = "red"


class Count(enum.IntEnum):
    ONE = 1


class Raw(bytes, enum.Enum):
    ZERO = b"\0"


@pytest.mark.parametrize(
    ("kind", "value", "held"),
    [
        ("long", Decimal("5"), 5),
        ("decimal(5, 2)", 0.1, Decimal("0.10")),
        ("timestamp", EVENT.astimezone(dt.timezone(dt.timedelta(hours=3))), EVENT),
        ("map<int, string>", {1: "a"}, [(1, "a")]),
        ("map<int, string>", [(1, None)], [(1, None)]),
        ("struct<a: int, b: binary>", (1, b"x"), {"a": 1, "b": b"x"}),
        ("array<date>", [dt.date(2026, 1, 1)], [dt.date(2026, 1, 1)]),
        ("string", Color.RED, "red"),
        ("map<string, long>", {Color.RED: Count.ONE}, [("red", 1)]),
        ("binary", Raw.ZERO, b"\0"),
    ],
)
def test_what_a_function_returns_is_held_by_the_same_rule(kind, value, held):
    assert read(b"", f"v {kind}", parse=lambda _: {"v": value}) == held


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("long", 19.99),
        ("long", True),
        ("tinyint", 200),
        ("double", True),
        ("date", EVENT),
        ("timestamp", EVENT.replace(tzinfo=None)),
        ("string", EVENT),
        ("string", b"\xff"),
        ("string", [object()]),
        ("boolean", 1),
        ("map<int, string>", {None: "a"}),
    ],
)
def test_what_a_function_returns_is_refused_by_the_same_rule(kind, value):
    maker = RowMaker(f"v {kind}", lambda line: {"v": value if line else None})
    with pytest.raises(RecordRejected, match="line 1: "):
        without_refusals(maker.batch([b"", b"1"], lambda n: f"line {n}"))


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ("v timestamp_ntz", "has no time zone"),
        ("v struct<at: timestamp_ntz>", "has no time zone"),
        ("v map<struct<a: int>, string>", "keys that no dict of Python can have"),
        (["v int"], r"schema=\[.v int.\]: expected columns as text"),
        (pa.schema([("v", pa.int64())]), "expected columns as text"),
    ],
)
def test_a_schema_that_no_line_can_fill_is_refused_when_the_injector_is_made(
    tmp_path, schema, words
):
    with pytest.raises(PipelineError, match=words):
        mr.sources.Files(tmp_path, schema=schema)


TIMES = [
    "2026-11-22T10:00:00Z", "2026-11-22 10:00:00.5Z", "20261122T10Z", "2026-W47-1T10Z",
    "2026-11-22T10:00:00.1234567Z", "2026-11-22T10:00:00,5Z", "2026-11-22T10:00:00 Z",
    "0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z", "2026-11-22T10:00:00+01:00",
]  # fmt: skip
NO_TIMES = [
    "2026-11-22Z", "20261122Z", "2026-W47-1Z", "2026-11-22T10:00:00+01:00Z", "2026-11-22TZ",
    "2026-11-22T10:00:00ZZ", "2026-11-22T10:00:00+Z", "2026-11-2210:00:00Z",
    "2026-11-22T24:00:00Z", "2026-11-22T10:00:00", "",
]  # fmt: skip


@pytest.mark.parametrize("text", TIMES)
@pytest.mark.parametrize("beside", [[], ["2026-11-22T10:00:00+02:00"], [None]], ids=repr)
def test_a_time_in_utc_is_what_python_reads_whatever_stands_beside_it(text, beside):
    maker = RowMaker("at timestamp", json_object)
    lines = [json.dumps({"at": at}).encode() for at in [text, *beside]]
    first, *_ = maker.batch(lines, str).column("at").to_pylist()
    assert first == dt.datetime.fromisoformat(text)


@pytest.mark.parametrize("text", NO_TIMES)
@pytest.mark.parametrize("beside", [[], ["2026-11-22T10:00:00Z"], [None]], ids=repr)
def test_what_is_no_time_in_utc_is_refused_whatever_stands_beside_it(text, beside):
    maker = RowMaker("at timestamp", json_object)
    lines = [json.dumps({"at": at}).encode() for at in [text, *beside]]
    batch = maker.batch(lines, str)
    assert list(refusals_of(column_of(batch))) == [0]
