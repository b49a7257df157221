"""Values with the row of their key: in a table that changes, and in one that does not."""

import datetime as dt
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

import millrace as mr
from millrace.dataflow.joins.table_join import LARGEST, Lookup
from millrace.kernel.cells import BoundMap
from millrace.model.errors import PipelineError, RecordRejected
from millrace.model.stream import by


class Sale(msgspec.Struct, frozen=True):
    item: str
    number: int


class Price(msgspec.Struct, frozen=True):
    item: str
    cents: int


def enriched(script: Any, how: str = "left", **said: Any) -> Any:
    """Return (number, cents, time) of each pair, after every step a crash; counters; state."""
    p = mr.Pipeline("enrich")
    sales, prices = p.inject("sales", format=Sale), p.inject("prices", format=Price)
    sales.key_by("item").enrich(prices.key_by("item"), how, name="e", **said).to("priced")
    with mr.testing.Harness(p) as h:
        for stream, what in script:
            if stream == "watermark":
                for each in ("sales", "prices"):
                    h.advance_watermark(each, what)
            else:
                h.inject(stream, what)
            h.crash()
        found = [
            (sale.number, price and price.cents, out.timestamp)
            for out in h.outputs("priced")
            for sale, price in [out.value]
        ]
        cells = h.checkpoint()["e"].get("tea").items()
        state = {name: cell if name == "ends" else dict(cell) for name, cell in cells if cell}
        return found, h.counters("e").counted, state


def prices(*rows: tuple[int, int]) -> tuple[str, Any]:
    return "prices", [(Price("tea", cents), at_us) for cents, at_us in rows]


def sales(*rows: tuple[int, int]) -> tuple[str, Any]:
    return "sales", [(Sale("tea", number), at_us) for number, at_us in rows]


def test_a_value_gets_the_row_of_its_time_whatever_comes_first() -> None:
    script = [sales((1, 15), (2, 20), (3, 3)), prices((7, 20)), prices((5, 9)), ("watermark", 30)]

    found, _, state = enriched(script)

    assert found == [(3, None, 3), (1, 5, 15), (2, 7, 20)]
    assert "waiting" not in state


def test_a_value_waits_until_its_row_must_be_here_and_no_longer() -> None:
    script = [prices((5, 9)), sales((1, 15)), ("watermark", 15)]

    assert enriched(script)[0] == []
    assert enriched([*script, ("watermark", 16)])[0] == [(1, 5, 15)]


def test_an_inner_one_leaves_out_what_has_no_row() -> None:
    script = [sales((1, 15), (3, 3)), prices((5, 9)), ("watermark", 30)]

    assert enriched(script, "inner")[0] == [(1, 5, 15)]


def test_a_table_that_nobody_waits_for_holds_no_low_watermark() -> None:
    p = mr.Pipeline("enrich")
    sales, prices = p.inject("sales", format=Sale), p.inject("prices", format=Price)
    priced = sales.key_by("item").enrich(prices.key_by("item"), waits=False, name="e")
    priced.key_by(lambda pair: pair[0].item).window(mr.FixedWindows(10)).count().to("counts")
    with mr.testing.Harness(p) as h:
        h.inject("prices", [(Price("tea", 5), 3)])
        h.inject("sales", [(Sale("tea", 1), 15)])
        h.advance_watermark("sales", 20)
        assert h.low_watermark("e") == 20
        assert [(out.key, out.value) for out in h.outputs("counts")] == [("tea", 1)]

        h.crash()
        h.inject("prices", [(Price("tea", 7), 4)])
        h.inject("sales", [(Sale("tea", 2), 25)])
        assert h.counters("e").late == 0, "rows of a table that is not waited for are never late"
        assert [pair[1].cents for pair in (out.value for out in h.outputs(priced.name))] == [5, 7]


def test_a_table_that_is_waited_for_holds_the_low_watermark() -> None:
    p = mr.Pipeline("enrich")
    sales, prices = p.inject("sales", format=Sale), p.inject("prices", format=Price)
    sales.key_by("item").enrich(prices.key_by("item"), name="e").to("priced")
    with mr.testing.Harness(p) as h:
        h.advance_watermark("sales", 20)
        h.advance_watermark("prices", 12)
        assert h.low_watermark("e") == 12


def test_without_waiting_a_value_gets_the_newest_row_that_is_here() -> None:
    script = [sales((1, 15)), prices((7, 20)), prices((5, 9)), sales((2, 15)), ("watermark", 30)]

    found, _, state = enriched(script, waits=False)

    assert found == [(1, None, 15), (2, 7, 15)]
    assert list(state["rows"]) == [20]


def test_a_row_that_expired_does_not_stand_and_is_forgotten() -> None:
    script = [prices((5, 9)), sales((1, 18), (2, 19)), ("watermark", 30)]

    found, _, state = enriched(script, expires=10)

    assert found == [(1, 5, 18), (2, None, 19)]
    assert state == {}


def test_rows_that_no_value_can_ask_for_are_forgotten() -> None:
    script = [prices((1, 1), (2, 2), (3, 30)), ("watermark", 20), prices((4, 40))]

    assert list(enriched(script)[2]["rows"]) == [2, 30, 40]
    assert list(enriched(script, allowed_lateness=18)[2]["rows"]) == [2, 30, 40]
    assert list(enriched(script, allowed_lateness=19)[2]["rows"]) == [1, 2, 30, 40]


def test_a_late_value_is_answered_if_that_is_allowed_and_else_dropped() -> None:
    script = [prices((5, 9), (7, 20)), ("watermark", 25), sales((1, 15))]

    found, counters, _ = enriched(script)
    assert (found, counters) == ([], {"dropped_late": 1})
    found, counters, _ = enriched(script, allowed_lateness=10)
    assert (found, counters) == ([(1, 5, 15)], {})


@pytest.fixture
def walked(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Return the entries of maps that are walked over from now on."""
    passed, walk = [], BoundMap._walk

    def counted(self: Any, *bounds: Any) -> Iterator[bytes]:
        for entry in walk(self, *bounds):
            passed.append(entry)
            yield entry

    monkeypatch.setattr(BoundMap, "_walk", counted)
    return passed


@pytest.mark.parametrize(
    "said", [{}, {"expires": 10_000}, {"waits": False}, {"waits": False, "expires": 10_000}]
)
def test_rows_and_values_of_a_key_are_walked_over_a_few_times_each(
    said: Any, walked: list[bytes]
) -> None:
    script = [
        step
        for begin in (0, 100)
        for step in (
            prices(*((n, n) for n in range(begin, begin + 100))),
            sales(*((n, n) for n in range(begin, begin + 100))),
            ("watermark", begin + 100),
        )
    ]

    answers = {number: cents for number, cents, _ in enriched(script, **said)[0]}

    newest = {n: 99 if n < 100 else 199 for n in range(200)}
    assert answers == ({n: n for n in range(200)} if said.get("waits", True) else newest)
    assert len(walked) < 3_000


@pytest.mark.parametrize("apart", [1, 2, 1_000])
def test_a_late_value_is_answered_without_a_walk_over_all_rows_of_its_key(
    apart: int, walked: list[bytes]
) -> None:
    numbers = range(400)
    rows = prices(*((n, n * apart) for n in numbers))
    values = sales(*((n, n * apart + apart // 2) for n in numbers))
    script = [rows, ("watermark", 400 * apart), values]

    answers = {n: cents for n, cents, _ in enriched(script, allowed_lateness=10**6)[0]}

    assert answers == {n: n for n in numbers}
    assert len(walked) < 400 * 60


def test_a_value_walks_over_none_of_the_rows_before_its_own(walked: list[bytes]) -> None:
    script = [prices(*((n, n) for n in range(300))), ("watermark", 300)]
    for n in range(300, 320):
        script += [sales((n, n)), ("watermark", n + 1)]

    answers = enriched(script, allowed_lateness=10**6)[0]

    assert [cents for _, cents, _ in answers] == [299] * 20
    assert len(walked) < 300 + 20 * 100


RETRACTING: Any = {
    "trigger": mr.Repeat(mr.AfterCount(1)),
    "mode": mr.ACCUMULATING_AND_RETRACTING,
}


def test_a_row_that_is_taken_back_stands_no_more() -> None:
    p = mr.Pipeline("enrich")
    words, counted = p.inject("words", format=str), p.inject("counted", format=str)
    counts = counted.key_by(str.lower).window(**RETRACTING).count()
    words.key_by(str.lower).enrich(counts, waits=False, name="e").to("out")
    with mr.testing.Harness(p) as h:
        h.inject("counted", [("a", 1)])
        h.inject("counted", [("a", 2)])
        h.inject("words", [("A", 3)])
        assert [out.value for out in h.outputs("out")] == [("A", 2)]
        assert [len(rows) for rows in h.checkpoint()["e"].get("a")["rows"].values()] == [1]


def test_values_that_may_be_taken_back_have_to_wait() -> None:
    p = mr.Pipeline("enrich")
    words, table = p.inject("words", format=str), p.inject("table", format=str)
    counts = words.key_by(str.lower).window(**RETRACTING).count()
    counts.enrich(table.key_by(str.lower), waits=False, name="e")

    with pytest.raises(PipelineError, match="Let values wait"):
        p.build()


def test_a_value_that_is_taken_back_is_taken_back_with_its_row() -> None:
    p = mr.Pipeline("enrich")
    words, table = p.inject("words", format=str), p.inject("table", format=str)
    counts = words.key_by(str.lower).window(**RETRACTING).count()
    counts.enrich(table.key_by(str.lower), name="e").to("out")
    with mr.testing.Harness(p) as h:
        h.inject("table", [("A", 1)])
        h.inject("words", [("a", 2)])
        h.inject("words", [("a", 3)])
        for stream in ("words", "table"):
            h.advance_watermark(stream, 10)
        shown = [(out.value, out.pane.retraction) for out in h.outputs("out")]
    assert shown == [((1, "A"), False), ((1, "A"), True), ((2, "A"), False)]


# -- a table that does not change ------------------------------------------------------------------


def test_a_mapping_is_looked_up_where_the_stream_is() -> None:
    p = mr.Pipeline("enrich")
    p.inject("sales", format=Sale).key_by("item").lookup({"tea": 5}, "inner").to("priced")
    p.sink("priced", mr.sinks.Memory())
    with mr.testing.Harness(p) as h:
        h.inject("sales", [(Sale("tea", 1), 3), (Sale("salt", 2), 4)])
        assert [(out.key, out.value, out.timestamp) for out in h.outputs("priced")] == [
            ("tea", (Sale("tea", 1), 5), 3)
        ]
    assert p.build().computations == ()


def test_windows_stay_with_what_is_looked_up() -> None:
    p = mr.Pipeline("enrich")
    windowed = p.inject("sales", format=Sale).key_by("item").window(mr.FixedWindows(10))
    windowed.lookup({"tea": 5}).sum(lambda pair: pair[0].number * pair[1]).to("sums")
    with mr.testing.Harness(p) as h:
        h.inject("sales", [(Sale("tea", 1), 3), (Sale("tea", 2), 4)])
        h.advance_watermark("sales", 10)
        assert [out.value for out in h.outputs("sums")] == [15]


def test_a_key_of_another_type_than_the_tables_is_refused_at_its_record() -> None:
    p = mr.Pipeline("enrich")
    p.inject("sales", format=Sale).key_by("number").lookup({"1": "one"}).to("named")
    p.sink("named", mr.sinks.Memory())
    with (
        mr.testing.Harness(p) as h,
        pytest.raises(RecordRejected, match=r"key is 1 \(int\), and the table's keys are str"),
    ):
        h.inject("sales", [(Sale("tea", 1), 3)])


@pytest.mark.parametrize(
    ("row_key", "equal", "others"),
    [
        (1, 1, [1.0, True]),
        (True, True, [1, 1.0]),
        (-0.0, 0.0, [0, False]),
        (float("nan"), float("nan"), [0]),
        (("tea", float("nan")), ("tea", float("nan")), []),
        (dt.date(2026, 11, 22), dt.date(2026, 11, 22), []),
    ],
)
def test_keys_of_a_table_are_equal_as_all_keys_are(row_key: Any, equal: Any, others: Any) -> None:
    find = Lookup({row_key: "row"}, by(lambda key: key), "left")

    assert find(equal) == [(equal, "row")]
    for other in others:
        with pytest.raises(PipelineError, match="never equal to it"):
            find(other)


class Frame(SimpleNamespace):
    """What enrich asks of a Spark DataFrame."""

    columns = ("id", "name")
    isStreaming = False  # noqa: N815

    def limit(self, count: int) -> "Frame":
        return Frame(rows=self.rows[:count])

    def collect(self) -> Any:
        return [SimpleNamespace(asDict=lambda row=row, **_: row) for row in self.rows]


def test_a_data_frame_is_read_once() -> None:
    p = mr.Pipeline("enrich")
    table = Frame(rows=[{"id": 1, "name": "one"}])
    p.inject("sales", format=Sale).key_by("number").lookup(table, key="id").to("named")
    p.sink("named", mr.sinks.Memory())
    with mr.testing.Harness(p) as h:
        h.inject("sales", [(Sale("tea", 1), 3)])
        assert h.outputs("named")[0].value == (Sale("tea", 1), {"id": 1, "name": "one"})


@pytest.mark.parametrize(
    ("table", "said", "message"),
    [
        (7, {}, "expected a mapping from key to row, or a bounded DataFrame"),
        ({}, {"how": "outer"}, "expected one of left, inner"),
        ({}, {"key": "id"}, "a mapping has its keys"),
        (dict.fromkeys(range(LARGEST + 1)), {}, "more than 100,000 rows"),
        (Frame(rows=[]), {}, "expected the column that is the table's key, one of id, name"),
        (Frame(rows=[{"id": 1}, {"id": 1}]), {"key": "id"}, "two rows of the table have the key 1"),
    ],
)
def test_a_table_that_cannot_be_is_refused(table: Any, said: Any, message: str) -> None:
    p = mr.Pipeline("enrich")
    sales = p.inject("sales", format=Sale)

    with pytest.raises(PipelineError, match=message):
        sales.key_by("item").lookup(table, **said)


def test_what_has_no_key_is_not_looked_up() -> None:
    p = mr.Pipeline("enrich")

    with pytest.raises(PipelineError, match="chosen directly before"):
        p.inject("sales", format=Sale).lookup({})


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"expires": 0}, "no time at all"),
        ({"how": "full"}, "expected one of left, inner"),
    ],
)
def test_what_is_said_of_a_stream_of_rows_must_go_together(said: Any, message: str) -> None:
    p = mr.Pipeline("enrich")
    sales, prices = p.inject("sales", format=Sale), p.inject("prices", format=Price)

    with pytest.raises(PipelineError, match=message):
        sales.key_by("item").enrich(prices.key_by("item"), **said)


def test_rows_with_keys_of_another_type_are_refused() -> None:
    p = mr.Pipeline("enrich")
    sales, prices = p.inject("sales", format=Sale), p.inject("prices", format=Price)
    sales.key_by("item").enrich(prices.key_by("cents"), name="e")

    with pytest.raises(PipelineError, match="keys of different types"):
        p.build()


def test_explain_says_which_row_a_value_gets() -> None:
    p = mr.Pipeline("enrich")
    sales, prices = p.inject("sales", format=Sale), p.inject("prices", format=Price)
    sales.key_by("item").enrich(prices.key_by("item"), expires="1 h")

    assert "with the row that stands at its time, for 1 h after it began" in str(p.explain())


def test_a_row_that_a_value_waits_for_stays_though_the_low_watermark_went_on() -> None:
    p = mr.Pipeline("enrich")
    sales, prices = p.inject("sales", format=Sale), p.inject("prices", format=Price)
    sales.key_by("item").enrich(prices.key_by("item")).to("priced")
    with mr.testing.Harness(p) as h:
        h.inject("prices", [(Price("tea", 5), 0), (Price("tea", 7), 20)])
        h.inject("sales", [(Sale("tea", 1), 15)])
        # As an injector's policy publishes it: together with records, before which no timer is due.
        h._script({100: {"sales": 30, "prices": 30}})
        h.inject("prices", [(Price("tea", 9), 50)])
        found = [(out.value[1].cents, out.timestamp) for out in h.outputs("priced")]
    assert found == [(5, 15)]
