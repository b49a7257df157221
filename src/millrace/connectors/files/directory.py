"""A directory of files that are read once: which there are, and what was read of each.

Where files are rotated, a file is what it is and not what it is called: it is known again by its
inode, and by the last kilobyte before the place where reading stopped. So one that was renamed is
read on under its new name, one that was copied before it was truncated in the copy, and what stands
under its old name is another file. An inode alone proves nothing, as it is given again; nor does
content alone while the file of which it was read is still there. One that nobody saw before it was
renamed is part of a log by its name: the log's, and a number or a date.

Source: MillWheel, figure 10: the creation time of the files that are not finished.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import errno
import fnmatch
import itertools
import logging
import os
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

from millrace.connectors.buckets import BucketPath, ObjectStat
from millrace.injectors.advance import Backlog
from millrace.model.errors import InputLost, PipelineError
from millrace.model.time import format_timestamp
from millrace.model.time import timestamp_us as instant_us

log = logging.getLogger("millrace.injectors")

#: How much of a file, before the place where reading stopped, tells whether it is still that file.
_TAIL: Final = 1024

#: What is remembered of a file, as JSON has it: bytes read, checksum of the last of them, creation
#: time, modification time (ns) when it was last looked at, whether it is finished, its name, and
#: its inode where files are rotated.
READ, SUM, CREATED, MODIFIED, FINISHED, NAME, INODE = range(7)

#: How rotated files end that are not lines any more; what is in them was read before.
_COMPRESSED: Final = (".gz", ".bz2", ".xz", ".zst", ".lz4", ".zip")

#: What rotation puts after the name of a log: a number, a date, or both. With any other ending, as
#: of ``app.log.pos``, a file may be something else.
_ROTATION: Final = re.compile(r"[-._]\d[\d\-_.T:]*$")


class _Entry(NamedTuple):
    """A file that is there: its name in the directory, its path, and whether the name counts.

    It is linked if it, or a folder of it, is a symbolic link.
    """

    name: str
    path: Path | BucketPath
    stat: os.stat_result | ObjectStat
    counts: bool
    linked: bool


class Directory:
    """Looks at the files of a directory.

    Args:
        path: The directory, or a prefix of a bucket.
        pattern: Which names count; where files are rotated, also with a number or a date after.
        recursive: Whether the files of its folders count; a name is a path in the directory then.
        created: As ``mr.sources.Files`` takes it.
        rotated: Whether files are renamed, copied and truncated, and their names given to others.
    """

    def __init__(
        self,
        path: Path | BucketPath,
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
        # Files that were not known at the last look, and what was read of those that were missing:
        # none of the files begins with that.
        self._strangers: set[tuple[int, int, int]] = set()
        self._contents: set[tuple[int, int]] = set()

    def _warn_of_forgotten(self, path: str, created_us: int, horizon_us: int) -> None:
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

    def _warn_of_skipped(self, folder: str) -> None:
        if str(self.path) not in self._said:
            self._said.add(str(self.path))
            log.warning(
                "%s is not read: the files of folders are read with Files(recursive=True).", folder
            )

    def look(
        self, known: dict[str, list[Any]], process_watermark_us: int, horizon_us: int
    ) -> dict[str, list[Any]]:
        """Return the state of every file that counts, with what was read of it so far.

        Args:
            known: The states as they were left.
            process_watermark_us: The low watermark that was published.
            horizon_us: Files that were created before it are not read: they may have been.

        Raises:
            InputLost: The directory cannot be read, or a file is not as it was left.
            PipelineError: The name of a file that counts is no text.
        """
        try:
            there = self._files()
        except OSError as error:
            raise InputLost(
                f"Files({str(self.path)!r}): {error.strerror}. Expected a directory that the "
                "driver can read."
            ) from error
        for entry in there:
            if entry.counts and not _is_text(entry.name):
                raise PipelineError(
                    f"{os.fsencode(str(entry.path))!r}: the name of the file is not UTF-8, so "
                    "what was read of it cannot be remembered. Rename it."
                )
        there = [entry for entry in there if _is_text(entry.name)]
        there, recognized = self._recognized(known, there)
        ended_us = self._ended_us(known)
        files: dict[str, list[Any]] = {}
        for entry in there:
            key = recognized.get(entry.name)
            if key is not None:
                files[key] = self._looked(entry, known[key])
            elif entry.counts:
                created_us = self._first_seen_us(entry, ended_us)
                if created_us < horizon_us:
                    self._warn_of_forgotten(str(entry.path), created_us, horizon_us)
                    continue
                if created_us < process_watermark_us:
                    log.warning(
                        "%s appeared late: it was created at %s, and the low watermark is at %s. "
                        "Its records may be late.",
                        entry.path,
                        format_timestamp(created_us),
                        format_timestamp(process_watermark_us),
                    )
                new = [
                    0,
                    0,
                    created_us,
                    entry.stat.st_mtime_ns,
                    False,
                    entry.name,
                    self._inode(entry),
                ]
                files[_key(entry.name, known)] = new
        for name, state in known.items():
            if name not in files and not state[FINISHED]:
                log.warning(
                    "%s was removed, truncated or compressed after %d bytes of it were read; if "
                    "there was more, it is lost.",
                    self.path / state[NAME],
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
        column = INODE if self._rotated else NAME
        read = {state[column]: state[READ] for state in known.values()}
        ended_us = self._ended_us(known)
        left = []
        for entry in self._files():
            name = self._inode(entry) if self._rotated else entry.name
            if name in read:
                left.append(entry.stat.st_size - read[name])
            elif entry.counts and self._first_seen_us(entry, ended_us) >= horizon_us:
                left.append(entry.stat.st_size)
        left = [size for size in left if size > 0]
        return Backlog(files=len(left), size=sum(left))

    def is_before(self, state: list[Any], horizon_us: int) -> bool:
        """Return whether a file would count as created before then if it were not known."""
        created_us: int = state[CREATED]
        if self._created is None:
            created_us = max(created_us, state[MODIFIED] // 1000)
        return created_us < horizon_us

    def find(self, name: str, end: int, expected: int) -> Path | BucketPath | None:
        """Return where the file is of which ``end`` bytes are known; None if it is nowhere.

        Args:
            name: That it had.
            end: The bytes.
            expected: Their :func:`checksum`.
        """
        path = self.path / name
        if not self._rotated or _is(path, end, expected):
            return path
        paths = (entry.path for entry in self._files())
        return next((path for path in paths if _is(path, end, expected)), None)

    def opened(self, state: list[Any]) -> BinaryIO | None:
        """Open a file that was looked at; return None if it was renamed since: look again."""
        try:
            file: BinaryIO = (self.path / state[NAME]).open("rb")
        except FileNotFoundError:
            return None
        if self._rotated and os.fstat(file.fileno()).st_ino != state[INODE]:
            file.close()
            return None
        return file

    def _recognized(
        self, known: dict[str, list[Any]], there: list[_Entry]
    ) -> tuple[list[_Entry], dict[str, str]]:
        """Return the files that are there, each once, and name -> key of those that are known."""
        if not self._rotated:
            return there, {entry.name: entry.name for entry in there if entry.name in known}
        # Of several links to one file that counts which has the known name, or the first.
        names = {state[NAME] for state in known.values()}
        links: dict[int, _Entry] = {}
        for entry in sorted(there, key=lambda entry: (entry.name not in names, not entry.counts)):
            links.setdefault(entry.stat.st_ino, entry)
        recognized: dict[str, str] = {}
        for key, state in known.items():
            same = links.get(state[INODE])
            if same is not None and self._is_known(same, state):
                recognized.setdefault(same.name, key)
        lost = {key: known[key] for key in known.keys() - recognized.values()}
        strangers = [entry for entry in links.values() if entry.name not in recognized]
        copies = self._copies(lost, strangers)
        for key in known:
            if key not in lost:
                continue
            state = lost[key]
            same_content = copies.get((state[READ], state[SUM]), [])
            for entry in sorted(same_content, key=lambda entry: entry.name != state[NAME]):
                if entry.name not in recognized:
                    recognized[entry.name] = key
                    break
        listed = {entry.name for entry in links.values()}
        for state in known.values():
            at = state[NAME]
            if state[READ] and at in listed and at not in recognized:
                log.warning(
                    "%s was truncated or replaced: what is there now is another file than that of "
                    "which %d bytes were read. It is read from its beginning.",
                    self.path / at,
                    state[READ],
                )
        read = {name for name, key in recognized.items() if known[key][READ]}
        originals, quiet = list[_Entry](), dict[str, _Entry]()
        for entry in links.values():
            if entry.name in read and known[recognized[entry.name]][FINISHED]:
                quiet[entry.name] = entry
            elif entry.name in read:
                originals.append(entry)
        left = [
            entry
            for entry in links.values()
            if entry.name in read
            or not (entry.counts and self._is_copy_of_one(entry, originals, quiet))
        ]
        return sorted(left, key=lambda entry: entry.name), recognized

    def _is_copy_of_one(
        self, entry: _Entry, originals: list[_Entry], quiet: dict[str, _Entry]
    ) -> bool:
        """Return whether a file is a copy of one that was read, which is to be truncated.

        Finished files may be alike by chance. So of a quiet one only a file with its name, and a
        number or a date after it, is a copy.
        """
        original = quiet.get(self._names(entry.name)[-1])
        likely = originals if original is None else [*originals, original]
        return any(_is_copy(entry, each) for each in likely)

    def _copies(
        self, lost: dict[str, list[Any]], strangers: list[_Entry]
    ) -> dict[tuple[int, int], list[_Entry]]:
        """Return (bytes read, their checksum) of lost files -> strangers that begin with those.

        A lost file of which nothing was read has none. A stranger that has not changed is not
        compared again with what it was compared with at the last look.
        """
        contents = {(state[READ], state[SUM]) for state in lost.values() if state[READ]}
        fresh, compared = contents - self._contents, set[tuple[int, int, int]]()
        copies: dict[tuple[int, int], list[_Entry]] = {}
        for entry in strangers:
            stat = entry.stat
            identity = stat.st_ino, stat.st_mtime_ns, stat.st_size
            due = fresh if identity in self._strangers else contents
            with contextlib.suppress(FileNotFoundError):  # renamed meanwhile
                if any(end <= stat.st_size for end, _ in due):
                    with entry.path.open("rb") as file:
                        for content in due:
                            if (
                                content[0] <= stat.st_size
                                and checksum(file, content[0]) == content[1]
                            ):
                                copies.setdefault(content, []).append(entry)
                compared.add(identity)
        self._strangers, self._contents = compared, contents - copies.keys()
        return copies

    def _is_known(self, entry: _Entry, state: list[Any]) -> bool:
        # One that was quiet for so long that it is finished would have another time if it changed;
        # or, within an instant of its file system, another size.
        read, size = state[READ], entry.stat.st_size
        quiet = state[FINISHED] and size == read and entry.stat.st_mtime_ns == state[MODIFIED]
        same = quiet and entry.stat.st_ino == state[INODE]
        return size >= read and (same or _is(entry.path, read, state[SUM]))

    def _looked(self, entry: _Entry, state: list[Any]) -> list[Any]:
        """Return the state of a file that was known, as it is now."""
        finished = state[FINISHED]
        # It may have grown within what is one instant to its file system.
        grew = finished and entry.stat.st_size != state[READ]
        if grew or entry.stat.st_mtime_ns != state[MODIFIED]:
            if not self._rotated:
                self._check_unchanged(entry, state)
            finished = finished and not grew
        return [
            *state[:MODIFIED], entry.stat.st_mtime_ns, finished, entry.name, self._inode(entry)
        ]  # fmt: skip

    def _check_unchanged(self, entry: _Entry, state: list[Any]) -> None:
        read, size = state[READ], entry.stat.st_size
        if size < read:
            change = f"was truncated: {read} bytes of it were read, and it has {size}"
        elif _is(entry.path, read, state[SUM]):
            return
        else:
            change = f"was replaced: the {read} bytes of it that were read have changed"
        raise InputLost(
            f"{entry.path} {change}. Put it back as it was, or write new data into new files; "
            "where files are rotated under their names, say Files(rotated=True)."
        )

    def _inode(self, entry: _Entry) -> int:
        return entry.stat.st_ino if self._rotated else 0

    def _ended_us(self, known: dict[str, list[Any]]) -> dict[str, int]:
        """Return of each log when the last of its files that are known was changed."""
        ended_us: dict[str, int] = {}
        for state in known.values():
            log_name = self._names(state[NAME])[-1]
            ended_us[log_name] = max(state[MODIFIED] // 1000, ended_us.get(log_name, 0))
        return ended_us

    def _first_seen_us(self, entry: _Entry, ended_us: dict[str, int]) -> int:
        """Return when a file was created that was not known.

        One of a log of which others are known was begun when these had ended.
        """
        if self._created is not None:
            return self._created_us(entry, self._created)
        modified_us = entry.stat.st_mtime_ns // 1000
        return min(modified_us, ended_us.get(self._names(entry.name)[-1], modified_us))

    def _names(self, name: str) -> list[str]:
        """Return the names that a file may go by: its own, and last that of its log."""
        log_name = _ROTATION.sub("", name) if self._rotated else name
        return [name] if log_name == name else [name, log_name]

    def _files(self) -> list[_Entry]:
        """Return the files that count, in order of names; where files are rotated, all others too.

        A file that counts by its own name does not count again by that of a link to it.

        Raises:
            OSError: The directory cannot be read.
        """
        if isinstance(self.path, BucketPath):
            return self._objects(self.path)
        there = sorted(
            self._entries(str(self.path), "", linked=False), key=lambda entry: entry.name
        )
        if not any(entry.linked for entry in there):
            return there
        known = set[tuple[int, int]]()
        left = []
        for entry in sorted(there, key=lambda entry: (not entry.counts, entry.linked)):
            file = entry.stat.st_dev, entry.stat.st_ino
            if not (entry.linked and file in known):
                left.append(entry)
            if entry.counts:
                known.add(file)
        return sorted(left, key=lambda entry: entry.name)

    def _objects(self, path: BucketPath) -> list[_Entry]:
        """Return the objects that count, in order of names."""
        objects, folders = path.entries(deep=self._recursive)
        for folder in folders:
            if "=" in folder.rstrip("/").rpartition("/")[2]:
                self._warn_of_skipped(f"{path}/{folder}")
        return [
            _Entry(name, path / name, stat, True, False)
            for name, stat in sorted(objects.items())
            if fnmatch.fnmatch(name, self._pattern)
            and not name.endswith("/")  # what some tools make for a folder
            and not _is_passed_over(name)
        ]

    def _entries(self, folder: str, prefix: str, *, linked: bool) -> Iterator[_Entry]:
        """Yield the files that count, in no order; where files are rotated, the others too."""
        try:
            entries = os.scandir(folder)
        except FileNotFoundError:
            if prefix:  # the folder was removed meanwhile
                return
            raise
        with entries:
            for entry in entries:
                if _leads_to_itself(entry):
                    continue
                name = prefix + entry.name
                # A column of a table in folders, as Hive and Spark write them, may have any name.
                is_column = entry.name[0] != "." and "=" in entry.name and entry.is_dir()
                if entry.name[0] in "._" and not is_column:
                    continue
                if is_column and not self._recursive:
                    self._warn_of_skipped(entry.path)
                by_link = linked or entry.is_symlink()
                if self._recursive and entry.is_dir():
                    if not (entry.is_symlink() and _leads_back(entry.path, folder)):
                        yield from self._entries(entry.path, name + "/", linked=by_link)
                    continue
                counts = any(fnmatch.fnmatch(each, self._pattern) for each in self._names(name))
                if self._rotated and name.endswith(_COMPRESSED):
                    continue
                if (counts or self._rotated) and entry.is_file():
                    with contextlib.suppress(FileNotFoundError):  # renamed meanwhile
                        yield _Entry(name, Path(entry.path), entry.stat(), counts, by_link)

    def _created_us(self, entry: _Entry, created: str | Callable[[Any], int | dt.datetime]) -> int:
        if callable(created):
            return instant_us(created(entry.path))
        for name in self._names(entry.name):
            said = name if "/" in created else name.rpartition("/")[-1]
            try:
                named = dt.datetime.strptime(said, created)
            except ValueError:
                continue
            return instant_us(named if named.tzinfo is not None else named.replace(tzinfo=dt.UTC))
        raise PipelineError(
            f"{entry.path}: its name does not follow created={created!r}. Rename it, or pass over "
            "it with pattern=."
        )


def _is_text(name: str) -> bool:
    """Return whether a name is UTF-8: Python has surrogates for bytes that are not."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_passed_over(name: str) -> bool:
    """Return whether a name begins with ``.`` or ``_``, or one of its folders, no column, does.

    >>> list(map(_is_passed_over, ["a/_b", ".a/b", "_day=1/b", "a.b/c_d"]))
    [True, True, False, False]
    """
    *folders, last = name.split("/")
    hidden = [part[:1] == "." or (part[:1] == "_" and "=" not in part) for part in folders]
    return last[:1] in (".", "_") or any(hidden)


def _leads_to_itself(entry: os.DirEntry[str]) -> bool:
    """Return whether an entry is a link that leads to nothing but links."""
    try:
        entry.is_file()
    except OSError as error:
        if error.errno == errno.ELOOP:
            return True
        raise
    return False


def _leads_back(link: str, folder: str) -> bool:
    """Return whether a link in a folder leads to that folder, or to one that it is in."""
    return Path(folder).resolve().is_relative_to(Path(link).resolve())


def _key(name: str, known: dict[str, list[Any]]) -> str:
    """Return by what a new file is remembered: its name, and a number if another had the name.

    >>> _key("a.log", {}), _key("a.log", {"a.log": [], "a.log#1": []})
    ('a.log', 'a.log#2')
    """
    keys = itertools.chain([name], (f"{name}#{n}" for n in itertools.count(1)))
    return next(key for key in keys if key not in known)


def _is_copy(entry: _Entry, original: _Entry) -> bool:
    """Return whether a file is as much of another as it has: one that is copied to be truncated.

    It is no file of its own as long as the other is there.
    """
    size = entry.stat.st_size
    if not 0 < size <= original.stat.st_size:
        return False
    try:
        with entry.path.open("rb") as file:
            return _is(original.path, size, checksum(file, size))
    except FileNotFoundError:
        return False


def _is(path: Path | BucketPath, end: int, expected: int) -> bool:
    """Return whether a file begins with so many bytes that are known."""
    try:
        with path.open("rb") as file:
            return file.seek(0, os.SEEK_END) >= end and checksum(file, end) == expected
    except FileNotFoundError:
        return False


def checksum(file: BinaryIO, end: int) -> int:
    """Return the checksum of the bytes before a place in a file."""
    file.seek(max(0, end - _TAIL))
    return zlib.crc32(file.read(end - file.tell()))
