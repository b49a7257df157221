"""Which tests go together to one process, and which go first.

Tests that share a Spark session go to one process, or each process starts a JVM; some of those need
the Kafka broker, which goes with them, and all that need it. So do those whose programs run in one
driver, ``spark/processes/live_driver.py``. Those of one file
go together too, because they share fixtures and caches. Only what takes long and shares nothing is
handed out test by test. pytest loads this file as a plugin; xdist asks it, unless ``--dist`` says
otherwise.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

#: The folders and files whose tests are handed out one by one; those of a replay share traces.
ONE_BY_ONE = re.compile(
    r"tests/(simulation/(?!test_replay\b)|faults/test_every_crash_point\b|transcripts/)"
)

#: The folders whose tests have the fixture ``spark`` or ``kafka``.
SESSION = re.compile(r"tests/spark/(?!processes/(?!kafka/))")

#: The files whose tests have the fixture ``live_driver``.
LIVE = re.compile(
    r"tests/spark/processes/"
    r"(test_live_(calls|features|hang|oracles|rests|tables|tasks|updates)|test_realtime)\.py"
)

#: In this order; what is not named comes last. One process would end alone with what takes long.
FIRST = [
    re.compile(r"tests/spark/(?!processes/)"),
    re.compile(r"tests/spark/processes/"),
    re.compile(r"tests/simulation/"),
    re.compile(r"tests/(properties|faults|browser)/"),
]


def group_of(test: str) -> str:
    """Return what a test, given by its id, goes together with."""
    file = test.partition("::")[0]
    if SESSION.match(file):
        return "tests/spark"
    if LIVE.match(file):
        return "tests/spark/processes/live_driver"
    return test if ONE_BY_ONE.match(file) else file


def rank(test: str) -> int:
    """Return how late a test, given by its id, is handed out."""
    return next((n for n, first in enumerate(FIRST) if first.match(test)), len(FIRST))


class SuiteScheduling(LoadScopeScheduling):
    """Hands out groups in the order of tests."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: rank(item.nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> SuiteScheduling | None:
    if config.getvalue("dist") != "load":
        return None
    config.option.loadscopereorder = False
    return SuiteScheduling(config, log)
