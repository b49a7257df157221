"""CombiningState: items folded into an accumulator."""

import pytest

import millrace as mr


@pytest.fixture
def fold(harness):
    """Add items, one an epoch (None clears), and return the accumulator after each."""

    def run(cell, *items):
        class Folding(mr.Computation):
            inputs = {"events": mr.by(lambda _: "k")}
            outputs = {"out": int | str | list | None}
            total = cell

            def process_record(self, record):
                if record.value is None:
                    self.total.clear()
                else:
                    self.total.add(record.value)
                self.produce("out", self.total.get("empty"))

        h = harness(Folding)
        for item in items:
            h.inject("events", [(item, 0)])
        h.crash()
        return [output.value for output in h.outputs("out")]

    return run


@pytest.mark.parametrize(
    ("add", "after"),
    [(sum, [3, 4, 6]), (max, [3, 3, 3]), (min, [3, 1, 1])],
    ids=["sum", "max", "min"],
)
def test_builtins_stand_for_themselves(fold, add, after):
    assert fold(mr.CombiningState(int, add), 3, 1, 2) == after


def test_it_adds_unless_told_otherwise(fold):
    assert fold(mr.CombiningState(int), 3, 1) == [3, 4]


def test_a_function_is_given_accumulator_and_item(fold):
    assert fold(mr.CombiningState(str, lambda acc, item: f"({acc}{item})"), "a", "b", "c") == [
        "a",
        "(ab)",
        "((ab)c)",
    ]


def test_with_an_initial_accumulator_items_may_be_of_another_type(fold):
    cell = mr.CombiningState(int, lambda acc, item: acc + len(item), initial=100)

    assert fold(cell, "a", "bcd") == [101, 104]


def test_an_initial_accumulator_is_not_there_before_the_first_item(fold):
    assert fold(mr.CombiningState(int, sum, initial=100), None, 1) == ["empty", 101]


def test_an_initial_accumulator_that_is_falsy_counts(fold):
    assert fold(mr.CombiningState(int, lambda acc, _: acc + 1, initial=0), 50, 60) == [1, 2]


def test_cleared_it_starts_again(fold):
    assert fold(mr.CombiningState(int), 3, None, 4) == [3, "empty", 4]


def test_an_accumulator_changed_in_place_by_add_is_persisted(fold):
    def append(items, item):
        items.append(item)
        return items

    cell = mr.CombiningState(list[int], lambda acc, item: append(list(acc), item), initial=[])

    assert fold(cell, 1, 2) == [[1], [1, 2]]
