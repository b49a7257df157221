"""Delta: a Delta Lake table, to which an epoch, or a mark, is one transaction."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from millrace.model.errors import PipelineError
from millrace.sinks.delta_table import DeltaCommits, require_deltalake
from millrace.sinks.latest import check_key, key_columns
from millrace.sinks.owner import claim_directory
from millrace.sinks.parquet_files import STAGING, ParquetWriter, clear, refusing
from millrace.store import local_path

if TYPE_CHECKING:
    from millrace.plane.binding import Binding

_log = logging.getLogger("millrace")


class Delta:
    """A Delta Lake table, to which each epoch (in real time: each mark) is one transaction.

    The columns are the fields of the record format (or ``value``), and ``_key``, ``_timestamp`` and
    ``_id``, as of :class:`~millrace.Parquet`. Each task of the last level writes a Parquet file
    aside; the driver adds them all to the table in one commit, which also names the checkpoint and
    the epoch (Delta's application transactions). What comes again after a failure is known by that,
    so each record is in the table once, and a reader sees whole epochs. Others may append to the
    table, compact and vacuum it at the same time.

    Args:
        path: Of the table, a local or mounted path that driver and workers reach. It is made if it
            is not there. One that is there needs the columns, and none that may not be null.
        key: Columns by which a row is told, such as ``"_key"`` or ``("_key", "_window_start")``: a
            record replaces the row with the same key, by Delta's merge, and a retraction deletes
            it. Of several in one epoch the one that was produced last counts. None: append.

    Raises:
        PipelineError: ``deltalake`` is not installed in the driver, or it is no such path.
    """

    def __init__(self, path: str | Path, *, key: str | Sequence[str] = ()) -> None:
        require_deltalake()
        self.path = str(path)
        self.key = key_columns(key)
        if not self.path or ("://" in self.path and not self.path.startswith("file://")):
            raise PipelineError(
                f"Delta({self.path!r}): expected a local or mounted path, which driver and workers "
                "reach. For a table in an object store write with a callable (DataFrame, epoch) "
                "and Spark's own Delta Lake, on the epoch plane."
            )
        self._root = local_path(self.path)
        self._table: DeltaCommits | None = None

    def bind(self, binding: Binding) -> str:
        """Claim the directory for a checkpoint, and return it; before a run writes anything.

        Raises:
            CheckpointMismatch: Another checkpoint has written there.
            CheckpointUnwritable: The directory cannot be written.
            PipelineError: There is a table that cannot take the stream's records.
        """
        columns = binding.columns.arrow
        check_key(self.key, columns, repr(self))
        table = DeltaCommits(self._root, binding.owner, columns, repr(self), self.key)
        table.check()
        claim_directory(self._root, binding.owner, repr(self))
        self._table = table
        return f"Delta({str(self._root)!r})"

    def for_tasks(self) -> ParquetWriter:
        """Return what tasks write with; they need no ``deltalake``."""
        return ParquetWriter(str(self._root), repr(self))

    def publish(self, epoch: int, receipts: list[bytes]) -> None:
        """Add the records of an epoch to the table, unless it has that epoch: the same rows.

        Raises:
            SinkError: The disk refuses, the table has become another one, or a record has no key.
        """
        table = self._bound()
        with refusing(f"{self!r}, epoch {epoch}"):
            table.append(epoch, [receipt.decode() for receipt in receipts])
            clear(self._root / STAGING, epoch)

    def publish_again(self, epoch: int, receipts: list[bytes]) -> None:
        """Publish the mark that completed last, if its driver has not; see :meth:`publish`."""
        staged = [self._root / STAGING / receipt.decode() for receipt in receipts]
        if self._bound().has(epoch) or any(file.exists() for file in staged):
            self.publish(epoch, receipts)
        else:
            _log.warning(
                "%r, epoch %d: neither the table nor the directory has it. Was it removed? It is "
                "not made again.",
                self,
                epoch,
            )

    def _bound(self) -> DeltaCommits:
        assert self._table is not None, "a sink is bound before anything is published"
        return self._table

    def __repr__(self) -> str:
        return f"Delta({self.path!r})"
