"""Where a table has its files: on a path that is mounted, or in a bucket.

::

    _millrace                                  the checkpoint whose output it is
    _staging/epoch=7-00000-<random>.parquet    what an attempt at a task has written
    part-7-00000-<random>.parquet              the same file, by the name that the table knows

On a path the last one is a further name of the file, in a bucket a copy that the store makes. What
is in a bucket is durable when it is there; of a path that is made sure by fsync.
"""

from __future__ import annotations

import os
import re
import tempfile
import uuid
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, BinaryIO, Final, NamedTuple, Protocol, TypeVar

from millrace.connectors.buckets import BucketPath, client, open_object
from millrace.connectors.ownership import claim_bucket, claim_directory, replace_text
from millrace.connectors.parquet.files import (
    STAGING,
    ParquetFile,
    ParquetWriter,
    clear,
    is_left,
    link,
    refusing,
)
from millrace.model.errors import PipelineError
from millrace.model.time import SECOND
from millrace.store import is_object_store, local_path
from millrace.store.durable_files import sync_directory
from millrace.store.object_blobs import BucketOptions, BucketUrl, ObjectBlobs, diagnose

if TYPE_CHECKING:
    from millrace.runtime.sink_contract import TaskWriter

#: What messages say of whose files they are.
_SUBJECT: Final = "table"
#: The query of a URL.
_QUERY: Final = re.compile(r"\?[^\s)]+")
#: Rows of a task's file are in memory up to so many bytes, then in a temporary file.
_IN_MEMORY: Final = 16 << 20


Answer = TypeVar("Answer")


class About(NamedTuple):
    """What is known of a file without reading it.

    Attributes:
        size: In bytes.
        modified_us: When it was written, by the clock of where it is.
        identity: Another one if it is written anew.
    """

    size: int
    modified_us: int
    identity: str


class TableFiles(Protocol):
    """The files of one table. Names are relative to where it is; a folder ends in no slash."""

    @property
    def location(self) -> str:
        """Where they are, a path or URL."""
        ...

    @property
    def uri(self) -> str:
        """The same as a URI, in which nothing is quoted."""
        ...

    @property
    def storage_options(self) -> dict[str, str] | None:
        """What delta-rs is to know of it."""
        ...

    def words(self, error: Exception) -> str:
        """Return an error's own words, without anything secret."""
        ...

    def explain(self, error: Exception) -> str:
        """Return what an error of a library means that reads or writes there, and what to do."""
        ...

    def refusing(self, where: str) -> AbstractContextManager[None]:
        """Return what says which sink an error of writing is about, and what to do.

        Args:
            where: The sink and the epoch, for messages.

        Raises:
            SinkError: In place of the error.
        """
        ...

    def claim(self, owner: str, sink: str) -> str:
        """Write down whose output the table holds; return where it is, by whatever name.

        Raises:
            CheckpointMismatch: It holds another's.
            StoreError: It cannot be written.
        """
        ...

    def writer(self, sink: str) -> TaskWriter:
        """Return what tasks write with; their receipts are names in the staging folder."""
        ...

    def place(self, staged: Sequence[str], folder: str = "") -> list[str]:
        """Give files of the staging folder the names that the table is to know, for good.

        Raises:
            FileNotFoundError: One is gone.
        """
        ...

    def clear(self, epoch: int) -> None:
        """Remove what attempts at this epoch and earlier ones left in the staging folder."""
        ...

    def exists(self, name: str) -> bool:
        """Return whether there is such a file."""
        ...

    def about(self, name: str) -> About:
        """Return what is known of a file.

        Raises:
            FileNotFoundError: There is none.
        """
        ...

    def open(self, name: str) -> BinaryIO:
        """Open a file to be read from anywhere in it.

        Raises:
            FileNotFoundError: There is none.
        """
        ...

    def read(self, name: str) -> bytes:
        """Return a file's bytes.

        Raises:
            FileNotFoundError: There is none.
        """
        ...

    def names(self, folder: str) -> list[str]:
        """Return the names of the files in a folder."""
        ...

    def map(self, call: Callable[[str], Answer], names: Sequence[str]) -> list[Answer]:
        """Return what a function answers of each name; where answers take long, at a time."""
        ...

    def put_new(self, name: str, data: bytes) -> None:
        """Write a file, for good.

        Raises:
            FileExistsError: There is one.
        """
        ...

    def replace(self, name: str, data: bytes) -> None:
        """Write a small file in place of one that may be there."""
        ...

    def sync(self, names: Iterable[str]) -> None:
        """Make files durable that others have written, and their names."""
        ...

    def sync_folder(self, folder: str, chosen: Callable[[str], bool]) -> None:
        """Make those files of a folder durable whose names are chosen."""
        ...


def table_files(location: str, who: str) -> TableFiles:
    """Return the files of a table.

    Args:
        location: A path, a ``file://`` URL, or a URL of a bucket.
        who: It was given to, for messages.

    Raises:
        PipelineError: It is none of them.

    >>> table_files("file:///lake/trips", "Delta('...')")
    MountedFiles(root=PosixPath('/lake/trips'))
    >>> table_files("s3://lake/trips", "Delta('...')").location
    's3://lake/trips'
    """
    if is_object_store(location):
        return bucket_files(location)
    if not location or ("://" in location and not location.startswith("file://")):
        raise PipelineError(
            f"{who}: expected a local or mounted path, or s3://bucket/prefix, gs://bucket/prefix "
            "or az://container/prefix, which driver and workers reach."
        )
    return MountedFiles(local_path(location))


def bucket_files(location: str) -> BucketFiles:
    """Return the files of a table in a bucket.

    Args:
        location: The URL.

    Raises:
        PipelineError: It is none.
    """
    return BucketFiles(BucketUrl.parse(location, _SUBJECT), BucketOptions.from_environment())


def open_file(location: str) -> BinaryIO:
    """Open one file by its path or its URL, to be read from anywhere in it.

    Raises:
        FileNotFoundError: There is none.
    """
    if not is_object_store(location):
        return open(location, "rb")  # noqa: PTH123
    scheme, _, rest = location.partition("://")
    bucket, _, name = rest.partition("/")
    # Not parsed: the name of an object may have anything in it.
    url = BucketUrl(scheme, bucket, name)
    return BucketPath(url, BucketOptions.from_environment(), _SUBJECT).open()


@dataclass(frozen=True)
class MountedFiles:
    """The files of a table on a path that driver and workers reach.

    Attributes:
        root: The directory.
    """

    root: Path

    @property
    def location(self) -> str:
        """See :class:`TableFiles`."""
        return str(self.root)

    @property
    def uri(self) -> str:
        """See :class:`TableFiles`."""
        return f"file://{self.root}"

    @property
    def storage_options(self) -> None:
        """See :class:`TableFiles`."""
        return None

    def words(self, error: Exception) -> str:
        """See :meth:`TableFiles.words`."""
        return str(error)

    def explain(self, error: Exception) -> str:
        """See :meth:`TableFiles.explain`."""
        return f"{type(error).__name__}: {error}."

    def refusing(self, where: str) -> AbstractContextManager[None]:
        """See :meth:`TableFiles.refusing`."""
        return refusing(where)

    def claim(self, owner: str, sink: str) -> str:
        """See :meth:`TableFiles.claim`."""
        return claim_directory(self.root, owner, sink)

    def writer(self, sink: str) -> ParquetWriter:
        """See :meth:`TableFiles.writer`."""
        return ParquetWriter(str(self.root), sink)

    def place(self, staged: Sequence[str], folder: str = "") -> list[str]:
        """See :meth:`TableFiles.place`."""
        directory = self.root / folder
        directory.mkdir(exist_ok=True)
        names = []
        for name in staged:
            file, given = self.root / STAGING / name, directory / _given(name)
            # By an attempt that died before it could commit, maybe in the middle of a copy.
            if not given.exists() or given.stat().st_size != file.stat().st_size:
                link(file, given)
            names.append(f"{folder}/{given.name}" if folder else given.name)
        sync_directory(directory)
        sync_directory(self.root)
        return names

    def clear(self, epoch: int) -> None:
        """See :meth:`TableFiles.clear`."""
        clear(self.root / STAGING, epoch)

    def exists(self, name: str) -> bool:
        """See :meth:`TableFiles.exists`."""
        return (self.root / name).exists()

    def about(self, name: str) -> About:
        """See :meth:`TableFiles.about`."""
        stat = (self.root / name).stat()
        identity = f"{stat.st_ino}-{stat.st_mtime_ns}"
        return About(stat.st_size, stat.st_mtime_ns // 1000, identity)

    def open(self, name: str) -> BinaryIO:
        """See :meth:`TableFiles.open`."""
        return (self.root / name).open("rb")

    def read(self, name: str) -> bytes:
        """See :meth:`TableFiles.read`."""
        return (self.root / name).read_bytes()

    def names(self, folder: str) -> list[str]:
        """See :meth:`TableFiles.names`."""
        return sorted(f"{folder}/{file.name}" for file in (self.root / folder).iterdir())

    def map(self, call: Callable[[str], Answer], names: Sequence[str]) -> list[Answer]:
        """See :meth:`TableFiles.map`."""
        return [call(name) for name in names]

    def put_new(self, name: str, data: bytes) -> None:
        """See :meth:`TableFiles.put_new`."""
        file = self.root / name
        draft = file.with_name(f".{uuid.uuid4().hex}.tmp")
        try:
            with draft.open("xb") as out:
                out.write(data)
                out.flush()
                os.fsync(out.fileno())
            file.hardlink_to(draft)
        finally:
            draft.unlink(missing_ok=True)
        self.sync([name])

    def replace(self, name: str, data: bytes) -> None:
        """See :meth:`TableFiles.replace`."""
        replace_text(self.root / name, data.decode())

    def sync(self, names: Iterable[str]) -> None:
        """See :meth:`TableFiles.sync`."""
        directories = {self.root}
        for name in names:
            file = self.root / name
            with file.open("rb") as written:
                os.fsync(written.fileno())
            directories.add(file.parent)
        for directory in directories:
            sync_directory(directory)

    def sync_folder(self, folder: str, chosen: Callable[[str], bool]) -> None:
        """See :meth:`TableFiles.sync_folder`."""
        self.sync(filter(chosen, self.names(folder)))


@dataclass(frozen=True)
class BucketFiles:
    """The files of a table under a prefix of a bucket.

    Attributes:
        url: Which prefix.
        options: How patient its clients are, also those of tasks.
    """

    url: BucketUrl
    options: BucketOptions

    @property
    def location(self) -> str:
        """See :class:`TableFiles`."""
        return str(self.url)

    @property
    def uri(self) -> str:
        """See :class:`TableFiles`."""
        return str(self.url)

    @property
    def storage_options(self) -> dict[str, str]:
        """See :class:`TableFiles`: it is to be as patient as the client here."""
        retry_for_us = self.options.retry_for_us
        # By itself it gives up after ten tries, two seconds for a server that is down.
        return {"max_retries": "1000", "retry_timeout": f"{max(retry_for_us // SECOND, 1)}s"}

    def words(self, error: Exception) -> str:
        """See :meth:`TableFiles.words`: a query of a URL may have a signature."""
        return _QUERY.sub("?...", " ".join(str(error).split()))

    def explain(self, error: Exception) -> str:
        """See :meth:`TableFiles.explain`; the client's own words may have a secret in them."""
        trouble = diagnose(error, self.url)
        return f"{trouble.what}. {trouble.remedy}."

    def refusing(self, where: str) -> AbstractContextManager[None]:
        """See :meth:`TableFiles.refusing`."""

        def explain(error: OSError) -> str:
            return f"{self.url} refuses: {self.explain(error)} Nothing of the epoch was published."

        return refusing(where, explain)

    def claim(self, owner: str, sink: str) -> str:
        """See :meth:`TableFiles.claim`."""
        claim_bucket(self._blobs, owner, sink)
        return str(self.url)

    def writer(self, sink: str) -> BucketWriter:
        """See :meth:`TableFiles.writer`."""
        return BucketWriter(self.url, self.options, sink)

    def placed(self, staged: str, folder: str = "") -> str:
        """Return the name that a file of the staging folder gets."""
        return f"{folder}/{_given(staged)}" if folder else _given(staged)

    def folders(self) -> list[str]:
        """Return the names of the folders. Cost: a list."""
        return [folder.rstrip("/") for folder in self._blobs.entries("", deep=False)[1]]

    def remove(self, names: Iterable[str]) -> None:
        """Remove files that may be there, in no order. Cost: a delete each."""
        self._blobs.map(lambda name: self._blobs.remove([name]), list(names))

    def place(self, staged: Sequence[str], folder: str = "") -> list[str]:
        """See :meth:`TableFiles.place`. Cost: a copy each."""
        names = [self.placed(name, folder) for name in staged]
        pairs = [(f"{STAGING}/{name}", given) for name, given in zip(staged, names, strict=True)]
        self._blobs.map(lambda pair: self._blobs.copy(*pair), pairs)
        return names

    def clear(self, epoch: int) -> None:
        """See :meth:`TableFiles.clear`. Cost: a list, and a delete each."""
        staged = self._blobs.names(STAGING)
        self.remove(name for name in staged if is_left(name.removeprefix(f"{STAGING}/"), epoch))

    def exists(self, name: str) -> bool:
        """See :meth:`TableFiles.exists`. Cost: a head."""
        return self._blobs.exists(name)

    def about(self, name: str) -> About:
        """See :meth:`TableFiles.about`. Cost: a head."""
        known = self._blobs.head(name)
        if known is None:
            raise self._gone(name)
        modified_us = int(known["last_modified"].timestamp() * 1_000_000)
        return About(known["size"], modified_us, f"{known['e_tag']}-{modified_us}")

    def open(self, name: str) -> BinaryIO:
        """See :meth:`TableFiles.open`. Cost: a head, and a get for each read."""
        return open_object(self._blobs, name)

    def read(self, name: str) -> bytes:
        """See :meth:`TableFiles.read`. Cost: a get."""
        data = self._blobs.read(name)
        if data is None:
            raise self._gone(name)
        return data

    def names(self, folder: str) -> list[str]:
        """See :meth:`TableFiles.names`. Cost: a list for each 1,000, in folders of it, too."""
        return [name for name in self._blobs.names(folder) if "/" not in name[len(folder) + 1 :]]

    def map(self, call: Callable[[str], Answer], names: Sequence[str]) -> list[Answer]:
        """See :meth:`TableFiles.map`."""
        return self._blobs.map(call, names)

    def put_new(self, name: str, data: bytes) -> None:
        """See :meth:`TableFiles.put_new`. Cost: a put."""
        if not self._blobs.put_if_absent(name, data):
            raise FileExistsError(f"{self.url}/{name}")

    def replace(self, name: str, data: bytes) -> None:
        """See :meth:`TableFiles.replace`. Cost: a put."""
        self._blobs.replace(name, data)

    def sync(self, names: Iterable[str]) -> None:
        """See :meth:`TableFiles.sync`: what is there is durable."""

    def sync_folder(self, folder: str, chosen: Callable[[str], bool]) -> None:
        """See :meth:`TableFiles.sync_folder`: likewise."""

    @property
    def _blobs(self) -> ObjectBlobs:
        return client(self.url, self.options, _SUBJECT)

    def _gone(self, name: str) -> FileNotFoundError:
        return FileNotFoundError(f"{self.url}/{name}")


@dataclass(frozen=True)
class BucketWriter:
    """Writes a sink's rows of a task to an object of their own.

    Attributes:
        url: Of the table.
        options: How patient the client is.
        sink: The sink, for messages.
    """

    url: BucketUrl
    options: BucketOptions
    sink: str

    def begin(self, epoch: int, task: int) -> ParquetFile:
        """Return the file of an attempt at a task."""
        name = f"epoch={epoch}-{task:05}-{uuid.uuid4().hex}.parquet"
        where = f"{self.sink}, epoch {epoch}"
        return ParquetFile(_StagedObject(client(self.url, self.options, _SUBJECT), name), where)


class _StagedObject:
    """A file of a task that is put into a bucket when it is whole."""

    def __init__(self, blobs: ObjectBlobs, name: str) -> None:
        self._blobs = blobs
        self.name = name
        self.file: IO[bytes] = tempfile.SpooledTemporaryFile(_IN_MEMORY)  # noqa: SIM115

    def keep(self) -> None:
        """Put it; it is durable then."""
        self.file.seek(0)
        with self.file:
            self._blobs.put_pieces(
                f"{STAGING}/{self.name}", iter(lambda: self.file.read(_PIECE), b"")
            )

    def drop(self) -> None:
        """Forget it: nothing was put."""
        self.file.close()


#: Bytes of a file that are read at once to be put.
_PIECE: Final = 1 << 20


def _given(staged: str) -> str:
    """Return the name that a table knows a file by."""
    return staged.replace("epoch=", "part-", 1)
