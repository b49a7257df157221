"""File names of computations: readable when short, and always different."""

from __future__ import annotations

import hashlib
import re

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
