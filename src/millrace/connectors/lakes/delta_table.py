"""The table behind :class:`~millrace.sinks.Delta`: what it must be like, and how an epoch is added.

::

    _staging/epoch=7-00000-<random>.parquet    what an attempt at a task has written
    part-7-00000-<random>.parquet              the same file, by the name that the table knows
    _delta_log/00000000000000000012.json       the commit that adds it, and says: epoch 7

With a key the commit is a merge, for which delta-rs writes files of its own.

Source: the Delta transaction protocol, "Transaction Identifiers": ``txn`` with ``appId`` and
``version``.

Which Delta table it is that an epoch was merged into, and up to which version that is known.

A table by key has rows of epochs that nobody will make again. So where somebody else has made it
anew, overwritten it or set it back since, merging into what is there now would pass over the loss.

::

    _millrace_table    {"id": "...", "version": 12}, after each commit; readers pass over it

An epoch's records, merged by key into a Delta table in one commit.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from millrace.connectors.lakes.delta_log import LOG, actions_of, is_version, log_file
from millrace.connectors.lakes.partitions import PartitionField, StagedFile, not_partitions
from millrace.connectors.lakes.table import Commits, epoch_of
from millrace.connectors.latest import newest, retracted
from millrace.connectors.parquet.files import STAGING
from millrace.connectors.table_files import About, TableFiles
from millrace.model.errors import PipelineError

#: Column that says which keys' rows are deleted. No field of a record may have its name.
DELETED: Final = "_millrace_deleted"


def merge(
    table: Any, tables: Iterable[pa.Table], key: Sequence[str], properties: Any, where: str
) -> None:
    """Merge the records of some tasks into a table, in one commit.

    Args:
        table: A ``deltalake.DeltaTable``.
        tables: What each task has written.
        key: Columns by which rows are told.
        properties: Of the commit.
        where: The sink and the epoch, for messages.

    Raises:
        SinkError: A record has no key.
        FileNotFoundError: A file is gone.
        DeltaError: The commit is refused.
    """
    rows = newest(pa.concat_tables(tables), key, where)
    columns = {f"`{name}`": f"records.`{name}`" for name in rows.column_names}
    (
        table.merge(
            rows.append_column(DELETED, retracted(rows)),
            " AND ".join(f"there.`{name}` = records.`{name}`" for name in key),
            source_alias="records",
            target_alias="there",
            commit_properties=properties,
        )
        .when_matched_delete(f"records.`{DELETED}`")
        .when_matched_update(columns)
        .when_not_matched_insert(columns, f"NOT records.`{DELETED}`")
        .execute()
    )


_NAME: Final = "_millrace_table"
#: What Delta calls a write of everything anew, or of what was once.
_REWRITES: Final = frozenset({"CREATE OR REPLACE TABLE", "REPLACE TABLE", "RESTORE", "TRUNCATE"})


def rewritten(files: TableFiles, table: Any) -> str:
    """Return how a table was rewritten since it was noted; empty if it was not.

    Args:
        files: Of the table.
        table: A ``deltalake.DeltaTable``, as it is now.
    """
    try:
        known = json.loads(files.read(_NAME))
    except FileNotFoundError:
        return ""
    advice = (
        "Rows of earlier epochs may be gone, and are not made again. Name another path and start "
        f"with a new checkpoint; or, to go on with what is there, remove {files.location}/{_NAME}."
    )
    if known["id"] != table.metadata().id:
        return f"somebody has made the table anew: its id is another one. {advice}"
    if table.version() < known["version"]:
        return (
            f"the table is at version {table.version()}, and was at {known['version']}: its log "
            f"was set back. {advice}"
        )
    since = table.version() - known["version"]
    for commit in table.history(since) if since else ():
        operation = str(commit.get("operation", ""))
        mode = str(commit.get("operationParameters", {}).get("mode", ""))
        if operation in _REWRITES or (operation == "WRITE" and mode == "Overwrite"):
            change = f"{operation} {mode}".strip()
            return f"somebody has rewritten it in version {commit['version']} ({change}). {advice}"
    return ""


def note(files: TableFiles, table: Any) -> None:
    """Note which table it is, and its version. Older word than there could be does no harm."""
    known = {"id": table.metadata().id, "version": table.version()}
    files.replace(_NAME, json.dumps(known).encode())


#: By which commits are known that took epochs back.
_TAKEN_BACK: Final = "MILLRACE TAKE BACK"


class DeltaCommits(Commits):
    """Commits epochs to one table, which is opened when it is needed, and once.

    Args:
        files: Its files.
        owner: Id of the checkpoint, or of the batch: Delta's application.
        columns: Of the rows, a struct type.
        sink: The sink, for messages.
        key: Columns by which an epoch's records replace rows; without any they are added.
        partition_by: Columns by which a table that is made is partitioned.
    """

    def __init__(
        self,
        files: TableFiles,
        owner: str,
        columns: pa.StructType,
        sink: str,
        key: Sequence[str] = (),
        partition_by: Sequence[str] = (),
    ) -> None:
        super().__init__(files, columns, sink)
        self.partitions = tuple(map(PartitionField, partition_by))
        self._application = f"millrace-{owner}"
        self._key = key
        self._opened: Any = None

    whole = False

    def check(self) -> None:
        """Refuse a table that cannot take the rows.

        Raises:
            PipelineError: There is such a table, or it cannot be opened.
        """
        if why := not_partitions(self.partitions, self._columns):
            raise PipelineError(f"the sink {self._sink}: {why}")
        try:
            super().check()
        except OSError as error:
            raise PipelineError(
                f"the sink {self._sink}: the table cannot be opened: {self._files.explain(error)}"
            ) from None

    def _open(self) -> Any:
        """Return the table as it is now; None if there is none."""
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError

        if self._opened is not None:
            try:
                self._opened.update_incremental()
            except DeltaError:  # it was removed, or its log begins later now
                self._opened = None
        location, options = self._files.location, self._files.storage_options
        if self._opened is None and DeltaTable.is_deltatable(location, options):
            self._opened = DeltaTable(location, storage_options=options)
        return self._opened

    def _make(self) -> Any:
        from deltalake import DeltaTable, Schema

        DeltaTable.create(
            self._files.location,
            Schema.from_arrow(self._columns),
            mode="ignore",
            partition_by=self._columns_of_partitions,
            storage_options=self._files.storage_options,
        )
        self._sync(0)
        return self._open()

    def _has(self, table: Any, epoch: int) -> bool:
        last = table.transaction_version(self._application)
        return last is not None and last >= epoch

    def _add(self, table: Any, epoch: int, files: list[StagedFile]) -> None:
        from deltalake import CommitProperties, Transaction

        properties = CommitProperties(app_transactions=[Transaction(self._application, epoch)])
        if self._key:
            tables = self._files.map(self._staged, [file.name for file in files])
            merge(table, tables, self._key, properties, f"{self._sink}, epoch {epoch}")
            self._settle_merge(table)
        elif any(list(file.partition) != self._columns_of_partitions for file in files):
            raise self._error(
                epoch, "the table has other partitions than when its files were written."
            )
        else:
            self._append(table, files, properties)
            self._sync(table.version() + 1)

    def _remove(self, table: Any, after: int, until: int) -> None:
        there = {unquote(uri).rpartition("/")[2] for uri in table.file_uris()}
        ours = [file for file in there if after < epoch_of(file) <= until]
        added, removed, whole = self._logged(after, until)
        foreign = sorted(file for file in there if epoch_of(file) < 0)
        if foreign and not whole:
            raise self._unknown(after, foreign[0])
        vectors = pa.table(table.deletion_vectors()).column("filepath").to_pylist()
        shadowed = {unquote(path).rpartition("/")[2] for path in vectors}
        if lost := sorted((added - there - removed) | shadowed.intersection(ours)):
            raise self._rewritten(lost)
        if not ours:
            return
        if table.metadata().configuration.get("delta.appendOnly") == "true":
            raise self._rewritten(ours)
        now_ms = time.time_ns() // 1_000_000
        about = {"timestamp": now_ms, "operation": _TAKEN_BACK, "operationParameters": {}}
        gone = {"deletionTimestamp": now_ms, "dataChange": True}
        actions: list[dict[str, Any]] = [{"commitInfo": about}]
        actions += [{"remove": {"path": file, **gone}} for file in sorted(ours)]
        text = "".join(f"{json.dumps(action)}\n" for action in actions)
        # Refused if another writer has made the version.
        self._files.put_new(log_file(table.version() + 1), text.encode())

    def _logged(self, after: int, until: int) -> tuple[set[str], set[str], bool]:
        """Return files that epochs have added, and those that were taken back, by the log.

        And whether the log goes back to where the first of these epochs began.
        """
        added, removed = set[str](), set[str]()
        logged = list(filter(is_version, self._files.names(LOG)))
        whole = log_file(0) in logged
        for name in logged:
            actions = actions_of(self._files, name)
            whole |= any(
                action["txn"]["appId"] == self._application and action["txn"]["version"] <= after
                for action in actions
                if "txn" in action
            )
            if any(
                action.get("commitInfo", {}).get("operation") == _TAKEN_BACK for action in actions
            ):
                removed |= {action["remove"]["path"] for action in actions if "remove" in action}
            for action in actions:
                file = unquote(action["add"]["path"]) if "add" in action else ""
                if after < epoch_of(file) <= until:
                    added.add(file)
        return added, removed, whole

    def _settle(self, table: Any) -> None:
        self._sync(0)

    def _conflicts(self) -> tuple[type[Exception], ...]:
        from deltalake.exceptions import DeltaError

        return DeltaError, FileExistsError

    def _forget(self) -> None:
        self._opened = None

    def _append(self, table: Any, files: list[StagedFile], properties: Any) -> None:
        from deltalake import Schema
        from deltalake.transaction import AddAction

        added = []
        placed = self._files.place([file.name for file in files])
        known = self._files.map(self._known, placed)
        for name, staged, (about, rows) in zip(placed, files, known, strict=True):
            added.append(
                AddAction(
                    path=name,
                    size=about.size,
                    partition_values=staged.partition,
                    modification_time=about.modified_us // 1000,
                    data_change=True,
                    stats=json.dumps({"numRecords": rows}),
                )
            )
        table.create_write_transaction(
            added,
            "append",
            Schema.from_arrow(self._columns),
            partition_by=self._columns_of_partitions,
            commit_properties=properties,
        )

    def _refused(self, table: Any) -> str:
        by, own = list(table.metadata().partition_columns), self._columns_of_partitions
        if own and by != own:
            return (
                f"the table is partitioned by {by}, and the sink by {own}. Leave partition_by= "
                "out, or name another table."
            )
        self.partitions = tuple(map(PartitionField, by))
        why = refused(table, self._columns) or not_partitions(self.partitions, self._columns)
        if why or not self._key:
            return why
        if table.metadata().configuration.get("delta.appendOnly") == "true":
            return "'delta.appendOnly' is set, and a record replaces the row of its key. Unset it."
        return rewritten(self._files, table)

    def _known(self, name: str) -> tuple[About, int]:
        """Return what is known of a file, and how many rows it has."""
        with self._files.open(name) as file:
            return self._files.about(name), pq.read_metadata(file).num_rows

    @property
    def _columns_of_partitions(self) -> list[str]:
        return [part.column for part in self.partitions]

    def _staged(self, name: str) -> pa.Table:
        with self._files.open(f"{STAGING}/{name}") as file:
            return pq.read_table(file)

    def _settle_merge(self, merged: Any) -> None:
        """Make what a merge has written durable: files of delta-rs, then the log."""
        self._files.sync(
            unquote(action["add"]["path"])
            for action in actions_of(self._files, log_file(merged.version()))
            if "add" in action
        )
        self._sync(merged.version())
        note(self._files, merged)

    def _sync(self, first: int) -> None:
        """Make the log durable from a version on; delta-rs leaves that to the operating system."""
        self._files.sync_folder(LOG, lambda name: is_version(name) and name >= log_file(first))


#: What a writer may have to know of, and delta-rs and this one do. Whether columns are mapped,
#: generated or checked is looked at by itself.
_WRITTEN: Final = frozenset(
    {
        "appendOnly", "changeDataFeed", "checkConstraints", "columnMapping", "deletionVectors",
        "generatedColumns", "invariants", "timestampNtz", "v2Checkpoint", "variantType",
    }
)  # fmt: skip
#: The version of a table's writers that asks for identity columns, and the one that names features.
_IDENTITY, _BY_FEATURES = 6, 7


def refused(table: Any, columns: pa.Schema) -> str:
    """Return why rows cannot be added to a table; empty if they can.

    Args:
        table: A ``deltalake.DeltaTable``.
        columns: Of the rows.
    """
    from deltalake import Schema

    protocol = table.protocol()
    unknown = sorted(set(protocol.writer_features or ()) - _WRITTEN)
    if protocol.min_writer_version == _IDENTITY:
        unknown = ["identityColumns"]
    if unknown or protocol.min_writer_version > _BY_FEATURES:
        asks_for = unknown or f"version {protocol.min_writer_version} of the protocol"
        return f"its writers must know {asks_for}, and this one does not. Name a table without."
    there = {field.name: field for field in table.schema().fields}
    for field in Schema.from_arrow(columns).fields:
        if field.name not in there:
            return (
                f"the table has no column {field.name!r}. It has {sorted(there)}. Add it, or name "
                "another table."
            )
        if there[field.name].type != field.type:
            return (
                f"column {field.name!r} of the table is {there[field.name].type}, and of the "
                f"records {field.type}. Name another table, or produce another format."
            )
    asks = sorted(
        f"column {name!r} may not be null" for name, field in there.items() if not field.nullable
    )
    asks += sorted(f"{key!r} is set" for key in table.metadata().configuration if _asks(key))
    asks += sorted(
        f"column {name!r} has {key!r}"
        for name, field in there.items()
        for key in field.metadata
        if key.startswith("delta.")
    )
    if asks:
        return f"{asks[0]}, and that is not looked after here. Name a table without."
    return ""


def _asks(setting: str) -> bool:
    return setting.startswith(("delta.constraints.", "delta.columnMapping."))
