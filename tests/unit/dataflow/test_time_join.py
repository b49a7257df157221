"""Joins without windows: by nearness in time, for ever, with a time-to-live; what they refuse."""

import pickle
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

import millrace as mr
from millrace.dataflow.joins.interval_join import JoinByKeyAndTime
from millrace.model.errors import PipelineError


class Order(msgspec.Struct, frozen=True):
    id: int
    item: str


class Payment(msgspec.Struct, frozen=True):
    order: int
    by: str


@pytest.fixture(autouse=True, params=[0, 110, 1_024], ids="row weighs {}".format)
def row_weight(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Keep all in maps; or in rows until there are three values; or all in rows."""
    weight: int = request.param
    monkeypatch.setattr(JoinByKeyAndTime, "row_weight", weight)
    return weight


ORDERS = [(Order(1, "a"), 100), (Order(2, "b"), 100), (Order(3, "c"), 130)]
PAYMENTS = [(Payment(1, "cash"), 95), (Payment(1, "card"), 109), (Payment(9, "card"), 101)]


def joined(how: str, script: Any, **said: Any) -> Any:
    """Return (left item, right means, time, retraction) of each pair, after every step a crash."""
    p = mr.Pipeline("join")
    orders, payments = p.inject("orders", format=Order), p.inject("payments", format=Payment)
    orders.key_by("id").join(payments.key_by("order"), how, name="j", **said).to("pairs")
    with mr.testing.Harness(p) as h:
        for stream, what in script:
            if stream == "watermark":
                for each in ("orders", "payments"):
                    h.advance_watermark(each, what)
            else:
                h.inject(stream, what)
            h.crash()
        found = [
            (
                left and left.item,
                right and right.by,
                out.timestamp,
                out.pane is not None and out.pane.retraction,
            )
            for out in h.outputs("pairs")
            for left, right in [out.value]
        ]
        return found, h.counters("j").counted


INTERVAL: list[Any] = [("orders", ORDERS), ("payments", PAYMENTS), ("watermark", 200)]
PAIRS = {("a", "cash", 100, False), ("a", "card", 109, False)}


@pytest.mark.parametrize(
    ("how", "alone"),
    [
        ("inner", set()),
        ("left", {("b", None, 109, False), ("c", None, 139, False)}),
        ("full", {("b", None, 109, False), ("c", None, 139, False), (None, "card", 106, False)}),
    ],
)
def test_values_meet_by_key_and_nearness(how: str, alone: set[Any]) -> None:
    found, _ = joined(how, INTERVAL, within=(-5, 10))

    assert set(found) == PAIRS | alone
    assert len(found) == len(set(found))


def test_the_end_of_an_interval_is_not_in_it() -> None:
    found, _ = joined("inner", INTERVAL, within=(-4, 9))

    assert found == []


def test_a_value_without_a_partner_is_out_when_none_can_come() -> None:
    script = [("orders", ORDERS), ("watermark", 109), ("watermark", 110)]

    assert joined("left", script[:2], within=(-5, 10))[0] == []
    assert sorted(joined("left", script, within=(-5, 10))[0]) == [
        ("a", None, 109, False),
        ("b", None, 109, False),
    ]


def test_each_value_of_a_key_is_out_when_its_own_time_is_over() -> None:
    of_one = [(Order(1, "b"), 150), (Order(1, "a"), 100), (Order(1, "c"), 200)]
    script: list[Any] = [("orders", of_one)]
    out = []
    for now in (109, 110, 159, 160, 209, 210):
        script.append(("watermark", now))
        out.append([item for item, *_ in joined("left", script, within=(-5, 10))[0]])

    assert out == [[], ["a"], ["a"], ["a", "b"], ["a", "b"], ["a", "b", "c"]]


def test_a_key_goes_from_its_row_to_maps_and_back_when_it_was_empty(row_weight: int) -> None:
    p = mr.Pipeline("join")
    orders, payments = p.inject("orders", format=Order), p.inject("payments", format=Payment)
    orders.key_by("id").join(payments.key_by("order"), "outer", name="j", within=(-5, 10))

    def cells(at: int, count: int) -> set[str]:
        h.inject("orders", [(Order(1, "a"), at + n) for n in range(count)])
        (state,) = h.checkpoint()["j"].scan()
        return {name for name, cell in state.cells.items() if cell}

    in_maps, in_row = {"left", "awaited"}, {"few"}
    with mr.testing.Harness(p) as h:
        assert cells(100, 1) == (in_row if row_weight else in_maps)
        assert cells(101, 9) == (in_row if row_weight == 1_024 else in_maps)
        h.crash()
        assert cells(102, 1) == (in_row if row_weight == 1_024 else in_maps)
        for stream in ("orders", "payments"):
            h.advance_watermark(stream, 200)
        assert list(h.checkpoint()["j"].scan()) == []
        assert cells(300, 1) == (in_row if row_weight else in_maps)


@pytest.mark.parametrize("said", [{"within": (-5, 10)}, {"expires": 20}, {}])
def test_a_key_that_was_in_maps_before_there_were_rows_stays_there(
    said: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    p = mr.Pipeline("join")
    orders, payments = p.inject("orders", format=Order), p.inject("payments", format=Payment)
    orders.key_by("id").join(payments.key_by("order"), name="j", **said).to("pairs")
    with mr.testing.Harness(p) as h:
        monkeypatch.setattr(JoinByKeyAndTime, "row_weight", 0)
        h.inject("orders", ORDERS[:1])
        monkeypatch.setattr(JoinByKeyAndTime, "row_weight", 1_024)
        h.crash()
        h.inject("payments", PAYMENTS[:2])
        h.inject("orders", [(Order(1, "d"), 99)])
        (state,) = h.checkpoint()["j"].scan()

        assert {name for name, cell in state.cells.items() if cell} >= {"left", "right"}
        pairs = [out.value for out in h.outputs("pairs")]
        found = {(left.item, right.by) for left, right in pairs}
        assert found == {("a", "cash"), ("a", "card"), ("d", "cash")} | (
            set() if "within" in said else {("d", "card")}
        )


def test_what_is_too_late_is_dropped_and_what_is_allowed_takes_the_lonely_pair_back() -> None:
    late = [("orders", ORDERS[:1]), ("watermark", 115), ("payments", [(Payment(1, "card"), 109)])]

    found, counters = joined("left", late, within=(-5, 10))
    assert found == [("a", None, 109, False)]
    assert counters == {"dropped_late": 1}

    found, counters = joined("left", late, within=(-5, 10), allowed_lateness=6)
    assert found == [
        ("a", None, 109, False),
        ("a", None, 109, True),
        ("a", "card", 109, False),
    ]
    assert not counters


def test_a_join_for_ever_says_at_once_who_is_alone_and_takes_it_back() -> None:
    script = [
        ("orders", [(Order(1, "a"), 100)]),
        ("watermark", 10_000),
        ("payments", [(Payment(1, "cash"), 20_000), (Payment(2, "card"), 20_001)]),
    ]

    found, _ = joined("outer", script)

    assert sorted(found, key=str) == [
        ("a", "cash", 20_000, False),
        ("a", None, 100, False),
        ("a", None, 100, True),
        (None, "card", 20_001, False),
    ]
    assert joined("inner", script)[0] == [("a", "cash", 20_000, False)]


def test_values_that_expired_do_not_meet() -> None:
    script = [
        ("orders", [(Order(1, "a"), 100)]),
        ("payments", [(Payment(1, "cash"), 149), (Payment(1, "card"), 150)]),
    ]

    found, _ = joined("left", script, expires=50)

    assert found == [("a", None, 100, False), ("a", None, 100, True), ("a", "cash", 149, False)]


@pytest.mark.parametrize("said", [{"within": (-5, 10)}, {"expires": 10}])
def test_nothing_is_left_of_what_can_meet_nothing(said: Any, row_weight: int) -> None:
    p = mr.Pipeline("join")
    orders, payments = p.inject("orders", format=Order), p.inject("payments", format=Payment)
    orders.key_by("id").join(payments.key_by("order"), "outer", name="j", **said)
    with mr.testing.Harness(p) as h:
        h.inject("orders", ORDERS)
        h.inject("payments", PAYMENTS)
        assert [state.key for state in h.checkpoint()["j"].scan()] != []
        for stream in ("orders", "payments"):
            h.advance_watermark(stream, 120)
        assert [state.key for state in h.checkpoint()["j"].scan()] == [3]
        # In maps one to be out alone, if it is not already, and one to be forgotten.
        timers = len(list(h.checkpoint()["j"].timers()))
        assert timers == (2 if "within" in said and not row_weight else 1)


def test_a_retraction_takes_its_pairs_back_and_leaves_its_partner_alone() -> None:
    p = mr.Pipeline("join")
    names = p.inject("names", format=tuple[str, str])
    sales = p.inject("sales", format=tuple[str, int])
    kept = {"trigger": mr.Repeat(mr.AfterCount(1)), "mode": mr.ACCUMULATING_AND_RETRACTING}
    totals = sales.key_by(lambda sale: sale[0]).window(**kept).sum(lambda sale: sale[1])
    names.key_by(lambda name: name[0]).join(totals, "left").to("pairs")
    with mr.testing.Harness(p) as h:
        h.inject("names", [(("a", "Ann"), 5)])
        h.inject("sales", [(("a", 3), 7)])
        h.inject("sales", [(("a", 4), 9)])
        h.crash()
        found = [(out.value[1], out.pane.retraction) for out in h.outputs("pairs")]

    shown = dict.fromkeys([None, 3, 7], 0)
    for total, retraction in found:
        shown[total] += -1 if retraction else 1
    assert shown == {None: 0, 3: 0, 7: 1}
    assert (3, False) in found


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"within": ("1 min", "1 min")}, "nothing is in there"),
        ({"within": "5 s"}, "expected from when until when"),
        ({"within": (0, 5), "expires": 5}, "Leave one of them out"),
        ({"expires": 0}, "no time at all"),
        ({"allowed_lateness": 5}, "forgets nothing"),
        ({"how": "right"}, "expected one of inner, left, outer"),
    ],
)
def test_a_join_that_cannot_be_is_refused(said: Any, message: str) -> None:
    p = mr.Pipeline("join")
    orders, payments = p.inject("orders", format=Order), p.inject("payments", format=Payment)

    with pytest.raises(PipelineError, match=message):
        orders.key_by("id").join(payments.key_by("order"), **said)


def test_a_join_goes_to_workers_that_have_never_seen_it() -> None:
    p = mr.Pipeline("join")
    orders, payments = p.inject("orders", format=Order), p.inject("payments", format=Payment)
    orders.key_by("id").join(payments.key_by("order"), name="j")
    (spec,) = p.build().computations

    join = pickle.loads(pickle.dumps(spec.instance))

    form = join._row_forms[0]
    assert form.unpack(form.pack(ORDERS[0][0])) == ORDERS[0][0]


def test_keys_of_different_types_are_refused() -> None:
    p = mr.Pipeline("join")
    orders, payments = p.inject("orders", format=Order), p.inject("payments", format=Payment)
    orders.key_by("id").join(payments.key_by("by"))

    with pytest.raises(PipelineError, match=r"never equal: int of 'orders'.* str of 'payments'"):
        p.build()


def test_an_interval_without_end_over_a_stream_is_refused() -> None:
    endless = SimpleNamespace(isStreaming=True, columns=["id", "order", "time"])
    p = mr.Pipeline("join")
    orders = p.inject("orders", endless, timestamp="time", low_watermark=mr.BoundedDelay(0))
    payments = p.inject("payments", endless, timestamp="time", low_watermark=mr.BoundedDelay(0))
    orders.key_by("id").join(payments.key_by("order"), within=(0, None), name="j")

    with pytest.raises(PipelineError, match="unbounded interval, 0 <= right - left < any"):
        p.build()


def test_an_interval_without_end_over_bounded_input_ends_with_it() -> None:
    script = [("orders", ORDERS[:2]), ("payments", PAYMENTS), ("watermark", mr.MAX_TIMESTAMP)]

    found, _ = joined("left", script, within=(0, None))

    assert set(found) == {("a", "card", 109, False), ("b", None, 100, False)}


def test_a_stream_is_not_joined_with_itself_by_one_key() -> None:
    p = mr.Pipeline("join")
    orders = p.inject("orders", format=Order).key_by("id").to("by_id")

    with pytest.raises(PipelineError, match="joined with itself"):
        orders.join(orders)


def test_a_join_in_windows_has_no_other_times() -> None:
    p = mr.Pipeline("join")
    orders, payments = p.inject("orders", format=Order), p.inject("payments", format=Payment)

    with pytest.raises(PipelineError, match="in windows values meet by their windows"):
        orders.key_by("id").window(mr.FixedWindows(5)).join(payments.key_by("order"), within=(0, 5))


def test_explain_says_which_values_meet() -> None:
    p = mr.Pipeline("join")
    orders, payments = p.inject("orders", format=Order), p.inject("payments", format=Payment)
    orders.key_by("id").join(payments.key_by("order"), "left", within=("-5 s", "10 min"))

    assert "left, -'5 s' <= right - left < '10 min'" in str(p.explain())
