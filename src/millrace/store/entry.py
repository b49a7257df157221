"""An entry of the epoch log as it is stored: JSON, and a line with its number and checksum.

Text, and still refused when a bit of it changes. ``attempt`` tells the writers of one number apart
where they may ask later who of them it was that wrote.
"""

from __future__ import annotations

import re

import xxhash

from millrace.model.errors import DamagedStore

_LINE = re.compile(rb'\{"number":(\d+),"xxh3_64":"([0-9a-f]{16})"(?:,"attempt":"([0-9a-f]+)")?\}\n')


def with_line(number: int, entry: bytes, attempt: str = "") -> bytes:
    """Return what is stored for an entry.

    >>> with_line(1, b"{}", "0a").decode().splitlines()
    ['{}', '{"number":1,"xxh3_64":"9075e23a7ed661ce","attempt":"0a"}']
    """
    return entry + b"\n" + _line(number, entry, attempt.encode())


def without_line(where: object, number: int, data: bytes) -> bytes:
    """Return the entry, without the line that was checked.

    Args:
        where: Name of the file or object, for messages.
        number: The number that the name promises.
        data: Its content.

    Raises:
        DamagedStore: It is not what was written under that number.
    """
    cut = data.rfind(b"\n", 0, -1)
    entry, found = data[: max(cut, 0)], data[cut + 1 :]
    match = _LINE.fullmatch(found)
    expected = _line(number, entry, match[3] or b"" if match else b"")
    if cut < 0 or found != expected:
        raise DamagedStore(
            f"epoch log entry {where}: damaged at offset {cut + 1}: expected the line "
            f"{expected!r}, found {found[:80]!r}. It was truncated or altered after it "
            f"was written. Restore it from a copy of the checkpoint."
        )
    return entry


def _line(number: int, entry: bytes, attempt: bytes) -> bytes:
    checksum = xxhash.xxh3_64_intdigest(entry + attempt)
    suffix = b',"attempt":"%s"' % attempt if attempt else b""
    return b'{"number":%d,"xxh3_64":"%016x"%s}\n' % (number, checksum, suffix)
