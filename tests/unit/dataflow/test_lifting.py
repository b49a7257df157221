"""Lifting: which edges it stands on, and what it says of the others."""

from typing import Any

import pytest

import millrace as mr
from millrace.model.errors import PipelineError


class Doubled(mr.Computation):
    inputs = {"elements": mr.by("key")}
    outputs = {"doubled": dict}

    def process_record(self, record: Any) -> None:
        self.produce("doubled", {"key": self.key, "value": 2 * record.value["value"]})


def test_what_a_computation_sends_is_lifted_too() -> None:
    p = mr.Pipeline("doubled")
    p.inject("elements", format=dict)
    p.add(Doubled)
    p.stream("doubled").key_by("key").window(mr.FixedWindows(10)).sum("value").to("sums")
    with mr.testing.Harness(p, intervals=1, lift=True) as h:
        h.inject("elements", [({"key": "a", "value": n}, n % 10) for n in range(30)])
        h.advance_watermark("elements", 10)

        assert [(out.key, out.value) for out in h.outputs("sums")] == [("a", 870)]
        assert h.counters("sums").counted == {"lifted": 30}
        assert h.counters("sums").records == 30


def test_late_records_are_not_lifted() -> None:
    p = mr.Pipeline("late")
    keyed = p.inject("elements", format=dict).key_by("key")
    keyed.window(mr.FixedWindows(100)).sum("value").to("sums")
    with mr.testing.Harness(p, intervals=1, lift=True) as h:
        h.advance_watermark("elements", 50)
        h.inject("elements", [({"key": "a", "value": 1}, 40 + n % 20) for n in range(40)])

        assert h.counters("sums").late == 20
        assert h.counters("sums").counted == {"lifted": 20}


@pytest.mark.parametrize(
    ("trigger", "combine", "reason"),
    [
        (mr.Repeat(mr.AfterCount(3)), "sum", "AfterCount(3) counts elements one by one"),
        (mr.Repeat(mr.Punctuation(bool)), "sum", "must see every element"),
        (None, "group", "keeps every value"),
        (None, "join", "a join pairs every value"),
    ],
)
def test_why_an_edge_is_not_lifted(trigger: Any, combine: str, reason: str) -> None:
    p = mr.Pipeline("unlifted")
    keyed = p.inject("elements", format=dict).key_by("key")
    windowed = keyed.window(mr.FixedWindows(10), trigger=trigger)
    if combine == "join":
        windowed.join(p.inject("others", format=dict).key_by("key"))
    else:
        getattr(windowed, combine)("value")

    unlifted = [edge.unlifted for edge in p.build().edges if edge.computation is not None]
    assert unlifted
    assert all(reason in text for text in unlifted)


def test_lifting_that_cannot_be_is_refused_when_asked_for() -> None:
    p = mr.Pipeline("refused")
    keyed = p.inject("elements", format=dict).key_by("key")
    keyed.window(mr.FixedWindows(10), lift=True).group("value").to("lists")
    with pytest.raises(PipelineError, match=r"window\(lift=True\), and cannot be lifted: Group"):
        p.build()


@pytest.mark.parametrize("values", [range(60), [str(n % 7) * 40 for n in range(60)]], ids=repr)
def test_a_count_of_bytes_goes_with_different_values(values: Any) -> None:
    def run(lift: bool) -> tuple[list[Any], dict[str, int]]:
        p = mr.Pipeline("bytes")
        keyed = p.inject("elements", format=dict).key_by("key")
        trigger = mr.Repeat(mr.AfterBytes(1_000_000))
        windowed = keyed.window(mr.FixedWindows(100), trigger=trigger, lift=True)
        windowed.distinct("value").to("n")
        with mr.testing.Harness(p, lift=lift) as h:
            h.inject("elements", [({"key": "a", "value": value}, 5) for value in values])
            h.advance_watermark("elements", 100)
            return [out.value for out in h.outputs("n")], h.counters("n").counted

    single, lifted = run(lift=False), run(lift=True)

    assert lifted[0] == single[0] == [len(set(values))]
    assert lifted[1] == {"lifted": 60}
