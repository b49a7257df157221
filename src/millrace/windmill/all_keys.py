"""The key that stands for all keys of an interval: what is the interval's has rows under it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from millrace.model.keys import encode_key
from millrace.windmill import rows

ALL_KEYS: Final = encode_key("all keys")
#: No user's key has it: theirs hash to it once in 2**64.
ALL_KEYS_ROW: Final = rows.key_row(bytes(rows.HASH_BYTES), ALL_KEYS)


def tables_in(mutations: Mapping[bytes, bytes | None]) -> dict[bytes, bytes]:
    """Return the entries of maps that are the interval's, among what a bundle has written."""
    prefix = rows.MAP + ALL_KEYS_ROW
    return {row: value for row, value in mutations.items() if value and row.startswith(prefix)}
