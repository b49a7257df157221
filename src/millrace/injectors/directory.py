"""A directory of files that are read once: which there are, and what was read of each.

Source: MillWheel, figure 10: the creation time of the files that are not finished.
"""

from __future__ import annotations

import datetime as dt
import fnmatch
import logging
import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final

from millrace.injectors.backlog import Backlog
from millrace.model.errors import InputLost, PipelineError
from millrace.model.time import format_timestamp
from millrace.model.time import timestamp_us as instant_us

log = logging.getLogger("millrace.injectors")

#: How much of a file, before the place where reading stopped, tells whether it is still that file.
_TAIL: Final = 1024

#: What is remembered of a file, as JSON has it: bytes read, checksum of the last of them, creation
#: time, modification time (ns) when it was last looked at, whether it is finished, and how many
#: other files had its name before.
READ, SUM, CREATED, MODIFIED, FINISHED, EARLIER = range(6)


class Directory:
    """Looks at the files of a directory.

    Args:
        path: The directory.
        pattern: Which names count.
        recursive: Whether the files of its folders count; a name is a path in the directory then.
        created: As ``mr.Files`` takes it.
        rotated: Whether another file may stand under the name of one that was read.
    """

    def __init__(
        self,
        path: Path,
        *,
        pattern: str,
        recursive: bool,
        created: str | Callable[[Path], int | dt.datetime] | None,
        rotated: bool,
    ) -> None:
        self.path = path
        self._pattern = pattern
        self._recursive = recursive
        self._created = created
        self._rotated = rotated
        # Files that may have been read, and of which that was said: every look finds them.
        self._said: set[str] = set()

    def _say_forgotten(self, path: str, created_us: int, horizon_us: int) -> None:
        if path not in self._said:
            self._said.add(path)
            log.warning(
                "%s is not read: it was created at %s, and which files from before %s were read is "
                "forgotten. If it has just appeared, its records are missing: raise forget=. If it "
                "has been there for long, it was read.",
                path,
                format_timestamp(created_us),
                format_timestamp(horizon_us),
            )

    def look(
        self, known: dict[str, list[Any]], promised_us: int, horizon_us: int
    ) -> dict[str, list[Any]]:
        """Return the state of every file that counts, with what was read of it so far.

        Args:
            known: The states as they were left.
            promised_us: The low watermark that was published.
            horizon_us: Files that were created before it are not read: they may have been.

        Raises:
            InputLost: The directory cannot be read, or a file is not as it was left.
        """
        files = {}
        try:
            entries = sorted(self._entries(str(self.path), ""))
        except OSError as error:
            raise InputLost(
                f"Files({str(self.path)!r}): {error.strerror}. Expected a directory that the "
                "driver can read."
            ) from error
        for name, path, found in entries:
            state = known.get(name)
            if state is None:
                created_us = self._created_us(Path(path), name, found.st_mtime_ns // 1000)
                if created_us < horizon_us:
                    self._say_forgotten(path, created_us, horizon_us)
                    continue
                if created_us < promised_us:
                    log.warning(
                        "%s appeared late: it was created at %s, and the low watermark is at %s. "
                        "Its records may be late.",
                        path,
                        format_timestamp(created_us),
                        format_timestamp(promised_us),
                    )
                state = [0, 0, created_us, 0, False, 0]
            elif found.st_mtime_ns != state[MODIFIED]:
                state = self._changed(Path(path), state, found.st_size)
            files[name] = [*state[:MODIFIED], found.st_mtime_ns, *state[FINISHED:]]
        for name, state in known.items():
            if name not in files and not state[FINISHED]:
                log.warning(
                    "%s was removed after %d bytes of it were read; if there was more, it is lost.",
                    self.path / name,
                    state[READ],
                )
            if name not in files and state[FINISHED]:
                files[name] = state  # it may come back, and was read
        return files

    def waiting(self, known: dict[str, list[Any]], horizon_us: int) -> Backlog:
        """Return what was not read. It only looks at sizes, and says nothing about what is wrong.

        Args:
            known: The states of files as they were left.
            horizon_us: Files that were created before it are not read.
        """
        left = []
        for name, path, found in self._entries(str(self.path), ""):
            if name in known:
                left.append(found.st_size - known[name][READ])
            elif self._created_us(Path(path), name, found.st_mtime_ns // 1000) >= horizon_us:
                left.append(found.st_size)
        left = [size for size in left if size > 0]
        return Backlog(files=len(left), size=sum(left))

    def _changed(self, path: Path, state: list[Any], size: int) -> list[Any]:
        """Return the state of a file that is not as it was left."""
        read = state[READ]
        if size < read:
            what = f"was truncated: {read} bytes of it were read, and it has {size}"
        else:
            with path.open("rb") as file:
                if checksum(file, read) == state[SUM]:
                    return state if size == read else [*state[:FINISHED], False, state[EARLIER]]
            what = f"was replaced: the {read} bytes of it that were read have changed"
        if not self._rotated:
            raise InputLost(
                f"{path} {what}. Put it back as it was, or write new data into new files; where "
                "files are rotated under their names, say Files(rotated=True)."
            )
        log.warning("%s %s. It is read from its beginning.", path, what)
        return [0, 0, state[CREATED], 0, False, state[EARLIER] + 1]

    def _entries(self, folder: str, prefix: str) -> Iterator[tuple[str, str, os.stat_result]]:
        """Yield name, path and stat of each file that counts, in no order."""
        with os.scandir(folder) as entries:
            for entry in entries:
                name = prefix + entry.name
                if entry.name[0] in "._":
                    continue
                if self._recursive and entry.is_dir():
                    yield from self._entries(entry.path, name + "/")
                elif fnmatch.fnmatch(name, self._pattern) and entry.is_file():
                    yield name, entry.path, entry.stat()

    def _created_us(self, path: Path, name: str, modified_us: int) -> int:
        if self._created is None:
            return modified_us
        if callable(self._created):
            return instant_us(self._created(path))
        try:
            said = name if "/" in self._created else path.name
            named = dt.datetime.strptime(said, self._created)
        except ValueError as error:
            raise PipelineError(
                f"{path}: its name does not follow created={self._created!r}. Rename it, or pass "
                "over it with pattern=."
            ) from error
        return instant_us(named if named.tzinfo is not None else named.replace(tzinfo=dt.UTC))


def checksum(file: BinaryIO, end: int) -> int:
    """Return the checksum of the bytes before a place in a file."""
    file.seek(max(0, end - _TAIL))
    return zlib.crc32(file.read(end - file.tell()))
