"""An epoch's records, merged by key into a Delta table in one commit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from millrace.sinks.latest import newest, retracted

#: Column that says which keys' rows are deleted. No field of a record may have its name.
DELETED: Final = "_millrace_deleted"


def merge(
    table: Any, files: Sequence[Path], key: Sequence[str], properties: Any, where: str
) -> None:
    """Merge the records of some files into a table, in one commit.

    Args:
        table: A ``deltalake.DeltaTable``.
        files: That tasks have written.
        key: Columns by which rows are told.
        properties: Of the commit.
        where: The sink and the epoch, for messages.

    Raises:
        SinkError: A record has no key.
        FileNotFoundError: A file is gone.
        DeltaError: The commit is refused.
    """
    rows = newest(pa.concat_tables(map(pq.read_table, files)), key, where)
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
