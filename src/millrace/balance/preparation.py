"""Preparation: what a remap is going to read, read beside the epochs before it takes effect.

A preparation has a cache for each interval that will be divided or come together. It is built while
epochs go on, or live tasks, up to a commit that counts already; what is committed after that is
applied when the remap takes effect, between two epochs. It is soft: a cache that is lost, or of
which the commits in between were collected, costs the run the reading. Commits are told apart by
number and chain, so one of another history is built anew.

Source: MillWheel, "Architecture" (7.1): the new owner builds its cache beside the old one's work.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from millrace.balance.transfer import check_between, maps_after
from millrace.epochlog.run_log import RunLog
from millrace.model.errors import StoreError
from millrace.store import HardState, MemoryCache, bring, looked_at
from millrace.watermark.map_change import Remap

_log = logging.getLogger("millrace")

#: Rows and values that a preparation keeps in the driver, in bytes; as Python's objects they take
#: two to three times that. What is beyond it is read while the run waits, one interval at a time.
_BYTES: Final = 256 << 20
#: How often it is read on. Each time there is as much less as reading is faster than writing; where
#: it is not faster, one more would gain nothing.
_ROUNDS: Final = 3


class Preparation:
    """Caches of the intervals of some remaps, ahead of them.

    Args:
        run_log: Of the run.
        remaps: Computation -> what is to change.
        most_bytes: How much it may keep; see :data:`_BYTES`.

    Attributes:
        remaps: Those.
        ready: What it has, for :func:`~millrace.balance.transfer.remap`, which takes it out.
        under_way: Whether :meth:`read` was asked for, and has not ended.

    >>> import millrace as mr
    >>> p = mr.Pipeline("words")
    >>> _ = p.inject("words", format=str).key_by(str).window(mr.Sessions(9)).count().to("counts")
    >>> h = mr.testing.Harness(p, intervals=1)
    >>> h.inject("words", [("a", 1), ("b", 2)])
    >>> preparation = Preparation(h._run_log, {"counts": [mr.ops.Split(0)]})
    >>> preparation.is_near()
    False
    >>> preparation.read()  # beside the next epoch
    >>> h.inject("words", [("c", 3)])
    >>> preparation.is_near()
    True
    >>> from millrace.balance.transfer import remap
    >>> made = remap(h._run_log, preparation.remaps, ready=preparation.ready)
    >>> len(made["counts"].intervals)
    2
    """

    def __init__(
        self, run_log: RunLog, remaps: Mapping[str, Iterable[Remap]], *, most_bytes: int = _BYTES
    ) -> None:
        self.remaps = {name: tuple(asked) for name, asked in remaps.items()}
        self.ready: dict[str, dict[int, MemoryCache]] = {name: {} for name in self.remaps}
        self.under_way = False
        self._run_log = run_log
        self._most_bytes = most_bytes
        self._wanted: dict[tuple[str, int], tuple[int, int]] = {}
        self._left = set[tuple[str, int]]()
        self._rounds = 0

    def changes(self) -> bool:
        """Return whether any map becomes another one.

        Raises:
            PipelineError: The remap cannot be. Nothing was written.
        """
        maps = self._run_log.positions.maps
        remaps = maps_after(maps, {}, self.remaps)
        return any(remap.intervals != maps[name] for name, remap in remaps.items())

    def is_near(self) -> bool:
        """Note where the intervals stand, between two epochs; return whether all but that is read.

        If not, :meth:`read` is to be called, beside the epochs, and then this again. After some
        rounds it is as near as it gets.

        Raises:
            PipelineError: The remap cannot be, or not now; or not any more, because another one
                came before. Nothing was written.
            ZombieWriter: A newer run has claimed the checkpoint.
        """
        run_log = self._run_log
        run_log.settle()
        check_between(run_log.completed, run_log.open, drained=run_log.drained)
        return self._is_near()

    def is_near_a_mark(self) -> bool:
        """Do as :meth:`is_near` while live tasks go on; they stand where they passed the last mark.

        Raises:
            PipelineError: The remap cannot be. Nothing was written.
        """
        return self._is_near()

    def _is_near(self) -> bool:
        assert not self.under_way, "it is read to where they stood before"
        run_log = self._run_log
        remaps = maps_after(run_log.positions.maps, {}, self.remaps)
        parents = {
            (name, parent)
            for name, remap in remaps.items()
            for those in remap.parents.values()
            for parent in those
        }
        self._wanted, behind = {}, 0
        for name, interval in sorted(parents - self._left):
            stands = run_log.positions.of(name, interval)
            self._wanted[name, interval] = stands.number, stands.chain
            behind = max(behind, stands.number - self._at(name, interval))
        # What one epoch commits while it is read would be there again after another round.
        near = behind <= min(1, self._rounds) or self._rounds == _ROUNDS
        if not near:
            self._rounds += 1
            self.under_way = True
        return near

    def read(self, going: Callable[[], bool] = lambda: True) -> None:
        """Build caches up to where the intervals stood; for any thread, one at a time.

        Args:
            going: Asked before each interval; once it says no, nothing more is read.
        """
        try:
            # What live tasks have committed is in segments that are not sealed.
            state = looked_at(self._run_log.state)
            for (name, interval), (number, chain) in self._wanted.items():
                if not going():
                    return
                if (name, interval) not in self._left:
                    self._read(state, name, interval, number, chain)
        except StoreError as problem:
            self._leave(set(self._wanted), f"could not be looked for before: {problem}")
        finally:
            self.under_way = False

    def _read(self, state: HardState, name: str, interval: int, number: int, chain: int) -> None:
        cache = self.ready[name].pop(interval, None) or MemoryCache(name, interval)
        try:
            bring(cache, state, name, interval, number, chain)
        except StoreError as problem:
            self._leave({(name, interval)}, f"could not be read before: {problem}")
            return
        size_bytes = sum(
            cache.size_bytes for caches in self.ready.values() for cache in caches.values()
        )
        if size_bytes + cache.size_bytes > self._most_bytes:
            # Nor any of the others: each would be read in vain.
            there = {
                (computation, cache)
                for computation, caches in self.ready.items()
                for cache in caches
            }
            self._leave(self._wanted.keys() - there, f"have more than {self._most_bytes:,} bytes")
            return
        self.ready[name][interval] = cache

    def _leave(self, those: set[tuple[str, int]], why: str) -> None:
        self._left |= those
        _log.info("rows of %s are read while the run waits: they %s", sorted(those), why)

    def _at(self, name: str, interval: int) -> int:
        cache = self.ready[name].get(interval)
        return 0 if cache is None else cache.position
