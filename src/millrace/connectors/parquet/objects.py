"""Directories of Parquet files, one an epoch, in a bucket, which renames nothing.

::

    _staging/epoch=7-00000-<random>.parquet    what an attempt at a task has written
    epoch=7/_files                             which of them count: put once, by one driver
    epoch=7/part-7-00000-<random>.parquet      a copy of each

Of drivers that publish an epoch, one was superseded and has perhaps files of its own. Whose files
count is decided by the conditional put of the list, and each of them copies those.
"""

from __future__ import annotations

import io
import json
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from millrace.connectors.parquet.files import STAGING
from millrace.connectors.table_files import BucketFiles

_FILES: Final = "_files"
_EMPTY: Final = "epoch=-1/empty.parquet"


def publish(files: BucketFiles, epoch: int, names: list[str]) -> None:
    """Copy an epoch's files into its directory, unless they are there.

    Args:
        files: Under the sink's prefix.
        epoch: The epoch.
        names: Of the files in the staging folder that count, unless others do already.

    Raises:
        FileNotFoundError: What counts is gone.
    """
    folder = f"epoch={epoch}"
    try:
        files.put_new(f"{folder}/{_FILES}", json.dumps(names).encode())
    except FileExistsError:
        names = json.loads(files.read(f"{folder}/{_FILES}"))
    there = set(files.names(folder))
    missing = [name for name in names if files.placed(name, folder) not in there]
    try:
        files.place(missing, folder)
    except FileNotFoundError:
        # Another driver has copied them meanwhile, and removed what was staged.
        if not {files.placed(name, folder) for name in names} <= set(files.names(folder)):
            raise
    files.clear(epoch)


def is_published(files: BucketFiles, epoch: int, names: list[str]) -> bool:
    """Return whether an epoch was published, or its files are there to be."""
    return files.exists(f"epoch={epoch}/{_FILES}") or any(
        files.exists(f"{STAGING}/{name}") for name in names
    )


def take_back(files: BucketFiles, after: int, until: int) -> None:
    """Remove the files of epochs, and what was staged for them.

    Args:
        files: Under the sink's prefix.
        after: The epoch before the first of them.
        until: The last.
    """
    for folder in files.folders():
        number = folder.removeprefix("epoch=")
        if folder != number and number.isdigit() and after < int(number) <= until:
            listed = f"{folder}/{_FILES}"
            # The list goes last: cut off before, this is done again.
            files.remove([name for name in files.names(folder) if name != listed])
            files.remove([listed])
    files.clear(until)


def make_empty(files: BucketFiles, columns: pa.StructType) -> None:
    """Let the prefix be a table without rows, if there is no epoch yet."""
    if not any(folder.startswith("epoch=") for folder in files.folders()):
        out = io.BytesIO()
        pq.write_table(pa.schema(list(columns)).empty_table(), out, store_schema=False)
        files.replace(_EMPTY, out.getvalue())
