"""Objects of a bucket as a connector wants them: paths, and files that are read from anywhere.

A bucket is reached with the credentials of the environment, as a checkpoint in one is.
"""

from __future__ import annotations

import functools
import io
from dataclasses import dataclass
from typing import Any, BinaryIO, Final, NamedTuple

from millrace.store.object_blobs import BucketOptions, BucketUrl, ObjectBlobs

#: Bytes that are read at the least; a footer of Parquet is mostly smaller.
_BLOCK: Final = 1 << 16


@functools.lru_cache(maxsize=64)
def client(url: BucketUrl, options: BucketOptions, subject: str) -> ObjectBlobs:
    """Return this process's client of a prefix.

    Args:
        url: Which prefix.
        options: How patient it is.
        subject: What is there, for messages.
    """
    return ObjectBlobs(url, options, subject=subject)


def open_object(blobs: ObjectBlobs, name: str) -> BinaryIO:
    """Open an object to be read from anywhere in it. Cost: a head, and a get for each read.

    Raises:
        FileNotFoundError: There is none.
    """
    known = blobs.head(name)
    if known is None:
        raise FileNotFoundError(f"{blobs.where}/{name}")
    return io.BufferedReader(_Object(blobs, name, known["size"], known["e_tag"]), _BLOCK)


class ObjectStat(NamedTuple):
    """What is known of an object, by the names that :func:`os.stat` has."""

    st_size: int
    st_mtime_ns: int
    st_ino: int = 0
    st_dev: int = 0


@dataclass(frozen=True)
class BucketPath:
    """An object, or what is under a prefix; used like a :class:`~pathlib.Path`, and pickled.

    Attributes:
        url: Which.
        options: How patient its clients are.
        subject: What is there, for messages.

    >>> path = BucketPath(BucketUrl.parse("s3://flights/raw"), BucketOptions(), "Files")
    >>> str(path / "2026/01.json"), (path / "2026/01.json").name
    ('s3://flights/raw/2026/01.json', '01.json')
    """

    url: BucketUrl
    options: BucketOptions
    subject: str

    def __truediv__(self, name: str) -> BucketPath:
        prefix = f"{self.url.prefix}/{name}" if self.url.prefix else name
        within = BucketUrl(self.url.scheme, self.url.bucket, prefix)
        return BucketPath(within, self.options, self.subject)

    def __str__(self) -> str:
        return str(self.url)

    @property
    def name(self) -> str:
        """The part after the last slash."""
        return self.url.prefix.rpartition("/")[2]

    def open(self, mode: str = "rb") -> BinaryIO:
        """Open the object to be read.

        Raises:
            FileNotFoundError: There is none.
        """
        assert mode == "rb", "objects are read here"
        folder, _, name = self.url.prefix.rpartition("/")
        within = BucketUrl(self.url.scheme, self.url.bucket, folder)
        return open_object(client(within, self.options, self.subject), name)

    def entries(self, *, deep: bool) -> tuple[dict[str, ObjectStat], list[str]]:
        """Return the objects under the prefix, by their name in it, and the folders.

        Args:
            deep: Whether those of its folders are among them; then no folder is said.
        """
        blobs = client(self.url, self.options, self.subject)
        objects, folders = blobs.entries("", deep=deep)
        stats = {
            entry["path"]: ObjectStat(
                entry["size"], int(entry["last_modified"].timestamp() * 1_000_000) * 1000
            )
            for entry in objects
        }
        return stats, folders


class _Object(io.RawIOBase):
    """An object that is read from anywhere in it, a request for each read: as it was, or not."""

    def __init__(self, blobs: ObjectBlobs, name: str, size: int, e_tag: str | None) -> None:
        super().__init__()
        self._blobs = blobs
        self._name = name
        self._size = size
        self._e_tag = e_tag
        self._at = 0

    @property
    def name(self) -> str:
        return f"{self._blobs.where}/{self._name}"

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        begin = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(begin + offset, 0)
        return self._at

    def readinto(self, buffer: Any, /) -> int:
        stop = min(self._at + len(buffer), self._size)
        if self._at >= stop:
            return 0
        if self._e_tag is None:
            data = self._blobs.read_range(self._name, self._at, stop)
        else:
            data = self._blobs.read_range_of(self._name, self._at, stop, self._e_tag)
        if data is None:
            raise FileNotFoundError(f"{self.name}, as it was when it was opened")
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)
