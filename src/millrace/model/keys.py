"""Keys as bytes: one encoding that the JVM and Python agree on, byte for byte, and that sorts.

A key is a ``str``, an ``int`` of 64 bits, a ``float``, ``bytes``, a ``bool``, or a tuple of those,
of None and of tuples. The first byte says which, so bytes decode without a schema::

    b"s" + UTF-8        b"i" + (n + 2**63) as 8 bytes, big-endian        b"b" + raw bytes
    b"?" + 0 or 1       b"(" + the items one after another
    float: b"i" + its floor, as an int has it + 0xff + its bits
           b"j" + its bits, from 2**63 on, and of NaN        b"h" + its bits, below -2**63

The bits are those of IEEE 754, turned so that they sort.

An item of a tuple is encoded as a key is, except that text, bytes and tuples end with 0x00, and
that a 0x00 within text or bytes is 0x00 0xff. None is ``b"!"``. Spark SQL makes text, ints and
bytes without a Python stage.

Bytes sort as values do: numbers by size (of 1 and 1.0 the int comes first), tuples item by item,
the shorter first. Two keys are equal if their bytes are: -0.0 is 0.0, all NaN are one, which is
above infinity; 1, 1.0 and True are three keys. Map entries and timer tags use the same encoding.
The hash is XXH64 with seed 42, which is what Spark's ``xxhash64`` computes over the same bytes.

Source: MillWheel, "Keys" (4.2); the tuple layer of FoundationDB, for nested text and turned floats.
"""

from __future__ import annotations

import operator
import struct
from math import floor
from typing import Any, Final

import xxhash

from millrace.model.errors import CoderError, brief

#: Spark's ``xxhash64`` starts from seed 42; any other seed would hash keys apart in JVM and Python.
HASH_SEED: Final = 42

_SIGN: Final = 1 << 63
#: From here on a float has no floor of 64 bits.
_LARGE: Final = float(_SIGN)
_NAN_BITS: Final = 0x7FF8 << 48
#: Behind a whole number: it is the floor of a float, whose bits follow. Above all tags, so that the
#: bytes of a tuple with a whole number are no beginning of those of one with a float.
_FRACTION: Final = b"\xff"
_END: Final = b"\0"
_ESCAPED: Final = b"\0\xff"
_double = struct.Struct(">d")
_bits = struct.Struct(">Q")
#: A float from 0.0 on, of which the negative is given: it has the bits of the float, and the sign.
_positive = struct.Struct(">BQBd")
#: The beginning of a negative float.
_whole = struct.Struct(">BQB")
#: Turns each bit of bytes.
_TURNED: Final = bytes(255 - byte for byte in range(256))


def encode_key(key: Any) -> bytes:
    """Return the bytes of a key.

    Raises:
        CoderError: The key is None, or not a str, int, bytes, bool, float or tuple of those.

    >>> encode_key("JFK"), encode_key(0).hex(), decode_key(encode_key(("EWR", 7)))
    (b'sJFK', '698000000000000000', ('EWR', 7))
    """
    kind = type(key)
    if kind is str:
        return b"s" + _utf8(key)
    if kind is int:
        if -_SIGN <= key < _SIGN:
            shifted: int = key + _SIGN
            return b"i" + shifted.to_bytes(8, "big")
        raise CoderError(f"key {brief(key, 60)} does not fit in 64 bits; use str(key) as the key.")
    if kind is bytes:
        encoded: bytes = b"b" + key
        return encoded
    if kind is float:
        return _float(key)
    if kind is bool:
        return b"?\1" if key else b"?\0"
    if kind is tuple:
        return b"(" + b"".join(map(_item, key))
    return encode_key(_plain(key))


def decode_key(data: bytes) -> Any:
    """Return the key that :func:`encode_key` made these bytes from."""
    tag = data[0]
    if tag == 0x73:
        return data[1:].decode()
    if tag == 0x69 and len(data) == 9:
        return int.from_bytes(data[1:], "big") - _SIGN
    if tag == 0x69 and len(data) == 18 and data[9] == 0xFF:
        return _float_at(data, 10)
    if tag == 0x62:
        return data[1:]
    if tag == 0x28 and data.isascii() and data[-1] == 0:
        # Most tuples of ASCII are of text alone: that has no int from zero on, and no escape.
        parts = data[1:-1].decode().split("\0")
        texts = tuple([part[1:] for part in parts if part[:1] == "s"])
        if len(texts) == len(parts):
            return texts
    try:
        key, end = _item_at(data, 0) if tag != 0x28 else _items(data, 1)
    except (IndexError, ValueError, struct.error):
        end = -1
    if end != len(data):
        raise CoderError(f"these bytes are not an encoded key: {data[:40]!r}.")
    return key


def prefix_range(prefix: tuple[Any, ...]) -> tuple[bytes, bytes]:
    r"""Return where the encoded tuples begin that begin with these items, and where they end.

    >>> start, stop = prefix_range(("tea",))
    >>> [start <= encode_key((name, 7)) < stop for name in ("tea", "tea\0", "team")]
    [True, False, False]
    """
    start = encode_key(prefix)
    return start, start + b"\xff"


def hash_key(data: bytes) -> int:
    """Return the unsigned 64-bit hash of an encoded key."""
    return xxhash.xxh64_intdigest(data, HASH_SEED)


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as refused:
        raise CoderError(
            f"key {brief(text, 120)} is not text that UTF-8 can encode: {refused}."
        ) from None


def _plain(key: Any) -> str | bytes | int | float:
    """Return numpy and other subclasses of the supported types as the type itself."""
    if key is None:
        raise CoderError(
            "the key is None. Every record needs a key: give records without one a key of their "
            'own, such as "", or filter them out before the computation.'
        )
    if isinstance(key, str):
        return str.__str__(key)  # of an Enum that is a str, the value and not the name
    if isinstance(key, bytes):
        return bytes(key)
    if isinstance(key, float):
        return float(key)
    try:
        whole = operator.index(key)
    except TypeError:
        raise CoderError(
            f"{brief(key, 120)} ({type(key).__name__}) cannot be a key. Expected a str, int, "
            "bytes, bool, float, or a tuple of those; for anything else choose fields of it in the "
            "extractor."
        ) from None
    if not -_SIGN <= whole < _SIGN:
        raise CoderError(
            f"key {brief(whole, 60)} does not fit in 64 bits; use str(key) as the key."
        )
    return whole


def _float(key: float) -> bytes:
    if 0.0 <= key < _LARGE:
        return _positive.pack(0x69, floor(key) + _SIGN, 0xFF, -(key + 0.0))  # -0.0 + 0.0 is 0.0
    if -_LARGE <= key < 0.0:
        whole = _whole.pack(0x69, floor(key) + _SIGN, 0xFF)
        return whole + _double.pack(key).translate(_TURNED)
    if key != key:
        return b"j" + _bits.pack(_NAN_BITS | _SIGN)
    return b"j" + _double.pack(-key) if key > 0 else b"h" + _double.pack(key).translate(_TURNED)


def _float_at(data: bytes, start: int) -> float:
    found: float
    if data[start] & 0x80:
        (found,) = _double.unpack_from(data, start)
        return -found
    (found,) = _double.unpack(data[start : start + 8].translate(_TURNED))
    return found


def _item(item: Any) -> bytes:
    """Return the bytes of an item of a tuple, which show where they end."""
    kind = type(item)
    if kind is int and -_SIGN <= item < _SIGN:
        return b"i%b" % _bits.pack(item + _SIGN)
    if kind is str and "\0" not in item:
        return b"s%b\0" % _utf8(item)
    if item is None:
        return b"!"
    encoded = encode_key(item)
    tag = encoded[0]
    if tag == 0x28:
        return encoded + _END
    if tag == 0x73 or tag == 0x62:
        return (encoded.replace(_END, _ESCAPED) if _END in encoded else encoded) + _END
    return encoded


def _item_at(data: bytes, start: int) -> tuple[Any, int]:
    """Return the item of a tuple that begins at some place, and where it ends."""
    tag = data[start]
    at = start + 1
    if tag == 0x69:
        end = at + 8
        if data[end : end + 1] == _FRACTION:
            return _float_at(data, end + 1), end + 9
        return _bits.unpack_from(data, at)[0] - _SIGN, end
    if tag == 0x73 or tag == 0x62:
        end = data.index(_END, at)
        while data[end + 1 : end + 2] == _FRACTION:
            end = data.index(_END, end + 2)
        raw = data[at:end].replace(_ESCAPED, _END)
        return (raw.decode() if tag == 0x73 else raw), end + 1
    if tag == 0x21:
        return None, at
    if tag == 0x3F:
        return data[at] == 1, at + 1
    if tag == 0x68 or tag == 0x6A:
        return _float_at(data, at), at + 8
    if tag == 0x28:
        items, end = _items(data, at)
        return items, end + 1
    raise ValueError


def _items(data: bytes, at: int) -> tuple[tuple[Any, ...], int]:
    """Return the items of a tuple from some place on, and where the last one ends."""
    found: list[Any] = []
    size = len(data)
    while at < size and (tag := data[at]):
        # Text without NUL and ints are read here: they are most of the items there are.
        if tag == 0x73:
            end = data.index(0, at) + 1
            if end == size or data[end] != 0xFF:
                found.append(data[at + 1 : end - 1].decode())
                at = end
                continue
        elif tag == 0x69:
            end = at + 9
            if end >= size or data[end] != 0xFF:
                found.append(_bits.unpack_from(data, at + 1)[0] - _SIGN)
                at = end
                continue
        item, at = _item_at(data, at)
        found.append(item)
    return tuple(found), at
