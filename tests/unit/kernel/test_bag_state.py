"""BagState: items in the order they were added."""

import pytest

import millrace as mr


@pytest.fixture
def steps(harness):
    """Run functions of a bag one after the other, each in an epoch of its own."""

    def run(*functions, crash=False):
        class Stepped(mr.Computation):
            inputs = {"events": mr.by(lambda _: "k")}
            bag = mr.BagState(int)

            def process_record(self, record):
                got.append(functions[record.value](self.bag))

        got = []
        h = harness(Stepped)
        for n in range(len(functions)):
            h.inject("events", [(n, 0)])
            if crash:
                h.crash()
        return got

    return run


def add(*items):
    def adding(bag):
        for item in items:
            bag.add(item)

    return adding


def test_it_is_empty_at_first(steps):
    assert steps(list) == [[]]


@pytest.mark.parametrize("crash", [False, True])
def test_items_come_in_the_order_they_were_added(steps, crash):
    assert steps(add(3, 1), add(2), list, crash=crash)[-1] == [3, 1, 2]


def test_order_survives_many_commits(steps):
    assert steps(*(add(n) for n in range(300)), list)[-1] == list(range(300))


def test_equal_items_are_kept_apart(steps):
    assert steps(add(7, 7), add(7), list)[-1] == [7, 7, 7]


def test_an_item_is_seen_in_the_hook_that_added_it(steps):
    assert steps(add(1), lambda bag: (bag.add(2), list(bag))[1])[-1] == [1, 2]


def test_cleared_it_is_empty(steps):
    assert steps(add(1), lambda bag: (bag.clear(), list(bag))[1], list) == [None, [], []]


def test_items_added_after_clear_are_all_there_is(steps):
    assert steps(add(1, 2), lambda bag: (bag.clear(), bag.add(3)), list)[-1] == [3]


def test_items_added_before_clear_in_one_hook_are_gone(steps):
    assert steps(lambda bag: (bag.add(1), bag.clear()), list)[-1] == []


def test_items_may_be_added_while_iterating_over_a_copy(steps):
    def double(bag):
        for item in list(bag):
            bag.add(item * 10)

    assert steps(add(1), add(2), double, list)[-1] == [1, 2, 10, 20]
