"""The format of a checkpoint: what it says of itself, and how its files are named.

:class:`CheckpointFormat` is what it says of itself, in a JSON object named ``FORMAT``. It is
compared before anything is written, so a checkpoint of another pipeline, or of a newer version, is
left as it is. ``xxh3_64`` is the checksum of the object without that member, as JSON with sorted
keys and no spaces.

File names of computations are readable when short, and always different.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

import msgspec
import xxhash

from millrace.model.distribution import version
from millrace.model.errors import CheckpointMismatch, DamagedStore

FORMAT = 1
"""The version of everything in a checkpoint; docs/checkpoint-format.md describes it."""

_CHECKSUM = "xxh3_64"


class CheckpointFormat(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What ``FORMAT`` says.

    Args:
        format: Version of the layout.
        uuid: Made when the checkpoint was; caches and sinks know it by that.
        pipeline: Name of the pipeline that it is of.
        created_by: The version of Millrace that made it.
        segments: Directory that grown segments are in, if not with the rest of it.
        copied: Whether it was made as a copy of another: while its epoch log is empty, that was
            cut off.
    """

    format: int
    uuid: str
    pipeline: str
    created_by: str
    segments: str | None = None
    copied: bool = False


def new_format(
    pipeline: str,
    uuid: str,
    segments: str | None = None,
    *,
    copied: bool = False,
) -> CheckpointFormat:
    """Return what ``FORMAT`` says of a checkpoint made now, by this version."""
    return CheckpointFormat(
        format=FORMAT,
        uuid=uuid,
        pipeline=pipeline,
        created_by=version(),
        segments=segments,
        copied=copied,
    )


def encode_format(written: CheckpointFormat) -> bytes:
    """Return the content of ``FORMAT``.

    >>> decode_format(encode_format(new_format("zeitgeist", "u-1")), "c").pipeline
    'zeitgeist'
    """
    plain = msgspec.to_builtins(written)
    return json.dumps(plain | {_CHECKSUM: _checksum(plain)}, indent=2).encode() + b"\n"


def decode_format(data: bytes, where: str) -> CheckpointFormat:
    """Return what ``FORMAT`` says, checked.

    Args:
        data: Its content.
        where: The checkpoint, for messages.

    Raises:
        CheckpointMismatch: It was written in a format that this version does not read.
        DamagedStore: It fails its checksum.
    """
    try:
        plain: dict[str, Any] = json.loads(data)
        number = plain["format"]
    except (ValueError, KeyError, TypeError):
        plain, number = {}, None
    # Before the checksum, which a newer version may make in another way.
    if isinstance(number, int) and number > FORMAT:
        raise CheckpointMismatch(
            f"checkpoint {where}: format {number}, written by Millrace "
            f"{plain.get('created_by', 'of a later version')}; this version reads format {FORMAT}. "
            f"Nothing was written. Start the run with that version or a later one."
        )
    checksum = plain.pop(_CHECKSUM, None)
    try:
        written = msgspec.convert(plain, CheckpointFormat)
    except msgspec.ValidationError:
        written = None
    if written is None or written.format != FORMAT or checksum != _checksum(plain):
        raise DamagedStore(
            f"checkpoint {where}: FORMAT is damaged: expected JSON with format, uuid and pipeline "
            f"and their checksum, found {data[:80]!r}. Restore the file from a copy of the "
            f"checkpoint; the rest of the checkpoint may be whole."
        )
    return written


def check_pipeline(written: CheckpointFormat, pipeline: str, where: str) -> None:
    """Raise CheckpointMismatch unless the checkpoint is ``pipeline``'s."""
    if written.pipeline != pipeline:
        raise CheckpointMismatch(
            f"checkpoint {where}: it belongs to pipeline {written.pipeline!r}, this pipeline is "
            f"{pipeline!r}. Give each pipeline a checkpoint of its own; if this one was "
            f"renamed, give it its old name back."
        )


def _checksum(plain: dict[str, Any]) -> str:
    canonical = json.dumps(plain, sort_keys=True, separators=(",", ":"))
    return f"{xxhash.xxh3_64_intdigest(canonical.encode()):016x}"


# File systems allow 255 bytes a name; this leaves room for a suffix and for encrypted mounts, whose
# limit is 143.
_NAME_BYTES_MAX = 120
_PREFIX_BYTES = 64

_UNSAFE = re.compile(rb"[^A-Za-z0-9_.-]|^\.")


def file_name(name: str) -> str:
    """Return a file name for any string; different strings get different file names.

    Letters, digits, ``_``, ``-`` and ``.`` (not as the first character) stay; any other byte of the
    UTF-8 becomes ``%`` and two hexadecimal digits; the empty string is ``%``. A result that is
    too long is cut and gets ``%~`` and a BLAKE2b digest, which no plain result contains.

    Names that differ only in case are different here, but one name to a file system that ignores
    case; a read then finds the wrong commit and says so, nothing is mixed in silence.

    >>> file_name("WindowCounter"), file_name("a/b"), file_name(".."), file_name("")
    ('WindowCounter', 'a%2Fb', '%2E.', '%')
    >>> file_name("x" * 1000)[60:75], len(file_name("x" * 1000))
    ('xxxx%~c9b2bd4ff', 98)
    """
    data = name.encode("utf-8", "surrogatepass")
    escaped = _UNSAFE.sub(lambda match: b"%%%02X" % match[0][0], data).decode("ascii") or "%"
    if len(escaped) <= _NAME_BYTES_MAX:
        return escaped
    return f"{escaped[:_PREFIX_BYTES]}%~{hashlib.blake2b(data, digest_size=16).hexdigest()}"
