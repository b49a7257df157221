"""Tiers as markers, and the Hypothesis profiles. tests/README.md says what each tier is for."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

TESTS = Path(__file__).parent
TIERS = ("unit", "transcripts", "properties", "faults", "spark")

# A wall-clock deadline would make the outcome depend on the machine; pytest-timeout is the limit.
settings.register_profile("default", derandomize=True, deadline=None)
settings.register_profile(
    "ci",
    derandomize=True,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("explore", deadline=None, max_examples=2_000, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        tier = item.path.relative_to(TESTS).parts[0] if item.path.is_relative_to(TESTS) else None
        if tier not in TIERS:
            raise pytest.UsageError(
                f"{item.nodeid} is in no tier: move it to one of {', '.join(TIERS)} under tests/, "
                "see tests/README.md."
            )
        item.add_marker(tier)
