"""Classes that workers cannot import are rebuilt there: those of TypedDicts."""

import pickle
import typing
from typing import Any, NotRequired, TypedDict

import msgspec

import millrace as mr
from millrace.runtime.by_value import pickle_by_value
from millrace.spark.pickling import pickle_topology


def test_a_typed_dict_travels_by_value() -> None:
    class Base(TypedDict, total=False):
        note: str

    class Bid(Base):
        item: str
        price: NotRequired[int | None]

    there: Any = pickle.loads(pickle_by_value(list[Bid]))  # pickled here

    (bid,) = typing.get_args(there)
    assert bid.__name__ == "Bid"
    assert (bid.__required_keys__, bid.__optional_keys__) == ({"item"}, {"note", "price"})
    assert msgspec.convert([{"item": "tea", "price": None}], there) == [
        {"item": "tea", "price": None}
    ]


def test_rows_of_an_aggregate_can_be_grouped_again() -> None:
    """The state of the second grouping is typed as the rows, which no module has by name."""
    p = mr.Pipeline("hot")
    counts = p.inject("bids").key_by("item").window(mr.FixedWindows("1 min")).count(keys=True)
    counts.key_by("_window_end").top(1, key="value").to("hot")

    there = pickle.loads(pickle_topology(p.build()))  # pickled here

    assert list(there.streams) == list(p.build().streams)
