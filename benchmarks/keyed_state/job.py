"""What the parent asks of a contender's process, and what that process answers."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.keyed_state.workload import Totals, Workload


@dataclass(frozen=True)
class Job:
    """One contender on one workload.

    Args:
        rival: Name of the contender, a key of ``contender.CONTENDERS``.
        workload: What ``input_dir`` holds.
        input_dir: Parquet files, in order of their names.
        scratch_dir: Empty folder for checkpoints and databases.
        cores: Task slots or workers.
        servers: A Kafka broker, for those that read from one.
    """

    rival: str
    workload: Workload
    input_dir: Path
    scratch_dir: Path
    cores: int
    servers: str = ""

    def dump(self, path: Path) -> None:
        """Write the job as JSON."""
        path.write_text(json.dumps(dataclasses.asdict(self), default=str, indent=1))

    @classmethod
    def load(cls, path: Path) -> Job:
        """Read what ``dump`` wrote."""
        found = json.loads(path.read_text())
        return cls(
            rival=found["rival"],
            workload=Workload(**found["workload"]),
            input_dir=Path(found["input_dir"]),
            scratch_dir=Path(found["scratch_dir"]),
            cores=found["cores"],
            servers=found["servers"],
        )


@dataclass(frozen=True)
class Outcome:
    """What a contender found: when its measured batches ran, and what its state adds up to.

    Args:
        marks_s: Unix time of the start of each measured batch, then of the end of the last.
        totals: Read back from the contender's state.
        notes: Anything else worth keeping in the result file.
    """

    marks_s: list[float]
    totals: Totals
    notes: dict[str, Any] = field(default_factory=dict)

    def dump(self, path: Path) -> None:
        """Write the outcome as JSON."""
        path.write_text(json.dumps(dataclasses.asdict(self), indent=1))

    @classmethod
    def load(cls, path: Path) -> Outcome:
        """Read what ``dump`` wrote."""
        found = json.loads(path.read_text())
        return cls(found["marks_s"], Totals(**found["totals"]), found["notes"])
