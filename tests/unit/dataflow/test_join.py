"""Joins within windows: inner, left, outer; with retractions; hash join with a time-out."""

from typing import Any

import msgspec
import pytest

import millrace as mr
from millrace.model.errors import PipelineError


class View(msgspec.Struct, frozen=True):
    ad: str
    user: str


class Click(msgspec.Struct, frozen=True):
    ad: str
    price: int


def joined(how: str, script: Any, **window: Any) -> list[Any]:
    p = mr.Pipeline("join")
    views, clicks = p.inject("views", format=View), p.inject("clicks", format=Click)
    left = views.key_by("ad").window(window.pop("windows", mr.FixedWindows(10)), **window)
    left.join(clicks.key_by("ad"), how).to("pairs")
    with mr.testing.Harness(p) as h:
        for stream, what in script:
            if stream == "watermark":
                h.advance_watermark("views", what)
                h.advance_watermark("clicks", what)
            else:
                h.inject(stream, what)
            h.crash()
        return h.outputs("pairs")


SCRIPT = [
    ("views", [(View("a", "ann"), 1), (View("a", "bob"), 2), (View("b", "cyd"), 3)]),
    ("clicks", [(Click("a", 5), 4), (Click("c", 6), 5), (Click("a", 7), 12)]),
    ("watermark", 10),
]
INNER = {(View("a", "ann"), Click("a", 5)), (View("a", "bob"), Click("a", 5))}


@pytest.mark.parametrize(
    ("how", "pairs"),
    [
        ("inner", INNER),
        ("left", INNER | {(View("b", "cyd"), None)}),
        ("outer", INNER | {(View("b", "cyd"), None), (None, Click("c", 6))}),
    ],
)
def test_values_meet_by_key_and_window(how: str, pairs: Any) -> None:
    found = joined(how, SCRIPT)

    assert {out.value for out in found} == pairs
    assert len(found) == len(pairs)
    assert all(out.pane.window == mr.Window(0, 10) and out.timestamp == 9 for out in found)


def test_a_partner_that_comes_late_takes_the_lonely_pair_back() -> None:
    script = [*SCRIPT, ("clicks", [(Click("b", 1), 8)])]
    how = {"mode": mr.ACCUMULATING_AND_RETRACTING, "allowed_lateness": 100}

    found = [(out.value, out.pane.retraction) for out in joined("left", script, **how)]

    lonely = (View("b", "cyd"), None)
    assert found[-2:] == [(lonely, True), ((lonely[0], Click("b", 1)), False)]
    assert (lonely, False) in found


def test_sessions_join_what_belongs_together() -> None:
    script = [
        ("views", [(View("a", "ann"), 0), (View("a", "bob"), 30)]),
        ("clicks", [(Click("a", 5), 8), (Click("a", 6), 35)]),
        ("watermark", 100),
    ]
    found = joined("inner", script, windows=mr.Sessions(10))

    assert [(view.user, click.price) for view, click in (out.value for out in found)] == [
        ("ann", 5),
        ("bob", 6),
    ]


def test_a_stream_joins_with_itself_under_other_keys() -> None:
    p = mr.Pipeline("self")
    edges = p.inject("edges", format=tuple[str, str])
    by_end = edges.key_by(lambda edge: edge[1]).window(mr.FixedWindows(10))
    paths = by_end.join(edges.key_by(lambda edge: edge[0]))
    paths.map(lambda pair: f"{pair[0][0]}{pair[0][1]}{pair[1][1]}").to("paths", format=str)
    with mr.testing.Harness(p) as h:
        h.inject("edges", [(("a", "b"), 1), (("b", "c"), 2), (("b", "d"), 3)])
        h.advance_watermark("edges", 10)
        assert [out.value for out in h.outputs("paths")] == ["abc", "abd"]


def test_both_sides_may_be_results_of_groupings() -> None:
    p = mr.Pipeline("results")
    views, clicks = p.inject("views", format=View), p.inject("clicks", format=Click)
    fixed = mr.FixedWindows(10)
    seen = views.key_by("ad").window(fixed).count()
    paid = clicks.key_by("ad").window(fixed).sum("price")
    seen.join(paid, "left").map(lambda pair: (pair[1] or 0) / pair[0]).to("worth", format=float)
    with mr.testing.Harness(p) as h:
        h.inject("views", [(View("a", "ann"), 1), (View("a", "bob"), 2), (View("b", "cyd"), 3)])
        h.inject("clicks", [(Click("a", 5), 4)])
        for stream in ("views", "clicks"):
            h.advance_watermark(stream, 10)
        assert {out.key: out.value for out in h.outputs("worth")} == {"a": 2.5, "b": 0.0}


@pytest.mark.parametrize(
    ("join", "complaint"),
    [
        (lambda s, other: s.join(other, "right"), "expected one of inner, left, outer"),
        (lambda s, _: s.join("views"), "expected another stream"),
        (lambda s, _: s.join(s), "joined with itself"),
    ],
)
def test_what_cannot_be_joined_is_refused(join: Any, complaint: str) -> None:
    p = mr.Pipeline("wrong")
    s = p.inject("a", format=int).key_by(str).window(mr.FixedWindows(10))
    with pytest.raises(mr.MillraceError, match=complaint):
        join(s, p.inject("b", format=int).key_by(str))


def test_discarding_over_retractions_is_refused_where_a_difference_cannot_be() -> None:
    def second(aggregate: Any) -> mr.Pipeline:
        p = mr.Pipeline("retractions")
        how = {"mode": mr.ACCUMULATING_AND_RETRACTING}
        first = p.inject("a", format=int).key_by(str).window(mr.FixedWindows(10), **how).sum()
        aggregate(first.window(mr.FixedWindows(10), mode=mr.DISCARDING))
        return p

    second(lambda s: s.sum()).build()
    for aggregate in (lambda s: s.max(), lambda s: s.group(), lambda s: s.quantiles([0.5])):
        with pytest.raises(mr.MillraceError, match="gets retractions"):
            second(aggregate).build()


class Order(msgspec.Struct):
    id: str


class Payment(msgspec.Struct):
    order: int


def test_keys_of_different_types_are_refused_in_windows_too() -> None:
    p = mr.Pipeline("p")
    orders, paid = p.inject("orders", format=Order), p.inject("paid", format=Payment)
    windows = mr.FixedWindows("1 min")
    orders.key_by("id").window(windows).join(paid.key_by("order")).to("pairs")

    with pytest.raises(PipelineError, match=r"keys of different types.*str of 'orders'.*int of"):
        p.build()


def test_a_name_is_given_once() -> None:
    """``name=`` names the computation and what it makes; ``to`` would name that again."""
    p = mr.Pipeline("p")
    one, two = p.inject("one", format=dict).key_by("k"), p.inject("two", format=dict).key_by("k")

    with pytest.raises(PipelineError, match=r"to\('x'\): that is its name already"):
        one.join(two, name="x").to("x")
    with pytest.raises(PipelineError, match=r"to\('y'\): that is its name already"):
        one.enrich(two, name="y").to("y")
    with pytest.raises(PipelineError, match=r"to\('z'\): that is its name already"):
        one.window(mr.GlobalWindow()).aggregate(n=mr.agg.count(), name="z").to("z")
    with pytest.raises(PipelineError, match=r"'w' is the name of a join in windows"):
        one.window(mr.GlobalWindow()).join(two, name="w").to("w")
