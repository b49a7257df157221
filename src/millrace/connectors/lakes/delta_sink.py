"""Delta: a Delta Lake table, to which an epoch, or a mark, is one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from millrace.compile.sink_limits import SinkLimits
from millrace.connectors.lakes.delta_log import require_deltalake
from millrace.connectors.lakes.delta_table import DELETED, DeltaCommits
from millrace.connectors.lakes.table import TableSink
from millrace.connectors.latest import check_key
from millrace.connectors.parquet.files import FILE_LIMITS
from millrace.connectors.table_files import table_files
from millrace.model.declarations import names

if TYPE_CHECKING:
    from millrace.runtime.sink_contract import Binding


class Delta(TableSink):
    """A Delta Lake table, to which each epoch (in real time: each mark) is one transaction.

    The columns are the fields of the record format (or ``value``), and ``_key``, ``_timestamp`` and
    ``_id``, as of :class:`~millrace.sinks.Parquet`. Each task of the last level writes a Parquet
    file aside. The driver adds them all to the table in one commit. It also names the checkpoint
    and the epoch (Delta's application transactions). What comes again after a failure is known by
    that, so each record is in the table once, and a reader sees whole epochs. Others may append to
    the table, compact and vacuum it at the same time.

    Args:
        path: Of the table, which driver and workers reach: a local or mounted path, or
            ``s3://bucket/prefix``, ``gs://bucket/prefix``, ``az://container/prefix``, with the
            credentials of the environment. It is made if it does not exist. One that exists needs
            the columns, and none that may not be null.
        key: Columns that identify a row, such as ``"_key"`` or ``("_key", "_window_start")``: a
            record replaces the row with the same key, by Delta's merge, and a retraction deletes
            it. Of several in one epoch the one that was produced last counts. None: append.
        partition_by: Columns by which to partition a table that is made: text, integers, booleans
            or dates. A table that exists keeps its own. An empty text is null there, as Delta has
            it.

    Raises:
        PipelineError: ``deltalake`` is not installed in the driver, or it is no such path.
    """

    limits = SinkLimits(names=FILE_LIMITS.names | {DELETED})

    def __init__(
        self,
        path: str | Path,
        *,
        key: str | Sequence[str] = (),
        partition_by: str | Sequence[str] = (),
    ) -> None:
        require_deltalake("Delta", "on the driver")
        self.path = str(path)
        self.key = names(key, "Delta(key")
        self._partition_by = names(partition_by, "Delta(partition_by")
        super().__init__(table_files(self.path, repr(self)))

    def commits(self, binding: Binding) -> DeltaCommits:
        """Return what commits a checkpoint's epochs; nothing is written yet."""
        columns = binding.columns.arrow
        check_key(self.key, columns, repr(self))
        return DeltaCommits(
            self._files, binding.owner, columns, repr(self), self.key, self._partition_by
        )

    def __repr__(self) -> str:
        return f"Delta({self.path!r})"
