"""A table of the latest rows in Parquet files: replaced whole, a version an epoch.

::

    _staging/epoch=7-00000-<random>.parquet    what an attempt at a task has written
    _staging/epoch=7-<random>/                 the next version, as a driver makes it
    _versions/7/part-<random>.parquet          published: that directory, renamed
    latest -> _versions/7                      for readers; swapped when the version is there

A version has all rows, so a reader of one sees a whole table of one epoch. Versions that were
replaced stay for a while, for readers that have begun.
"""

from __future__ import annotations

import itertools
import os
import shutil
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from millrace.model.errors import PipelineError
from millrace.model.time import SECOND
from millrace.sinks.latest import newest, replaced
from millrace.sinks.parquet_files import (
    STAGING,
    clear,
    refusing,
    rename_into_place,
    write_empty,
)
from millrace.store.durable import sync_directory

_VERSIONS: Final = "_versions"
_LATEST: Final = "latest"
#: Before any epoch.
_NONE: Final = -1
_EMPTY: Final = "empty"
#: Directory of a sink without a key that has the columns, and no rows.
_NO_EPOCH: Final = f"epoch={_NONE}"
_ROW_GROUP: Final = 1_000_000


def publish_version(
    root: Path, epoch: int, names: Sequence[str], key: Sequence[str], keep_us: int, where: str
) -> None:
    """Make the table what it is after an epoch, unless it has that epoch.

    A driver that was superseded, and woke up, may be doing the same, or an earlier epoch: one
    directory gets the epoch's name, and ``latest`` is the last one, whoever sets it.

    Args:
        root: The sink's directory.
        epoch: The epoch.
        names: Of the files in the staging directory that count.
        key: Columns by which rows are told.
        keep_us: How long a version that was replaced stays, in microseconds.
        where: The sink and the epoch, for messages.

    Raises:
        SinkError: The disk refuses, or a record has no key.
    """
    versions, staging = root / _VERSIONS, root / STAGING
    with refusing(where):
        versions.mkdir(exist_ok=True)
        if _last(versions) < epoch:
            made = staging / f"epoch={epoch}-{uuid.uuid4().hex}"
            made.mkdir(parents=True)
            try:
                _make(made, versions, [staging / name for name in names], key, where)
                rename_into_place(made, versions / str(epoch))
            except FileNotFoundError:
                # Another driver has published the epoch meanwhile, and removed what it left.
                if _last(versions) < epoch:
                    raise
        sync_directory(versions)
        _point(root, versions)
        _forget(versions, keep_us)
        clear(staging, epoch)


def make_empty_version(root: Path, columns: pa.StructType) -> None:
    """Let ``latest`` be a table without rows, if there is no version yet.

    Such a table of a sink without a key is removed.
    """
    if (root / _NO_EPOCH).exists():
        shutil.rmtree(root / _NO_EPOCH)
    versions = root / _VERSIONS
    if _last(versions) == _NONE and not (root / _LATEST).is_symlink():
        if not (versions / _EMPTY).exists():
            write_empty(versions / _EMPTY, columns)
        with suppress(FileExistsError):
            (root / _LATEST).symlink_to(f"{_VERSIONS}/{_EMPTY}")
        sync_directory(root)


def make_empty_epoch(root: Path, columns: pa.StructType) -> None:
    """Let a directory of epochs be a table without rows, if there is no epoch yet.

    Such a table of a sink with a key is removed.
    """
    empty = root / _VERSIONS / _EMPTY
    if empty.exists():
        (root / _LATEST).unlink(missing_ok=True)
        shutil.rmtree(empty)
        empty.parent.rmdir()
    if next(root.glob("epoch=*"), None) is None:
        write_empty(root / _NO_EPOCH, columns)


def check_kind(root: Path, *, by_key: bool, sink: str) -> None:
    """Refuse a directory that has a table by key for epochs, or epochs for such a table.

    A table without rows is of either kind.

    Args:
        root: The sink's directory; it may not be there yet.
        by_key: Whether the sink has a key.
        sink: The sink, for messages.

    Raises:
        PipelineError: The earlier epochs would be missing.
    """
    others = root.glob("epoch=*") if by_key else root.glob(f"{_VERSIONS}/*")
    found = next((path for path in others if path.name not in (_NO_EPOCH, _EMPTY)), None)
    if found is not None:
        there, here = ("no key", "one") if by_key else ("a key", "none")
        raise PipelineError(
            f"the sink {sink}: what is there was written with {there}, such as {found}, and this "
            f"sink has {here}. What earlier epochs have written would be missing. Name another "
            "path, and start with a new checkpoint to have it made of all records."
        )


def has_version(root: Path, epoch: int) -> bool:
    """Return whether a table has an epoch, or a later one."""
    return _last(root / _VERSIONS) >= epoch


def _make(made: Path, versions: Path, staged: list[Path], key: Sequence[str], where: str) -> None:
    """Write the table after an epoch into a directory."""
    rows = newest(pa.concat_tables(map(pq.read_table, staged)), key, where)
    last = _last(versions)
    table = rows.slice(0, 0) if last == _NONE else pq.read_table(versions / str(last))
    rows = replaced(table, rows, key)
    file = made / f"part-{uuid.uuid4().hex}.parquet"
    with file.open("xb") as out:
        pq.write_table(rows, out, row_group_size=_ROW_GROUP, store_schema=False)
        out.flush()
        os.fsync(out.fileno())
    sync_directory(made)


def _numbers(versions: Path) -> list[int]:
    """Return the versions that there are, in order."""
    if not versions.exists():
        return []
    return sorted(int(one.name) for one in versions.iterdir() if one.name.isdigit())


def _last(versions: Path) -> int:
    """Return the last version; -1 if there is none."""
    return max(_numbers(versions), default=_NONE)


def _point(root: Path, versions: Path) -> None:
    """Let ``latest`` be the last version, also where another driver does the same."""
    while (last := _last(versions)) != _NONE:
        to = f"{_VERSIONS}/{last}"
        latest = root / _LATEST
        if not latest.is_symlink() or str(latest.readlink()) != to:
            link = root / STAGING / f"latest-{uuid.uuid4().hex}"
            link.symlink_to(to)
            link.replace(latest)
            sync_directory(root)
        if _last(versions) == last:
            return


def _forget(versions: Path, keep_us: int) -> None:
    """Remove versions that were replaced long ago."""
    oldest_s = time.time() - keep_us / SECOND
    for number, following in itertools.pairwise(_numbers(versions)):
        if (versions / str(following)).stat().st_mtime < oldest_s:
            shutil.rmtree(versions / str(number), ignore_errors=True)
