"""What tests took, by tier, and budgets in seconds of a quiet machine."""

import pytest
from durations import REFERENCE_S, Durations, tier_of


@pytest.mark.parametrize(
    ("test", "tier"),
    [
        ("tests/unit/model/test_keys.py::test_a", "unit"),
        ("tests/spark/test_text.py::test_a[x/y]", "spark"),
        ("tests/spark/processes/kafka/test_kafka.py::test_a", "spark/processes"),
    ],
)
def test_a_tier_is_a_folder_and_processes_are_one_of_their_own(test, tier):
    assert tier_of(test) == tier


def took(seconds, works):
    durations = Durations()
    for work in works:
        durations.add_work(work * REFERENCE_S, ended_s=50.0)
    durations.add("tests/unit/test_a.py::test_a", seconds - 1, ended_s=50.0)
    durations.add("tests/unit/test_a.py::test_a", 1, ended_s=51.0)
    return durations


def test_phases_of_a_test_are_added_up():
    assert took(14.0, [1.0]).by_tier() == {"unit": (1, 14.0)}


def test_a_budget_may_be_passed_by_less_than_half():
    assert took(14.9, [1.0]).passed({"unit": 10.0}) == []
    (sentence,) = took(15.2, [1.0]).passed({"unit": 10.0})
    assert "unit took 15 reference seconds; their budget is 10" in sentence


def test_a_machine_that_is_three_times_slower_has_three_times_as_long():
    assert took(44.0, [2.0, 4.0]).passed({"unit": 10.0}) == []
    assert took(46.0, [2.0, 4.0]).passed({"unit": 10.0}) != []


def test_a_fast_machine_is_not_asked_for_more():
    assert took(14.9, [0.5]).passed({"unit": 10.0}) == []


def test_without_a_budget_nothing_is_passed():
    assert took(1000.0, [1.0]).passed({}) == []


def test_seconds_are_divided_by_the_slowness_of_their_own_minutes():
    durations = Durations()
    for minute, work in enumerate((1.0, 4.0, 2.0)):
        durations.add_work(work * REFERENCE_S, ended_s=60.0 * minute + 30)
    durations.add("tests/unit/test_a.py::test_quiet", 10.0, ended_s=50.0)
    durations.add("tests/unit/test_a.py::test_disturbed", 10.0, ended_s=100.0)
    durations.add("tests/unit/test_a.py::test_of_two_minutes", 30.0, ended_s=130.0)
    durations.add("tests/unit/test_a.py::test_unmeasured", 7.0, ended_s=1_000.0)
    assert durations.references == {
        "tests/unit/test_a.py::test_quiet": 10.0,
        "tests/unit/test_a.py::test_disturbed": 2.5,
        "tests/unit/test_a.py::test_of_two_minutes": 10.0,
        "tests/unit/test_a.py::test_unmeasured": 3.0,
    }
