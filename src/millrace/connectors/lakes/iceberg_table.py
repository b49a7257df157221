"""The table of an Iceberg sink: what it must be like, and how an epoch is added.

::

    data/part-7-00000-<random>.parquet    a file that a task has written
    metadata/                             Iceberg's own: PyIceberg writes it, and the catalog names
                                          the file that holds

Which epoch was added last is a property of the table, set by the commit that adds the epoch. In the
summary of its snapshot (where it is written, too, for readers) it would be gone with the snapshot,
when somebody expires it. Only one of two commits that began at the same snapshot succeeds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import pyarrow as pa

from millrace.connectors.lakes.iceberg_catalog import open_catalog
from millrace.connectors.lakes.iceberg_history import is_first
from millrace.connectors.lakes.partitions import PartitionField, StagedFile, not_partitions
from millrace.connectors.lakes.table import Commits, epoch_of
from millrace.connectors.table_files import TableFiles
from millrace.model.errors import CheckpointMismatch, MillraceError, PipelineError

#: Properties of the table, and of a snapshot's summary.
_OWNER: Final = "millrace.checkpoint"
_EPOCH: Final = "millrace.epoch"
#: After which epoch, and up to which, the table gave up what it had.
_TAKEN_BACK: Final = "millrace.taken-back"
#: PyIceberg would add the files again to what another has committed, without looking whose they
#: are. Tried again here, the epoch is looked for first.
_NO_RETRY: Final = {"commit.retry.num-retries": "0"}


class IcebergCommits(Commits):
    """Commits epochs to one table, whose catalog is opened when it is needed, and once.

    Args:
        name: Of the table, with its namespace.
        files: Its files.
        catalog: Name of the catalog, or its properties.
        owner: Id of the checkpoint, or of the batch.
        columns: Of the rows, a struct type.
        sink: The sink, for messages.
    """

    def __init__(
        self,
        name: str,
        files: TableFiles,
        catalog: str | Mapping[str, str],
        owner: str,
        columns: pa.StructType,
        sink: str,
    ) -> None:
        super().__init__(files, columns, sink)
        self._name = name
        self._of = catalog
        self._owner = owner
        self._catalog: Any = None

    def check(self) -> None:
        """Refuse a table that cannot take the rows.

        Raises:
            PipelineError: It is elsewhere, or partitioned, lacks a column, asks more of rows than
                is checked, or the catalog cannot be opened.
            CheckpointMismatch: It is another checkpoint's.
        """
        try:
            super().check()
        except MillraceError:
            raise
        except Exception as error:
            raise PipelineError(
                f"the sink {self._sink}: the catalog cannot be asked for the table: "
                f"{type(error).__name__}: {error}. Is it up, and are its properties right?"
            ) from error

    def _open(self) -> Any:
        """Return the table as it is now; None if there is none."""
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

        if self._catalog is None:
            self._catalog = open_catalog(self._of)
        try:
            return self._catalog.load_table(self._name)
        except (NoSuchNamespaceError, NoSuchTableError):
            return None

    def _make(self) -> Any:
        self._catalog.create_namespace_if_not_exists(self._name.rpartition(".")[0])
        return self._catalog.create_table_if_not_exists(
            self._name, self._columns, location=self._files.uri
        )

    def _has(self, table: Any, epoch: int) -> bool:
        owner = table.properties.get(_OWNER, self._owner)
        if owner != self._owner:
            raise CheckpointMismatch(
                f"the sink {self._sink} holds the output of another checkpoint (id {owner}; this "
                f"one is {self._owner}). Was the checkpoint deleted and its output kept, or is it "
                "that of an earlier batch? Write to another table, or drop this one."
            )
        return int(table.properties.get(_EPOCH, -1)) >= epoch

    def _add(self, table: Any, epoch: int, files: list[StagedFile]) -> None:
        root = _root(table)
        placed = self._files.place([file.name for file in files], "data")
        says = {_OWNER: self._owner, _EPOCH: str(epoch)}
        # In this process only: a commit sends what it changes.
        quick = table.metadata.properties | _NO_RETRY
        table.metadata = table.metadata.model_copy(update={"properties": quick})
        with table.transaction() as commit:
            commit.set_properties(says)
            # That none of them is in the table, the epoch says.
            commit.add_files(
                [f"{root}/{name}" for name in placed],
                snapshot_properties=says,
                check_duplicate_files=False,
            )
        self._files.sync(_written(table))

    def _remove(self, table: Any, after: int, until: int) -> None:
        done = {_TAKEN_BACK: f"{after}-{until}"}
        if done.items() <= table.properties.items():
            return
        known = table.inspect.all_data_files().column("file_path").to_pylist()
        added = {uri for uri in known if after < epoch_of(uri) <= until}
        there = list(table.scan().plan_files())
        tasks = [task for task in there if task.file.file_path in added]
        whole = {task.file.file_path for task in tasks if not task.delete_files}
        if lost := sorted(added - whole):
            raise self._rewritten(lost)
        foreign = sorted(uri for task in there if epoch_of(uri := task.file.file_path) < 0)
        if foreign and not self._goes_back(table, after):
            raise self._unknown(after, foreign[0])
        if not tasks:
            return
        quick = table.metadata.properties | _NO_RETRY
        table.metadata = table.metadata.model_copy(update={"properties": quick})
        with table.transaction() as commit:
            commit.set_properties(done)
            with commit.update_snapshot().overwrite() as change:
                for task in tasks:
                    change.delete_data_file(task.file)
        self._files.sync(_written(table))

    def _goes_back(self, table: Any, after: int) -> bool:
        """Return whether the kept snapshots go back to where the epoch after one began."""
        by_id = {snapshot.snapshot_id: snapshot for snapshot in table.metadata.snapshots}
        snapshot = by_id.get(table.metadata.current_snapshot_id)
        while snapshot is not None:
            says = {} if snapshot.summary is None else snapshot.summary.additional_properties
            if says.get(_OWNER) == self._owner and int(says.get(_EPOCH, after + 1)) <= after:
                return True
            if is_first(snapshot):
                return True
            snapshot = by_id.get(snapshot.parent_snapshot_id)
        return False

    def _refused(self, table: Any) -> str:
        self._has(table, 0)
        if _plain(_root(table)) != _plain(self._files.uri):
            return (
                f"the table's location is {table.location()}, and not {self._files.location}. Name "
                "that one."
            )
        fields, why = fields_of_spec(table, self._columns)
        self.partitions = fields
        return why or refused(table, self._columns)

    def _settle(self, table: Any) -> None:
        self._files.sync_folder("metadata", lambda _: True)

    def _conflicts(self) -> type[Exception]:
        return Exception  # of the catalog, whichever it is


def fields_of_spec(table: Any, columns: pa.Schema) -> tuple[tuple[PartitionField, ...], str]:
    """Return by what a table is partitioned, and why rows cannot be; empty if they can.

    Args:
        table: A ``pyiceberg.table.Table``.
        columns: Of the rows.
    """
    fields = list[PartitionField]()
    for field in table.spec().fields:
        column, transform = table.schema().find_column_name(field.source_id), str(field.transform)
        if transform not in ("identity", *_UNITS):
            return (), (
                f"the table is partitioned by {transform} of {column!r}. Expected partitions by "
                f"value, or by {', '.join(_UNITS)}. Name another table."
            )
        fields.append(PartitionField(column, "" if transform == "identity" else transform))
    return tuple(fields), not_partitions(fields, columns)


_UNITS: Final = ("year", "month", "day", "hour")


def refused(table: Any, columns: pa.Schema) -> str:
    """Return why rows cannot be added to a table; empty if they can.

    Args:
        table: A ``pyiceberg.table.Table``.
        columns: Of the rows.
    """
    from pyiceberg.io.pyarrow import pyarrow_to_schema

    if "write.metadata.path" in table.properties:
        return "'write.metadata.path' is set, and metadata is looked for at the table's location."
    there = {field.name: field for field in table.schema().fields}
    if missing := [name for name in columns.names if name not in there]:
        return (
            f"the table has no column {missing[0]!r}. It has {sorted(there)}. Add it, or name "
            "another table."
        )
    try:
        rows = pyarrow_to_schema(columns, table.schema().name_mapping)
    except ValueError as error:  # of fields in fields
        return f"its columns are others: {error} Name another table."
    for field in rows.fields:
        if there[field.name].field_type != field.field_type:
            return (
                f"column {field.name!r} of the table is {there[field.name].field_type}, and of the "
                f"records {field.field_type}. Name another table, or produce another format."
            )
    if asks := [name for name, field in there.items() if field.required]:
        why = (
            "no record has it" if asks[0] not in columns.names else "its files do not promise that"
        )
        return f"column {asks[0]!r} may not be null, and {why}. Name a table without."
    return ""


def _written(table: Any) -> Iterator[str]:
    """Yield the names of a commit's files but those of its data; PyIceberg does not sync them."""
    snapshot, root = table.current_snapshot(), _plain(_root(table))
    yield _plain(table.metadata_location).removeprefix(f"{root}/")
    yield _plain(snapshot.manifest_list).removeprefix(f"{root}/")
    for manifest in snapshot.manifests(table.io):
        if manifest.added_snapshot_id == snapshot.snapshot_id:
            yield _plain(manifest.manifest_path).removeprefix(f"{root}/")


def _root(table: Any) -> str:
    return str(table.location()).rstrip("/")


def _plain(location: str) -> str:
    """Return a location, in which nothing is quoted, without ``file:``, and S3's by one name.

    >>> _plain("file:///lake/t"), _plain("file:/lake/t"), _plain("/lake/t"), _plain("s3a://lake/t")
    ('/lake/t', '/lake/t', '/lake/t', 's3://lake/t')
    """
    if location.startswith("file:"):
        path = location.removeprefix("file:")
        return path[2:] if path.startswith("//") else path
    scheme, colon, rest = location.partition(":")
    return f"s3:{rest}" if colon and scheme in ("s3a", "s3n") else location
