"""Source stats: what was observed of an injected stream, by a task, in an epoch, or ever since."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from millrace.kernel.user_errors import Reasons, merge
from millrace.model.time import MIN_TIMESTAMP
from millrace.watermark.percentiles import Ahead
from millrace.watermark.report import ONLY, Process


class SourceStats(msgspec.Struct, omit_defaults=True):
    """What was observed of one injected stream.

    Attributes:
        newest_us: Latest timestamp of its records; MIN_TIMESTAMP before the first.
        records: Records read, without those that were refused or dropped.
        refused_watermarks: Low watermarks of its processes that were refused.
        letters: Records that became dead letters as they were read, by reason.
        dropped: Records that its source was told to drop.
        processes: Process of its injector -> what was observed of it.
        ahead: How far its records came ahead of its low watermark; None unless the pipeline uses
            percentiles.

    >>> stats = SourceStats(newest_us=5, records=2)
    >>> stats.add(SourceStats(newest_us=3, records=1, dropped=4))
    >>> stats.newest_us, stats.records, stats.dropped
    (5, 3, 4)
    """

    newest_us: int = MIN_TIMESTAMP
    records: int = 0
    refused_watermarks: int = 0
    letters: Reasons = {}
    dropped: int = 0
    processes: dict[str, Process] = {}
    ahead: Ahead | None = None

    def count(self, records: int, newest_us: int, ahead: Ahead | None = None) -> None:
        """Count records, at least one, that were accepted.

        Args:
            records: How many.
            newest_us: Their latest timestamp.
            ahead: How far they came ahead of the low watermark.
        """
        self.records += records
        self.newest_us = max(self.newest_us, newest_us)
        if ahead is not None:
            self.ahead = ahead if self.ahead is None else self.ahead.merged(ahead)

    def hear(self, process: str, seen: Process) -> None:
        """Take what was observed of a process."""
        self.processes[process] = self.processes.get(process, Process()).merged(seen)

    def by_process(self) -> dict[str, Process]:
        """Return what was observed of each process; an injector that names none has one."""
        if self.processes or self.newest_us == MIN_TIMESTAMP:
            return self.processes
        return {ONLY: Process(self.newest_us)}

    def add(self, other: SourceStats) -> None:
        """Add what another task, or a later epoch, observed of the stream."""
        self.newest_us = max(self.newest_us, other.newest_us)
        self.records += other.records
        self.refused_watermarks += other.refused_watermarks
        self.dropped += other.dropped
        merge(self.letters, other.letters)
        for name, process in other.processes.items():
            self.hear(name, process)
        if other.ahead is not None:
            self.ahead = other.ahead if self.ahead is None else self.ahead.merged(other.ahead)


#: Injected stream -> what was observed of it.
Sources = dict[str, SourceStats]


def add_sources(known: Sources, more: Mapping[str, SourceStats]) -> None:
    """Add what was observed of injected streams to what is known of them."""
    for stream, stats in more.items():
        known.setdefault(stream, SourceStats()).add(stats)


def processes_of(sources: Mapping[str, SourceStats]) -> dict[str, dict[str, Process]]:
    """Return injected stream -> process of its injector -> what was observed of it."""
    return {stream: stats.processes for stream, stats in sources.items() if stats.processes}


def ahead_of(sources: Mapping[str, SourceStats]) -> dict[str, Ahead]:
    """Return injected stream -> how far its records came ahead of its low watermark."""
    return {stream: stats.ahead for stream, stats in sources.items() if stats.ahead is not None}
