"""Files: what is in the files of a directory, with the low watermark of MillWheel's figure 10.

Spark's own file source does not say which files it has listed and not read, so nobody could tell
how old they are. This one knows: it decides what an epoch reads.

Source: MillWheel, "Injector and Low Watermark API" (5.2) and figure 10: the minimum creation time
of the files that are not finished.
"""

from __future__ import annotations

import datetime as dt
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from millrace.connectors.buckets import BucketPath
from millrace.connectors.files.directory import (
    CREATED,
    FINISHED,
    MODIFIED,
    NAME,
    READ,
    SUM,
    Directory,
    checksum,
)
from millrace.connectors.files.formats import (
    Format,
    Lines,
    ParquetFormat,
    folder_columns,
)
from millrace.connectors.files.lines import Parse, RowMaker, json_object
from millrace.injectors.advance import Advance, Backlog
from millrace.injectors.injector import Injector
from millrace.model.errors import InputLost, PipelineError
from millrace.model.time import (
    DAY,
    MAX_TIMESTAMP,
    MIN_TIMESTAMP,
    Duration,
    Instant,
    TimeUnit,
    duration_us,
    timestamp_us,
)
from millrace.store import is_object_store, local_path
from millrace.store.object_blobs import BucketOptions, BucketUrl


def _directory(path: str | Path) -> Path | BucketPath:
    """Return the directory that a path names, or an address such as ``file:///data``."""
    text = os.fspath(path)
    if is_object_store(text):
        url = BucketUrl.parse(text, "Files")
        return BucketPath(url, BucketOptions.from_environment(), "Files")
    if not text or ("://" in text and not text.startswith("file://")):
        raise PipelineError(
            f"Files({text!r}): expected a local or mounted directory, or s3://bucket/prefix, "
            "gs://bucket/prefix or az://container/prefix, which driver and workers reach. What is "
            "elsewhere, Spark's own file source reads, on the epoch plane."
        )
    # A relative path stays one: by it a checkpoint knows the directory, wherever it is moved to.
    return local_path(text) if text.startswith(("file://", "~")) else Path(path)


class Files(Injector):
    """Reads the files in a directory, oldest file first: lines of text, or Parquet.

    It publishes the least creation time among the files that it has not finished: whoever writes a
    file has no record older than the file. When all are finished it publishes that of the newest.

    Args:
        path: The directory, reachable from driver and workers. Names that begin with ``.`` or ``_``
            are passed over: write a file under such a name, then rename it. Or
            ``s3://bucket/prefix``, ``gs://bucket/prefix``, ``az://container/prefix``, with the
            credentials of the environment: its objects are the files.
        format: ``"json"``, lines that ``parse`` reads, or ``"parquet"``. By default ``"parquet"``
            for files whose names end with ``.parquet``, and ``"json"`` for others.
        schema: Columns of a row, as Spark writes them: ``"query string, at timestamp"``. Of Parquet
            files only these are read, and each must be there, of that type.
        parse: Takes a line (bytes, without its end), returns the columns by name or in order; by
            default the line is a JSON object.
        unit: What an integer in a ``timestamp`` column counts: ``"s"``, ``"ms"``, ``"us"`` or
            ``"ns"``. By default microseconds, and a number that is a time up to now in seconds or
            milliseconds is refused. For a column that is an integer itself: ``inject(unit=)``.
        pattern: Which names count; with ``recursive``, which paths in the directory: ``"*.log"`` is
            any, ``"2026/*"`` those in one folder.
        recursive: Whether the files of its folders are read too. A file is read once, not
            again by a symbolic link to it. A folder ``day=2026-11-29`` gives its files the column
            ``day``, if the schema declares it, and they or their lines lack it.
        created: When a file was created: a function of its path, in microseconds or as a datetime.
            Or a pattern that its name follows, such as ``"searches-%Y%m%d-%H.log"`` (UTC); with a
            ``/`` in it, its path in the directory. By default its modification time when it is
            first seen: right for files that are empty then, or whose records are not older.
        grows: How long after its last change more may be added to a file. Until then it is not
            finished, and its last line waits for its end; a Parquet file is not read before. By
            default a file is complete when it appears.
        rotated: Whether files are rotated, as logs are: renamed, or copied and truncated, while
            others take their names. A file is known by its inode and its content then. It is read
            once, to its end, under whatever name it has in the directory, also one that the pattern
            leaves out. A name that has a number or a date after one that counts, as ``app.log.1``
            and ``app.log-20260102``, counts too, from the first look on; ``created`` may follow
            either. Compressed files are passed over. By default a file that is not what it was is
            an error.
        bytes_per_epoch: The most that one epoch reads, in bytes.
        forget: How long after the low watermark has passed a file's creation time to forget that it
            was read. Files that appear so late are not read, and logged.
        clock: The time in microseconds; by default the machine's.

    Raises:
        PipelineError: An argument is wrong.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "1.log").write_text('{"query": "tea", "at": 5}')
    >>> files = Files(folder, schema="query string, at long")
    >>> offset = files.advance(str(folder), None).offset
    >>> [
    ...     row
    ...     for piece in files.split(str(folder), None, offset)
    ...     for row in files.read(str(folder), *piece)
    ... ]
    [('tea', 5)]
    """

    def __init__(
        self,
        path: str | Path,
        *,
        schema: str,
        format: str | None = None,
        parse: Parse = json_object,
        unit: TimeUnit | None = None,
        pattern: str = "*",
        recursive: bool = False,
        created: str | Callable[[Path], int | dt.datetime] | None = None,
        grows: Duration = 0,
        rotated: bool = False,
        bytes_per_epoch: int = 64 << 20,
        forget: Duration = 7 * DAY,
        clock: Callable[[], int] | None = None,
    ) -> None:
        if bytes_per_epoch < 1:
            raise PipelineError(f"Files(bytes_per_epoch={bytes_per_epoch}): expected one or more.")
        if format not in (None, "json", "parquet"):
            raise PipelineError(f'Files(format={format!r}): expected "json" or "parquet".')
        if parse is not json_object and format == "parquet":
            raise PipelineError('Files(format="parquet", parse=...): Parquet files have no lines.')
        if not callable(parse):
            raise PipelineError(f"Files(parse={parse!r}): it cannot be called.")
        if isinstance(created, str) and "%" not in created:
            raise PipelineError(
                f"Files(created={created!r}): expected a pattern with the parts of a time in the "
                'names of files, such as "visits-%Y%m%d-%H.log".'
            )
        self.path = _directory(path)
        if rotated and isinstance(self.path, BucketPath):
            raise PipelineError(
                f"{self!r}: rotated=True is for files, and objects are not renamed."
            )
        self.schema = schema
        self._format = format
        self._make = RowMaker(schema, parse, unit, "Files")
        self._directory = Directory(
            self.path, pattern=pattern, recursive=recursive, created=created, rotated=rotated
        )
        self._grows_us = duration_us(grows, "Files(grows)")
        self._bytes = bytes_per_epoch
        self._forget_us = duration_us(forget, "Files(forget)")
        self._clock = clock

    def __repr__(self) -> str:
        return f"Files({str(self.path)!r})"

    def processes(self) -> Iterable[str]:
        """Return the one process: the directory."""
        return [str(self.path)]

    def advance(self, process: str, offset: Any) -> Advance:
        """Look at the directory, and choose what to read next."""
        return self._advance(offset, self._bytes)

    def until_now(self, process: str, before: Instant | None = None) -> Iterable[Advance]:
        """Return one advance: over all files that are there, or that were created before then."""
        before_us = MAX_TIMESTAMP if before is None else timestamp_us(before)
        return [self._advance(None, sys.maxsize, before_us)]

    def backlog(self, process: str, offset: Any) -> Backlog | None:
        """Return how many files there are of which something was not read, and how many bytes."""
        known, process_watermark_us = (
            (offset["files"], offset["promised"]) if offset else ({}, MIN_TIMESTAMP)
        )
        return self._directory.waiting(known, process_watermark_us - self._forget_us)

    def _advance(self, offset: Any, room: int, before_us: int = MAX_TIMESTAMP) -> Advance:
        known: dict[str, list[Any]] = dict(offset["files"]) if offset else {}
        process_watermark_us: int = offset["promised"] if offset else MIN_TIMESTAMP
        horizon_us = process_watermark_us - self._forget_us
        files = self._directory.look(known, process_watermark_us, horizon_us)
        for name in sorted(
            files, key=lambda name: (files[name][CREATED], files[name][MODIFIED], name)
        ):
            if room <= 0 or files[name][CREATED] >= before_us:
                break
            state = self._advance_file(files[name], room)
            room -= state[READ] - files[name][READ]
            files[name] = state
        open_us = [state[CREATED] for state in files.values() if not state[FINISHED]]
        times = open_us or [
            max((state[CREATED] for state in files.values()), default=process_watermark_us)
        ]
        process_watermark_us = max(process_watermark_us, min(times))
        # What is read in this advance must stand in it, though it be forgotten with the next.
        states = {
            name: state
            for name, state in files.items()
            if not state[FINISHED]
            or not self._directory.is_before(state, process_watermark_us - self._forget_us)
            or state[READ] != known.get(name, [0])[READ]
        }
        if offset and (states, process_watermark_us) == (offset["files"], offset["promised"]):
            return Advance(offset, None)
        low_watermark = None if process_watermark_us == MIN_TIMESTAMP else process_watermark_us
        return Advance({"files": states, "promised": process_watermark_us}, low_watermark)

    def split(self, process: str, start: Any, end: Any) -> Iterable[tuple[Any, Any]]:
        """Return pieces of the files of which something is read: large ones are read by several."""
        known = start["files"] if start else {}
        for key, state in end["files"].items():
            name, begun, until = state[NAME], known[key][READ] if key in known else 0, state[READ]
            if begun == until:
                continue
            path = self._find(name, begun, until, state[SUM])
            try:
                for first, last in self._format_of(name).pieces(path, begun, until):
                    yield [name, first], [name, last, until, state[SUM]]
            except FileNotFoundError as gone:
                raise self._removed(name, begun, until) from gone

    def read_arrow(self, process: str, start: Any, end: Any) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a piece of a file."""
        name, at = start
        _, stop, until, expected = end
        path = self._find(name, at, until, expected)
        try:
            with path.open("rb") as file:
                # What is not the file that was planned must not be delivered.
                if file.seek(0, os.SEEK_END) < until or checksum(file, until) != expected:
                    raise InputLost(
                        f"{path}: it was truncated or replaced while bytes {at} to {stop} of it "
                        "were to be read. Put back the file as it was and start again with the "
                        "same checkpoint. Write new data into new files."
                    )
                yield from self._format_of(name).read(path, file, at, stop)
        except FileNotFoundError as gone:
            raise self._removed(name, at, stop) from gone

    def _find(self, name: str, start: int, end: int, expected: int) -> Path | BucketPath:
        path = self._directory.find(name, end, expected)
        if path is None:
            raise self._removed(name, start, end)
        return path

    def _removed(self, name: str, start: int, end: int) -> InputLost:
        return InputLost(
            f"{self.path / name}: it was removed before bytes {start} to {end} of it were read. "
            "Put it back and start again with the same checkpoint; remove files only when the "
            "low watermark has passed them."
        )

    def _format_of(self, name: str) -> Format:
        parquet = name.endswith(".parquet") if self._format is None else self._format == "parquet"
        folders = folder_columns(name, self.schema, repr(self))
        return ParquetFormat(self.schema, folders) if parquet else Lines(self._make, folders)

    def _advance_file(self, state: list[Any], room: int) -> list[Any]:
        """Return a file's state when another ``room`` bytes of it have been read, about."""
        read, _, created_us, modified_ns, finished, name, inode = state
        if finished:
            return state
        opened = self._directory.opened(state)
        if opened is None:
            return state
        with opened as file:
            size = file.seek(0, os.SEEK_END)
            settled = self._now_us() - modified_ns // 1000 >= self._grows_us
            end = self._format_of(name).end(file, read, room, size, settled=settled)
            seen = checksum(file, end)
            return [end, seen, created_us, modified_ns, settled and end == size, name, inode]

    def _now_us(self) -> int:
        return time.time_ns() // 1000 if self._clock is None else self._clock()
