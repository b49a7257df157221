"""Faults: what can happen, and when, as a plan that follows from a seed.

A fault is armed at a step and happens at the first step from there on at which it can (a torn write
needs a write). The plan is separate from the choice of who runs, so that a failing schedule can be
run again with some of its faults left out.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import NamedTuple


class Kind(enum.Enum):
    """What happens."""

    KILL = "kill the process that is about to do this"
    KILL_DRIVER = "kill a driver"
    PAUSE = "stop the process for a while, and let it go on"
    ZOMBIE = "stop the process, and let it go on when all is over"
    TEAR = "write half, and die"
    REFUSE = "fail the call: EIO, ENOSPC or EDQUOT; 503 of an object store"
    DISK_FULL = "fail all writes for a while"
    LOST_REPLY = "do it, and answer EEXIST to a link, or nothing to a put or delete"
    DELAYED = "answer nothing to a put or delete, and do it later"
    POWER = "cut the power of everything: only what is durable is left, no cache is"
    STORAGE_POWER = "cut the power of the storage: processes die, caches stay"
    HOST = "lose a machine: its tasks, caches and shuffle files"
    CACHE_LOST = "lose an interval's cache"
    CACHE_STALE = "put an older copy in an interval's cache"
    CACHE_ERROR = "fail the call of the cache"
    DRIVER = "start another driver on the same checkpoint"
    SPECULATE = "start a second attempt of a task that runs"
    SHUFFLE_LOST = "lose what a finished task sent"
    SINK = "fail the sink"
    OVER = "end Spark's batch: the input of all live tasks ends"
    MARK = "make a mark at once"
    STOP = "stop the run with a last mark; the next one may have another number of tasks"
    STALE = "deliver a packet of an older incarnation, where the next one was expected"
    HANG_UP = "break the line between a live task and the driver"


@dataclass(frozen=True)
class Fault:
    """One thing that happens.

    Attributes:
        kind: What.
        at: From which step on.
        pick: Chooses among those that it can happen to, and how long it lasts.
        call: What a process must be about to do, for it to happen there; None for anything.
        then: What happens next, at so many steps from when this one has.
    """

    kind: Kind
    at: int
    pick: int
    call: str | None = None
    then: Fault | None = None


#: Steps of a schedule without faults, roughly: where faults are to fall.
_STEPS = 900
#: What happens on one plane only.
OF_EPOCHS = frozenset({Kind.SPECULATE, Kind.SHUFFLE_LOST})
OF_REAL_TIME = frozenset({Kind.OVER, Kind.MARK, Kind.STOP, Kind.STALE, Kind.HANG_UP})
_ON_DISK = frozenset({Kind.TEAR, Kind.POWER, Kind.STORAGE_POWER})
#: Where it hurts to be stopped: around what makes a commit durable, and what follows from it.
_CALLS_ON_DISK = (
    *(None,) * 4, "write", "fsync", "fsync names", "fsync names", "link", "unlink", "apply", "send",
    "sink",
)  # fmt: skip
_CALLS_IN_BUCKET = (None, None, "put", "put", "head", "get", "delete", "apply", "send", "sink")
_CALLS_OF_REAL_TIME = ("hear", "say", "publish")
_STOPS = frozenset({Kind.KILL, Kind.PAUSE, Kind.ZOMBIE, Kind.POWER, Kind.STORAGE_POWER})


class _Link(NamedTuple):
    """One of some faults, at a call, within so many steps after the link before it."""

    kinds: tuple[Kind, ...]
    call: str | None = None
    within: int = 1


_Chain = tuple[_Link, ...]
_SLEEPS = (Kind.PAUSE, Kind.ZOMBIE)
_RIVAL = _Link((Kind.DRIVER, Kind.SPECULATE), within=20)
#: Who takes a name, and whether that lasts: what goes wrong there takes several faults in a row.
_CHAINS_ON_DISK: tuple[_Chain, ...] = (
    (_Link(_SLEEPS, "link"),),
    (_Link(_SLEEPS, "fsync names"), _RIVAL, _Link((Kind.POWER,), within=100)),
    (_Link((Kind.SPECULATE,)), _Link((Kind.PAUSE,), "link")),
)
_CHAINS_IN_BUCKET: tuple[_Chain, ...] = (
    (_Link(_SLEEPS, "put"),),
    (
        _Link((Kind.REFUSE, Kind.LOST_REPLY, Kind.DELAYED), "put"),
        _Link(_SLEEPS, "wait"),
        _RIVAL,
    ),
    (_Link((Kind.SPECULATE,)), _Link((Kind.PAUSE,), "put")),
)


def possible(*, bucket: bool, realtime: bool) -> list[Kind]:
    """Return what can happen to a schedule."""
    elsewhere = {*(OF_EPOCHS if realtime else OF_REAL_TIME)}
    elsewhere |= _ON_DISK if bucket else {Kind.DELAYED}
    return [kind for kind in Kind if kind not in elsewhere]


def plan(random: Random, *, bucket: bool, realtime: bool = False) -> list[Fault]:
    """Return the faults of a schedule, by step.

    Args:
        random: Chooses them.
        bucket: Whether the checkpoint is in an object store, and not on a disk.
        realtime: Whether it is one of the real-time plane.

    A schedule draws its faults from a few kinds only ("swarm testing"), and some of them close to
    each other: most bugs need two that follow at once.
    """
    calls: tuple[str | None, ...] = _CALLS_IN_BUCKET if bucket else _CALLS_ON_DISK
    if realtime:
        calls += _CALLS_OF_REAL_TIME
    kinds = random.sample(possible(bucket=bucket, realtime=realtime), random.randint(2, 7))
    faults: list[Fault] = []
    at = 0
    for _ in range(random.choice((1, 2, 3, 3, 4, 5, 6, 8, 12))):
        if not faults or random.random() < 0.6:
            at = random.randrange(_STEPS)
        else:
            at += random.randrange(random.choice((5, 40, 150)))
        kind = random.choice(kinds)
        call = random.choice(calls) if kind in _STOPS else None
        faults.append(Fault(kind, at, random.randrange(1 << 16), call))
        if call == "fsync names" and random.random() < 0.5:
            # A name that others see and that is not durable: take it back once they acted on it.
            faults.append(Fault(Kind.POWER, at + random.randrange(30, 180), 0))
    if random.random() < 0.3:
        there = possible(bucket=bucket, realtime=realtime)
        chain = random.choice(_CHAINS_IN_BUCKET if bucket else _CHAINS_ON_DISK)
        faults += _chained(random, chain, random.randrange(_STEPS // 2), there)
    return sorted(faults, key=lambda fault: fault.at)


def _chained(random: Random, chain: _Chain, at: int, there: Sequence[Kind]) -> list[Fault]:
    """Return the first of some faults that follow each other, those that can happen."""
    if not chain:
        return []
    link, *rest = chain
    then = _chained(random, tuple(rest), random.randrange(rest[0].within) if rest else 0, there)
    kinds = [kind for kind in link.kinds if kind in there]
    if not kinds:
        return then
    one = Fault(random.choice(kinds), at, random.randrange(1 << 16), link.call)
    return [replace(one, then=then[0] if then else None)]
