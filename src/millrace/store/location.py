"""open_location: from what a user writes as ``checkpoint=`` to the hard state there."""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from millrace.model.errors import CheckpointMismatch, PipelineError
from millrace.store.hard_state import HardState
from millrace.store.local_blobs import LocalBlobs
from millrace.store.local_hard_state import LocalHardState
from millrace.store.mailbox import Mailbox
from millrace.store.object_blobs import BucketOptions, BucketUrl, ObjectBlobs
from millrace.store.object_hard_state import ObjectHardState, directory_of

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")
_OBJECT_STORES = frozenset({"s3", "s3a", "s3n", "gs", "gcs", "az", "abfs", "abfss"})


def open_location(
    location: str | os.PathLike[str],
    *,
    pipeline: str | None = None,
    uuid: str | None = None,
    segments: str | os.PathLike[str] | None = None,
    copied: bool = False,
    beside: bool = False,
) -> LocalHardState | ObjectHardState:
    """Open the checkpoint at a path or URL.

    Args:
        location: A path, absolute or relative to the working directory, with ``~`` for the home
            directory; a ``file://`` URL; or ``s3://bucket/prefix``, ``gs://bucket/prefix``,
            ``az://container/prefix``.
        pipeline: Given by a driver: make the checkpoint for this pipeline if there is none.
            Without it the checkpoint must be there.
        uuid: Given by a worker: the checkpoint must have this uuid.
        segments: Given by a driver, of a checkpoint in an object store: the directory, seen by all
            hosts, that grown segments are in.
        copied: Given by who makes a copy: it may be one that has no entry in its epoch log yet.
        beside: Given by a driver that waits while another's run may go on: what looks like a
            leftover of a killed writer may be a live one's, and stays.

    Raises:
        PipelineError: the scheme is not supported, the URL holds more than a bucket and a prefix,
            or ``segments`` is no directory, or none is needed.
        CheckpointMismatch: it is a copy that was cut off as it was begun.
        CheckpointMismatch, CheckpointUnwritable, DamagedStore: as
            :meth:`~millrace.store.LocalHardState.create_or_open` and
            :meth:`~millrace.store.LocalHardState.open`.

    >>> import tempfile
    >>> state = open_location(tempfile.mkdtemp(), pipeline="zeitgeist")
    >>> state.epochs.append(1, b'{"claim": 1}'), state.epochs.last()
    (True, 1)
    """
    state = _opened(location, pipeline, uuid, segments, copied=copied, beside=beside)
    if state.format.copied and not copied and not _is_begun(state):
        raise CheckpointMismatch(
            f"{os.fspath(location)}: this is a copy of another checkpoint, and it was cut off "
            "before it was whole. Remove it, and copy again."
        )
    return state


def _is_begun(state: LocalHardState | ObjectHardState) -> bool:
    """Return whether a checkpoint has an entry in its epoch log, or had one."""
    if isinstance(state, LocalHardState) and not (state.path / "snapshots").is_dir():
        return False  # the last of the directories that are made
    return bool(state.epochs.last())


def _opened(
    location: str | os.PathLike[str],
    pipeline: str | None,
    uuid: str | None,
    segments: str | os.PathLike[str] | None,
    *,
    copied: bool,
    beside: bool,
) -> LocalHardState | ObjectHardState:
    if is_object_store(location):
        bucket = ObjectBlobs(BucketUrl.parse(os.fspath(location)), BucketOptions.from_environment())
        if pipeline is None:
            return ObjectHardState.open(bucket, uuid=uuid)
        directory = None if segments is None else directory_of(segments)
        return ObjectHardState.create_or_open(
            bucket, pipeline=pipeline, segments=directory, copied=copied, beside=beside
        )
    path = local_path(location)
    if segments is not None:
        raise PipelineError(
            f"segments={os.fspath(segments)!r} is for a checkpoint in an object store. That of "
            f"{path} has its segments with it, on the same disk: leave segments= out."
        )
    if pipeline is None:
        return LocalHardState.open(path, uuid=uuid)
    return LocalHardState.create_or_open(path, pipeline=pipeline, copied=copied, beside=beside)


def mailbox_at(location: str) -> Mailbox:
    """Return the mailbox of the checkpoint at a path or URL, and look at nothing else there."""
    if not is_object_store(location):
        return Mailbox(LocalBlobs(local_path(location)))
    return Mailbox(ObjectBlobs(BucketUrl.parse(location), BucketOptions.from_environment()))


def location_of(state: HardState) -> str:
    """Return the path or URL of a checkpoint; one in memory has none."""
    if isinstance(state, LocalHardState):
        return str(state.path)
    return state.url if isinstance(state, ObjectHardState) else "memory"


def is_object_store(location: str | os.PathLike[str]) -> bool:
    """Return whether ``location`` is a URL of an object store, in our spelling or in another's.

    >>> is_object_store("s3://bucket/ckpt"), is_object_store("ckpt"), is_object_store("file:///a")
    (True, False, False)
    """
    match = _SCHEME.match(os.fspath(location))
    return match is not None and match[1].lower() in _OBJECT_STORES


def local_path(location: str | os.PathLike[str]) -> Path:
    """Return the absolute path that ``location`` names, without touching it.

    Raises:
        PipelineError: the scheme is not supported.

    >>> local_path("file:///tmp/a%20b")
    PosixPath('/tmp/a b')
    """
    text = os.fspath(location)
    if not text:
        raise PipelineError("checkpoint '': expected a directory, for example checkpoint='ckpt'")
    match = _SCHEME.match(text)
    if match is None:
        return Path(os.path.abspath(os.path.expanduser(text)))
    scheme = match[1].lower()
    url = urlsplit(text)
    if scheme != "file" or url.netloc not in ("", "localhost"):
        raise PipelineError(
            f"{text!r}: expected a path or file:///path, found scheme {scheme!r} and host "
            f"{url.netloc!r}. Give a local directory, or one that all hosts have mounted. A "
            f"checkpoint may also be s3://bucket/prefix, gs:// or az://."
        )
    return Path(os.path.abspath(unquote(url.path)))
