"""Metrics as lines of JSON in a file of the checkpoint: one an epoch, kept for a time.

They are there for a run that is gone. Nothing depends on them, so they are not made durable.
"""

from __future__ import annotations

import logging
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any, Final

from millrace.inspect import as_json
from millrace.spark.metrics.table import HISTOGRAMS, values
from millrace.spark.status import Status
from millrace.store import HardState, LocalHardState

_log = logging.getLogger("millrace")

#: Some thousand epochs each.
_BYTES_MAX: Final = 4 << 20
_FILES: Final = 4


class MetricLines:
    """Appends a line an epoch to ``metrics/epochs.jsonl`` of a checkpoint in a directory.

    When that is full it becomes ``epochs.jsonl.1``, and so on to ``.4``. A line that cannot be
    written is left out; that is said once.

    Args:
        checkpoint: The directory; None for a checkpoint in an object store, which gets none.
    """

    def __init__(self, checkpoint: Path | None) -> None:
        self._file: _Rotated | None = None
        if checkpoint is not None:
            self._file = _Rotated(checkpoint / "metrics" / "epochs.jsonl")

    def add(self, status: Status, at_us: int) -> None:
        """Append where a run stands after an epoch.

        Args:
            status: Of the run.
            at_us: What time it is.
        """
        if self._file is not None:
            line = {
                "at": at_us,
                "state": status.state,
                **values(status),
                **{
                    metric.name: {
                        label: dict(zip(("p50", "p95", "p99"), times.percentiles(), strict=True))
                        for label, times in metric.draw(status).items()
                    }
                    for metric in HISTOGRAMS
                },
                "hook_calls": {
                    name: dict(sorted(load.times.calls.items()))
                    for name, load in status.load.items()
                    if load.times.calls
                },
                # Not among the metrics: a label a key, or interval, would be one without a bound.
                "hottest_keys": {
                    name: {hot.key: round(hot.share, 3) for hot in load.hottest}
                    for name, load in status.load.items()
                },
                "interval_shares": {
                    name: {id: round(share, 3) for id, share in load.intervals.items()}
                    for name, load in status.load.items()
                },
            }
            self._file.write(as_json(line).decode())

    def close(self) -> None:
        """Write no more."""
        if self._file is not None:
            self._file.close()


def lines_in(state: HardState) -> MetricLines:
    """Return where the metrics of a checkpoint are kept."""
    return MetricLines(state.path if isinstance(state, LocalHardState) else None)


class _Rotated(RotatingFileHandler):
    """A file that is rotated, as logging does it, without being anybody's log."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            path, maxBytes=_BYTES_MAX, backupCount=_FILES, encoding="utf-8", delay=True
        )
        self._warned = False

    def write(self, line: str) -> None:
        record = logging.makeLogRecord({"msg": line})
        try:
            Path(self.baseFilename).parent.mkdir(exist_ok=True)
        except OSError:
            self.handleError(record)
            return
        self.handle(record)
        # Open between two epochs, it would keep the checkpoint's disk from being given back.
        self.close()

    def handleError(self, record: Any) -> None:
        if not self._warned:
            self._warned = True
            _log.warning("metrics cannot be written to %s", self.baseFilename, exc_info=True)
