"""Parquet files that tasks write, and directories of them that the driver gives their names.

::

    _staging/epoch=7-00000-<random>.parquet    what an attempt at a task has written
    _staging/epoch=7-<random>/                 those that count, gathered by a driver (links)
    epoch=7/00000-<random>.parquet             published: that directory, renamed

A table of the latest rows in Parquet files: replaced whole, a version an epoch.

::

    _staging/epoch=7-00000-<random>.parquet    what an attempt at a task has written
    _staging/epoch=7-<random>/                 the next version, as a driver makes it
    _versions/7/part-<random>.parquet          published: that directory, renamed
    latest -> _versions/7                      for readers; swapped when the version is there

A version has all rows, so a reader of one sees a whole table of one epoch. Versions that were
replaced stay for a while, for readers that have begun.
"""

from __future__ import annotations

import errno
import itertools
import logging
import os
import re
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from millrace.compile.sink_limits import SinkLimits
from millrace.connectors.latest import OWN_COLUMNS, newest, replaced
from millrace.model.errors import PipelineError, SinkError, StoreError
from millrace.model.time import SECOND
from millrace.store.durable_files import sync_directory

_log = logging.getLogger("millrace")

#: Spark and its readers pass over names that begin with an underscore.
STAGING = "_staging"
#: Columns that tables by key make beside those of the rows are the sink's own.
FILE_LIMITS = SinkLimits(names=OWN_COLUMNS)
_STAGED = re.compile(r"epoch=(\d+)")

#: Rows are kept until there are so many bytes of them: a row group of a file. Half of what is
#: usual, as a task may write to several sinks at once.
_ROW_GROUP_BYTES = 64 << 20


@dataclass(frozen=True)
class ParquetWriter:
    """Writes a sink's rows of a task to a file of their own.

    Attributes:
        root: The sink's directory, an absolute path that every worker reaches.
        sink: The sink, for messages.
    """

    root: str
    sink: str

    def begin(self, epoch: int, task: int) -> ParquetFile:
        """Return the file of an attempt at a task."""
        staging = Path(self.root, STAGING)
        where = f"{self.sink}, epoch {epoch}"
        with refusing(where):
            staging.mkdir(parents=True, exist_ok=True)
            name = f"epoch={epoch}-{task:05}-{uuid.uuid4().hex}.parquet"
            return ParquetFile(_StagedFile(staging / name), where)


class Staged(Protocol):
    """Where the bytes of a file under way go.

    Attributes:
        name: Of the file, in the staging folder.
        file: Takes the bytes.
    """

    name: str
    file: IO[bytes]

    def keep(self) -> None:
        """Make the file whole and durable, and close it."""
        ...

    def drop(self) -> None:
        """Leave nothing of it; what cannot be removed now, the next publication removes."""
        ...


class _StagedFile:
    """A file on a path, which does not exist yet."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.name = path.name
        self.file: IO[bytes] = path.open("xb")

    def keep(self) -> None:
        """See :class:`Staged`."""
        with self.file:
            self.file.flush()
            os.fsync(self.file.fileno())

    def drop(self) -> None:
        """See :class:`Staged`."""
        with suppress(OSError):
            self.file.close()
        with suppress(OSError):
            self._path.unlink(missing_ok=True)


class ParquetFile:
    """A file of rows under way.

    Args:
        out: Where its bytes go.
        where: The sink and the epoch, for messages.
    """

    def __init__(self, out: Staged, where: str) -> None:
        self._out = out
        self._where = where
        self._waiting: list[pa.RecordBatch] = []
        self._bytes = 0
        self._writer: pq.ParquetWriter | None = None

    def write(self, rows: pa.RecordBatch) -> None:
        """Take rows; they may stay in memory for now."""
        self._waiting.append(rows)
        self._bytes += rows.nbytes
        if self._bytes >= _ROW_GROUP_BYTES:
            self._flush()

    def close(self) -> bytes:
        """Return the name of the file, which is whole and durable."""
        self._flush()
        with refusing(self._where):
            assert self._writer is not None, "a file is begun for rows"
            self._writer.close()
            self._out.keep()
        return self._out.name.encode()

    def abort(self) -> None:
        """Remove the file; if the disk refuses that, too, the next publication does."""
        self._out.drop()

    def _flush(self) -> None:
        if not self._waiting:
            return
        rows = pa.Table.from_batches(self._waiting)
        self._waiting, self._bytes = [], 0
        with refusing(self._where):
            if self._writer is None:
                # Types as Spark infers them from the columns themselves, for all readers alike.
                # Ids are all different: a dictionary of them took longer than all else together.
                repeated = [
                    path for field in rows.schema if field.name != "_id" for path in leaves(field)
                ]
                self._writer = pq.ParquetWriter(
                    self._out.file, rows.schema, store_schema=False, use_dictionary=repeated
                )
            self._writer.write_table(rows, row_group_size=rows.num_rows)


def leaves(field: pa.Field) -> Iterator[str]:
    """Yield the names of the columns that Parquet makes of a field.

    >>> inner = pa.struct([("x", pa.int64()), ("names", pa.list_(pa.string()))])
    >>> list(leaves(pa.field("a", inner))), list(leaves(pa.field("b", pa.int64())))
    (['a.x', 'a.names.list.element'], ['b'])
    """
    if pa.types.is_struct(field.type):
        parts, between = list(field.type), "."
    elif pa.types.is_list(field.type):
        parts, between = [field.type.value_field.with_name("element")], ".list."
    else:
        yield field.name
        return
    for part in parts:
        for leaf in leaves(part):
            yield f"{field.name}{between}{leaf}"


def write_empty(directory: Path, columns: pa.StructType) -> None:
    """Write a durable file without rows, for readers of a directory that has no others."""
    temporary = directory.with_name(f"_{uuid.uuid4().hex}")
    temporary.mkdir(parents=True)
    with (temporary / "empty.parquet").open("xb") as out:
        pq.write_table(pa.schema(list(columns)).empty_table(), out, store_schema=False)
        out.flush()
        os.fsync(out.fileno())
    sync_directory(temporary)
    rename_into_place(temporary, directory)
    if temporary.exists():
        shutil.rmtree(temporary)
    sync_directory(directory.parent)


def publish(root: Path, epoch: int, names: list[str], where: str) -> None:
    """Give an epoch's files their directory, unless it has one: the same rows.

    A driver that was superseded in this epoch, and woke up, may be doing the same, on the real-time
    plane with the same files. So each gathers in a directory of its own, by further names of the
    files, and one of them gives its directory the epoch's name.

    Args:
        root: The sink's directory.
        epoch: The epoch.
        names: Of the files in the staging directory that count.
        where: The sink and the epoch, for messages.

    Raises:
        SinkError: The disk refuses.
    """
    staging, final = root / STAGING, root / f"epoch={epoch}"
    gathered = staging / f"epoch={epoch}-{uuid.uuid4().hex}"
    with refusing(where):
        if not final.exists():
            gathered.mkdir(parents=True)
            try:
                for name in names:
                    link(staging / name, gathered / name.removeprefix(f"epoch={epoch}-"))
                sync_directory(gathered)
                rename_into_place(gathered, final)
            except FileNotFoundError:
                # Another driver has published the epoch meanwhile, and removed what it left.
                if not final.exists():
                    raise
        sync_directory(root)
    clear(staging, epoch)


def newest_epoch(root: Path) -> Path | None:
    """Return the directory of the newest epoch, or of none before the first; None if there is none.

    Args:
        root: The sink's directory.
    """
    epochs = {int(path.name[len("epoch=") :]): path for path in root.glob("epoch=*")}
    return epochs[max(epochs)] if epochs else None


def publish_again(root: Path, epoch: int, names: list[str], where: str) -> None:
    """Publish an epoch that is known to be complete, if that was not done.

    Where neither the epoch's directory is there nor any of its files, it was removed since it was
    published: files stay where they are until then.

    Args:
        root: The sink's directory.
        epoch: The epoch.
        names: Of the files in the staging directory that count.
        where: The sink and the epoch, for messages.

    Raises:
        SinkError: The disk refuses.
    """
    if (root / f"epoch={epoch}").exists() or are_staged(root, names):
        publish(root, epoch, names, where)
    else:
        say_gone(where)


def take_back(root: Path, after: int, until: int, where: str) -> None:
    """Remove the directories of epochs, and what was staged for them.

    Args:
        root: The sink's directory.
        after: The epoch before the first of them.
        until: The last.
        where: The sink, for messages.

    Raises:
        SinkError: The disk refuses.
    """
    with refusing(where):
        for epoch in range(after + 1, until + 1):
            there = root / f"epoch={epoch}"
            if there.exists():
                # A reader sees all of an epoch, or nothing.
                gone = root / STAGING / f"epoch={epoch}-{uuid.uuid4().hex}"
                gone.parent.mkdir(exist_ok=True)
                there.rename(gone)
        if root.exists():
            sync_directory(root)
    clear(root / STAGING, until)


def are_staged(root: Path, names: list[str]) -> bool:
    """Return whether files of an epoch are still there that was to be published."""
    return any((root / STAGING / name).exists() for name in names)


def say_gone(where: str) -> None:
    """Warn that an epoch, which is complete, has neither output nor files for it."""
    _log.warning("%s: its directory is gone. Was it removed? It is not made again.", where)


def link(file: Path, name: Path) -> None:
    """Give a file another name; where the file system has no such thing, copy it."""
    try:
        name.hardlink_to(file)
    except FileNotFoundError:
        raise
    except OSError:
        shutil.copyfile(file, name)
        with name.open("rb") as copied:
            os.fsync(copied.fileno())


def rename_into_place(gathered: Path, final: Path) -> None:
    """Give a directory its name, unless there is one of that name: then it stays as it is."""
    try:
        gathered.rename(final)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise


def clear(staging: Path, epoch: int) -> None:
    """Remove what attempts at this epoch and earlier ones left; this one's outcome is decided.

    Args:
        staging: The directory; it is not there before the first attempt.
        epoch: The epoch.
    """
    for left in staging.iterdir() if staging.exists() else ():
        if not is_left(left.name, epoch):
            continue
        if left.is_dir():
            shutil.rmtree(left, ignore_errors=True)
        else:
            left.unlink(missing_ok=True)


def is_left(name: str, epoch: int) -> bool:
    """Return whether what has a name in the staging folder is of this epoch or an earlier one.

    >>> [is_left(f"epoch={n}-00000-5f.parquet", 7) for n in (6, 7, 8)], is_left("mine.txt", 7)
    ([True, True, False], False)
    """
    match = _STAGED.match(name)
    return match is not None and int(match[1]) <= epoch


def _of_a_disk(error: OSError) -> str:
    return (
        f"the files cannot be written: {error.strerror or error}. Nothing of the epoch was "
        "published. Make room, or make the directory writable for the user that runs Spark's "
        "tasks, and start again."
    )


@contextmanager
def refusing(where: str, explain: Callable[[OSError], str] = _of_a_disk) -> Iterator[None]:
    """Say which sink an error of the operating system or of a bucket is about, and what to do.

    Args:
        where: The sink and the epoch, for messages.
        explain: Returns what an error means; its own words are in the message, or are secret.

    Raises:
        SinkError: In place of the error.
    """
    try:
        yield
    except (StoreError, OSError) as error:
        told = str(error) if isinstance(error, StoreError) else explain(error)
        raise SinkError(f"{where}: {told}") from None


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
            temporary = staging / f"epoch={epoch}-{uuid.uuid4().hex}"
            temporary.mkdir(parents=True)
            try:
                _make(temporary, versions, [staging / name for name in names], key, where)
                rename_into_place(temporary, versions / str(epoch))
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
    other_file = next((path for path in others if path.name not in (_NO_EPOCH, _EMPTY)), None)
    if other_file is not None:
        there, here = ("no key", "one") if by_key else ("a key", "none")
        raise PipelineError(
            f"the sink {sink}: what is there was written with {there}, such as {other_file}, and "
            f"this sink has {here}. What earlier epochs have written would be missing. Name "
            "another path, and start with a new checkpoint to have it made of all records."
        )


def check_types(root: Path, columns: pa.StructType, sink: str) -> None:
    """Refuse rows of which a column has another type than in the table by key that is there.

    Args:
        root: The sink's directory; it may not be there yet.
        columns: Of the rows.
        sink: The sink, for messages.

    Raises:
        PipelineError: One has.
    """
    versions = root / _VERSIONS
    file = next((versions / str(_last(versions))).glob("*.parquet"), None)
    if file is None:
        return
    table_schema = pq.read_schema(file)
    # As they are when they are read: the elements of a list have another name in files.
    empty = pa.BufferOutputStream()
    pq.write_table(pa.schema(list(columns)).empty_table(), empty, store_schema=False)
    for field in pq.read_schema(pa.BufferReader(empty.getvalue())):
        position = table_schema.get_field_index(field.name)
        if position >= 0 and (column_type := table_schema.field(position).type) != field.type:
            raise PipelineError(
                f"the sink {sink} cannot take its stream: column {field.name!r} of the table is "
                f"{column_type}, and of the records {field.type}. Name another path, and start "
                "with a new checkpoint to have it made of all records; or produce another format."
            )


def has_version(root: Path, epoch: int) -> bool:
    """Return whether a table has an epoch, or a later one."""
    return _last(root / _VERSIONS) >= epoch


def _make(folder: Path, versions: Path, staged: list[Path], key: Sequence[str], where: str) -> None:
    """Write the table after an epoch into a directory."""
    rows = newest(pa.concat_tables(map(pq.read_table, staged)), key, where)
    last = _last(versions)
    table = rows.slice(0, 0) if last == _NONE else pq.read_table(versions / str(last))
    rows = replaced(table, rows, key)
    file = folder / f"part-{uuid.uuid4().hex}.parquet"
    with file.open("xb") as out:
        pq.write_table(rows, out, row_group_size=_ROW_GROUP, store_schema=False)
        out.flush()
        os.fsync(out.fileno())
    sync_directory(folder)


def _numbers(versions: Path) -> list[int]:
    """Return the versions that there are, in order."""
    if not versions.exists():
        return []
    return sorted(int(version.name) for version in versions.iterdir() if version.name.isdigit())


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
