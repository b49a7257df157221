"""Commit: everything one bundle changed in one key interval, under one number.

Source: MillWheel, section 6.2 "State Manipulation": all per-key updates are one atomic operation,
and a sequencer (here the commit's number) refuses a writer that is no longer the owner.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

import msgspec
import xxhash

from millrace.model.errors import InvariantViolation

#: What it takes to get one commit, in bytes that are read in that time.
COMMIT_BYTES = 1 << 16


class Commit(msgspec.Struct, array_like=True, gc=False):
    """The atomic unit of hard state; its identity is ``(computation, interval, number)``.

    Args:
        computation: Name of the computation.
        interval: Id of the key interval, 0 or more.
        number: 1, 2, 3 ... without gaps, for each ``(computation, interval)``.
        epoch: The epoch whose manifest the commit was made under.
        generation: The run (its claim on the checkpoint) that made it.
        mutations: ``(row, value)`` in the order to apply; a value of None deletes the row, and a
            later mutation of the same row wins. Blind writes: nothing is read to apply them.
        productions: What is sent on once the commit is durable; opaque to the store.
        report: What the driver's authority is told; opaque to the store.
        previous: ``chain`` of the commit before; 0 for the first.
        chain: What this commit and all before it did, in 53 bits: see :func:`chain_of`.

    It travels as a msgpack array in this order of fields, so a new field is only ever appended.

    >>> Commit("count", 0, 1, epoch=1, generation=1, mutations=[(b"Sk", b"1")]).number
    1
    """

    computation: str
    interval: int
    number: int
    epoch: int
    generation: int
    mutations: list[tuple[bytes, bytes | None]]
    productions: bytes = b""
    report: bytes = b""
    previous: int = 0
    chain: int = 0


_encode = msgspec.msgpack.Encoder().encode


def chain_of(previous: int, mutations: list[tuple[bytes, bytes | None]]) -> int:
    """Return the chain of a commit: a digest of all mutations from the first commit to this one.

    Two histories of an interval that differ have different chains from there on. That tells a
    cache of the checkpoint as it was before it was restored from a copy, or a commit that a
    superseded attempt put after its epoch was collected, from what belongs here.

    53 bits, so that readers of JSON in any language have it exactly.

    >>> chain_of(0, [(b"Sk", b"1")]), chain_of(7, [(b"Sk", b"1")])
    (3156548935807636, 6868365723805117)
    """
    return xxhash.xxh3_64_intdigest(_encode(mutations), previous) >> 11


Identity = tuple[str, int, int]
"""``(computation, interval, number)``, the name of a commit."""


def identity(commit: Commit) -> Identity:
    """Return the name of a commit.

    Raises:
        InvariantViolation: the number is below 1 or the interval is negative.

    >>> identity(Commit("count", 7, 3, epoch=1, generation=1, mutations=[]))
    ('count', 7, 3)
    """
    if commit.number < 1 or commit.interval < 0:
        raise InvariantViolation(
            f"commit {commit.number} of interval {commit.interval} of computation "
            f"{commit.computation!r}: numbers start at 1 and intervals at 0"
        )
    return commit.computation, commit.interval, commit.number


def identities(commits: Iterable[Commit]) -> list[Identity]:
    """Return the names of ``commits``, which must be distinct: a number is used once.

    Raises:
        InvariantViolation: two commits have the same identity, or one has an impossible one.
    """
    names: dict[Identity, None] = {}
    for commit in commits:
        name = identity(commit)
        if name in names:
            raise InvariantViolation(
                f"two commits numbered {commit.number} for interval {commit.interval} of "
                f"computation {commit.computation!r} in one segment; a number is used once"
            )
        names[name] = None
    return list(names)


def payload_bytes(commit: Commit) -> int:
    """Return the bytes of rows, values, productions and report that ``commit`` carries.

    A measure for counters: what the encoding adds (a few bytes a row) is left out.

    >>> payload_bytes(Commit("count", 0, 1, 1, 1, [(b"Sk", b"123"), (b"Sx", None)], b"pp"))
    9
    """
    # No frame of Python for each row: every commit is measured when it is applied.
    rows = sum(map(len, filter(None, chain.from_iterable(commit.mutations))))
    return rows + len(commit.productions) + len(commit.report)
