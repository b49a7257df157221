"""Observed: what a task, an epoch or a whole run saw of the injected streams."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field

from millrace.model.time import MIN_TIMESTAMP
from millrace.watermark.ahead import Ahead
from millrace.watermark.process import ONLY, Process
from millrace.windmill.dead_letters import Reasons, merge_by_stream
from millrace.windmill.manifest import Completion


@dataclass
class Observed:
    """What a task, or an epoch, saw of the injected streams.

    Attributes:
        newest: Injected stream -> latest timestamp.
        injected: Injected stream -> records.
        refused: Injected stream -> low watermarks of its processes that were refused.
        processes: Injected stream -> process of its injector -> what was seen of it.
        ahead: Injected stream -> how far its records came ahead of its low watermark; only where
            the pipeline uses percentiles.
        sizes: Injected stream -> bytes of the values; only of what this process saw.
        letters: Injected stream -> records that became dead letters as they were read, by reason.
        dropped: Injected stream -> records that its source was told to drop.
    """

    newest: dict[str, int] = field(default_factory=dict)
    injected: dict[str, int] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)
    processes: dict[str, dict[str, Process]] = field(default_factory=dict)
    ahead: dict[str, Ahead] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    letters: dict[str, Reasons] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)

    @classmethod
    def until(cls, said: Completion) -> Observed:
        """Return what was seen since the beginning, as a completion says it."""
        return cls(
            said.newest,
            said.injected,
            said.refused,
            said.processes,
            said.ahead,
            letters=said.letters,
            dropped=said.dropped,
        )

    def by_process(self) -> dict[str, dict[str, Process]]:
        """Return what was seen of each process; an injector that names none has one."""
        only = {stream: {ONLY: Process(us)} for stream, us in self.newest.items()}
        return only | self.processes

    def of(self, streams: Container[str]) -> Observed:
        """Return what was seen of some of the streams."""
        return Observed(
            {stream: us for stream, us in self.newest.items() if stream in streams},
            {stream: n for stream, n in self.injected.items() if stream in streams},
            {stream: n for stream, n in self.refused.items() if stream in streams},
            {stream: seen for stream, seen in self.processes.items() if stream in streams},
            {stream: ahead for stream, ahead in self.ahead.items() if stream in streams},
            letters={stream: of for stream, of in self.letters.items() if stream in streams},
            dropped={stream: n for stream, n in self.dropped.items() if stream in streams},
        )

    def add(self, other: Observed) -> None:
        """Add what another task saw."""
        for stream, newest_us in other.newest.items():
            self.newest[stream] = max(self.newest.get(stream, MIN_TIMESTAMP), newest_us)
        for mine, theirs in (
            (self.injected, other.injected),
            (self.refused, other.refused),
            (self.sizes, other.sizes),
            (self.dropped, other.dropped),
        ):
            for stream, count in theirs.items():
                mine[stream] = mine.get(stream, 0) + count
        for stream, seen in other.processes.items():
            known = self.processes.setdefault(stream, {})
            for name, process in seen.items():
                known[name] = known.get(name, Process()).merged(process)
        for stream, ahead in other.ahead.items():
            self.ahead[stream] = self.ahead.get(stream, Ahead()).merged(ahead)
        merge_by_stream(self.letters, other.letters)
