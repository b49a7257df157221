"""Which tests go together to one process."""

from pathlib import Path

import pytest
from scheduling import group_of, rank

SESSION = "tests/spark/test_text.py::test_a"
KAFKA = "tests/spark/processes/kafka/test_kafka.py::test_a"
PROCESS = "tests/spark/processes/test_drivers.py::test_a"
SCHEDULE = "tests/simulation/test_schedules.py::test_a[Simulation-0]"
REPLAY = "tests/simulation/test_replay.py::test_a[epochs]"
UNIT = "tests/unit/model/test_keys.py::test_a"


@pytest.mark.parametrize(
    ("test", "group"),
    [
        (SESSION, "tests/spark"),
        (KAFKA, "tests/spark"),
        (PROCESS, "tests/spark/processes/test_drivers.py"),
        (SCHEDULE, SCHEDULE),
        (REPLAY, "tests/simulation/test_replay.py"),
        (UNIT, "tests/unit/model/test_keys.py"),
    ],
)
def test_a_spark_session_is_shared_by_one_process(test, group):
    assert group_of(test) == group


def test_what_takes_long_goes_first():
    assert sorted([UNIT, SCHEDULE, PROCESS, SESSION], key=rank) == [
        SESSION,
        PROCESS,
        SCHEDULE,
        UNIT,
    ]


def test_one_driver_in_real_time_is_shared_by_one_process():
    tests = Path(__file__).parents[2]
    files = [
        str(file.relative_to(tests.parent))
        for file in (tests / "spark" / "processes").rglob("test_*.py")
        if "live_driver" in file.read_text()
    ]

    assert len(files) >= 6
    assert {group_of(f"{file}::test_a") for file in files} == {"tests/spark/processes/live_driver"}
