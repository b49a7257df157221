"""Owner: the one checkpoint whose output a directory, or a prefix of a bucket, holds."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

from millrace.model.errors import CheckpointMismatch, CheckpointUnwritable
from millrace.store import ObjectBlobs
from millrace.store.durable_files import sync_directory

#: Spark and its readers pass over names that begin with an underscore; so do those of Delta.
_OWNER = "_millrace"


def claim_directory(directory: Path, owner: str, sink: str) -> str:
    """Make a directory, and write down in it whose output it holds.

    Args:
        directory: The sink's.
        owner: Id of the checkpoint, or of the batch.
        sink: The sink, for messages.

    Returns:
        Which it is, by whatever name or link it is reached.

    Raises:
        CheckpointMismatch: Another checkpoint has written there.
        CheckpointUnwritable: The directory cannot be written.
    """
    mark = directory / _OWNER
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if not mark.exists():
            replace_text(mark, owner)
        known = mark.read_text()
    except OSError as error:
        raise CheckpointUnwritable(
            f"the sink {sink} cannot be written: {error.strerror}. Make the directory writable, "
            "or choose another."
        ) from error
    _check(known, owner, sink)
    return f"the directory {str(directory.resolve())!r}"


def claim_bucket(blobs: ObjectBlobs, owner: str, sink: str) -> None:
    """Write down in a bucket whose output is under its prefix.

    Args:
        blobs: What is under the prefix.
        owner: Id of the checkpoint, or of the batch.
        sink: The sink, for messages.

    Raises:
        CheckpointMismatch: Another checkpoint has written there.
        CheckpointUnwritable: The store has no conditional puts, without which the commits of two
            writers would not exclude each other.
        StoreError: The bucket cannot be reached.
    """
    if not blobs.put_if_absent(_OWNER, owner.encode()):
        _check((blobs.read(_OWNER) or b"").decode(), owner, sink)
    if not blobs.is_exclusive(_OWNER, owner.encode()):
        raise CheckpointUnwritable(
            f"the sink {sink}: the store puts an object in place of one that exists, though the "
            "request forbids it (If-None-Match: *). Of two commits one could be lost. Use a store "
            "with conditional puts, such as Amazon S3 or Azure Blob Storage, or a newer version of "
            "this one."
        )


def _check(known: str, owner: str, sink: str) -> None:
    if known != owner:
        raise CheckpointMismatch(
            f"the sink {sink} holds the output of another checkpoint (id {known}; this one is "
            f"{owner}). Was the checkpoint deleted and its output kept, or is it that of an "
            "earlier batch? Write to another path, or delete this one."
        )


def replace_text(path: Path, text: str) -> None:
    """Give a text a name, which begins with an underscore; it is whole and durable then.

    What is renamed before it is durable may be empty after a power cut. Of a directory without an
    owner's id nobody could say whose it is.
    """
    temporary = path.with_name(f"{path.name}-{uuid.uuid4().hex}")
    with temporary.open("x") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_directory(path.parent)
