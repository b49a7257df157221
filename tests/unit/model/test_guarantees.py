"""Options of a computation: on the class, or where it is added."""

import pytest

import millrace as mr
from millrace.compile.change.identity import identity


class Plain(mr.Computation):
    inputs = {"events": mr.by_key()}

    def process_record(self, record):
        pass


class Relaxed(Plain):
    productions = mr.WEAK
    delivery = mr.AT_LEAST_ONCE


def guarantees(computation, **options):
    p = mr.Pipeline("p")
    p.inject("events")
    p.add(computation, name="C", **options)
    found = p.build().computation("C").guarantees
    return found.productions, found.delivery


def test_a_computation_is_strong_and_exactly_once_unless_it_says_otherwise():
    assert guarantees(Plain) == (mr.STRONG, mr.EXACTLY_ONCE)


def test_a_class_says_it():
    assert guarantees(Relaxed) == (mr.WEAK, mr.AT_LEAST_ONCE)


def test_add_has_the_last_word():
    options = {"productions": mr.STRONG, "delivery": mr.EXACTLY_ONCE}
    assert guarantees(Relaxed, **options) == (mr.STRONG, mr.EXACTLY_ONCE)
    assert guarantees(Plain, productions=mr.WEAK) == (mr.WEAK, mr.EXACTLY_ONCE)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"productions": "weak"}, "'C' has productions = 'weak'. Expected mr.STRONG or mr.WEAK"),
        ({"delivery": mr.WEAK}, "'C' has delivery = WEAK. Expected mr.EXACTLY_ONCE"),
    ],
)
def test_anything_else_is_refused(options, message):
    with pytest.raises(mr.MillraceError, match=message):
        guarantees(Plain, **options)


def test_they_are_no_part_of_what_a_checkpoint_depends_on():
    def described(**options):
        p = mr.Pipeline("p")
        p.inject("events")
        p.add(Plain, **options)
        return identity(p.build())

    assert described() == described(productions=mr.WEAK, delivery=mr.AT_LEAST_ONCE)
