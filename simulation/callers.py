"""Callers: calls from outside, made while a schedule runs, and that none of them is lost."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from millrace.compile.topology import Topology
from millrace.epochlog.entries import Sources, SourceStats
from millrace.injectors.follower import Follower, Polling
from millrace.injectors.signal_injector import SignalInjector, calls_in, put_call
from millrace.model.errors import StoreError
from millrace.model.keys import encode_key
from millrace.store import HardState, Mailbox
from simulation.definitions import Wrong
from simulation.scheduler import Scheduler

_USERS = "abcd"


class Heard(SignalInjector):
    """The injector of calls, which hears them through the simulated storage."""

    def listen(self, mailbox: Mailbox) -> None:
        """Take calls from this mailbox, by whichever process asks."""
        self._location, self._mailbox = "simulated", mailbox

    def follow(self, places: Mapping[str, Any], *, most: int = 100_000) -> Follower:
        """Return what asks whenever it has a turn: it knows no clock but that of the steps."""
        clock = itertools.count(0, 1000)
        return Polling(self, places, most=1, clock=lambda: next(clock), sleep=lambda _: None)


def heard(topology: Topology) -> dict[str, Heard]:
    """Return the injectors of calls, by stream.

    Where there are some, the checkpoint is on a disk: in an object store they are looked for by the
    machine's clock, which no schedule may depend on.
    """
    sources = {spec.name: spec.injection.source for spec in topology.injected() if spec.injection}
    return {stream: one for stream, one in sources.items() if isinstance(one, Heard)}


class Callers:
    """Those who call, of a schedule.

    Args:
        topology: The pipeline.
        random: Decides who is called for, and when.

    Attributes:
        made: How many calls of each stream were answered: those are durable.
    """

    def __init__(self, topology: Topology, random: Random) -> None:
        self._random = random
        self._heard = heard(topology)
        self._tried = Counter[str]()
        self.made = Counter[str]()

    def __bool__(self) -> bool:
        return bool(self._heard)

    def listen(self, state: HardState) -> None:
        """Have calls heard that come to a checkpoint."""
        mailbox = state.mailbox
        assert not mailbox.far, "elsewhere it is looked into by the clock"
        for heard in self._heard.values():
            heard.listen(mailbox)

    def call(self, scheduler: Scheduler, opened: Callable[[], HardState]) -> None:
        """Call some times: the code of a process."""
        for _ in range(self._random.randint(2, 6)):
            for _ in range(self._random.randrange(80)):
                scheduler.step("think")
            stream = self._random.choice([*self._heard])
            for_all = stream.endswith("-for-all")
            try:
                mailbox = opened().mailbox
                self._tried[stream] += 1
                put_call(mailbox, stream, [b"" if for_all else self._key()])
                self.made[stream] += 1
            except StoreError:
                continue  # as when nobody has made the checkpoint yet

    def check(self, state: HardState, taken: Mapping[str, Any], sources: Sources) -> None:
        """Check that each call that was made was taken once, or is still there.

        Args:
            state: Of the checkpoint.
            taken: Stream -> the offset up to which calls were taken.
            sources: Stream -> what was observed of it.
        """
        mailbox = state.mailbox
        for stream in self._heard:
            last = (taken.get(stream) or [0])[0]
            read = sources.get(stream, SourceStats()).records
            if read != last:
                raise Wrong(f"{stream}: of {last} calls {read} were read")
            left = sum(number > last for number in calls_in(mailbox, stream))
            if not self.made[stream] <= last + left <= self._tried[stream]:
                raise Wrong(
                    f"{stream}: {self.made[stream]} calls were made of {self._tried[stream]}, and "
                    f"{last} were taken, {left} are left"
                )

    def _key(self) -> bytes:
        return encode_key(self._random.choice(_USERS))
