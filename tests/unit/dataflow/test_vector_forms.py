"""Vector forms: whose they are, and what is said of those that are wrong."""

from typing import Any

import numpy as np
import pytest

import millrace as mr
from millrace.dataflow.aggregations import (
    Count,
    Max,
    Mean,
    Min,
    StdDev,
    Sum,
    Variance,
    combine,
)
from millrace.dataflow.aggregations.vector import vector_of
from millrace.dataflow.windows.window_fn import has_columns
from millrace.model.errors import PipelineError


class Squares(Sum):
    """Adds otherwise than Sum, whose columns it inherits."""

    def add(self, accumulator: Any, value: Any) -> Any:
        return super().add(accumulator, value * value)


class Even(mr.FixedWindows):
    """Assigns otherwise than FixedWindows, whose columns it inherits."""

    def assign(self, record: mr.Record) -> Any:
        return super().assign(record) if record.timestamp % 2 == 0 else ()


class Chained(mr.Sessions):
    """Merges otherwise than Sessions."""

    def merge(self, windows: Any) -> Any:
        return [mr.Window(windows[0].start, windows[-1].end)]


def built(window_fn: mr.WindowFn, aggregation: mr.CombineFn) -> Any:
    p = mr.Pipeline("forms")
    keyed = p.inject("elements", format=int).key_by(lambda value: value % 2)
    keyed.window(window_fn).aggregate(aggregation).to("results")
    return p


@pytest.mark.parametrize(
    ("window_fn", "aggregation", "reason"),
    [
        (mr.FixedWindows(10), Squares(), "combines values in a way of its own"),
        (Even(10), Sum(), "assigns windows to one element at a time"),
        (Chained(10), Sum(), "assigns windows to one element at a time"),
    ],
    ids=repr,
)
def test_what_is_defined_anew_has_not_the_vector_form_of_what_was(
    window_fn: mr.WindowFn, aggregation: mr.CombineFn, reason: str
) -> None:
    topology = built(window_fn, aggregation).build()

    assert topology.computation("results").columnar is None
    assert reason in str([edge.unlifted for edge in topology.edges])


def test_what_takes_its_result_otherwise_only_keeps_it() -> None:
    class Doubled(Sum):
        def extract(self, accumulator: Any) -> Any:
            return 2 * accumulator

    assert isinstance(vector_of(Doubled(), int), Doubled)
    with mr.testing.Harness(built(mr.FixedWindows(10), Doubled()), lift=True) as h:
        h.inject("elements", [(n, 5) for n in (1, 3, 2)])
        h.advance_watermark("elements", 10)

        assert sorted(out.value for out in h.outputs("results")) == [4, 8]


@pytest.mark.parametrize(
    ("assigned", "merges", "words"),
    [
        (None, False, "Expected three columns of integers"),
        (([0.5], [0], [5]), False, "Expected three columns of integers"),
        (([0, 1], [0], [5]), False, "Expected three columns of integers"),
        (([2], [0], [5]), False, "Expected positions from 0 to 1, ascending"),
        (([0, 1], [5, 0], [5, 9]), False, "returned a window from 5 to 5"),
        (([0], [0], [5]), True, "Expected one of each, as its windows merge"),
    ],
)
def test_columns_of_windows_that_are_none_are_refused(
    assigned: Any, merges: bool, words: str
) -> None:
    class Given(mr.WindowFn):
        joins_overlapping = True

        def assign(self, record: mr.Record) -> Any:
            return [mr.Window(0, 5)]

        def assign_column(self, timestamps: Any, hashes: Any) -> Any:
            return assigned

    window_fn = Given()
    window_fn.merges = merges
    assert has_columns(window_fn)
    with (
        pytest.raises(PipelineError, match=words),
        mr.testing.Harness(built(window_fn, Sum())) as h,
    ):
        h.inject("elements", [(1, 1), (3, 2)])


@pytest.mark.parametrize(
    "fold",
    [Sum(), Count(), Min(), Max(), Mean(), Variance(), Variance(sample=False), StdDev()],
    ids=repr,
)
def test_results_of_columns_are_those_of_single_accumulators(fold: Any) -> None:
    integers, floats = [3, 9, 4, 2**53 + 1, 2**60 + 1], [0.1, -1e300, 2.5e300, 7.0, 1e-9]
    for values in (integers, floats):
        columns = fold.reduce(fold.of(np.array(values)), np.array([0, 2, 3, 4]))

        expected = [fold.extract(accumulator) for accumulator in fold.joined(columns)]
        assert list(map(repr, fold.results(columns))) == list(map(repr, expected))


def test_results_of_nothing_and_of_both_kinds_are_those_of_single_accumulators() -> None:
    nothing = tuple(np.array(each) for each in ([0, 1], [0.0, 5.0], [0.0, 0.0]))
    assert Variance().results(nothing) == StdDev().results(nothing) == [None, None]
    assert Variance(sample=False).results(nothing) == [None, 0.0]

    mixed = np.array([3, 0.5, 2**70], object), np.array([2, 1, 3], object)
    assert Mean().results(mixed) == [1.5, 0.5, 2**70 / 3]
    assert Mean().results((np.array([-(2**63), 0]), np.array([3, 0]))) == [-(2**63) / 3, None]


def test_a_variance_keeps_its_digits_where_squares_would_lose_them() -> None:
    far = [1e9 + n for n in (4, 7, 13, 16)]
    assert combine(Variance(), far) == 30.0

    columns = Variance().reduce(Variance().of(np.array(far)), np.array([0]))
    assert [column.tolist() for column in columns] == [[4], [1e9 + 10], [90.0]]


def test_no_finite_number_is_refused_with_what_to_do() -> None:
    with pytest.raises(PipelineError, match="stddev was given inf, which is no finite float"):
        combine(StdDev(), [1.0, float("inf")])
    with pytest.raises(PipelineError, match="variance was given True"):
        combine(Variance(), [True])
