"""Outputs of the Harness in a notebook: a table."""

import math

import msgspec
import pyarrow as pa
import pytest

import millrace as mr


class Sale(msgspec.Struct, frozen=True):
    item: str
    cents: int


def test_outputs_are_a_list_and_a_table_of_fields_and_panes() -> None:
    p = mr.Pipeline("shop")
    sales = p.inject("sales", format=Sale)
    sales.key_by("item").window(mr.FixedWindows("1 min")).sum("cents", keys=True).to("sums")
    with mr.testing.Harness(p) as h:
        h.inject("sales", [(Sale("<tea>", 5), 0), (Sale("mate", 7), mr.SECOND)])
        h.advance_watermark("sales", mr.MINUTE)
        records, sums = h.outputs("sales"), h.outputs("sums")

    assert records == list(records)
    assert repr(sums) == repr(list(sums))
    shown = records._repr_html_()  # type: ignore[attr-defined]  # of a notebook
    assert "<th>time</th><th>key</th><th>item</th><th>cents</th>" in shown
    assert "<td>1970-01-01T00:00:00Z</td><td></td><td>&lt;tea&gt;</td><td>5</td>" in shown
    assert "<th>window</th>" not in shown
    shown = sums._repr_html_()  # type: ignore[attr-defined]
    assert "<td>1970-01-01T00:00:00Z to 1970-01-01T00:01:00Z</td><td>on time</td>" in shown


def test_values_that_are_no_records_have_one_column_and_many_are_counted() -> None:
    p = mr.Pipeline("words")
    p.sink("words", mr.sinks.Memory())
    p.inject("words", format=str)
    with mr.testing.Harness(p) as h:
        h.inject("words", [(f"word {n}", n) for n in range(120)])
        shown = h.outputs("words")._repr_html_()  # type: ignore[attr-defined]

    assert "<th>value</th>" in shown
    assert shown.count("<tr>") == 1 + 100
    assert shown.endswith("<p>and 20 more</p>")


SOLD = {"_timestamp": 5, "_id": b"x", "_key": None, "tags": ["a", "b"], "of": {"n": [1.5, None]}}


def test_rows_of_arrow_have_their_nan_and_rows_of_pandas_null_for_it_and_lists() -> None:
    table = pa.Table.from_pylist([{**SOLD, "mean": math.nan}, {**SOLD, "mean": 2.0}])
    of_arrow, of_pandas = (mr.testing.outputs_of(rows) for rows in (table, table.to_pandas()))

    first, second = (output.value for output in of_arrow)
    assert math.isnan(first["mean"])
    assert second == {"tags": ["a", "b"], "of": {"n": [1.5, None]}, "mean": 2.0}
    assert [output.value for output in of_pandas] == [{**second, "mean": None}, second]
    assert of_pandas[0].key is None


def test_a_row_without_its_time_is_refused() -> None:
    with pytest.raises(mr.MillraceError, match="None is not an instant"):
        mr.testing.outputs_of([{**SOLD, "_timestamp": None}])
