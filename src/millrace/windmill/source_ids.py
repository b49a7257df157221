"""Source ids: what an injector's id column becomes on its way to those who filter duplicates.

An id of any length is a *fingerprint* of 128 bits from where the source is read, made by Spark or,
in the Harness, here. Two ids with one fingerprint would be taken for one: for a billion live ids
the odds are 1 in 10**21, and SHA-256 leaves nobody a way to make such a pair. On the wire it stands
before the value of a record, on edges where somebody wants it; records that were not injected with
an id carry none, and their origin says so.

Source: MillWheel, 6.1.1 (record ids, "a Bloom filter of known record fingerprints");
docs/architecture.md, "Record ids".
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from millrace.model.keys import encode_key
from millrace.model.time import MAX_TIMESTAMP
from millrace.windmill.record_ids import injector_of

FINGERPRINT_BYTES = 16
#: The fingerprint of a record that has no id: a refused one, on its way to be a dead letter.
NO_FINGERPRINT = bytes(FINGERPRINT_BYTES)

#: The first half of a fingerprint is left alone, the second differs from stream to stream and, for
#: the records that a step made of one, from record to record.
_SECOND = slice(8, 16)
_WRAP = (1 << 64) - 1

Halves = npt.NDArray[np.uint64]


def fingerprint(id: Any) -> bytes:
    """Return the fingerprint of an id: of its encoding as a key, so ``5`` and ``"5"`` are two.

    >>> fingerprint("event-1").hex()
    'a945a389aa4b0da955ab596c6ede1d6a'
    """
    return hashlib.sha256(encode_key(id)).digest()[:FINGERPRINT_BYTES]


def null_id(column: str) -> str:
    """Return why a record without an id is refused."""
    return f"the id, column {column!r}, is null"


def nth(fingerprint: bytes, n: int) -> bytes:
    """Return the fingerprint of the n-th record that steps made of one, for one consumer.

    >>> nth(bytes([7] * 16), 2).hex()
    '07070707070707070707070707070709'
    """
    if n == 0 or fingerprint == NO_FINGERPRINT:
        return fingerprint
    second = (int.from_bytes(fingerprint[_SECOND], "big") + n) & _WRAP
    return fingerprint[:8] + second.to_bytes(8, "big")


class SourceIds:
    """The source ids of some records, as columns.

    Attributes:
        halves: uint64, one row of two a record: the fingerprint, as this stream has it. Zeros where
            a record has no id.
        slack_us: int64: how long past the timestamp an id is kept; -1 where a record has none.
    """

    __slots__ = ("halves", "slack_us")

    def __init__(self, halves: Halves, slack_us: npt.NDArray[np.int64]) -> None:
        self.halves = halves
        self.slack_us = slack_us

    @classmethod
    def of(
        cls,
        stream: str,
        fingerprints: bytes,
        origins: npt.NDArray[np.int64],
        slacks: Mapping[int, int],
    ) -> SourceIds:
        """Return the ids of records of one stream.

        Args:
            stream: The stream by which they came. An id is scoped to it.
            fingerprints: Of all records, 16 bytes each.
            origins: Of all records.
            slacks: Number of an injector with ids -> its slack in microseconds.
        """
        halves = np.frombuffer(fingerprints, dtype=">u8").astype(np.uint64).reshape(-1, 2)
        slack_us = np.full(len(halves), -1, dtype=np.int64)
        injectors = injector_of(origins)
        for number, us in slacks.items():
            slack_us[injectors == number] = us
        slack_us[(halves == 0).all(axis=1)] = -1
        halves[:, 1] ^= np.uint64(xxhash.xxh64_intdigest(stream.encode()))
        halves[slack_us < 0] = 0
        return cls(halves, slack_us)

    @classmethod
    def none(cls, count: int) -> SourceIds:
        """Return the ids of records that have none."""
        return cls(np.zeros((count, 2), dtype=np.uint64), np.full(count, -1, dtype=np.int64))

    @classmethod
    def concat(cls, parts: Sequence[SourceIds]) -> SourceIds:
        """Return several lots as one."""
        return cls(
            np.concatenate([part.halves for part in parts]),
            np.concatenate([part.slack_us for part in parts]),
        )

    def take(self, positions: Any) -> SourceIds:
        """Return the ids at some positions, or of a slice."""
        return SourceIds(self.halves[positions], self.slack_us[positions])

    def present(self) -> npt.NDArray[np.bool_]:
        """Return which records have an id."""
        return self.slack_us >= 0

    def halves_over(
        self, origins: npt.NDArray[np.int64], sequences: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the halves of the records' ids: their source's, or what they were numbered by."""
        halves, present = self.halves.view(np.int64), self.present()
        return (
            np.where(present, halves[:, 0], origins),
            np.where(present, halves[:, 1], sequences),
        )

    def expiries_us(self, timestamps: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the low watermarks at which the ids may be forgotten, of records with an id.

        They are rounded up, by a sixteenth of the slack or a second, so that ids expire by the lot.
        At its expiry an id's record would be late if it came again.
        """
        step_us = np.maximum(self.slack_us // 16, 1_000_000)
        at_us = timestamps + self.slack_us + step_us
        return np.minimum(at_us - at_us % step_us, MAX_TIMESTAMP)


def unseal(
    stream: str,
    values: list[bytes],
    origins: npt.NDArray[np.int64],
    slacks: Mapping[int, int],
) -> tuple[list[bytes], SourceIds]:
    """Return the values that came by an edge with source ids, and the ids, parted."""
    injectors = injector_of(origins)
    sealed = np.isin(injectors, list(slacks))
    size = FINGERPRINT_BYTES
    if sealed.all():
        prefixes = b"".join([value[:size] for value in values])
        return [value[size:] for value in values], SourceIds.of(stream, prefixes, origins, slacks)
    flags = sealed.tolist()
    prefixes = b"".join(
        [v[:size] if flag else NO_FINGERPRINT for v, flag in zip(values, flags, strict=True)]
    )
    plain = [v[size:] if flag else v for v, flag in zip(values, flags, strict=True)]
    return plain, SourceIds.of(stream, prefixes, origins, slacks)
