"""open_location: from what a user writes as ``checkpoint=`` to the hard state there."""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from millrace.model.errors import PipelineError
from millrace.store.local import LocalHardState
from millrace.store.log import HardState

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")
_OBJECT_STORES = frozenset({"s3", "s3a", "gs", "az", "abfs", "abfss"})


def open_location(
    location: str | os.PathLike[str], *, pipeline: str | None = None, uuid: str | None = None
) -> HardState:
    """Open the checkpoint at a path or URL.

    Args:
        location: A path, absolute or relative to the working directory, with ``~`` for the home
            directory, or a ``file://`` URL.
        pipeline: Given by a driver: make the checkpoint for this pipeline if there is none.
            Without it the checkpoint must be there.
        uuid: Given by a worker: the checkpoint must have this uuid.

    Raises:
        PipelineError: the scheme is not supported (object stores come in the next release).
        CheckpointMismatch, CheckpointUnwritable, DamagedStore: as
            :meth:`~millrace.store.LocalHardState.create_or_open` and
            :meth:`~millrace.store.LocalHardState.open`.

    >>> import tempfile
    >>> state = open_location(tempfile.mkdtemp(), pipeline="zeitgeist")
    >>> state.epochs.append(1, b'{"claim": 1}'), state.epochs.last()
    (True, 1)
    >>> open_location("s3://bucket/checkpoint")
    Traceback (most recent call last):
    millrace.model.errors.PipelineError: checkpoint 's3://bucket/checkpoint': object stores come ...
    """
    path = local_path(location)
    if pipeline is None:
        return LocalHardState.open(path, uuid=uuid)
    return LocalHardState.create_or_open(path, pipeline=pipeline)


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
    if scheme in _OBJECT_STORES:
        raise PipelineError(
            f"checkpoint {text!r}: object stores come in the next release. Until then give a local "
            f"directory, or one on a file system that all hosts share."
        )
    url = urlsplit(text)
    if scheme != "file" or url.netloc not in ("", "localhost"):
        raise PipelineError(
            f"checkpoint {text!r}: expected a path or file:///path, found scheme {scheme!r} and "
            f"host {url.netloc!r}. Give a local directory, or one that all hosts have mounted."
        )
    return Path(os.path.abspath(unquote(url.path)))
