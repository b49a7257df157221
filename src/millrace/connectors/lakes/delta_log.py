"""The log of a Delta table: its newest state, and which files each version added.

::

    _delta_log/00000000000000000012.json    version 12: a line an action, such as add and remove
    _delta_log/...12.checkpoint.parquet     all that there is at version 12; older lines may go

Versions are read from their own file, as ``deltalake`` has no call for that; the rest by it.

Source: the Delta transaction protocol, "Delta Log Entries" and "Actions".

A data file of a Delta table, and its rows.

What a Delta table needs here: the package deltalake.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

import pyarrow as pa

from millrace.connectors.files.formats import open_parquet, row_batches
from millrace.connectors.lakes.appends import File
from millrace.connectors.table_files import TableFiles, open_file
from millrace.injectors.columns import arrow_schema, conformed
from millrace.model.errors import InputLost, PipelineError
from millrace.store import is_object_store, local_path


class DataFile(NamedTuple):
    """A Parquet file of a table.

    Attributes:
        path: Of the file; its URL, in a bucket.
        partition: Values of the columns that are not in it, as text; None: null.
    """

    path: str
    partition: dict[str, str | None]


@contextmanager
def opened(path: str, who: str) -> Iterator[Any]:
    """Open a file: a ``pyarrow.parquet.ParquetFile``.

    Args:
        path: Of the file, or its URL.
        who: The injector, for messages.

    Raises:
        InputLost: It is gone.
        PipelineError: It is no Parquet file.
    """
    where = f"{who}, {path}"
    try:
        file = open_file(path)
    except FileNotFoundError as gone:
        raise InputLost(
            f"{where}: the file was removed before it was read. Was the table vacuumed of what "
            "the run had still to read? Put it back and start again with the same checkpoint; or "
            "start with a new one."
        ) from gone
    with file:
        try:
            parquet = open_parquet(file)
        except (pa.ArrowInvalid, OSError) as refused:
            raise PipelineError(
                f"{where} is not a Parquet file, as those of a Delta table are: {refused}. Has "
                "somebody written over it?"
            ) from refused
        yield parquet


def rows_of(file: DataFile, schema: str, who: str) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file, with the columns of a schema.

    A column that the file has not was added to the table later, and is null.

    Args:
        file: The file.
        schema: As Spark writes it. The table has these columns.
        who: The injector, for messages.

    Raises:
        InputLost: The file is gone.
        PipelineError: It is no Parquet file, or a column is not of its declared type.
    """
    wanted, where = arrow_schema(schema), f"{who}, {file.path}"
    with opened(file.path, who) as parquet:
        names = [name for name in wanted.names if name not in file.partition]
        for batch in row_batches(parquet, names, where):
            for field in wanted:
                if batch.schema.get_field_index(field.name) < 0:
                    value = file.partition.get(field.name)
                    column = pa.repeat(_parsed(value, field, where), batch.num_rows)
                    batch = batch.append_column(field, column)
            yield conformed(batch, schema, where, grown=True)


def _parsed(value: str | None, field: pa.Field, where: str) -> pa.Scalar:
    """Return a partition's value; an empty text is null, as Delta has it."""
    try:
        return _value(value or None, field.type)
    except pa.ArrowInvalid as refused:
        raise PipelineError(
            f"{where}: its partition says {field.name!r} is {value!r}, which is no {field.type}: "
            f"{refused}. Declare it as string, or write the table anew."
        ) from refused


def _value(value: str | None, kind: pa.DataType) -> pa.Scalar:
    if value is None:
        return pa.scalar(None, kind)
    if pa.types.is_binary(kind) and _ESCAPED.fullmatch(value):
        return pa.scalar(bytes.fromhex(value.replace("\\u00", "")), kind)
    if pa.types.is_timestamp(kind):
        # An instant may be written without a zone; it is then in UTC.
        value = value.removesuffix("Z") + ("Z" if kind.tz else "")
    return pa.scalar(value).cast(kind)


#: How delta-rs writes bytes of a partition: each as an escape of JSON, escaped once more.
_ESCAPED: Final = re.compile(r"(\\u00[0-9A-Fa-f]{2})+")
#: What a reader has to know of, and this one does. A file with a deletion vector is refused when it
#: is met, and so is a table that maps its columns; to be told that there may be some does no harm.
_KNOWN: Final = frozenset({"columnMapping", "deletionVectors", "timestampNtz"})
#: The version of a table's readers that names such features one by one.
_BY_FEATURES: Final = 3
_URI: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
_SPARKS_S3: Final = re.compile(r"^s3[an]:")


class Version(NamedTuple):
    """What a version did.

    Attributes:
        committed_us: When, as it says, else by the time of its file.
        operation: What it says that it was.
        added: Actions that added files with rows that were not there before, in order of paths.
        takes: Whether it took rows away.
        shadowed: A file of it of which a deletion vector takes rows; None: none has one.
    """

    committed_us: int
    operation: str
    added: list[Mapping[str, Any]]
    takes: bool
    shadowed: str | None


#: The folder of a table that has its log.
LOG: Final = "_delta_log"


def log_file(version: int) -> str:
    """Return the name of a version's file.

    >>> log_file(12), is_version(log_file(12)), is_version("_delta_log/_last_checkpoint")
    ('_delta_log/00000000000000000012.json', True, False)
    """
    return f"{LOG}/{version:020}.json"


def is_version(name: str) -> bool:
    """Return whether a file has a version, and not a checkpoint, say."""
    return _VERSION.fullmatch(name) is not None


_VERSION: Final = re.compile(rf"{LOG}/\d{{20}}\.json")


def actions_of(files: TableFiles, name: str) -> list[dict[str, Any]]:
    """Return the actions of a version's file; a null, which stands for none, is left out.

    Raises:
        FileNotFoundError: It is not kept.
    """
    # Not splitlines: text in JSON may have other characters that end a line for Python.
    lines = files.read(name).decode("utf-8").split("\n")
    actions = [json.loads(line) for line in lines if line.strip()]
    return [
        {kind: action[kind] for kind in action if action[kind] is not None} for action in actions
    ]


class Log:
    """A table's log.

    Args:
        files: Of the table.
        schema: The columns that are read, as Spark writes them.
        who: The injector, for messages.
    """

    def __init__(self, files: TableFiles, schema: str, who: str) -> None:
        self._files = files
        self._schema = schema
        self._who = who
        self._opened: Any = None
        self._seen: str | None = None
        self._whole: tuple[int, list[File]] | None = None

    @property
    def table(self) -> str:
        """Id of the table."""
        return str(self._opened.metadata().id)

    @property
    def newest(self) -> int:
        """The newest version."""
        return int(self._opened.version())

    def refresh(self) -> None:
        """Look for newer versions. It is two looks at the directory while there are none.

        Raises:
            PipelineError: There is no such table, or it cannot be read.
        """
        if self._seen is not None and self._seen == self._looks(self.newest):
            return
        table = self._open()
        self._check(table)
        self._opened, self._seen = table, self._looks(int(table.version()))

    def version(self, number: int) -> Version | None:
        """Return what a version did; None if its lines are not kept."""
        try:
            actions = actions_of(self._files, log_file(number))
            modified_us = self._files.about(log_file(number)).modified_us
        except FileNotFoundError:
            return None
        by_kind = {
            kind: [action[kind] for action in actions if kind in action]
            for kind in ("commitInfo", "add", "remove")
        }
        info = by_kind["commitInfo"][0] if by_kind["commitInfo"] else {}
        commit_ms = info.get("inCommitTimestamp", info.get("timestamp"))
        added = sorted(
            (action for action in by_kind["add"] if action["dataChange"]),
            key=lambda action: action["path"],
        )
        vectors = (action["path"] for action in added if action.get("deletionVector"))
        return Version(
            modified_us if commit_ms is None else int(commit_ms) * 1000,
            str(info.get("operation", "an operation that it does not name")),
            added,
            any(action.get("dataChange", True) for action in by_kind["remove"]),
            next(vectors, None),
        )

    def files_at(self, number: int) -> list[File]:
        """Return all files that the table has at a version, in order of their paths.

        Raises:
            InputLost: The version cannot be made of what is kept.
            PipelineError: A file has a deletion vector.
        """
        if self._whole is None or self._whole[0] != number:
            self._whole = number, self._all(number)
        return self._whole[1]

    def kept(self) -> Iterator[int]:
        """Yield the versions whose lines are kept, back from the newest one."""
        number = self.newest
        while number >= 0 and self._files.exists(log_file(number)):
            yield number
            number -= 1

    def file(self, add: Mapping[str, Any]) -> File:
        """Return the file that an action added.

        Raises:
            InputLost: The action does not say how many rows it has, and it is gone.
            PipelineError: It is no file that can be read here.
        """
        said = json.loads(add["stats"]) if add.get("stats") else {}
        return self._data_file(
            add["path"], add["size"], said.get("numRecords"), dict(add["partitionValues"])
        )

    def has_vector(self, number: int, path: str) -> PipelineError:
        """Return what refuses a file of which a deletion vector takes rows."""
        return PipelineError(
            f"{self._who}: at version {number} rows of {path} are deleted by a deletion vector, "
            "which is not read here. Have the file written anew (REORG TABLE ... APPLY (PURGE)) "
            "and begin after that with a new checkpoint; or read what later versions add: "
            f"version={number + 1}."
        )

    def _looks(self, newest: int) -> str | None:
        """Return which file has the newest version; None if there is a newer one, or no table."""
        try:
            identity = self._files.about(log_file(newest)).identity
        except FileNotFoundError:
            return None
        return None if self._files.exists(log_file(newest + 1)) else identity

    def _open(self, number: int | None = None) -> Any:
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError, TableNotFoundError

        try:
            return DeltaTable(
                self._files.location, version=number, storage_options=self._files.storage_options
            )
        except TableNotFoundError as missing:
            raise PipelineError(
                f"{self._who}: there is no Delta table. Make it first, or mend its path."
            ) from missing
        except (DeltaError, OSError) as refused:
            raise PipelineError(
                f"{self._who}: the table cannot be read: {self._files.explain(refused)}"
            ) from None

    def _check(self, table: Any) -> None:
        protocol, settings = table.protocol(), table.metadata().configuration
        unknown = set(protocol.reader_features or ()) - _KNOWN
        why = ""
        if protocol.min_reader_version > _BY_FEATURES:
            why = f"its readers must be of version {protocol.min_reader_version}"
        elif unknown:
            why = f"its readers must know {sorted(unknown)}"
        elif settings.get("delta.columnMapping.mode", "none") != "none":
            why = "its columns are mapped to other names (delta.columnMapping.mode)"
        if why:
            raise PipelineError(
                f"{self._who}: {why}, and that is not read here. Copy what is to be read into a "
                "table without, or read it with Spark's own Delta Lake, as a DataFrame."
            )
        columns = pa.schema(table.schema().to_arrow())
        conformed(pa.RecordBatch.from_pylist([], columns), self._schema, self._who)

    def _all(self, number: int) -> list[File]:
        try:
            at = self._open(number)
        except PipelineError as refused:
            raise InputLost(
                f"{self._who}: the table as it was at version {number}, where reading began, "
                f"cannot be made of what is kept of its log. {refused}\nStart with a new "
                "checkpoint, and keep the log for longer (delta.logRetentionDuration)."
            ) from refused
        for path in pa.table(at.deletion_vectors()).column("filepath").to_pylist():
            raise self.has_vector(number, path)
        actions = pa.table(at.get_add_actions(flatten=True))
        partitions = {
            name.removeprefix("partition."): actions[name].cast(pa.string()).to_pylist()
            for name in actions.column_names
            if name.startswith("partition.")
        }
        rows = zip(
            actions["path"].to_pylist(),
            actions["size_bytes"].to_pylist(),
            actions["num_records"].to_pylist(),
            strict=True,
        )
        files = [
            self._data_file(
                path, size, records, {name: column[n] for name, column in partitions.items()}
            )
            for n, (path, size, records) in enumerate(rows)
        ]
        return sorted(files, key=lambda file: file.what.path)

    def _data_file(
        self, said: str, size: int, rows: int | None, partition: dict[str, str | None]
    ) -> File:
        if _URI.match(said) is None:
            path = f"{self._files.location}/{unquote(said)}"
        elif said[:5].lower() == "file:":
            path = str(local_path(said))
        else:
            path = unquote(_SPARKS_S3.sub("s3:", said))
            if not is_object_store(path):
                raise PipelineError(
                    f"{self._who}: its file {said} is elsewhere, as those of a shallow clone may "
                    "be, where it cannot be read from here. Make a deep clone of the table."
                )
        if rows is None:
            with opened(path, self._who) as parquet:
                rows = parquet.metadata.num_rows
        return File(int(rows), int(size), DataFile(path, partition))


#: Of ``deltalake``: (major, minor).
_OLDEST: Final = (1, 6)


def require_deltalake(who: str, where: str) -> None:
    """Refuse to go on without a ``deltalake`` that keeps application transactions apart.

    Args:
        who: Needs it, for messages.
        where: It is needed, for messages.

    Raises:
        PipelineError: It is not installed, or too old.
    """
    install = f"{where}: pip install 'millrace-spark[delta]'."
    try:
        from deltalake import __version__ as version
    except ImportError as missing:
        raise PipelineError(f"{who} needs the package deltalake, {install}") from missing
    if tuple(int(part) for part in version.split(".")[:2]) < _OLDEST:
        raise PipelineError(
            f"{who} found deltalake {version}, which can add an epoch twice: two drivers' commits "
            f"of it do not conflict. It needs 1.6 or later, {install}"
        )
