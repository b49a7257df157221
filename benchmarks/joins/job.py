"""What the parent asks of a contender's process, and what that process answers."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.joins.workload import Totals


@dataclass(frozen=True)
class Job:
    """What a contender is to do.

    Args:
        rival: Name of the contender.
        shape: Of the join.
        batches: That the input has.
        cores: Task slots or workers.
        folder: With the input; for everything that is written, too.
        jars: What Flink needs beside its wheel.
    """

    rival: str
    shape: str
    batches: int
    cores: int
    folder: str
    jars: list[str] = field(default_factory=list)

    def dump(self, path: Path) -> None:
        """Write the job as JSON."""
        path.write_text(json.dumps(dataclasses.asdict(self)))

    @classmethod
    def load(cls, path: Path) -> Job:
        """Read what ``dump`` wrote."""
        return cls(**json.loads(path.read_text()))


@dataclass(frozen=True)
class Outcome:
    """When the measured batches began, and the last one ended, Unix time; and what was written."""

    marks_s: list[float]
    totals: Totals

    def dump(self, path: Path) -> None:
        """Write the outcome as JSON."""
        path.write_text(json.dumps(dataclasses.asdict(self)))

    @classmethod
    def load(cls, path: Path) -> Outcome:
        """Read what ``dump`` wrote."""
        found = json.loads(path.read_text())
        return cls(found["marks_s"], Totals(**found["totals"]))
