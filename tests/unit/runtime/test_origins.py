"""Messages of refused rows are read once more: how many that costs."""

import itertools

import pytest

import millrace as mr
from millrace.connectors.kafka.messages import MessageRows
from millrace.injectors.injector import NumberedInjector
from millrace.injectors.offsets import Piece
from millrace.runtime import refusal
from millrace.runtime.refusal import Origins

SCHEMA = "n long"


class _Message:
    def __init__(self, offset):
        self.offset, self.value = lambda: offset, lambda: b'{"n": %d}' % offset

    def key(self):
        return None


class Numbers(NumberedInjector):
    """A partition whose message at each offset has that number; each third offset has none."""

    def __init__(self):
        self.given = 0
        self._rows = MessageRows(SCHEMA, None, None)
        self.schema = self._rows.schema

    def processes(self):
        return ["t-0"]

    def advance(self, process, offset):
        return mr.sources.Advance(0)

    def read_arrow(self, process, start, end):
        raise NotImplementedError

    def origins(self, process, offset, count):
        there = (n for n in itertools.count(offset or 0) if n % 3)
        for n in itertools.islice(there, count):
            self.given += 1
            yield from self._rows.origins(process, [_Message(n)])


@pytest.fixture
def source():
    return Numbers()


@pytest.fixture
def known(source):
    p = mr.Pipeline("numbers")
    p.inject("numbers", source, timestamp="n", format=dict)
    p.sink("numbers", print)
    return Origins(p.build(), None, live=False)


def piece(start):
    return Piece("t-0", (start, start + 10_000), None, last=True)


def offsets(known, start, rows):
    found = known.of_piece("numbers", piece(start), rows)
    return [found[n].offset for n in sorted(found)]


def test_rows_of_a_piece_are_read_again_once_though_they_are_asked_for_bit_by_bit(known, source):
    found = [n for first in range(0, 100, 10) for n in offsets(known, 0, range(first, first + 10))]

    assert found == [n for n in range(150) if n % 3]
    assert source.given == 100


def test_rows_before_those_that_were_read_are_found_and_other_pieces_have_their_own(known):
    assert offsets(known, 0, [50]) == [76]
    assert offsets(known, 0, [2, 50]) == [4, 76]
    assert offsets(known, 30, [0]) == [31]


def test_a_row_far_behind_is_not_worth_all_that_come_before_it(known, source, monkeypatch):
    monkeypatch.setattr(refusal, "_FAR", 20)

    assert offsets(known, 0, [21]) == []
    assert source.given == 0
    assert offsets(known, 0, [20]) == [31]
    assert offsets(known, 0, [41]) == [62]


def test_no_message_is_read_behind_the_one_that_is_asked_for_though_that_is_gone(known, source):
    found = known.of_offsets("numbers", [("t-0", 4), ("t-0", 9)])

    assert [found[n].offset for n in sorted(found)] == [4]
    assert source.given == 5  # 4, 5, 7, 8 and 10, which says that there is no 9
