"""Rows on edges answer alike, whether they are few and lists or many and columns of Arrow."""

import numpy as np
import pytest

from millrace.runtime import rows, wire
from millrace.runtime.packets import Pipes, Received, rows_of
from millrace.runtime.rows import NO_ROWS, EdgeSet, RowColumns, Rows
from millrace.watermark.propagation import Message

FORMS = [pytest.param(Rows, id="few"), pytest.param(lambda few: Rows(few.batch()), id="many")]


def columns(*rows, first=0):
    """Rows are (task, edge); their sequences say which one each is."""
    tasks, edges = ([row[n] for row in rows] for n in range(2))
    count = len(rows)
    return RowColumns(
        tasks, edges, [2**64 - 1] * count, [b"k"] * count, [b"v"] * count, [5] * count,
        [7] * count, list(range(first, first + count)),
    )  # fmt: skip


def edges_of(*numbers):
    mask = np.zeros(6, dtype=np.bool_)
    mask[[*numbers]] = True
    return EdgeSet(mask)


def numbers(found):
    return found.batch().column("sequence").to_pylist()


@pytest.mark.parametrize("form", FORMS)
def test_rows_on_some_edges_are_parted_from_others_in_order(form):
    some = form(columns((0, 1), (0, 2), (0, 1), (0, 5)))

    on, others = some.parted(edges_of(1))
    assert (numbers(on), numbers(others)) == ([0, 2], [1, 3])
    assert [part.count for part in some.parted(edges_of(1, 2, 5))] == [4, 0]
    assert [part.count for part in some.parted(edges_of(4))] == [0, 4]


def test_what_is_no_record_goes_with_the_edges_that_are_asked_for():
    message = Rows(wire.messages(wire.REFUSED, b"", np.zeros(1, np.int32)))
    partial = Rows(columns((0, wire.lifted(2))).batch())

    on, others = Rows.joined([message, partial]).parted(edges_of(1))
    assert on.batch().column("edge").to_pylist() == [wire.REFUSED]
    assert others.combined_edges() == {2}
    assert partial.parted(edges_of(2))[0].combined_edges() == {2}


@pytest.mark.parametrize("form", FORMS)
def test_each_task_gets_its_rows_in_order(form):
    some = form(columns((3, 1), (0, 1), (3, 2)))

    assert [(task, numbers(part)) for task, part in some.by_task()] == [(0, [1]), (3, [0, 2])]
    assert [(task, part.count) for task, part in form(columns((2, 1))).by_task()] == [(2, 1)]
    assert list(NO_ROWS.by_task()) == []


def test_few_are_few_together_only_as_long_as_there_are_few_of_them(monkeypatch):
    monkeypatch.setattr(rows, "FEW", 3)
    one, two = Rows(columns((0, 1))), Rows(columns((0, 1), (0, 2), first=1))
    many = Rows(columns((0, 3), first=3).batch())

    assert numbers(Rows.joined([one, two])) == [0, 1, 2]
    assert Rows.joined([one, two]).few is not None
    assert Rows.joined([two, two]).few is None
    assert Rows.joined([one, many, two]).few is None
    assert numbers(Rows.joined([one, many, two])) == [0, 3, 1, 2]
    assert Rows.joined([]).count == 0


def test_the_form_that_rows_are_sent_in_is_the_form_that_they_come_in():
    sent = columns((0, 1), (0, 2))

    for form in (Rows, lambda few: Rows(few.batch())):
        (packet,) = Received(1, "here", 1).take(pack(form(sent)))
        (came,) = rows_of(packet)
        assert (came.few is None) is (form(sent).few is None)
        assert came.batch().equals(sent.batch())


def test_rows_of_both_forms_keep_their_order_in_a_packet():
    lots = [Rows(columns((0, 1), first=0)), Rows(columns((0, 1), first=1).batch()),
            Rows(columns((0, 1), first=2)), Rows(columns((0, 1), first=3).batch())]  # fmt: skip

    (packet,) = Received(1, "here", 1).take(pack(*lots))
    assert [n for part in rows_of(packet) for n in numbers(part)] == [0, 1, 2, 3]


def pack(*lots):
    return [data for _, data in Pipes(1, 0, 1).send(lots, message=Message({}, {}, {}), wall_us=0)]
