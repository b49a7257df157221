"""One rule of equality: of keys, distinct, joins and retractions; values keep their own bits."""

import math
from typing import Any

import pytest

import millrace as mr

NAN = float("nan")
HOW: dict[str, Any] = {"mode": mr.ACCUMULATING_AND_RETRACTING, "allowed_lateness": 1_000}


def feed(p: mr.Pipeline, stream: str) -> list[Any]:
    """Give the count of a window, then one more to it, and return what a stream has then."""
    with mr.testing.Harness(p) as h:
        h.inject("events", [(7, 1)])
        h.advance_watermark("events", 10)
        h.crash()
        h.inject("events", [(7, 2)])
        h.advance_watermark("events", 100)
        return [(out.value, out.pane and out.pane.retraction) for out in h.outputs(stream)]


def counts(p: mr.Pipeline) -> Any:
    events = p.inject("events", format=int).key_by(lambda n: n)
    return events.window(mr.FixedWindows(10), **HOW).count()


@pytest.mark.parametrize("result", ["group", "distinct", "top", "max"])
def test_a_value_with_nan_can_be_taken_back(result: str) -> None:
    p = mr.Pipeline("nan")
    pairs = counts(p).map(lambda n: (n, NAN)).key_by(lambda _: "k")
    grouped = pairs.window(mr.FixedWindows(10), **HOW)
    chosen = {
        "group": lambda: grouped.group(),
        "distinct": lambda: grouped.distinct(),
        "top": lambda: grouped.top(3, key=lambda pair: pair[0]),
        "max": lambda: grouped.max(lambda pair: pair[0]),
    }[result]
    chosen().to("results")

    found = feed(p, "results")

    last = [value for value, retraction in found if not retraction][-1]
    assert (
        repr(last)
        == {"group": "[[2, nan]]", "distinct": "1", "top": "[[2, nan]]", "max": "2"}[result]
    )


@pytest.mark.parametrize("how", ["windows", "for ever"])
def test_a_joined_value_with_nan_can_be_taken_back(how: str) -> None:
    p = mr.Pipeline("nan")
    left = counts(p).map(lambda n: (n, NAN)).key_by(lambda _: "k")
    right = p.inject("names", format=str).key_by(lambda _: "k")
    if how == "windows":
        left.window(mr.FixedWindows(10), **HOW).join(right).to("pairs")
    else:
        right.join(left).to("pairs")
    with mr.testing.Harness(p) as h:
        h.inject("names", [("x", 1)])
        h.inject("events", [(7, 1)])
        h.advance_watermark("events", 10)
        h.advance_watermark("names", 10)
        h.crash()
        h.inject("events", [(7, 2)])
        current: list[str] = []
        for out in h.outputs("pairs"):
            if out.pane is not None and out.pane.retraction:
                current.remove(repr(out.value))
            else:
                current.append(repr(out.value))

    assert len(current) == 1
    assert "[2, nan]" in current[0]


def test_zeros_are_one_key_and_values_keep_their_sign() -> None:
    p = mr.Pipeline("zeros")
    keyed = p.inject("events", format=float).key_by(lambda value: value)
    keyed.window(mr.FixedWindows(10)).group().to("groups")
    with mr.testing.Harness(p) as h:
        h.inject("events", [(0.0, 1), (-0.0, 2), (NAN, 3), (-NAN, 4)])
        h.advance_watermark("events", 10)
        found = {repr(out.key): out.value for out in h.outputs("groups")}

    assert set(found) == {"0.0", "nan"}
    assert [math.copysign(1, value) for value in found["0.0"]] == [1, -1]
    assert len(found["nan"]) == 2


def test_distinct_counts_zeros_and_nans_once() -> None:
    p = mr.Pipeline("zeros")
    keyed = p.inject("events", format=float).key_by(lambda _: "k")
    keyed.window(mr.FixedWindows(10)).distinct().to("n")
    with mr.testing.Harness(p) as h:
        h.inject("events", [(0.0, 1), (-0.0, 2), (NAN, 3), (-NAN, 4), (1.0, 5)])
        h.advance_watermark("events", 10)
        assert [out.value for out in h.outputs("n")] == [3]
