"""An Iceberg source: what is appended to an Apache Iceberg table, snapshot by snapshot.

Spark's own reader of Iceberg is a DataFrame like any other, on the epoch plane, with jars in the
session. This one needs none, and reads on both planes and in a batch.

Source: MillWheel, "Injector and Low Watermark API" (5.2); the Iceberg table specification.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import pyarrow as pa

from millrace.connectors.files.formats import undamaged
from millrace.connectors.lakes.appends import Appends, CommitFiles
from millrace.connectors.lakes.iceberg_catalog import open_catalog, require_pyiceberg
from millrace.connectors.lakes.iceberg_history import IcebergHistory, IcebergOffset
from millrace.injectors.columns import column_names, conformed
from millrace.model.errors import InputLost, PipelineError
from millrace.model.time import Instant, timestamp_us


class IcebergAppends(Appends):
    """Reads the rows of an Apache Iceberg table, and those that are appended to it from then on.

    It begins with the oldest snapshot that is kept, with all rows that the table has in it. Then
    come the rows that each later snapshot appended, in order, each once. Compaction moves rows and
    is passed over. A snapshot that deletes or overwrites ends the run, with its id. The table is
    one process: name ``inject(low_watermark=)``, what its rows promise.

    Args:
        table: Its name in the catalog, with its namespace: ``"lake.trips"``.
        catalog: Name of a catalog in PyIceberg's configuration, or its properties, such as
            ``{"type": "sql", "uri": "sqlite:////lake/catalog.db"}``. Driver and workers open it.
        schema: Columns of a row, as Spark writes them: ``"taxi string, at timestamp"``. Only these
            are read, and each must be there, of that type.
        since: Read only what was committed at this instant or later, by the snapshots' own times.
        skip: Ids of snapshots that delete or overwrite, and are to be left out with all they do.
        records_per_epoch: How many records an epoch reads at the most, but for the last file, of
            which it reads all.

    Raises:
        PipelineError: ``pyiceberg`` is not installed, or an argument is wrong.

    >>> import tempfile
    >>> from pyiceberg.catalog import load_catalog
    >>> lake = tempfile.mkdtemp()
    >>> catalog = {"type": "sql", "uri": f"sqlite:///{lake}/catalog.db", "warehouse": lake}
    >>> rows = pa.table({"taxi": ["T1", "T2"], "at": [5, 7]})
    >>> load_catalog(**catalog).create_namespace("lake")
    >>> table = load_catalog(**catalog).create_table("lake.trips", rows.schema)
    >>> table.append(rows)
    >>> import millrace as mr
    >>> p = mr.Pipeline("trips")
    >>> trips = IcebergAppends("lake.trips", catalog=catalog, schema="taxi string, at long")
    >>> p.inject("trips", trips, timestamp="at", low_watermark=mr.BoundedDelay("1 min"))
    Stream('trips')
    >>> p.sink("trips", mr.sinks.Memory())
    >>> h = mr.testing.Harness(p, publish=True)
    >>> h.poll("trips"), h.poll("trips")  # where it begins is noted before anything is read
    (0, 2)
    >>> table.append(rows)
    >>> h.poll("trips")
    2
    """

    called = "sources.Iceberg"

    def __init__(
        self,
        table: str,
        *,
        catalog: str | Mapping[str, str],
        schema: str,
        since: Instant | None = None,
        skip: Collection[int] = (),
        records_per_epoch: int = 1_000_000,
    ) -> None:
        require_pyiceberg("sources.Iceberg", "on driver and workers")
        if not all(table.split(".")) or "." not in table:
            raise PipelineError(
                f"sources.Iceberg({table!r}): expected a table with its namespace, such as "
                "'lake.trips'."
            )
        super().__init__(table, schema, records_per_epoch)
        self.table = table
        self._of = catalog
        self._since_us = None if since is None else timestamp_us(since)
        self._skip = frozenset(skip)
        self._catalog: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_catalog": None}

    def _beginning(self, history: IcebergHistory, before_us: int | None) -> IcebergOffset | None:
        return history.beginning(self._since_us)

    def _piece(self, files: CommitFiles, begun: int, until: int) -> tuple[Any, Any]:
        return [*files.place(begun)], until

    def read_arrow(self, process: str, start: Any, end: Any) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some files of one snapshot."""
        from pyiceberg.expressions import AlwaysTrue
        from pyiceberg.io.pyarrow import ArrowScan

        table = self._load()
        history = self._of_table(table)
        place = history.place(start)
        columns = self._columns(table)
        scan = ArrowScan(table.metadata, table.io, columns, AlwaysTrue())
        for file in history.files(place)[place.files : end]:
            where = f"{self!r}, {file.what.file.file_path}"
            try:
                batches = iter(scan.to_record_batches([file.what]))
                for batch in undamaged(batches, where):
                    yield conformed(batch, self.schema, where)
            except FileNotFoundError as gone:
                raise InputLost(
                    f"{where}: the file was removed before it was read. Were snapshots expired "
                    "that the run had still to read? Put it back and start again with the same "
                    "checkpoint; or start with a new one."
                ) from gone

    def _history(self) -> IcebergHistory:
        return self._of_table(self._load())

    def _of_table(self, table: Any) -> IcebergHistory:
        return IcebergHistory(table, self._skip, repr(self))

    def _load(self) -> Any:
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

        try:
            if self._catalog is None:
                self._catalog = open_catalog(self._of)
            return self._catalog.load_table(self.table)
        except (NoSuchNamespaceError, NoSuchTableError) as missing:
            raise PipelineError(
                f"{self!r}: the catalog has no such table. Make it first, or mend its name."
            ) from missing
        except Exception as error:  # of the catalog, whichever it is
            raise ConnectionError(
                f"{self!r}: the catalog cannot be asked for the table: {type(error).__name__}: "
                f"{error}. Is it up, and are its properties right?"
            ) from error

    def _columns(self, table: Any) -> Any:
        there, wanted = table.schema().column_names, column_names(self.schema)
        if missing := [name for name in wanted if name not in there]:
            raise PipelineError(
                f"{self!r} has no column {missing[0]!r}, which the schema {self.schema!r} "
                f"declares. It has {sorted(there)}."
            )
        return table.schema().select(*wanted)
