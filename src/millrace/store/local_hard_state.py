"""LocalHardState: a checkpoint in a directory, made durable with fsync and ``link``.

.. code-block:: text

    <path>/FORMAT                                   JSON: format, uuid, pipeline, created_by
    <path>/epochs/<number, 10 digits>.json          one line or more of JSON, then a checksum line
    <path>/epochs/COLLECTED                         there once the first entry has been removed
    <path>/commits/<computation>/<epoch>-<task>     hexadecimal; a segment: what a task committed
    <path>/incarnations/<incarnation>-<level>-<task>-<epoch>  what a task of the real-time plane
                                                    committed; made by that
    <path>/incarnations/<incarnation>.begun, .seal  that it goes on, and where the older ones end
    <path>/snapshots/<computation>/<interval>-<number>  hexadecimal; a snapshot
    <path>/mailbox/<name>                           requests to the run, and its answers
    <path>/tmp/                                     files being written; leftovers mean nothing
"""

from __future__ import annotations

import os
import socket
import uuid
from pathlib import Path
from typing import Any

from millrace.model.errors import CheckpointMismatch, CheckpointUnwritable, DamagedStore
from millrace.store.checkpoint_format import (
    CheckpointFormat,
    check_pipeline,
    decode_format,
    encode_format,
    new_format,
)
from millrace.store.commit_log import CommitLog
from millrace.store.durable_files import (
    Disk,
    exists,
    is_directory,
    make_directory,
    put_if_absent,
    read_file,
    remove_leftovers,
    sync_directory,
    temporaries,
    translated,
)
from millrace.store.epoch_log import EpochLog
from millrace.store.incarnations import Incarnations
from millrace.store.local_blobs import LocalBlobs
from millrace.store.mailbox import Mailbox
from millrace.store.snapshots import Snapshots

#: Made with the checkpoint; others when something is put into them.
_FOLDERS = ("tmp", "epochs", "commits", "snapshots")


class LocalHardState:
    """A checkpoint location in a local (or shared and POSIX-like) directory.

    A driver makes it with :meth:`create_or_open`, a worker with :meth:`open`; pickling it carries
    the path and the uuid only, and opens it on the other side.

    >>> import tempfile
    >>> from millrace.store import Commit
    >>> state = LocalHardState.create_or_open(tempfile.mkdtemp(), pipeline="zeitgeist")
    >>> mine = state.commits.of_task("count", epoch=1, task=0)
    >>> mine.put([Commit("count", 0, 1, epoch=1, generation=1, mutations=[])])
    True
    >>> LocalHardState.open(state.path).commits.exists("count", 0, 1)
    True
    >>> LocalHardState.create_or_open(state.path, pipeline="other")
    Traceback (most recent call last):
    millrace.model.errors.CheckpointMismatch: checkpoint ...: it belongs to pipeline 'zeitgeist'...
    """

    def __init__(self, path: Path, written: CheckpointFormat, disk: Disk = os) -> None:
        self.path = path
        self.format = written
        self.uuid = written.uuid
        self.blobs = LocalBlobs(path, disk, _FOLDERS)
        self.incarnations = Incarnations(self.blobs)
        self.commits = CommitLog(self.blobs, self.incarnations)
        self.snapshots = Snapshots(self.blobs)
        self.epochs = EpochLog(self.blobs)
        self.mailbox = Mailbox(self.blobs)

    @classmethod
    def create_or_open(
        cls,
        path: str | os.PathLike[str],
        *,
        pipeline: str,
        copied: bool = False,
        beside: bool = False,
        disk: Disk = os,
    ) -> LocalHardState:
        """Open the checkpoint of ``pipeline`` at ``path`` for a driver; make it if there is none.

        Removes what killed writers left in ``tmp/``, unless it is opened beside a run, whose
        writers may be at work. One that is made says whether it is a copy.

        Raises:
            CheckpointMismatch: ``path`` holds the checkpoint of another pipeline, of a newer
                version, or something that is no checkpoint; nothing has been written.
            CheckpointUnwritable: the directory cannot be made or written, or has no hard links.
            DamagedStore: ``FORMAT`` cannot be read.
        """
        root = Path(os.path.abspath(path))
        written = _read_format(root, disk)
        if written is None:
            written = _create(root, new_format(pipeline, str(uuid.uuid4()), copied=copied), disk)
        check_pipeline(written, pipeline, str(root))
        with translated(root):
            _settle_path(root, disk)
        for name in _FOLDERS:
            make_directory(root / name, disk)
        if not beside:
            with translated(root):
                remove_leftovers(root / "tmp", disk)
        return cls(root, written, disk)

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
        written = _read_format(root, disk)
        if written is None:
            raise DamagedStore(
                f"checkpoint {root}: there is no FORMAT file on host {socket.gethostname()}. Was "
                f"it removed, or is it a directory that the hosts of the cluster do not share?"
            )
        if uuid is not None and written.uuid != uuid:
            raise CheckpointMismatch(
                f"checkpoint {root}: its uuid on host {socket.gethostname()} is {written.uuid}, "
                f"the run was started with {uuid}. Was it replaced under a running pipeline, or is "
                f"it a directory that the hosts of the cluster do not share?"
            )
        return cls(root, written, disk)

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (str(self.path), self.uuid)

    def __repr__(self) -> str:
        return f"LocalHardState({str(self.path)!r})"


def _reopen(path: str, uuid: str) -> LocalHardState:
    return LocalHardState.open(path, uuid=uuid)


def _create(root: Path, written: CheckpointFormat, disk: Disk) -> CheckpointFormat:
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
            format = _read_format(root, disk)
            if format is not None:  # by another driver, since this one looked for it
                return format
            raise CheckpointMismatch(
                f"checkpoint {root}: the directory is not empty (it holds {sorted(names)[0]!r}) "
                f"and has no FORMAT file, so it is no checkpoint. Choose an empty or a new "
                f"directory; if this was a checkpoint, restore FORMAT from a copy."
            )
    make_directory(scratch, disk)
    put_if_absent(encode_format(written), root / "FORMAT", scratch=scratch, disk=disk)
    created = _read_format(root, disk)
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


def _read_format(root: Path, disk: Disk) -> CheckpointFormat | None:
    """Return FORMAT as read and checked, None when there is none."""
    path = root / "FORMAT"
    with translated(path):
        try:
            data = read_file(path, disk)
        except (FileNotFoundError, NotADirectoryError):
            return None
    return decode_format(data, str(root))
