"""Whether an injector has something that was not read yet."""

import pytest

import millrace as mr
from millrace.injectors.advance import along, decision
from millrace.injectors.offsets import SourceOffset, nothing_left


class Source(mr.sources.Injector):
    schema = "n long"

    def __init__(self, **ends):
        self.ends = ends

    def processes(self):
        return list(self.ends)

    def advance(self, process, offset):
        return mr.sources.Advance(*self.ends[process])

    def read(self, process, start, end):
        return []


WITHIN = along(3, [decision(3, mr.sources.Advance(5))])


@pytest.mark.parametrize(
    ("ends", "places", "expected"),
    [
        ({}, {}, True),
        ({"a": (None,)}, {}, True),
        ({"a": (0,)}, {}, False),  # where it begins is still to be decided
        ({"a": (5,)}, {"a": SourceOffset(0, 5)}, True),
        ({"a": (5,)}, {"a": SourceOffset(0, 4)}, False),
        ({"a": (5,), "b": (7,)}, {"a": SourceOffset(0, 5)}, False),
        (
            {"a": (5,)},
            {"a": SourceOffset(0, 5), "b": SourceOffset(1, 3)},
            True,
        ),  # b is not there any more
        ({"a": (5,)}, {"a": SourceOffset(0, WITHIN)}, False),
        ({"a": (5, 70)}, {"a": SourceOffset(0, 5)}, False),
        ({"a": (5, 70)}, {"a": SourceOffset(0, 5, 0, 69)}, False),
        ({"a": (5, 70)}, {"a": SourceOffset(0, 5, 0, 70)}, True),
        ({"a": (5, None)}, {"a": SourceOffset(0, 5, 0, 70)}, True),
    ],
)
def test_nothing_is_left_where_it_would_stay(ends, places, expected):
    assert nothing_left(Source(**ends), places) is expected


def test_what_is_held_back_is_not_waited_for():
    source = Source(a=(5,), b=(7,))
    assert nothing_left(source, {"a": SourceOffset(0, 5)}, paused={"b"})
    assert not nothing_left(source, {"a": SourceOffset(0, 5)}, paused={"a"})
