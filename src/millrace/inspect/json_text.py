"""Values and keys of a checkpoint as JSON, and keys from what somebody types.

Whatever a key or a value holds, binary, control characters or markup, what comes out is one line of
printable ASCII, or text that was printable to begin with.
"""

from __future__ import annotations

import contextlib
import json
import math
from typing import Any, Final

import msgspec

from millrace.compile.state_values import Encoded
from millrace.model.errors import CoderError
from millrace.model.keys import encode_key, hash_key

_HEX = "0x"

#: More of a key says nothing to a person, and in each line of the metrics it would cost a disk.
KEY_TEXT_MAX: Final = 200


def as_json(value: Any) -> bytes:
    r"""Return a value as JSON, on one line.

    Bytes are hexadecimal (``0x6162``), times ISO 8601; keys of a dict that JSON has no form for are
    written as :func:`key_text` has them, and what only the program can read says who made it.

    >>> as_json({("ann", 7): {b"ab"}, "at": float("inf")})
    b'{"[\\"ann\\",7]":["0x6162"],"at":"inf"}'
    """
    encoded = _encode(_plain(value))
    text = encoded.decode()
    return encoded if text.isprintable() else _printable(text).encode()


def _plain(value: Any) -> Any:
    if isinstance(value, Encoded):
        return {"coder": value.coder, "data": value.data}
    if isinstance(value, msgspec.Struct):
        return _plain(msgspec.structs.asdict(value))
    if isinstance(value, dict):
        return {key_text(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return list(map(_plain, value))
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return _HEX + value.hex()
    return value


#: What JSON begins with that is none of its words, and those words as Python reads them.
_BEGINS: Final = frozenset('{["-0123456789')
_WORDS: Final = frozenset(("true", "false", "null", "NaN", "Infinity"))

_encode = msgspec.json.Encoder(enc_hook=repr).encode


def key_text(key: Any) -> str:
    r"""Return a key as text, from which :func:`keys_of` has it again.

    Text stands for itself, but for such as would be read as JSON or cannot be printed, which is
    quoted; numbers, truth values and tuples are JSON, bytes hexadecimal.

    >>> [key_text(key) for key in ("ann", 7, "7", ("ann", 7), True, b"ab", "a\x1b[1m")]
    ['ann', '7', '"7"', '["ann",7]', 'true', '0x6162', '"a\\u001b[1m"']
    """
    if isinstance(key, str):
        quoted = not key or not key.isprintable() or key.startswith(_HEX) or _is_json(key)
        return json.dumps(key) if quoted else key
    if isinstance(key, bytes):
        return _HEX + key.hex()
    try:
        text = json.dumps(key, ensure_ascii=False, separators=(",", ":"), default=_carried)
    except (TypeError, ValueError):
        return repr(key)
    return _printable(text)


def key_value(key: Any) -> Any:
    """Return a key as :func:`as_json` has one that :func:`keys_of` finds: what it is, or text.

    >>> key_value(("ann", 7)), key_value(b"ab"), key_value(("ann", float("nan")))
    (('ann', 7), '0x6162', '["ann",NaN]')
    """
    return key_text(key) if isinstance(key, bytes) or not _is_finite(key) else key


def _is_finite(key: Any) -> bool:
    if isinstance(key, tuple):
        return all(map(_is_finite, key))
    return not isinstance(key, float) or math.isfinite(key)


def _carried(part: Any) -> Any:
    """Return what is no JSON as a part of it: bytes are hexadecimal."""
    return _HEX + part.hex() if isinstance(part, bytes) else msgspec.to_builtins(part)


def _printable(text: str) -> str:
    """Return JSON with its characters escaped that cannot be printed; all are in strings."""
    if text.isprintable():
        return text
    return "".join([each if each.isprintable() else json.dumps(each)[1:-1] for each in text])


def shortened(text: str, key: Any) -> str:
    """Return a text that a key is shown as, or its beginning, with what tells it from others.

    Two long keys that begin alike are of different hashes, as ``millrace state scan --json`` has
    them, so they do not become one where texts are names.

    >>> shortened(key_text("ann"), "ann")
    'ann'
    >>> shortened(key_text(b"ab" * 500_000), b"ab" * 500_000)[190:]
    '6162616261... (2,000,002 characters, hash 12392727881662320177)'
    """
    if len(text) <= KEY_TEXT_MAX:
        return text
    return f"{text[:KEY_TEXT_MAX]}... ({len(text):,} characters, hash {hash_key(encode_key(key))})"


def keys_of(text: str) -> list[Any]:
    """Return the keys that a text may mean, the likelier first.

    >>> keys_of("ann"), keys_of("7"), keys_of('["ann",7]'), keys_of("0x6162")
    (['ann'], [7, '7'], [('ann', 7), '["ann",7]'], [b'ab', '0x6162'])
    >>> keys_of('["ann","0x6162"]')
    [('ann', b'ab'), ('ann', '0x6162'), '["ann","0x6162"]']
    """
    meant: list[Any] = []
    try:
        read = _tuples(json.loads(text))
    except (ValueError, RecursionError):
        read = text
    for key in (_with_bytes(read), read, text):
        with contextlib.suppress(CoderError):
            if encode_key(key) not in map(encode_key, meant):
                meant.append(key)
    return meant


def _is_json(text: str) -> bool:
    begins = text.lstrip()[:1]
    # Most texts are names: to tell those without an attempt makes a scan a third cheaper.
    if begins not in _BEGINS:
        return text.strip() in _WORDS
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _with_bytes(read: Any) -> Any:
    """Return what was read, with hexadecimal text as the bytes that it stands for."""
    if isinstance(read, tuple):
        return tuple(map(_with_bytes, read))
    if isinstance(read, str) and read.startswith(_HEX):
        with contextlib.suppress(ValueError):
            return bytes.fromhex(read.removeprefix(_HEX))
    return read


def _tuples(read: Any) -> Any:
    return tuple(map(_tuples, read)) if isinstance(read, list) else read
