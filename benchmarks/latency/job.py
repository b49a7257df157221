"""What the parent asks of a contender's process, and how the two meet.

The contender makes the file ``ready`` once records would be processed, runs until there is a file
``stop``, and then leaves its outcome. This module needs the standard library only: Flink's
environment has little else.
"""

from __future__ import annotations

import dataclasses
import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

#: What a record becomes on its way from one stage to the next: ``key * REKEY % keys``. It has no
#: factor in common with a power of ten, so there are as many keys in each stage.
REKEY = 31
_LOOK_EVERY_S = 0.1


@dataclass(frozen=True)
class Job:
    """One contender in one cell.

    Attributes:
        rival: Name of the contender, a key of ``contender.CONTENDERS``.
        servers: The broker; empty with a synthetic source and no sink topic.
        source: Topic that is read; empty: the synthetic injector.
        sink: Topic that is written; empty: none.
        conninfo: Of PostgreSQL, whose table ``visible.TABLE`` is written; empty: none.
        rate: Records a second.
        records: All records, warm-up included.
        keys: Keys are below it.
        stages: How many stages count.
        partitions: Of both topics, and tasks a stage.
        scratch_dir: Empty folder for checkpoints, probes, and the files by which the two meet.
        jars: What Flink or Spark need beside their wheels.
        probe_every: User code of the last stage says so of one key in so many.
        every_ms: How often the synthetic injector sends what is due.
    """

    rival: str
    servers: str
    source: str
    sink: str
    conninfo: str
    rate: int
    records: int
    keys: int
    stages: int
    partitions: int
    scratch_dir: Path
    jars: list[str]
    probe_every: int = 1
    every_ms: int = 1

    @property
    def probes_dir(self) -> Path:
        """Where user code of the last stage says when it was called."""
        return self.scratch_dir / "probes"

    @property
    def begin_path(self) -> Path:
        """Where it is said when the synthetic injector begins, in nanoseconds since 1970."""
        return self.scratch_dir / "begin"

    @property
    def ready_path(self) -> Path:
        """Made by the contender: it is there."""
        return self.scratch_dir / "ready"

    @property
    def stop_path(self) -> Path:
        """Made by the parent: everything has been seen."""
        return self.scratch_dir / "stop"

    def wait_for_stop(self) -> None:
        """Say that records would be processed now, and return when no more will come."""
        self.ready_path.touch()
        while not self.stop_path.exists():
            time.sleep(_LOOK_EVERY_S)

    def dump(self, path: Path) -> None:
        """Write the job as JSON."""
        path.write_text(json.dumps(dataclasses.asdict(self), default=str, indent=1))

    @classmethod
    def load(cls, path: Path) -> Job:
        """Read what ``dump`` wrote."""
        found = json.loads(path.read_text())
        return cls(**{**found, "scratch_dir": Path(found["scratch_dir"])})


@dataclass(frozen=True)
class Outcome:
    """What a contender says at its end.

    Attributes:
        notes: Anything worth keeping in the result file.
    """

    notes: dict[str, Any] = field(default_factory=dict)

    def dump(self, path: Path) -> None:
        """Write the outcome as JSON."""
        path.write_text(json.dumps(dataclasses.asdict(self), indent=1))

    @classmethod
    def load(cls, path: Path) -> Outcome:
        """Read what ``dump`` wrote."""
        return cls(**json.loads(path.read_text()))
