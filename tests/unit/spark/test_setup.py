"""What a start refuses before the checkpoint is touched."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from millrace.model.errors import PipelineError
from millrace.spark.driven_engine import DrivenSetup
from millrace.spark.microbatch_engine import MicroBatchSetup, free_name

NOTHING: Any = None


@pytest.mark.parametrize("trigger", ["soon", None, -1])
def test_a_trigger_that_is_no_duration(trigger: Any) -> None:
    refused = r"start\(trigger\): .* is not a duration"
    with pytest.raises(PipelineError, match=refused):
        MicroBatchSetup(NOTHING, NOTHING, "checkpoint", {"trigger": trigger}, Path())
    with pytest.raises(PipelineError, match=refused):
        DrivenSetup(NOTHING, NOTHING, {"trigger": trigger}, Path())


def test_two_runs_of_one_name_in_a_session() -> None:
    queries = [SimpleNamespace(name=name) for name in ("millrace: p", "millrace: p (2)", None)]
    session: Any = SimpleNamespace(streams=SimpleNamespace(active=queries))
    assert free_name(session, "millrace: p") == "millrace: p (3)"
    assert free_name(session, "millrace: q") == "millrace: q"
