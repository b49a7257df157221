"""ObjectHardState: a checkpoint in an object store, made of conditional puts.

.. code-block:: text

    <prefix>/FORMAT                                      JSON: format, uuid, pipeline, created_by
    <prefix>/epochs/<number, 10 digits>.json             JSON, then a line with a checksum
    <prefix>/epochs/COLLECTED                            there once the first entry was removed
    <prefix>/commits/<computation>/<epoch>-<task>        hexadecimal; a segment: what a task
                                                         committed
    <prefix>/incarnations/<incarnation>-<level>-<task>-<epoch>          what a task of the real-time
    <prefix>/incarnations/<incarnation>-<level>-<task>-<epoch>.<offset> plane committed, in pieces
    <prefix>/incarnations/<incarnation>.begun, .seal     as in a directory; unless all are in one:
                                                         see below
    <prefix>/snapshots/<computation>/<interval>-<number> hexadecimal; a snapshot
    <prefix>/mailbox/<name>                              requests to the run, and its answers

The names and contents are those of :class:`~millrace.store.LocalHardState`, but that there what is
appended is in one file.

Why: ``docs/design/2026-11-20-checkpoint-on-an-object-store.md``.

Its incarnations may be in a directory:

.. code-block:: text

    <directory>/<uuid of the checkpoint>/CHECKPOINT   its URL; says that hosts see one directory
    <directory>/<uuid of the checkpoint>/incarnations/  as in a directory that is a checkpoint
    <directory>/<uuid of the checkpoint>/tmp/         likewise

A task that commits in real time waits for an append, and a PUT takes ten times as long as an fsync.
All hosts must see the directory: what a worker wrote, another one, and the driver, read after a
failure. ``FORMAT`` names it, so nobody can open the checkpoint without its grown segments.
"""

from __future__ import annotations

import os
import shutil
import socket
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from millrace.model.errors import (
    CheckpointMismatch,
    CheckpointUnwritable,
    DamagedStore,
    PipelineError,
)
from millrace.store.checkpoint_format import (
    CheckpointFormat,
    check_pipeline,
    decode_format,
    encode_format,
    new_format,
)
from millrace.store.commit_log import CommitLog
from millrace.store.durable_files import (
    exists,
    make_directory,
    put_if_absent,
    remove_leftovers,
    translated,
)
from millrace.store.epoch_log import EpochLog
from millrace.store.incarnations import FOLDER, Incarnations
from millrace.store.local_blobs import LocalBlobs
from millrace.store.mailbox import Mailbox
from millrace.store.object_blobs import BucketOptions, BucketUrl, ObjectBlobs
from millrace.store.snapshots import Snapshots

_MARKER = "CHECKPOINT"


class ObjectHardState:
    """A checkpoint under a prefix of a bucket.

    A driver makes it with :meth:`create_or_open`, a worker with :meth:`open`. Pickled, it is its
    URL, uuid and options; credentials are each process's own.

    >>> from obstore.store import MemoryStore
    >>> from millrace.store import Commit
    >>> url, store = BucketUrl.parse("s3://flights/ckpt"), MemoryStore()
    >>> bucket = ObjectBlobs(url, BucketOptions(), store=store)
    >>> state = ObjectHardState.create_or_open(bucket, pipeline="zeitgeist")
    >>> mine = state.commits.of_task("count", epoch=1, task=0)
    >>> mine.put([Commit("count", 0, 1, epoch=1, generation=1, mutations=[])])
    True
    >>> ObjectHardState.open(bucket, uuid=state.uuid).commits.exists("count", 0, 1)
    True
    """

    def __init__(self, bucket: ObjectBlobs, written: CheckpointFormat) -> None:
        self.format = written
        self.uuid = written.uuid
        self.blobs = bucket
        self.incarnations = _incarnations(bucket, written)
        self.commits = CommitLog(bucket, self.incarnations)
        self.snapshots = Snapshots(bucket)
        self.epochs = EpochLog(bucket)
        self.mailbox = Mailbox(bucket)
        self._bucket = bucket

    @property
    def url(self) -> str:
        """Where it is."""
        return str(self._bucket.url)

    def names(self, folder: str) -> list[str]:
        """Return the names of the objects in a folder and below, sorted."""
        return self._bucket.names(folder)

    def remove(self, names: Iterable[str]) -> None:
        """Remove objects, in the order given."""
        self._bucket.remove(names)

    def size(self, folder: str) -> int:
        """Return the bytes of what is in a folder, such as ``epochs`` or ``commits``."""
        if folder == FOLDER and self.format.segments is not None:
            return size_of(self.format.segments, self.uuid)
        return self._bucket.size(folder)

    @classmethod
    def create_or_open(
        cls,
        bucket: ObjectBlobs,
        *,
        pipeline: str,
        segments: str | None = None,
        copied: bool = False,
        beside: bool = False,
    ) -> ObjectHardState:
        """Open the checkpoint of ``pipeline`` for a driver; make it if there is none.

        Removes what killed writers left beside grown segments in a directory, unless it is opened
        beside a run.

        Args:
            bucket: Where it is.
            pipeline: Name of the pipeline.
            segments: Absolute path of a directory for grown segments, which all hosts see; by
                default they are in the bucket, or where they were when the checkpoint was made.
            copied: Whether it is a copy, if it is made.
            beside: Whether a run may have it.

        Raises:
            CheckpointMismatch: The prefix holds the checkpoint of another pipeline, of a newer
                version, with segments elsewhere, or something that is no checkpoint; nothing has
                been written.
            CheckpointUnwritable: The store does not take puts, or not conditional ones; or the
                directory cannot be written.
            DamagedStore: ``FORMAT`` cannot be read, or the directory is not there.
        """
        data = bucket.read("FORMAT")
        if data is None:
            data = _create(bucket, pipeline, segments, copied=copied)
        written = decode_format(data, str(bucket.url))
        check_pipeline(written, pipeline, str(bucket.url))
        if segments is not None and written.segments != segments:
            there = written.segments or "the checkpoint"
            raise CheckpointMismatch(
                f"checkpoint {bucket.url}: its grown segments are in {there}, this start says "
                f"segments={segments!r}. Where they are is chosen when a checkpoint is made. "
                f"Leave segments= out; or make another checkpoint of this one: "
                f"millrace checkpoint copy SOURCE TARGET --segments {segments}"
            )
        if not bucket.is_exclusive("FORMAT", data):
            raise CheckpointUnwritable(
                f"checkpoint {bucket.url}: the store puts an object in place of one that exists, "
                f"though the request forbids it (If-None-Match: *). Two runs could then both "
                f"believe that they own the checkpoint. Use a store with conditional puts, such "
                f"as Amazon S3, Google Cloud Storage or Azure Blob Storage, or a newer version of "
                f"this one."
            )
        state = cls(bucket, written)
        if written.segments is not None and not beside:
            scratch = _place(written.segments, written.uuid) / "tmp"
            with translated(scratch):
                remove_leftovers(scratch)
        return state

    @classmethod
    def open(cls, bucket: ObjectBlobs, *, uuid: str | None = None) -> ObjectHardState:
        """Open an existing checkpoint, for a worker or a tool; writes nothing.

        Raises:
            CheckpointMismatch: The uuid is another one, or the format is newer. Or there is no
                checkpoint, and no uuid was given.
            DamagedStore: There is no checkpoint, of a uuid; or ``FORMAT`` cannot be read.
        """
        data = bucket.read("FORMAT")
        host = socket.gethostname()
        if data is None and uuid is None:
            raise CheckpointMismatch(
                f"{bucket.url}: no checkpoint, host {host} finds no FORMAT object there. "
                'Give the URL that the run got as p.start(spark, checkpoint="...").'
            )
        if data is None:
            raise DamagedStore(
                f"checkpoint {bucket.url}: there is no FORMAT object, as seen from host {host}. "
                f"Was it removed, or does the host reach another store under that name?"
            )
        written = decode_format(data, str(bucket.url))
        if uuid is not None and written.uuid != uuid:
            raise CheckpointMismatch(
                f"checkpoint {bucket.url}: its uuid, as seen from host {host}, is {written.uuid}, "
                f"the run was started with {uuid}. Was it replaced under a running pipeline, or "
                f"does the host reach another store under that name?"
            )
        return cls(bucket, written)

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self._bucket.url, self._bucket.options, self.uuid)

    def __repr__(self) -> str:
        return f"ObjectHardState({self.url!r})"


def _reopen(url: BucketUrl, options: BucketOptions, uuid: str) -> ObjectHardState:
    return ObjectHardState.open(ObjectBlobs(url, options), uuid=uuid)


def _incarnations(bucket: ObjectBlobs, written: CheckpointFormat) -> Incarnations:
    if written.segments is None:
        return Incarnations(bucket)
    return incarnations_in(written.segments, written.uuid, str(bucket.url))


def _create(bucket: ObjectBlobs, pipeline: str, segments: str | None, *, copied: bool) -> bytes:
    """Make FORMAT, unless another driver does so first, and return what it then holds."""
    name = bucket.any_name()
    # Another driver may have made it meanwhile, and have written on.
    if name is not None and not bucket.exists("FORMAT"):
        raise CheckpointMismatch(
            f"checkpoint {bucket.url}: there are objects under the prefix (such as {name!r}), but "
            f"no FORMAT, so it is no checkpoint. Choose another prefix; if this was a checkpoint, "
            f"restore FORMAT from a copy."
        )
    written = new_format(pipeline, str(uuid.uuid4()), segments, copied=copied)
    if segments is not None:
        make_place(segments, written.uuid, str(bucket.url))
    if not bucket.put_if_absent("FORMAT", encode_format(written)) and segments is not None:
        remove_place(segments, written.uuid)
    created = bucket.read("FORMAT")
    if created is None:
        raise DamagedStore(f"checkpoint {bucket.url}: FORMAT has gone right after it was written")
    return created


def make_place(directory: str, uuid: str, where: str) -> None:
    """Make the place for a checkpoint's incarnations; durable.

    Args:
        directory: An absolute path. It and those above it are made where they are missing.
        uuid: Of the checkpoint.
        where: Its URL.

    Raises:
        CheckpointUnwritable: The directory cannot be made or written.
    """
    place = _place(directory, uuid)
    for path in reversed([place, *place.parents]):
        if path == place or not exists(path, os):
            make_directory(path)
    make_directory(place / "tmp")
    put_if_absent(where.encode() + b"\n", place / _MARKER, scratch=place / "tmp")


def remove_place(directory: str, uuid: str) -> None:
    """Remove the place of a checkpoint that came to nothing."""
    shutil.rmtree(_place(directory, uuid), ignore_errors=True)


def incarnations_in(directory: str, uuid: str, where: str) -> Incarnations:
    """Return the incarnations of a checkpoint that are in a directory of their own.

    Args:
        directory: As ``FORMAT`` has it.
        uuid: Of the checkpoint.
        where: Its URL, for messages.

    Raises:
        DamagedStore: This host does not see the directory.
    """
    place = _place(directory, uuid)
    with translated(place):
        there = exists(place / _MARKER, os)
    if not there:
        raise DamagedStore(
            f"checkpoint {where}: its grown segments are in {place}, and host "
            f"{socket.gethostname()} has no {_MARKER} there. All hosts of the run must "
            "see that directory: mount it at the same path on each. Without it the checkpoint is "
            "not whole."
        )
    return Incarnations(LocalBlobs(place, folders=["tmp"]))


def size_of(directory: str, uuid: str) -> int:
    """Return the bytes of the incarnations of a checkpoint that are in a directory of their own."""
    total = 0
    folder = _place(directory, uuid) / FOLDER
    if not folder.is_dir():
        return 0
    with os.scandir(folder) as entries:
        for entry in entries:
            try:
                total += entry.stat().st_size
            except FileNotFoundError:  # collected since it was listed
                continue
    return total


def directory_of(segments: str | os.PathLike[str]) -> str:
    """Return the absolute path that a user named for grown segments.

    Raises:
        PipelineError: It is no path.

    >>> directory_of("/mnt/segments")
    '/mnt/segments'
    >>> directory_of("s3://bucket/segments")
    Traceback (most recent call last):
    millrace.model.errors.PipelineError: segments='s3://bucket/segments': expected a directory...
    """
    text = os.fspath(segments)
    if not text or "://" in text:
        raise PipelineError(
            f"segments={text!r}: expected a directory that all hosts have mounted, for example "
            'segments="/mnt/segments". Without segments= they are in the checkpoint.'
        )
    return os.path.abspath(os.path.expanduser(text))


def _place(directory: str, uuid: str) -> Path:
    return Path(directory) / uuid
