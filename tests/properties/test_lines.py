"""A line of JSON means the same, whatever stands beside it."""

from __future__ import annotations

import datetime as dt
import json

from hypothesis import given
from hypothesis import strategies as st

from millrace.connectors.files.lines import RowMaker, json_object
from millrace.injectors.refusals import column_of

SCHEMA = (
    "a long, b double, c string, d timestamp, e boolean, f float, g smallint, h date, "
    "i decimal(9, 3), j array<timestamp>, k map<string, double>, l binary"
)
NAMES = [*"abcdefghijkl", "unknown"]

fractions = st.text("0123456789", max_size=12)
instants = st.builds(
    lambda at, digits, zone: f"{at:%Y-%m-%dT%H:%M:%S}{'.' if digits else ''}{digits}{zone}",
    st.datetimes(dt.datetime(1000, 1, 2), dt.datetime(9999, 12, 30)),
    fractions,
    st.sampled_from(["Z", "+01:00", "-11:30", "", "z"]),
)
numbers = st.one_of(
    st.integers(-(1 << 65), 1 << 65).map(str),
    st.integers(-200, 200).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.sampled_from(["1e400", "-0.0", "1.50", "9007199254740993", "1e39", "1700000000.5", "2.0"]),
)
leaves = st.one_of(
    numbers,
    instants.map(json.dumps),
    st.text(max_size=3).map(json.dumps),
    st.sampled_from(
        ["null", "true", '"2026-11-27"', '"ZA=="', '"NaN"', '"\\ud800"', '"\xff"', "tru"]
    ),
)
values = st.one_of(
    leaves,
    st.lists(leaves, max_size=2).map(lambda parts: f"[{', '.join(parts)}]"),
    leaves.map(lambda part: f'{{"k": {part}}}'),
)
objects = st.lists(st.tuples(st.sampled_from(NAMES), values), max_size=3).map(
    lambda fields: "{" + ", ".join(f'"{name}": {value}' for name, value in fields) + "}"
)
lines = objects.map(lambda text: text.encode("latin-1", "replace"))
#: Each is read by itself, so that all that stand beside it are.
SLOW = [b'{"c": 5}', b'{"d": 1.0}', b'{"a": 2.0}']


@given(st.lists(lines, min_size=1, max_size=4), st.sampled_from([None, "s", "ns"]))
def test_a_line_means_the_same_whatever_stands_beside_it(lines, unit):
    maker = RowMaker(SCHEMA, json_object, unit, "Files")
    maker._latest_us = 1 << 51
    good, rows = [], []
    for line in lines:
        alone = maker.batch([line], str)
        for slow in SLOW if unit else SLOW[::2]:
            assert _said(maker.batch([line, slow], str).slice(0, 1)) == _said(alone)
        if column_of(alone) is None:
            good.append(line)
            rows.append(alone)
    for n, row in enumerate(rows):
        assert _said(maker.batch(good, str).slice(n, 1)) == _said(row)


def _said(rows):
    """Return rows and refusals in words: NaN is no more than that."""
    return str(rows.to_pylist())
