"""What a start refuses before the checkpoint is touched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from millrace.model.errors import PipelineError
from millrace.spark.driven_engine import DrivenSetup
from millrace.spark.microbatch_engine import MicroBatchSetup

NOTHING: Any = None


@pytest.mark.parametrize("trigger", ["soon", None, -1])
def test_a_trigger_that_is_no_duration(trigger: Any) -> None:
    refused = r"start\(trigger\): .* is not a duration"
    with pytest.raises(PipelineError, match=refused):
        MicroBatchSetup(NOTHING, NOTHING, "checkpoint", {"trigger": trigger}, Path())
    with pytest.raises(PipelineError, match=refused):
        DrivenSetup(NOTHING, NOTHING, {"trigger": trigger}, Path())
