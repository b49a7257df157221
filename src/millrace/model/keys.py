"""Keys as bytes: one encoding that the JVM and Python agree on, byte for byte, and that sorts.

A key is a ``str``, an ``int`` of 64 bits, ``bytes``, or a tuple of scalars. The first byte says
which, so bytes decode without a schema::

    b"s" + UTF-8        b"i" + (n + 2**63) as 8 bytes, big-endian        b"b" + raw bytes
    b"m" + msgpack      (bool, float, tuple)

The first three sort as their values do, and Spark SQL can make them without a Python stage. Map
entries and timer tags use the same encoding. The hash is XXH64 with seed 42, which is what Spark's
``xxhash64`` computes over the same bytes.

Source: MillWheel, "Keys" (4.2); docs/architecture.md, "Vocabulary".
"""

from __future__ import annotations

import operator
from typing import Any, Final

import msgspec
import xxhash

from millrace.model.errors import CoderError

#: Spark's ``xxhash64`` starts from seed 42; any other seed would hash keys apart in JVM and Python.
HASH_SEED: Final = 42

_SIGN: Final = 1 << 63
_SCALARS: Final = (str, int, bytes, bool, float)
_encode_msgpack = msgspec.msgpack.Encoder().encode
_decode_msgpack = msgspec.msgpack.Decoder().decode


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
        raise CoderError(f"key {key} does not fit in 64 bits; use str(key) as the key.")
    if kind is bytes:
        encoded: bytes = b"b" + key
        return encoded
    if kind is bool or kind is float:
        return b"m" + _encode_msgpack(key)
    if kind is tuple:
        try:
            return b"m" + _encode_msgpack(_checked_tuple(key))
        except (OverflowError, UnicodeEncodeError) as refused:
            raise CoderError(f"key {key!r} cannot be encoded: {refused}.") from None
    return encode_key(_plain(key))


def decode_key(data: bytes) -> Any:
    """Return the key that :func:`encode_key` made these bytes from."""
    tag = data[0]
    if tag == 0x73:
        return data[1:].decode()
    if tag == 0x69:
        return int.from_bytes(data[1:], "big") - _SIGN
    if tag == 0x62:
        return data[1:]
    if tag == 0x6D:
        return _tuples(_decode_msgpack(data[1:]))
    raise CoderError(f"these bytes are not an encoded key: {data[:40]!r}.")


def hash_key(data: bytes) -> int:
    """Return the unsigned 64-bit hash of an encoded key."""
    return xxhash.xxh64_intdigest(data, HASH_SEED)


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as refused:
        raise CoderError(f"key {text!r} is not text that UTF-8 can encode: {refused}.") from None


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
            f"{key!r} ({type(key).__name__}) cannot be a key. Expected a str, int, bytes, bool, "
            "float, or a tuple of those; for anything else choose fields of it in the extractor."
        ) from None
    if not -_SIGN <= whole < _SIGN:
        raise CoderError(f"key {whole} does not fit in 64 bits; use str(key) as the key.")
    return whole


def _checked_tuple(key: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(
        part if part is None or (type(part) in _SCALARS and type(part) is not int)
        else _checked_tuple(part) if type(part) is tuple
        else _plain(part)
        for part in key
    )  # fmt: skip


def _tuples(decoded: Any) -> Any:
    return tuple(map(_tuples, decoded)) if type(decoded) is list else decoded
