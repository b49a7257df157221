"""``to`` names what makes a stream: a join, an enrichment, calls."""

from typing import Any

import pytest

import millrace as mr
from millrace.model.errors import PipelineError


async def twice(value: Any) -> Any:
    return value


WINDOW = mr.FixedWindows(10)
MAKES = {
    "join": lambda left, right, **was: left.join(right, **was),
    "join within": lambda left, right, **was: left.join(right, within=(0, 10), **was),
    "join in windows": lambda left, right, **was: left.window(WINDOW).join(right, **was),
    "enrich": lambda left, right, **was: left.enrich(right, **was),
    "map_async": lambda left, _, **was: left.map_async(twice, **was),
    "map_async in windows": lambda left, _, **was: left.window(WINDOW).map_async(twice, **was),
    "map_batches": lambda left, _, **was: left.map_batches(list, **was),
}


@pytest.mark.parametrize("makes", MAKES)
@pytest.mark.parametrize("format", [Any, object])
def test_to_names_what_makes_the_stream(makes: str, format: Any) -> None:
    p = mr.Pipeline("names")
    left, right = (p.inject(name, format=dict).key_by("k") for name in ("left", "right"))
    made = MAKES[makes](left, right, was="pairs")
    made.map(str).to("seen")  # it may be used before
    made.to("paid", format)
    again = MAKES[makes](left, right).to("again").name

    with mr.testing.Harness(p) as h:
        for stream in ("left", "right"):
            h.inject(stream, [({"k": 1}, 5)])
            h.advance_watermark(stream, 100)
        counts = [len(h.outputs(name)) for name in ("paid", "seen", again)]
        assert counts == [1, 1, 1]
        assert set(h.checkpoint().computations) == {"paid", "again"}
    assert p.evolutions["paid"].was == ("pairs",)


def test_an_aggregation_whose_results_are_read_already_is_named_first() -> None:
    p = mr.Pipeline("names")
    totals = p.inject("left", format=int).key_by(abs).window(WINDOW).sum()
    totals.map(str).to("texts")

    with pytest.raises(PipelineError, match=r"read already.*to\('totals'\)"):
        totals.to("totals")


def test_a_name_that_was_chosen_stays() -> None:
    p = mr.Pipeline("names")
    left, right = (p.inject(name, format=dict).key_by("k") for name in ("left", "right"))
    left.join(right, name="orders").to("paid")
    left.map_async(twice).map(str).to("other")

    assert set(p.computations) == {"orders", "left.key_by-1.map_async-1"}


def test_a_computation_of_that_name_stays() -> None:
    class Paid(mr.Computation):
        inputs = {"left": mr.by("k")}
        outputs = {"x": int}

        def process_record(self, record: mr.Record) -> None: ...

    p = mr.Pipeline("names")
    left, right = (p.inject(name, format=dict).key_by("k") for name in ("left", "right"))
    p.add(Paid)
    left.join(right).to("Paid")

    assert set(p.computations) == {"Paid", "left.key_by-1.join-1"}
