"""Tables that a stream fills, and every key looks into."""

from typing import Any

import msgspec
import pytest

import millrace as mr
from millrace.kernel.row_codec import ALL_KEYS_ROW
from millrace.model.errors import PipelineError, UserCodeError


class Sale(msgspec.Struct, frozen=True):
    shop: str
    currency: str
    amount: int


class Rate(msgspec.Struct, frozen=True):
    currency: str
    percent: int


class Convert(mr.Computation):
    inputs = {"sales": mr.by("shop")}
    outputs = {"euros": Any}
    rates = mr.SideInput("rates", "currency")

    def process_record(self, record: Any) -> None:
        rate = self.rates.get(record.value.currency)
        self.produce("euros", rate and record.value.amount * rate.percent)


class AtOnce(Convert):
    rates = mr.SideInput("rates", "currency", waits=False)


def harness(computation: Any = Convert, **said: Any) -> Any:
    p = mr.Pipeline("convert")
    p.inject("sales", format=Sale)
    p.inject("rates", format=said.get("format", Rate))
    p.add(computation, name="C")
    if said.get("dead_letters"):
        p.dead_letter("dead")
    return mr.testing.Harness(p, intervals=said.get("intervals", 4))


def sale(h: Any, *times: int, shops: str = "abcdef", currency: str = "USD") -> None:
    h.inject("sales", [(Sale(shop, currency, 10), at) for shop in shops for at in times])


def rates(h: Any, *changes: tuple[int, int], currency: str = "USD") -> None:
    h.inject("rates", [(Rate(currency, percent), at) for percent, at in changes])


def tables_of(h: Any) -> list[dict[str, Any]]:
    """Return what each key interval keeps for all keys."""
    checkpoint = h.checkpoint()
    inspection, tables = checkpoint["C"], []
    for interval in inspection.intervals:
        with checkpoint.rows("C", interval) as view:
            tables.append(inspection._state_of(view, ALL_KEYS_ROW))
    return tables


def euros(h: Any) -> list[tuple[Any, int]]:
    """Return what came of shop "a", with its time; the other shops have the same."""
    by_shop: dict[str, list[Any]] = {}
    for out in h.outputs("euros"):
        by_shop.setdefault(out.key, []).append((out.value, out.timestamp))
    assert all(found == by_shop["a"] for found in by_shop.values())
    return by_shop.get("a", [])


def test_a_record_waits_for_the_row_of_its_time_whatever_comes_first() -> None:
    with harness() as h:
        sale(h, 15, 25, 3)
        rates(h, (7, 20), (5, 9))
        h.crash()
        h.advance_watermark("sales", mr.MAX_TIMESTAMP)
        assert euros(h) == []

        h.advance_watermark("rates", 16)
        assert euros(h) == [(None, 3), (50, 15)]
        h.crash()
        rates(h, (8, 24), (9, 26))
        h.advance_watermark("rates", 26)
        assert euros(h)[2:] == [(80, 25)]


def test_what_is_kept_of_a_table_is_what_may_be_asked_for() -> None:
    with harness() as h:
        rates(h, (1, 1), (2, 2), (3, 30))
        for stream in ("sales", "rates"):
            h.advance_watermark(stream, 20)
        rates(h, (4, 40))
        tables = tables_of(h)

        assert len(tables) == 4  # one a key interval
        rows = tables[0]["rates"]["USD"]
        assert [at for _, at in rows] == [2, 30, 40]
        assert tables[0]["bytes of side inputs"] == {"rates": pytest.approx(75, abs=25)}
        sale(h, 5)  # late: as of the low watermark
        assert euros(h) == [(20, 5)]
        assert h.counters("C").late == 6


def test_without_waiting_a_record_sees_the_newest_row_and_the_stream_holds_nothing() -> None:
    with harness(AtOnce) as h:
        sale(h, 5)
        rates(h, (3, 100), (2, 50))
        sale(h, 6)
        h.crash()
        h.advance_watermark("sales", 50)

        assert euros(h) == [(None, 5), (30, 6)]
        assert h.low_watermark("C") == 50
        rates(h, (4, 1))
        rates(h, (5, 100))
        sale(h, 50)
        assert euros(h)[2:] == [(50, 50)]
        assert h.counters("C").late == 0


def test_a_side_input_that_never_comes_is_named() -> None:
    with harness() as h:
        sale(h, 5)
        h.advance_watermark("sales", 50)

        assert "injector of stream 'rates'" in str(h.explain_watermark("C"))


class Everything(mr.Computation):
    """Mixes what waits with cells and timers of its own, and looks at the whole table."""

    inputs = {"sales": mr.by("shop")}
    outputs = {"told": Any}
    rates = mr.SideInput("rates", "currency")
    n = mr.CombiningState(int)

    def process_record(self, record: Any) -> None:
        if record.value.amount < 0:
            raise ValueError("less than nothing")
        self.n.add(1)
        self.set_timer("sum", at=record.timestamp + 10)
        self.produce("told", [self.n.get(), sorted(self.rates), len(self.rates)])

    def process_timer(self, timer: Any) -> None:
        table = {currency: rate.percent for currency, rate in self.rates.items()}
        self.produce("told", ["timer", "USD" in self.rates, table])


def test_records_and_timers_of_a_key_come_in_order_of_event_time() -> None:
    with harness(Everything) as h:
        sale(h, 20, 1, shops="a")
        rates(h, (1, 5))
        rates(h, (2, 12), currency="CHF")
        for stream in ("sales", "rates"):
            h.advance_watermark(stream, 100)

        assert [(out.value, out.timestamp) for out in h.outputs("told")] == [
            ([1, [], 0], 1),
            (["timer", True, {"USD": 1}], 11),
            ([2, ["CHF", "USD"], 2], 20),
            (["timer", True, {"CHF": 2, "USD": 1}], 30),
        ]


def test_a_record_that_waited_and_fails_is_one_dead_letter() -> None:
    with harness(Everything, dead_letters=True) as h:
        h.inject("sales", [(Sale("a", "USD", n), 5) for n in (1, -1, 1)])
        for stream in ("sales", "rates"):
            h.advance_watermark(stream, 10)

        (letter,) = (out.value for out in h.outputs("dead"))
        assert (letter.stream, letter.key, letter.timestamp) == ("sales", "'a'", 5)
        assert [out.value[0] for out in h.outputs("told")] == [1, 2]
        kept = h.checkpoint()["C"].get("a")
        assert kept["n"] == 2
        assert not kept["records that wait"]

    with harness(Everything) as h:
        h.inject("sales", [(Sale("a", "USD", -1), 5)])
        h.advance_watermark("sales", 10)
        with pytest.raises(UserCodeError, match=r"(?s)'a', stream 'sales'.*less than nothing"):
            h.advance_watermark("rates", 10)


def test_rows_are_taken_back_and_ended() -> None:
    class Table(AtOnce):
        rates = mr.SideInput("totals", waits=False)

        def process_record(self, record: Any) -> None:
            self.produce("euros", dict(self.rates))

    p = mr.Pipeline("table")
    p.inject("sales", format=Sale)
    counted = (
        p.inject("seen", format=str)
        .key_by(str)
        .window(trigger=mr.Repeat(mr.AfterCount(1)), mode=mr.ACCUMULATING_AND_RETRACTING)
    )
    counted.count().map(lambda n: n if n < 3 else None).to("totals", format=int | None)
    p.add(Table)
    with mr.testing.Harness(p) as h:
        for seen in ("x", "x", "y", "y", "y"):
            h.inject("seen", [(seen, 0)])
            sale(h, 1, shops="a")

        tables = [out.value for out in h.outputs("euros")]
        assert tables == [{"x": 1}, {"x": 2}, {"x": 2, "y": 1}, {"x": 2, "y": 2}, {"x": 2}]


class Small(Convert):
    rates = mr.SideInput("rates", "currency", waits=False, limit=100)


def test_a_table_that_grows_beyond_its_limit_is_refused_at_the_row() -> None:
    with harness(Small) as h:
        for n in range(30):
            rates(h, (n, n), currency="USD")
        for n in range(2):
            rates(h, (1, 1), currency=f"C{n}")
        with pytest.raises(UserCodeError, match=r"(?s)row of key 'C2'.*enrich.*the side input, "):
            rates(h, (1, 1), currency="C2")
    with harness(Small, dead_letters=True) as h:
        for n in range(9):
            rates(h, (1, 1), currency=f"C{n}")
        assert {out.value.stream for out in h.outputs("dead")} == {"rates"}
        sale(h, 1, currency="C1")
        assert euros(h) == [(10, 1)]


class Counting:
    """A coder that counts what it is asked for."""

    def __init__(self) -> None:
        self.encoded = self.decoded = 0

    def encode(self, value: Rate) -> bytes:
        self.encoded += 1
        return f"{value.percent} {value.currency}".encode()

    def decode(self, data: bytes) -> Rate:
        self.decoded += 1
        percent, currency = data.decode().split()
        return Rate(currency, int(percent))

    def __repr__(self) -> str:
        return "Counting()"


@pytest.mark.parametrize("computation", [Convert, AtOnce])
def test_a_row_is_read_and_written_once_for_all_intervals_of_a_task(computation: Any) -> None:
    asked = []
    for intervals in (1, 4):
        coder = Counting()
        with harness(computation, format=coder, intervals=intervals) as h:
            for n in range(3):
                h.inject("rates", [(Rate(f"C{k}", n), n) for k in range(100)])
            asked.append((coder.encoded, coder.decoded))
            for stream in ("sales", "rates"):
                h.advance_watermark(stream, 10)
            sale(h, 2, currency="C99")
            assert euros(h) == [(20, 2)]
            tables = [cells["rates"] for cells in tables_of(h)]
            assert len(tables) == intervals
            assert all(table == tables[0] and len(table) == 100 for table in tables)
    assert asked[0] == asked[1]


def test_equal_keys_of_two_types_are_two() -> None:
    class Look(mr.Computation):
        inputs = {"asks": mr.by(lambda ask: ask)}
        outputs = {"told": Any}
        rows = mr.SideInput("rows", lambda row: row[0], waits=False)

        def process_record(self, record: Any) -> None:
            self.produce("told", [self.rows.get(key) for key in (1, True, 1.0, True, 1)])

    p = mr.Pipeline("types")
    p.inject("rows", format=list)
    p.inject("asks", format=int)
    p.add(Look)
    with mr.testing.Harness(p) as h:
        h.inject("rows", [([1, "int"], 1), ([True, "bool"], 1)])
        h.inject("asks", [(0, 1)])
        one, true = [1, "int"], [True, "bool"]
        assert [out.value for out in h.outputs("told")] == [[one, true, None, true, one]]


class Twice(Convert):
    again = mr.SideInput("rates", "percent")


class ItsOwn(Convert):
    rates = mr.SideInput("sales", "currency")


class Keyless(Convert):
    rates = mr.SideInput("rates")


class Unknown(Convert):
    rates = mr.SideInput("rats", "currency")


class WrongField(Convert):
    rates = mr.SideInput("rates", "currncy")


@pytest.mark.parametrize(
    ("computation", "words"),
    [
        (Twice, "Twice.again: .* is the second side input of stream 'rates'"),
        (ItsOwn, "'sales' as an input, and beside its inputs"),
        (Keyless, "takes stream 'rates' by key, and records as they are injected have none"),
        (Unknown, "'rats', which nobody injects"),
        (WrongField, "'currncy'.*Did you mean 'currency'"),
    ],
)
def test_what_is_no_side_input_is_refused(computation: Any, words: str) -> None:
    with pytest.raises(PipelineError, match=f"(?s){words}"):
        harness(computation)


@pytest.mark.parametrize("said", [{"stream": {"EUR": 1}}, {"stream": "rates", "limit": 0}])
def test_nor_is_what_no_stream_or_limit_can_be(said: Any) -> None:
    with pytest.raises(PipelineError, match=r"SideInput.*expected"):
        mr.SideInput(**said)


class Reports(mr.Computation):
    """Answers a record that has waited, and later a timer; neither with a value of its own."""

    inputs = {"totals": mr.by_key()}
    outputs = {"reports": mr.coders.Paned(str, retracts=True)}
    rates = mr.SideInput("rates", "currency")

    def process_record(self, record: Any) -> None:
        self.produce("reports", "record")
        self.set_timer("t", at=record.timestamp + 1)

    def process_timer(self, timer: Any) -> None:
        self.produce("reports", "timer")


def test_a_timer_has_no_pane_though_a_retraction_has_waited_before_it() -> None:
    p = mr.Pipeline("retracting")
    p.inject("rates", format=Rate)
    p.inject("sales", format=Sale).key_by("shop").window(
        mr.FixedWindows(10),
        trigger=mr.Repeat(mr.AfterCount(1)),
        mode=mr.ACCUMULATING_AND_RETRACTING,
    ).sum("amount").to("totals")
    p.add(Reports)
    with mr.testing.Harness(p) as h:
        sale(h, 1, shops="a")
        sale(h, 2, shops="a")
        for stream in ("sales", "rates"):
            h.advance_watermark(stream, 50)
        reports = [(out.value, out.pane and out.pane.retraction) for out in h.outputs("reports")]
        assert reports == [
            ("record", False), ("record", True), ("record", False), ("timer", None)
        ]  # fmt: skip
