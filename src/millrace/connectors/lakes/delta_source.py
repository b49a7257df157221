"""A Delta source: what is appended to a Delta Lake table, version by version.

Spark's own reader of Delta Lake is a DataFrame like any other, on the epoch plane, with jars in the
session. This one needs none, and reads on both planes and in a batch.

Source: MillWheel, "Injector and Low Watermark API" (5.2); the Delta transaction protocol.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from millrace.connectors.lakes.appends import Appends, CommitFiles
from millrace.connectors.lakes.delta_history import DeltaHistory, DeltaOffset
from millrace.connectors.lakes.delta_log import Log, require_deltalake, rows_of
from millrace.connectors.table_files import table_files
from millrace.model.errors import PipelineError
from millrace.model.time import Instant, timestamp_us


class DeltaAppends(Appends):
    """Reads the rows of a Delta Lake table, and those that are appended to it from then on.

    It begins with all rows that the table has; then come the rows that each later version appended,
    in order, each once. Compaction (``OPTIMIZE``) moves rows and is passed over. A version that
    deletes, updates or overwrites rows ends the run, with its number. The table is one process:
    name ``inject(low_watermark=)``, what its rows promise.

    Args:
        path: Of the table, which driver and workers reach: a local or mounted path, or
            ``s3://bucket/prefix``, ``gs://bucket/prefix``, ``az://container/prefix``, with the
            credentials of the environment.
        schema: Columns of a row, as Spark writes them: ``"taxi string, at timestamp"``. Only these
            are read, and each must be there, of that type.
        since: Read only what was committed at this instant or later, by the versions' own times.
        version: Read only what this version and later ones add; not together with ``since``.
        skip: Versions that take rows away, and are to be left out with all they do.
        records_per_epoch: How many records an epoch reads at the most, but for the last file, of
            which it reads all.

    Raises:
        PipelineError: ``deltalake`` is not installed, or an argument is wrong.

    >>> import tempfile
    >>> from deltalake import write_deltalake
    >>> lake = tempfile.mkdtemp()
    >>> rows = pa.table({"taxi": ["T1", "T2"], "at": [5, 7]})
    >>> write_deltalake(lake, rows)
    >>> import millrace as mr
    >>> p = mr.Pipeline("trips")
    >>> trips = DeltaAppends(lake, schema="taxi string, at long")
    >>> p.inject("trips", trips, timestamp="at", low_watermark=mr.BoundedDelay("1 min"))
    Stream('trips')
    >>> p.sink("trips", mr.sinks.Memory())
    >>> h = mr.testing.Harness(p, publish=True)
    >>> h.poll("trips"), h.poll("trips")  # where it begins is noted before anything is read
    (0, 2)
    >>> write_deltalake(lake, rows, mode="append")
    >>> h.poll("trips")
    2
    """

    called = "sources.Delta"

    def __init__(
        self,
        path: str | Path,
        *,
        schema: str,
        since: Instant | None = None,
        version: int | None = None,
        skip: Collection[int] = (),
        records_per_epoch: int = 1_000_000,
    ) -> None:
        require_deltalake("sources.Delta", "on driver and workers")
        self.path = str(path)
        if version is not None and (since is not None or version < 0):
            raise PipelineError(
                f"sources.Delta(version={version}, since={since!r}): expected one of the two, "
                "and a version of 0 or more."
            )
        super().__init__(self.path, schema, records_per_epoch)
        self._files = table_files(self.path, repr(self))
        self._since_us = None if since is None else timestamp_us(since)
        self._first = version
        self._skip = frozenset(skip)
        self._log: Log | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_log": None}

    def read_arrow(self, process: str, start: Any, end: Any) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some files of one version."""
        for file in end:
            yield from rows_of(file, self.schema, repr(self))

    def _history(self) -> DeltaHistory:
        if self._log is None:
            self._log = Log(self._files, self.schema, repr(self))
        self._log.refresh()
        return DeltaHistory(self._log, self._skip, repr(self))

    def _beginning(self, history: DeltaHistory, before_us: int | None) -> DeltaOffset | None:
        return history.beginning(self._since_us, self._first, before_us)

    def _piece(self, files: CommitFiles, begun: int, until: int) -> tuple[Any, Any]:
        # A worker reads these, and need not look into the log.
        return [*files.place(begun)], [file.what for file in files.files[begun:until]]
