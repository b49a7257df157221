"""bring: a cache from wherever it is to a given commit, by the log and by snapshots.

Source: MillWheel, section 6.2 "State Manipulation": hard state is maintained with care so that soft
state, the caches and aggregates of a worker, may vanish at any time.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

import msgspec

from millrace.model.errors import DamagedStore, StoreError
from millrace.store.cache import Cache, moved
from millrace.store.commit import Commit, payload_bytes
from millrace.store.hard_state import HardState
from millrace.store.snapshots import Rows, decode_snapshot

_log = logging.getLogger(__name__)

# A snapshot or commit may be collected while it is read, by a run that has gone on: then there are
# newer ones. Each round takes a rebuild's time, so that one is unlucky once, not three times.
_ROUNDS = 3
# Commits are read so far ahead of the cache: many at once cost it little more than their last rows.
_AT_ONCE_BYTES = 1 << 20


class Repair(msgspec.Struct, array_like=True, frozen=True):
    """What it took to bring a cache to a commit; all zero in the usual case, when it was there.

    Args:
        deltas_applied: Commits read from the log and applied.
        rebuilt: The cache had nothing usable, or was ahead or of another history, and was made
            from a snapshot or from the first commit.
        bytes_read: Rows, values, productions and reports in those commits, rows in the snapshot.
        snapshot: The commit that the snapshot stood at; 0 when none was used.
        damaged: Snapshots and commits that were found damaged or missing on the way.
    """

    deltas_applied: int = 0
    rebuilt: bool = False
    bytes_read: int = 0
    snapshot: int = 0
    damaged: int = 0

    def then(self, later: Repair) -> Repair:
        """Return what both took.

        >>> Repair(2, snapshot=4).then(Repair(1, rebuilt=True))
        Repair(deltas_applied=3, rebuilt=True, bytes_read=0, snapshot=4, damaged=0)
        """
        return Repair(
            self.deltas_applied + later.deltas_applied,
            self.rebuilt or later.rebuilt,
            self.bytes_read + later.bytes_read,
            later.snapshot or self.snapshot,
            self.damaged + later.damaged,
        )


NOTHING = Repair()


def bring(
    cache: Cache,
    state: HardState,
    computation: str,
    interval: int,
    number: int,
    chain: int | None = None,
) -> Repair:
    """Bring ``cache`` to commit ``number``, and return what that took.

    At ``number``: nothing. Behind: the missing commits are applied in order. Where that cannot be,
    because the cache is empty, ahead, of another history, or a commit was collected: the newest
    snapshot that is whole, then the commits after it; without a snapshot from the first commit. A
    cache is not touched before there is something to build it from.

    Another process may move the cache right after; read through ``cache.view(at=number)``.

    Args:
        cache: The cache of ``(computation, interval)``.
        state: Where its commits and snapshots are.
        computation: Name of the computation.
        interval: Id of the key interval.
        number: The last commit of the interval, from the epoch's manifest; 0 for none.
        chain: That commit's, from the manifest. None: take the log's word.

    Raises:
        DamagedStore: what the log and the snapshots have left does not lead to ``number``.
        StoreError: the cache cannot be written, or another process cleared it meanwhile.

    >>> from millrace.store import Commit, MemoryCache, MemoryHardState
    >>> state = MemoryHardState()
    >>> commits = [Commit("count", 0, n, 1, 1, [(b"Sk", b"%d" % n)]) for n in (1, 2)]
    >>> state.commits.of_task("count", epoch=1, task=0).put(commits)
    True
    >>> bring(MemoryCache("count", 0), state, "count", 0, 2)
    Repair(deltas_applied=2, rebuilt=True, bytes_read=6, snapshot=0, damaged=0)
    """
    cache_position = cache.cache_position
    if cache_position.position == number and chain in (None, cache_position.chain):
        return NOTHING
    repairing = _Repairing(cache, state, computation, interval, number, chain)
    if 0 < cache_position.position < number:
        try:
            return repairing.forward(cache_position.position)
        except DamagedStore as problem:
            # Most likely collected: a host that had the interval long ago has it again.
            _log.info("%s: %s", repairing.where, problem)
    return repairing.rebuild()


class _Repairing:
    def __init__(
        self,
        cache: Cache,
        state: HardState,
        computation: str,
        interval: int,
        number: int,
        chain: int | None,
    ) -> None:
        self._cache = cache
        self._state = state
        self._name = (computation, interval)
        self._number = number
        self._chain = chain
        self.where = f"interval {interval} of computation {computation!r}"

    def forward(self, position: int, bytes_read: int = 0) -> Repair:
        """Apply the commits after ``position``, which is the cache's."""
        read: list[Commit] = []
        size = 0
        for wanted in range(position + 1, self._number + 1):
            commit = self._state.commits.read(*self._name, wanted)
            if commit is None:
                raise DamagedStore(f"commit {wanted} of {self.where} is not in the log")
            read.append(commit)
            size += payload_bytes(commit)
            if size >= _AT_ONCE_BYTES or wanted == self._number:
                self._cache.apply(*read)
                bytes_read, size = bytes_read + size, 0
                read.clear()
        self._check_chain()
        return Repair(self._number - position, bytes_read=bytes_read)

    def rebuild(self) -> Repair:
        """Make the cache anew, trying every snapshot before the first commit."""
        problems: list[str] = []
        tried: Sequence[int] | None = None
        for _ in range(_ROUNDS):
            numbers = [n for n in self._snapshots() if n <= self._number]
            if numbers == tried:
                break
            tried = numbers
            problems.clear()
            for start in [*reversed(numbers), 0]:
                try:
                    repair = self._from(start)
                except DamagedStore as problem:
                    problems.append(str(problem))
                    continue
                self._tell(repair, problems)
                return msgspec.structs.replace(repair, damaged=len(problems))
        raise self._lost(problems)

    def _from(self, start: int) -> Repair:
        bytes_read = self._load(start) if start else self._clear()
        repair = self.forward(start, bytes_read)
        return msgspec.structs.replace(repair, rebuilt=True, snapshot=start)

    def _clear(self) -> int:
        if self._number and not self._state.commits.exists(*self._name, 1):
            raise DamagedStore(f"commit 1 of {self.where} is not in the log")
        self._cache.clear()
        return 0

    def _load(self, number: int) -> int:
        pieces = self._state.snapshots.read(*self._name, number)
        where = f"{number} of {self.where}"
        if pieces is None:
            raise DamagedStore(f"snapshot {where} has gone")
        head, parts = decode_snapshot(pieces, where)
        if (head.computation, head.interval, head.number) != (*self._name, number):
            raise DamagedStore(f"snapshot {where} is in fact {head}")
        counted = 0

        def counting() -> Iterator[Rows]:
            nonlocal counted
            for part in parts:
                counted += sum(len(row) + len(value) for row, value in part)
                yield part

        self._cache.load(number, head.chain, counting())
        return counted

    def _snapshots(self) -> Sequence[int]:
        computation, interval = self._name
        return self._state.snapshots.numbers(computation).get(interval, ())

    def _check_chain(self) -> None:
        cache_position = self._cache.cache_position
        if (
            cache_position.position != self._number
        ):  # by another process, so it says nothing of the log
            raise moved(*self._name, cache_position.position, self._number)
        if self._chain not in (None, cache_position.chain):
            raise DamagedStore(
                f"{self.where} has chain {cache_position.chain} at commit {self._number}, but the "
                f"manifest says {self._chain}: the snapshot or the log is of another history"
            )

    def _tell(self, repair: Repair, problems: list[str]) -> None:
        for problem in problems:
            _log.warning("repairing %s, found: %s", self.where, problem)
        start = f"snapshot {repair.snapshot}" if repair.snapshot else "the first commit"
        _log.info(
            "built the cache of %s from %s and %d commits, %d bytes",
            self.where, start, repair.deltas_applied, repair.bytes_read,
        )  # fmt: skip

    def _lost(self, problems: list[str]) -> StoreError:
        if not self._number:
            return DamagedStore(f"the cache of {self.where} cannot be cleared: {problems}")
        listed = "".join(f"\n  {problem}" for problem in problems)
        return DamagedStore(
            f"{self.where} cannot be brought to commit {self._number}, which the manifest names. "
            f"Its state and timers are lost. What was tried, from the newest snapshot to the first "
            f"commit:{listed}\nRestore the checkpoint from a copy."
        )
