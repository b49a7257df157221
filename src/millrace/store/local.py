"""LocalHardState: a checkpoint in a directory, made durable with fsync and ``link``.

.. code-block:: text

    <path>/FORMAT                                   JSON: format, uuid, pipeline, created_by
    <path>/epochs/<number, 10 digits>.json          one line or more of JSON, then a checksum line
    <path>/epochs/COLLECTED                         there once the first entry has been removed
    <path>/commits/<computation>/<interval>-<number>  hexadecimal; a hard link to a segment
    <path>/snapshots/<computation>/<interval>-<number>  hexadecimal; a snapshot
    <path>/tmp/                                     files being written; leftovers mean nothing

All the commits of one ``append`` share one segment file, which is linked under the slot of each:
one fsync of data for many intervals, and put-if-absent for every one of them on its own.
"""

from __future__ import annotations

import os
import re
import socket
import uuid
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from millrace.model.errors import (
    CheckpointMismatch,
    CheckpointUnwritable,
    DamagedStore,
    InvariantViolation,
)
from millrace.store.commit import Commit, identities
from millrace.store.disk import Disk, exists, is_directory, read_file, same_file
from millrace.store.durable import (
    make_directory,
    put_if_absent,
    remove,
    remove_leftovers,
    sync_directory,
    temporaries,
    translated,
    unreadable,
)
from millrace.store.entry import seal, unseal
from millrace.store.form import Form, check_pipeline, decode_form, encode_form, new_form
from millrace.store.log import check_removal
from millrace.store.names import file_name, slot_name, slot_numbers
from millrace.store.segment import encode_segment, read_commit

# The links a file may have: 1,023 on NTFS, 65,000 on ext4, more elsewhere. A larger append is
# written as several segments.
_SEGMENT_COMMITS_MAX = 1000

# Large enough that calls do not count, small beside the memory of a worker.
_CHUNK_BYTES = 1 << 20

_EPOCH_NAME = re.compile(r"(\d{10,})\.json")


class LocalCommitLog:
    """The commit logs of a :class:`LocalHardState`."""

    def __init__(self, path: Path, disk: Disk = os) -> None:
        self._slots = path / "commits"
        self._scratch = path / "tmp"
        self._disk = disk
        self._known: set[str] = set()

    def append(self, commits: Sequence[Commit]) -> list[bool]:
        """See :meth:`millrace.store.CommitLog.append`.

        Cost: one fsync of data for each 1,000 commits, and one fsync a computation.
        """
        slots = [self._slot(*name) for name in identities(commits)]
        for computation in {commit.computation for commit in commits} - self._known:
            make_directory(self._slots / file_name(computation), self._disk)
            self._known.add(computation)
        won: list[bool] = []
        for start in range(0, len(commits), _SEGMENT_COMMITS_MAX):
            part = slice(start, start + _SEGMENT_COMMITS_MAX)
            won += put_if_absent(
                encode_segment(commits[part]),
                slots[part],
                scratch=self._scratch,
                disk=self._disk,
            )
        return won

    def read(self, computation: str, interval: int, number: int) -> Commit | None:
        """See :meth:`millrace.store.CommitLog.read`."""
        slot = self._slot(computation, interval, number)
        try:
            commit = read_commit(slot, computation, interval, number, disk=self._disk)
        except FileNotFoundError:
            return None
        self._settle(slot, self._slot(computation, interval, number + 1))
        return commit

    def exists(self, computation: str, interval: int, number: int) -> bool:
        """See :meth:`millrace.store.CommitLog.exists`."""
        slot = self._slot(computation, interval, number)
        with translated(slot):
            if not exists(slot, self._disk):
                return False
        self._settle(slot, self._slot(computation, interval, number + 1))
        return True

    def numbers(self, computation: str) -> dict[int, list[int]]:
        """See :meth:`millrace.store.CommitLog.numbers`."""
        return _numbers(self._slots / file_name(computation), self._disk)

    def remove(self, computation: str, interval: int, numbers: Iterable[int]) -> None:
        """See :meth:`millrace.store.CommitLog.remove`."""
        remove((self._slot(computation, interval, number) for number in numbers), self._disk)

    def _slot(self, computation: str, interval: int, number: int) -> Path:
        return _slot(self._slots, computation, interval, number)

    def _settle(self, slot: Path, following: Path) -> None:
        """Make a name that was found durable before anybody acts on it.

        Its writer may have been killed between ``link`` and fsync; a power cut would then take back
        a commit whose productions have been sent on. A commit that another append has built on
        was durable before: only the head of a log costs an fsync (on a busy disk, milliseconds),
        a repair of a thousand commits costs one.
        """
        with translated(slot):
            try:
                if not same_file(slot, following, self._disk):
                    return
            except FileNotFoundError:
                pass
            sync_directory(slot.parent, self._disk)


class LocalSnapshots:
    """The snapshots of a :class:`LocalHardState`."""

    def __init__(self, path: Path, disk: Disk = os) -> None:
        self._slots = path / "snapshots"
        self._scratch = path / "tmp"
        self._disk = disk

    def put(self, computation: str, interval: int, number: int, chunks: Iterable[bytes]) -> bool:
        """See :meth:`millrace.store.Snapshots.put`. Cost: one fsync of data and two of names."""
        slot = _slot(self._slots, computation, interval, number)
        make_directory(slot.parent, self._disk)
        if exists(slot, self._disk):
            return False
        return put_if_absent(chunks, [slot], scratch=self._scratch, disk=self._disk)[0]

    def read(self, computation: str, interval: int, number: int) -> Iterator[bytes] | None:
        """See :meth:`millrace.store.Snapshots.read`."""
        slot = _slot(self._slots, computation, interval, number)
        try:
            fd = self._disk.open(slot, os.O_RDONLY)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise unreadable(slot, error) from error
        return _chunks(slot, fd, self._disk)

    def numbers(self, computation: str) -> dict[int, list[int]]:
        """See :meth:`millrace.store.Snapshots.numbers`."""
        return _numbers(self._slots / file_name(computation), self._disk)

    def remove(self, computation: str, interval: int, numbers: Iterable[int]) -> None:
        """See :meth:`millrace.store.Snapshots.remove`."""
        names = (_slot(self._slots, computation, interval, number) for number in numbers)
        remove(names, self._disk)


class LocalEpochLog:
    """The epoch log of a :class:`LocalHardState`.

    A file is the caller's entry, a line end, and one line of JSON with the number and the XXH3 64
    of the entry: text, and still refused when a bit of it changes.
    """

    def __init__(self, path: Path, disk: Disk = os) -> None:
        self._slots = path / "epochs"
        self._collected = path / "epochs" / "COLLECTED"
        self._scratch = path / "tmp"
        self._disk = disk
        self._last = 0

    def append(self, number: int, entry: bytes) -> bool:
        """See :meth:`millrace.store.EpochLog.append`. Cost: two fsyncs."""
        if number < 1 or (number > 1 and not self.exists(number - 1)):
            if 1 <= number <= self.last():
                return False
            raise InvariantViolation(
                f"epoch log {self._slots}: entry {number} would leave a gap; numbers start at 1 "
                f"and the last one is {self.last()}"
            )
        data = seal(number, entry)
        slot = self._slot(number)
        if not put_if_absent(data, [slot], scratch=self._scratch, disk=self._disk)[0]:
            return False
        if self._was_collected(number):
            remove([slot], self._disk)
            return False
        return True

    def read(self, number: int) -> bytes | None:
        """See :meth:`millrace.store.EpochLog.read`."""
        slot = self._slot(number)
        with translated(slot):
            try:
                data = read_file(slot, self._disk)
            except FileNotFoundError:
                return None
            sync_directory(slot.parent, self._disk)
        return unseal(slot, number, data)

    def exists(self, number: int) -> bool:
        """See :meth:`millrace.store.EpochLog.exists`."""
        slot = self._slot(number)
        with translated(slot):
            return exists(slot, self._disk)

    def first(self) -> int:
        """See :meth:`millrace.store.EpochLog.first`."""
        first = 0
        for number in reversed(self._listed()):
            if first and number != first - 1:
                break
            first = number
        return first

    def last(self) -> int:
        """See :meth:`millrace.store.EpochLog.last`.

        The first call lists the directory; later ones only look for what came after.
        """
        if not self._last or not self.exists(self._last):
            self._last = max(self._listed(), default=0)
        while self.exists(self._last + 1):
            self._last += 1
        return self._last

    def remove_before(self, number: int) -> int:
        """See :meth:`millrace.store.EpochLog.remove_before`."""
        check_removal(str(self._slots), number, self.last())
        old = [self._slot(known) for known in self._listed() if known < number]
        if old:
            put_if_absent(b"", [self._collected], scratch=self._scratch, disk=self._disk)
        remove(old, self._disk)
        return len(old)

    def _was_collected(self, number: int) -> bool:
        """Return whether the slot just put was free only because its entry had been removed."""
        if number > 1:
            return not self.exists(number - 1)
        return exists(self._collected, self._disk)

    def _listed(self) -> list[int]:
        with translated(self._slots):
            names = self._disk.listdir(self._slots)
        return sorted(int(match[1]) for name in names if (match := _EPOCH_NAME.fullmatch(name)))

    def _slot(self, number: int) -> Path:
        return self._slots / f"{number:010d}.json"


class LocalHardState:
    """A checkpoint location in a local (or shared and POSIX-like) directory.

    A driver makes it with :meth:`create_or_open`, a worker with :meth:`open`; pickling it carries
    the path and the uuid only, and opens it on the other side.

    >>> import tempfile
    >>> state = LocalHardState.create_or_open(tempfile.mkdtemp(), pipeline="zeitgeist")
    >>> state.commits.append([Commit("count", 0, 1, epoch=1, generation=1, mutations=[])])
    [True]
    >>> LocalHardState.open(state.path).commits.exists("count", 0, 1)
    True
    >>> LocalHardState.create_or_open(state.path, pipeline="other")
    Traceback (most recent call last):
    millrace.model.errors.CheckpointMismatch: checkpoint ...: it belongs to pipeline 'zeitgeist'...
    """

    def __init__(self, path: Path, form: Form, disk: Disk = os) -> None:
        self.path = path
        self.form = form
        self.uuid = form.uuid
        self.commits = LocalCommitLog(path, disk)
        self.snapshots = LocalSnapshots(path, disk)
        self.epochs = LocalEpochLog(path, disk)

    @classmethod
    def create_or_open(
        cls, path: str | os.PathLike[str], *, pipeline: str, disk: Disk = os
    ) -> LocalHardState:
        """Open the checkpoint of ``pipeline`` at ``path`` for a driver; make it if there is none.

        Removes what killed writers left in ``tmp/``.

        Raises:
            CheckpointMismatch: ``path`` holds the checkpoint of another pipeline, of a newer
                version, or something that is no checkpoint; nothing has been written.
            CheckpointUnwritable: the directory cannot be made or written, or has no hard links.
            DamagedStore: ``FORMAT`` cannot be read.
        """
        root = Path(os.path.abspath(path))
        form = _read_form(root, disk)
        if form is None:
            form = _create(root, pipeline, disk)
        check_pipeline(form, pipeline, str(root))
        with translated(root):
            _settle_path(root, disk)
        for name in ("tmp", "epochs", "commits", "snapshots"):
            make_directory(root / name, disk)
        with translated(root):
            remove_leftovers(root / "tmp", disk)
        return cls(root, form, disk)

    @classmethod
    def open(
        cls, path: str | os.PathLike[str], *, uuid: str | None = None, disk: Disk = os
    ) -> LocalHardState:
        """Open an existing checkpoint, for a worker or a tool; writes nothing.

        Args:
            path: The directory.
            uuid: When given, the checkpoint must have this uuid.
            disk: What the directory is on.

        Raises:
            CheckpointMismatch: the uuid is another one, or the format is newer.
            DamagedStore: there is no checkpoint, or ``FORMAT`` cannot be read.
        """
        root = Path(os.path.abspath(path))
        form = _read_form(root, disk)
        if form is None:
            raise DamagedStore(
                f"checkpoint {root}: there is no FORMAT file on host {socket.gethostname()}. Was "
                f"it removed, or is it a directory that the hosts of the cluster do not share?"
            )
        if uuid is not None and form.uuid != uuid:
            raise CheckpointMismatch(
                f"checkpoint {root}: its uuid on host {socket.gethostname()} is {form.uuid}, "
                f"the run was started with {uuid}. Was it replaced under a running pipeline, or is "
                f"it a directory that the hosts of the cluster do not share?"
            )
        return cls(root, form, disk)

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (str(self.path), self.uuid)

    def __repr__(self) -> str:
        return f"LocalHardState({str(self.path)!r})"


def _reopen(path: str, uuid: str) -> LocalHardState:
    return LocalHardState.open(path, uuid=uuid)


def _create(root: Path, pipeline: str, disk: Disk) -> Form:
    """Make FORMAT, unless another driver does so first, and return what it then says.

    Only ``tmp/`` is made before it, so what a crash leaves here is known for our own.
    """
    with translated(root):
        try:
            names = disk.listdir(root)
        except FileNotFoundError:
            names = []
            for directory in reversed([root, *root.parents]):
                if not exists(directory, disk):
                    make_directory(directory, disk)
        except NotADirectoryError as error:
            raise CheckpointUnwritable(
                f"checkpoint {root}: it is a file, expected a directory or nothing. Choose another "
                f"checkpoint path."
            ) from error
        scratch = root / "tmp"
        if names and (names != ["tmp"] or _foreign(scratch, disk)):
            made = _read_form(root, disk)
            if made is not None:  # by another driver, since this one looked for it
                return made
            raise CheckpointMismatch(
                f"checkpoint {root}: the directory is not empty (it holds {sorted(names)[0]!r}) "
                f"and has no FORMAT file, so it is no checkpoint. Choose an empty or a new "
                f"directory; if this was a checkpoint, restore FORMAT from a copy."
            )
    make_directory(scratch, disk)
    data = encode_form(new_form(pipeline, str(uuid.uuid4())))
    put_if_absent(data, [root / "FORMAT"], scratch=scratch, disk=disk)
    created = _read_form(root, disk)
    if created is None:
        raise DamagedStore(f"checkpoint {root}: FORMAT has gone right after it was written")
    return created


def _settle_path(root: Path, disk: Disk) -> None:
    """Make the path to a checkpoint durable, whoever made it.

    A driver may have been killed between making one of these directories and its fsync, and a
    user's ``mkdir`` has none; a power cut could then take the checkpoint as a whole.
    """
    for directory in root.parents:
        try:
            sync_directory(directory, disk)
        except PermissionError:  # not ours to read, so not of our making
            return


def _foreign(scratch: Path, disk: Disk) -> bool:
    if not is_directory(scratch, disk):
        return True
    names = disk.listdir(scratch)
    return len(temporaries(names)) != len(names)


def _read_form(root: Path, disk: Disk) -> Form | None:
    """Return FORMAT as read and checked, None when there is none."""
    path = root / "FORMAT"
    with translated(path):
        try:
            data = read_file(path, disk)
        except (FileNotFoundError, NotADirectoryError):
            return None
    return decode_form(data, str(root))


def _slot(folder: Path, computation: str, interval: int, number: int) -> Path:
    return folder / file_name(computation) / slot_name(interval, number)


def _numbers(folder: Path, disk: Disk) -> dict[int, list[int]]:
    """Return interval -> numbers of the slots in a computation's folder, ascending."""
    with translated(folder):
        try:
            names = disk.listdir(folder)
        except FileNotFoundError:
            return {}
    return slot_numbers(names)


def _chunks(slot: Path, fd: int, disk: Disk) -> Iterator[bytes]:
    offset = 0
    try:
        while chunk := disk.pread(fd, _CHUNK_BYTES, offset):
            yield chunk
            offset += len(chunk)
    except OSError as error:
        raise unreadable(slot, error) from error
    finally:
        disk.close(fd)
