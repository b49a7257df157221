"""Iceberg: an Apache Iceberg table, to which an epoch, or a mark, is one snapshot."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from millrace.connectors.lakes.iceberg_catalog import require_pyiceberg
from millrace.connectors.lakes.iceberg_table import IcebergCommits
from millrace.connectors.lakes.table import TableSink
from millrace.connectors.table_files import table_files
from millrace.model.errors import PipelineError

if TYPE_CHECKING:
    from millrace.runtime.sink_contract import Binding


class Iceberg(TableSink):
    """An Apache Iceberg table, to which each epoch (in real time: each mark) is one snapshot.

    The columns are the fields of the record format (or ``value``), and ``_key``, ``_timestamp`` and
    ``_id``, as of :class:`~millrace.sinks.Parquet`. Each task of the last level writes a Parquet
    file aside. The driver adds them all to the table in one commit. The table's properties name the
    checkpoint and the last epoch that it has. What comes again after a failure is known by that, so
    each record is in the table once, and a reader sees whole epochs. Others may append to the
    table, compact it and expire its snapshots at the same time.

    Rows are added, and none is replaced: for a table by key there are
    :class:`~millrace.sinks.Delta` and :class:`~millrace.sinks.PostgreSQL`.

    Args:
        table: Its name in the catalog, with its namespace: ``"lake.totals"``. It is made if it is
            not there. One that exists needs the columns, and others that may be null. It may have
            partitions by value, or by year, month, day or hour.
        path: Iceberg's location, which driver and workers reach: a local or mounted path, or a URL
            of a bucket, as :class:`~millrace.sinks.Delta` has it. PyIceberg reads its own keys
            from the catalog's properties, such as ``s3.endpoint``, or the environment.
        catalog: Name of a catalog in PyIceberg's configuration (``~/.pyiceberg.yaml``), or its
            properties: ``{"type": "sql", "uri": "sqlite:////lake/catalog.db"}``. Only the driver
            opens it.

    Raises:
        PipelineError: ``pyiceberg`` is not installed in the driver, or it is no such name or path.

    Source: the Iceberg table specification, "Optimistic Concurrency" and "Snapshots".
    """

    def __init__(self, table: str, path: str | Path, *, catalog: str | Mapping[str, str]) -> None:
        require_pyiceberg("Iceberg", "on the driver")
        self.table = table
        self.path = str(path)
        self.catalog = catalog
        if not all(table.split(".")) or "." not in table:
            raise PipelineError(
                f"Iceberg({table!r}): expected a table with its namespace, such as 'lake.totals'."
            )
        files = table_files(self.path, repr(self))
        if wrong := [character for character in "#?" if character in files.location]:
            raise PipelineError(
                f"{self!r}: PyIceberg finds nothing under a path with {wrong[0]!r}. Name another."
            )
        super().__init__(files)

    def commits(self, binding: Binding) -> IcebergCommits:
        """Return what commits a checkpoint's epochs; nothing is written yet."""
        return IcebergCommits(
            self.table, self._files, self.catalog, binding.owner, binding.columns.arrow, repr(self)
        )

    def __repr__(self) -> str:
        return f"Iceberg({self.table!r}, {self.path!r})"
