"""What the parent asks of a contender's process, and what that process answers."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

#: Folders of the input.
SMALL, ALL = "small", "all"


@dataclass(frozen=True)
class Job:
    """One contender on some queries.

    Args:
        rival: Name of the contender, a key of ``rivals.CONTENDERS``.
        queries: As one pipeline; all but Millrace have one.
        input_dir: Folders ``small`` and ``all``, as ``workload.make`` left them.
        scratch_dir: For checkpoints and results.
        cores: Task slots or workers.
        jars: What Flink needs beside its wheel.
        disorder_us: How far out of order events are.
        timed: Whether the two runs over few events come first.
    """

    rival: str
    queries: list[str]
    input_dir: Path
    scratch_dir: Path
    cores: int
    jars: list[str]
    disorder_us: int
    timed: bool = True

    def results(self, query: str, run: str = "all") -> Path:
        """Return where a query's results of a run are written."""
        return self.scratch_dir / f"results-{run}" / query

    def checkpoint(self, run: str) -> str:
        """Return where a run has its checkpoint."""
        return str(self.scratch_dir / f"checkpoint-{run}")

    def dump(self, path: Path) -> None:
        """Write the job as JSON."""
        path.write_text(json.dumps(dataclasses.asdict(self), default=str))

    @classmethod
    def load(cls, path: Path) -> Job:
        """Read what ``dump`` wrote."""
        found = json.loads(path.read_text())
        return cls(
            **{**found, **{name: Path(found[name]) for name in ("input_dir", "scratch_dir")}}
        )


@dataclass(frozen=True)
class Outcome:
    """When the last run over few events and that over all began and ended, in Unix time."""

    small_s: tuple[float, float]
    all_s: tuple[float, float]
    notes: dict[str, Any] = field(default_factory=dict)

    def dump(self, path: Path) -> None:
        """Write the outcome as JSON."""
        path.write_text(json.dumps(dataclasses.asdict(self)))

    @classmethod
    def load(cls, path: Path) -> Outcome:
        """Read what ``dump`` wrote."""
        found = json.loads(path.read_text())
        return cls(tuple(found["small_s"]), tuple(found["all_s"]), found["notes"])
