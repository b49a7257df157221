"""Files: lines of the files in a directory, with the low watermark of MillWheel's figure 10.

Spark's own file source does not say which files it has listed and not read, so nobody could tell
how old they are. This one knows: it decides what an epoch reads.

Source: MillWheel, "Injector and Low Watermark API" (5.2) and figure 10: the minimum creation time
of the files that are not finished.
"""

from __future__ import annotations

import datetime as dt
import fnmatch
import logging
import os
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from millrace.injectors.injector import Advance, Injector
from millrace.injectors.lines import Parse, RowMaker, json_object
from millrace.model.errors import InputLost, PipelineError
from millrace.model.time import (
    DAY,
    MIN_TIMESTAMP,
    Duration,
    TimeUnit,
    duration_us,
    format_timestamp,
)
from millrace.model.time import timestamp_us as instant_us

log = logging.getLogger("millrace.injectors")

#: How much of a file, before the place where reading stopped, tells whether it is still that file.
_TAIL = 1024
#: How much is read at once while looking for the end of a line.
_BLOCK = 1 << 16

#: What is remembered of a file, as JSON has it: bytes read, checksum of the last of them, creation
#: time, modification time (ns) when it was last looked at, whether it is finished, and how many
#: other files had its name before.
_READ, _SUM, _CREATED, _MODIFIED, _FINISHED, _EARLIER = range(6)


class Files(Injector):
    """Reads lines of the files in a directory, oldest file first.

    It publishes the least creation time among the files that it has not finished: whoever writes a
    file has no record older than the file. When all are finished it publishes that of the newest.

    Args:
        path: The directory, reachable from driver and workers. Names that begin with ``.`` or ``_``
            are passed over: write a file under such a name, then rename it.
        schema: Columns of a row, as Spark writes them: ``"query string, at timestamp"``.
        parse: Takes a line (bytes, without its end), returns the columns by name or in order; by
            default the line is a JSON object.
        unit: What an integer in a ``timestamp`` column counts: ``"s"``, ``"ms"``, ``"us"`` or
            ``"ns"``. By default microseconds, and a number that is a time up to now in seconds or
            milliseconds is refused. For a column that is an integer itself: ``inject(unit=)``.
        pattern: Which names count.
        created: When a file was created: a function of its path, in microseconds or as a datetime;
            or a pattern that its name follows, such as ``"searches-%Y%m%d-%H.log"`` (UTC). By
            default its modification time when it is first seen, which is right for files that are
            empty then, or whose records are not older.
        grows: How long after its last change more may be added to a file: until then it is not
            finished, and its last line waits for its end. By default a file is complete when it
            appears.
        rotated: Whether a file that was truncated, or replaced by another under its name, is read
            from its beginning. By default that is an error.
        bytes_per_epoch: The most that one epoch reads, in bytes.
        forget: How long after the low watermark has passed a file's creation time to forget that it
            was read. Files that appear so late are not read, and logged.
        clock: The time in microseconds; by default the machine's.

    Raises:
        PipelineError: An argument is wrong.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        schema: str,
        parse: Parse = json_object,
        unit: TimeUnit | None = None,
        pattern: str = "*",
        created: str | Callable[[Path], int | dt.datetime] | None = None,
        grows: Duration = 0,
        rotated: bool = False,
        bytes_per_epoch: int = 64 << 20,
        forget: Duration = 7 * DAY,
        clock: Callable[[], int] | None = None,
    ) -> None:
        if bytes_per_epoch < 1:
            raise PipelineError(f"Files(bytes_per_epoch={bytes_per_epoch}): expected one or more.")
        self.path = Path(path)
        self.schema = schema
        self._make = RowMaker(schema, parse, unit, "Files")
        self._pattern = pattern
        self._created = created
        self._grows_us = duration_us(grows)
        self._rotated = rotated
        self._bytes = bytes_per_epoch
        self._forget_us = duration_us(forget)
        self._clock = clock

    def __repr__(self) -> str:
        return f"Files({str(self.path)!r})"

    def processes(self) -> Iterable[str]:
        """Return the one process: the directory."""
        return [str(self.path)]

    def advance(self, process: str, offset: Any) -> Advance:
        """Look at the directory, and choose what to read next."""
        known: dict[str, list[Any]] = dict(offset["files"]) if offset else {}
        promised_us: int = offset["promised"] if offset else MIN_TIMESTAMP
        horizon_us = promised_us - self._forget_us
        files = self._look(known, promised_us, horizon_us)
        room = self._bytes
        for name in sorted(files, key=lambda name: (files[name][_CREATED], name)):
            if room <= 0:
                break
            state = self._advance_file(name, files[name], room)
            room -= state[_READ] - files[name][_READ]
            files[name] = state
        open_us = [state[_CREATED] for state in files.values() if not state[_FINISHED]]
        times = open_us or [max((state[_CREATED] for state in files.values()), default=promised_us)]
        promised_us = max(promised_us, min(times))
        kept = {
            name: state
            for name, state in files.items()
            if not state[_FINISHED] or state[_CREATED] >= promised_us - self._forget_us
        }
        if offset and (kept, promised_us) == (offset["files"], offset["promised"]):
            return Advance(offset, None)
        claim_us = None if promised_us == MIN_TIMESTAMP else promised_us
        return Advance({"files": kept, "promised": promised_us}, claim_us)

    def split(self, process: str, start: Any, end: Any) -> Iterable[tuple[Any, Any]]:
        """Return a piece for each file of which something is read."""
        known = start["files"] if start else {}
        for name, state in end["files"].items():
            before = known.get(name)
            begun = 0
            if before is not None and before[_EARLIER] == state[_EARLIER]:
                begun = before[_READ]
            if begun != state[_READ]:
                yield [name, begun], [name, state[_READ], state[_SUM]]

    def read(self, process: str, start: Any, end: Any) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a piece of a file."""
        name, at = start
        _, stop, checksum = end
        try:
            with (self.path / name).open("rb") as file:
                # All of it first: what is not the file that was planned must not be delivered.
                file.seek(at)
                data = file.read(stop - at)
                if len(data) != stop - at or _checksum(file, stop) != checksum:
                    raise InputLost(
                        f"{self.path / name}: it was truncated or replaced while bytes {at} to "
                        f"{stop} of it were to be read. Put back the file as it was and start "
                        "again with the same checkpoint. Write new data into new files."
                    )
        except FileNotFoundError as gone:
            raise InputLost(
                f"{self.path / name}: it was removed before bytes {at} to {stop} of it were read. "
                "Put it back and start again with the same checkpoint; remove files only when the "
                "low watermark has passed them."
            ) from gone
        for line in data.splitlines(keepends=True):
            content = line.rstrip(b"\r\n")
            if content:
                yield self._make.row(content, f"{self.path / name}, byte {at}")
            at += len(line)

    # -- the directory -----------------------------------------------------------------------------

    def _look(
        self, known: dict[str, list[Any]], promised_us: int, horizon_us: int
    ) -> dict[str, list[Any]]:
        """Return the state of every file that counts, with what was read of it so far."""
        files = {}
        try:
            entries = sorted(os.scandir(self.path), key=lambda entry: entry.name)
        except OSError as error:
            raise InputLost(
                f"Files({str(self.path)!r}): {error.strerror}. Expected a directory that the "
                "driver can read."
            ) from error
        for entry in entries:
            name = entry.name
            if name[0] in "._" or not fnmatch.fnmatch(name, self._pattern) or not entry.is_file():
                continue
            found = entry.stat()
            state = known.get(name)
            if state is None:
                created_us = self._created_us(Path(entry.path), found.st_mtime_ns // 1000)
                if created_us < horizon_us:
                    log.warning(
                        "%s appeared too late and is not read: it was created at %s, and what was "
                        "read before %s is forgotten.",
                        entry.path,
                        format_timestamp(created_us),
                        format_timestamp(horizon_us),
                    )
                    continue
                if created_us < promised_us:
                    log.warning(
                        "%s appeared late: it was created at %s, and the low watermark is at %s. "
                        "Its records may be late.",
                        entry.path,
                        format_timestamp(created_us),
                        format_timestamp(promised_us),
                    )
                state = [0, 0, created_us, 0, False, 0]
            elif found.st_mtime_ns != state[_MODIFIED]:
                state = self._changed(Path(entry.path), state, found.st_size)
            files[name] = [*state[:_MODIFIED], found.st_mtime_ns, *state[_FINISHED:]]
        for name, state in known.items():
            if name not in files and not state[_FINISHED]:
                log.warning(
                    "%s was removed after %d bytes of it were read; if there was more, it is lost.",
                    self.path / name,
                    state[_READ],
                )
            if name not in files and state[_FINISHED]:
                files[name] = state  # it may come back, and was read
        return files

    def _changed(self, path: Path, state: list[Any], size: int) -> list[Any]:
        """Return the state of a file that is not as it was left."""
        read = state[_READ]
        if size < read:
            what = f"was truncated: {read} bytes of it were read, and it has {size}"
        else:
            with path.open("rb") as file:
                if _checksum(file, read) == state[_SUM]:
                    return state if size == read else [*state[:_FINISHED], False, state[_EARLIER]]
            what = f"was replaced: the {read} bytes of it that were read have changed"
        if not self._rotated:
            raise InputLost(
                f"{path} {what}. Put it back as it was, or write new data into new files; where "
                "files are rotated under their names, say Files(rotated=True)."
            )
        log.warning("%s %s. It is read from its beginning.", path, what)
        return [0, 0, state[_CREATED], 0, False, state[_EARLIER] + 1]

    def _advance_file(self, name: str, state: list[Any], room: int) -> list[Any]:
        """Return a file's state when another ``room`` bytes of it have been read, about."""
        read, _, created_us, modified_ns, finished, earlier = state
        if finished:
            return state
        with (self.path / name).open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            settled = self._now_us() - modified_ns // 1000 >= self._grows_us
            end = _line_end(file, read, room, size)
            if settled and (size <= read + room or end == read):
                end = size  # the last line needs no end
            checksum = _checksum(file, end)
            return [end, checksum, created_us, modified_ns, settled and end == size, earlier]

    def _created_us(self, path: Path, modified_us: int) -> int:
        if self._created is None:
            return modified_us
        if callable(self._created):
            return instant_us(self._created(path))
        try:
            named = dt.datetime.strptime(path.name, self._created)
        except ValueError as error:
            raise PipelineError(
                f"{path}: its name does not follow created={self._created!r}. Rename it, or pass "
                "over it with pattern=."
            ) from error
        return instant_us(named if named.tzinfo is not None else named.replace(tzinfo=dt.UTC))

    def _now_us(self) -> int:
        return time.time_ns() // 1000 if self._clock is None else self._clock()


def _checksum(file: BinaryIO, end: int) -> int:
    """Return the checksum of the bytes before a place in a file."""
    file.seek(max(0, end - _TAIL))
    return zlib.crc32(file.read(end - file.tell()))


def _line_end(file: BinaryIO, start: int, room: int, size: int) -> int:
    """Return where the last whole line ends that begins within ``room``; ``start`` if none ends."""
    at = min(start + room, size)
    while at > start:
        begin = max(start, at - _BLOCK)
        file.seek(begin)
        found = file.read(at - begin).rfind(b"\n")
        if found >= 0:
            return begin + found + 1
        at = begin
    at = min(start + room, size)
    file.seek(at)
    while block := file.read(_BLOCK):  # one line that is longer than the room there is
        found = block.find(b"\n")
        if found >= 0:
            return at + found + 1
        at += len(block)
    return start
