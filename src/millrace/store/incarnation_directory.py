"""A directory for the incarnations of a checkpoint that is itself in an object store.

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
from pathlib import Path

from millrace.model.errors import DamagedStore, PipelineError
from millrace.store.disk import exists
from millrace.store.durable import make_directory, put_if_absent, translated
from millrace.store.incarnations import FOLDER, Incarnations
from millrace.store.local_blobs import LocalBlobs

_MARKER = "CHECKPOINT"


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
