"""What holds for every follower: a row has one number, however the input is cut and resumed."""

import itertools
import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

import millrace as mr
from millrace.injectors.advance import along
from millrace.injectors.polling import Polling


class Shuffled(mr.Injector):
    """Numbers that are written, in an order that depends on how far it was decided to read.

    What lies between a and c is not what lies between a and b, and then b and c: as with files, of
    which those that are there are read oldest first.
    """

    schema = "n long"

    def __init__(self):
        self.written = 0
        self.step = 1
        self.batch = 1

    def processes(self):
        return ["all"]

    def advance(self, process, offset):
        return mr.Advance(min((offset or 0) + self.step, self.written), None)

    def read_arrow(self, process, start, end):
        numbers, batch = np.arange(start or 0, end)[::-1], self.batch
        for first in range(0, len(numbers), batch):
            yield pa.RecordBatch.from_pydict({"n": numbers[first : first + batch]})


@dataclass
class Task:
    """What a task of the plane keeps of a process: a place, and what was decided since."""

    offset: Any = None
    count: int = 0
    decided: list[Any] = field(default_factory=list)

    def resumed(self) -> str:
        return json.dumps(along(self.offset, self.decided))


#: One after the other: how much more is written, how large a step is, in batches of how many rows,
#: how many rows are taken at once, how often, then a mark or not, then a failure or not.
scripts = st.lists(
    st.tuples(
        st.integers(0, 12),
        st.integers(1, 9),
        st.integers(1, 5),
        st.integers(1, 7),
        st.integers(0, 6),
        st.booleans(),
        st.booleans(),
    ),
    max_size=25,
)


def follow(injector, offset, most):
    # A second passes whenever it looks, so nobody waits before a process is asked again.
    return Polling(injector, {"all": offset}, most=most, clock=itertools.count().__next__)


@given(scripts)
def test_a_row_has_the_same_number_after_every_failure(script):
    injector, found = Shuffled(), dict[int, int]()
    mark, count, last = Task(), 0, None
    follower = follow(injector, None, 5)
    for more, injector.step, injector.batch, most, takes, marked, fails in [
        *script,
        (1, 5, 5, 100, 0, False, True),
        (1, 5, 5, 100, 200, False, False),
    ]:
        injector.written += more
        if fails:
            last, count = json.loads(mark.resumed()), mark.count
            follower = follow(injector, last, most)
        for _ in range(takes):
            for one in follower.take(0):
                if one.decided is not None:
                    mark.decided.append(one.decided)
                for row in one.rows.column("n").to_pylist():
                    assert found.setdefault(count, row) == row
                    count += 1
                last = one.offset
        if marked:
            mark = Task(last, count)
    assert sorted(found) == sorted(found.values()) == list(range(injector.written))
