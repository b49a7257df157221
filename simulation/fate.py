"""Fate: lets the planned faults happen, each at the first step at which it can."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from millrace.model.errors import StoreError
from millrace.store import MemoryCache, bring
from simulation.bucket import DELAYED
from simulation.disk import LOST_REPLY, TEAR
from simulation.faults import Fault, Kind
from simulation.hosts import Host
from simulation.scheduler import Process

if TYPE_CHECKING:
    from simulation.world import World

_FOREVER = 1 << 60
_FILLS = frozenset({"create", "write", "link", "mkdir", "put"})
_REFUSED = _FILLS | {"fsync", "fsync names", "get", "head", "delete"}
_ANSWERED = frozenset({"link", "put", "delete"})
_CACHE = frozenset({"position", "cache_position", "view", "apply", "load", "settle", "clear"})
_REFUSALS = (errno.EIO, errno.ENOSPC, errno.EDQUOT)


class Fate:
    """The faults of a schedule.

    Args:
        world: What they happen to.
        faults: By step.

    Attributes:
        happened: Kind -> how often it happened.
    """

    def __init__(self, world: World, faults: Sequence[Fault]) -> None:
        self.happened: Counter[Kind] = Counter()
        self._world = world
        self._later = list(reversed(faults))
        self._armed: list[Fault] = []
        self._full_until = 0
        self._refusals: dict[Process, int] = {}
        self._tearing: set[Process] = set()

    def rest(self) -> None:
        """Let nothing more happen."""
        self._later, self._armed, self._full_until = [], [], 0

    def refusal(self) -> int:
        """Return what the call that was just asked about is to fail with, 0 for nothing."""
        current = self._world.scheduler.current
        return self._refusals.pop(current, 0) if current is not None else 0

    def on_step(self, process: Process, what: str) -> None:
        """Let happen what is due, now that a process is about to do something."""
        if process in self._tearing:
            self._world.scheduler.kill(process)
            return
        now = self._world.scheduler.steps
        while self._later and self._later[-1].at <= now:
            self._armed.append(self._later.pop())
        for fault in self._armed:
            if self._happens(fault, process, what):
                self._armed.remove(fault)
                self.happened[fault.kind] += 1
                if fault.then is not None:
                    self._later.append(replace(fault.then, at=now + fault.then.at))
                    self._later.sort(key=lambda one: -one.at)
                self._world.note("*", f"{fault.kind.name}: {fault.kind.value} ({process}: {what})")
                return
        if now < self._full_until and what in _FILLS:
            self._refuse(process, errno.ENOSPC)

    def _happens(self, fault: Fault, process: Process, what: str) -> bool:
        """Let a fault happen; return False if it cannot at this step."""
        world, scheduler, pick = self._world, self._world.scheduler, fault.pick
        if fault.call is not None and fault.call != what:
            return False
        match fault.kind:
            case Kind.KILL:
                scheduler.kill(process)
            case Kind.KILL_DRIVER:
                alive = [p for p in world.drivers if not (p.ended or p.dead)]
                if not alive:
                    return False
                scheduler.kill(alive[pick % len(alive)])
            case Kind.PAUSE:
                scheduler.stop(process, scheduler.steps + (10, 40, 150, 350)[pick % 4])
            case Kind.ZOMBIE:
                scheduler.stop(process, _FOREVER)
            case Kind.TEAR:
                if what != "write":
                    return False
                self._tearing.add(process)
                self._refuse(process, TEAR)
            case Kind.REFUSE:
                if what not in _REFUSED:
                    return False
                self._refuse(process, _REFUSALS[pick % len(_REFUSALS)])
            case Kind.DISK_FULL:
                self._full_until = scheduler.steps + 10 + pick % 150
            case Kind.LOST_REPLY:
                if what not in _ANSWERED:
                    return False
                self._refuse(process, LOST_REPLY)
            case Kind.DELAYED:
                if what not in _ANSWERED:
                    return False
                self._refuse(process, DELAYED)
            case Kind.POWER | Kind.STORAGE_POWER:
                self._cut_power(caches_too=fault.kind is Kind.POWER)
            case Kind.HOST:
                self._lose_host(world.hosts[pick % len(world.hosts)])
            case Kind.CACHE_LOST | Kind.CACHE_STALE:
                return self._spoil_cache(pick, lost=fault.kind is Kind.CACHE_LOST)
            case Kind.CACHE_ERROR:
                if what not in _CACHE:
                    return False
                self._refuse(process, errno.EIO)
            case Kind.DRIVER:
                world.start_driver()
            case Kind.SINK:
                if what != "sink":
                    return False
                self._refuse(process, errno.EIO)
            case _:
                return world.strike(fault)
        return True

    def _refuse(self, process: Process, code: int) -> None:
        self._refusals[process] = code

    def _cut_power(self, *, caches_too: bool) -> None:
        world = self._world
        for process in world.scheduler.processes:
            world.scheduler.kill(process)
        lost = world.storage.cut_power()
        world.note("*", f"{lost} names and files were not durable, and are lost or torn")
        for host in world.hosts:
            host.idle.clear()
            if caches_too:
                host.lose()
        world.lose_outputs()

    def _lose_host(self, host: Host) -> None:
        host.lose()
        self._world.lose_outputs(host)

    def _spoil_cache(self, pick: int, *, lost: bool) -> bool:
        caches = [
            (host, name)
            for host in self._world.hosts
            for name, cache in host.caches.items()
            if cache.position > 0
        ]
        if not caches:
            return False
        host, (computation, interval) = caches[pick % len(caches)]
        position = host.caches[computation, interval].position
        older = MemoryCache(computation, interval)
        if not lost and position > 1:
            current, self._world.scheduler.current = self._world.scheduler.current, None
            try:
                state = self._world.storage.open()
                bring(older, state, computation, interval, pick % position)
            except StoreError:
                older.clear()  # what it would take was collected
            finally:
                self._world.scheduler.current = current
        host.caches[computation, interval] = older
        return True
