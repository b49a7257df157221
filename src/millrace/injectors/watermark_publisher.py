"""The publisher: the low watermark of every injector, as the minimum over its processes.

Like a policy it is deterministic: its output depends on the given process states and clock alone.
It remembers until when sources have been read, the clock of the last epoch, and, for its log, which
processes were idle or missing at the last publication.

Source: MillWheel, "Injector and Low Watermark API" (5.2): the user can specify an expected set of
injector processes, making this metric robust against process failures and network outages.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from millrace.compile.topology import Topology, together
from millrace.injectors.injector import Injector
from millrace.injectors.offsets import PROMISE, PUNCTUATION
from millrace.injectors.rate_limit import EVERYONE, Throttle, too_far
from millrace.injectors.watermark_policy import ArrivalTime, LowWatermarkPolicy, WatermarkColumn
from millrace.model.errors import PipelineError
from millrace.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP, MINUTE, SECOND, format_timestamp
from millrace.watermark.report import ONLY, ProcessState

#: Says when processes become idle, come back, and are missed.
log = logging.getLogger("millrace.injectors")

#: How long an expected process may be unheard of before the log says so. Long enough for a process
#: to start; the low watermark stands still all the while, so not longer.
_MISSING_US = MINUTE

#: What is known of processes is in every manifest and every report. Source partitions are thousands
#: at the most; a column with more values than this was meant to be something else, say a user id.
PROCESSES_MAX = 10_000


@dataclass(frozen=True)
class Publication:
    """What an injector publishes and who takes part.

    Attributes:
        low_watermark_us: The minimum over those that take part; MIN_TIMESTAMP if none does.
        changes_us: Wall clock from which on it is another without news; MAX_TIMESTAMP if never.
        idle: Processes that are left out, for they have been silent for the time-out.
        missing: Expected processes that were never heard of.
        silent: Whether all processes are left out, but for some that have ended.
    """

    low_watermark_us: int
    changes_us: int
    idle: frozenset[str]
    missing: frozenset[str]
    silent: bool


@dataclass(frozen=True)
class WatermarkAggregate:
    """How the low watermarks of an injected stream's processes are combined.

    Attributes:
        policy: The low watermark of each process.
        expected: Names of processes that must have reported before anything is published.
        idle_us: Time-out after which a silent one is left out; None: never.
        skew_us: How far ahead of the low watermark one may be read; None: any distance.
    """

    policy: LowWatermarkPolicy
    expected: tuple[str, ...] = (ONLY,)
    idle_us: int | None = None
    skew_us: int | None = None

    def publication(
        self,
        processes: Mapping[str, ProcessState],
        wall_time_us: int,
        read_until_us: int,
        last_epoch_us: int,
    ) -> Publication:
        """Return what to publish.

        Args:
            processes: All that were heard of, or that are expected and have been waited for.
            wall_time_us: What time it is.
            read_until_us: See :meth:`LowWatermarkPolicy.published_us`.
            last_epoch_us: Clock of the last epoch that has completed; what it read must count.
        """
        published_us, changes_us = MAX_TIMESTAMP, MAX_TIMESTAMP
        idle, missing, may_go_on = [], [], False
        for name in {*self.expected, *processes}:
            process = processes.get(name, ProcessState())
            if process.newest_us == process.process_watermark_us == MIN_TIMESTAMP:
                missing.append(name)
            own_us = self.policy.published_us(process, read_until_us)
            if process.is_idle(self.idle_us, wall_time_us, last_epoch_us):
                idle.append(name)
                may_go_on |= own_us < MAX_TIMESTAMP
                continue
            if self.idle_us is not None and process.received_us != MIN_TIMESTAMP:
                changes_us = min(changes_us, process.received_us + self.idle_us)
            published_us = min(published_us, own_us)
            changes_us = min(changes_us, self.policy.changes_us(process, read_until_us))
        # Those that have ended say nothing of one that is idle, and comes back.
        silent = len(idle) == len({*self.expected, *processes}) or (
            may_go_on and published_us == MAX_TIMESTAMP
        )
        if silent:
            published_us = MIN_TIMESTAMP  # nobody is left to say anything: it stays what it was
        expected = frozenset(missing).intersection(self.expected)
        return Publication(published_us, changes_us, frozenset(idle), expected, silent)


class WatermarkPublisher:
    """The injectors of a pipeline.

    Args:
        injectors: By injected stream.
        together: Injected stream -> those with which it shares a low watermark, itself included.

    Attributes:
        throttle: Streams that are held back by an operator.
    """

    def __init__(
        self,
        injectors: Mapping[str, WatermarkAggregate],
        together: Mapping[str, Iterable[str]] | None = None,
    ) -> None:
        self._injectors = injectors
        self._together = together or {}
        self._waiting: dict[str, frozenset[str]] = {}
        self._held_until: dict[tuple[str, str], int] = {}
        self._last: dict[str, Publication] = {}
        # What had arrived by then has been read; and the clock of the last epoch.
        self._read_until_us = self._last_clock_us = MIN_TIMESTAMP
        self._missed: set[tuple[str, str]] = set()
        self.throttle = Throttle()

    @classmethod
    def of(cls, topology: Topology) -> WatermarkPublisher:
        """Return the publisher of a pipeline's injectors.

        Raises:
            PipelineError: An injected stream has no low-watermark policy.
        """
        found = {}
        for spec in topology.injected():
            injection = spec.injection
            policy = injection.low_watermark if injection is not None else None
            injector = injection.source if injection is not None else None
            if injection is not None and injection.ingress and policy is None:
                policy = ArrivalTime(0)
            elif isinstance(injector, Injector) and policy is None:
                policy = WatermarkColumn(PROMISE, punctuation=PUNCTUATION)
            if injection is None or not isinstance(policy, LowWatermarkPolicy):
                raise PipelineError(
                    f"stream {spec.name!r} has no low-watermark policy (it has {policy!r}). Say "
                    'how late its records may come: low_watermark=mr.BoundedDelay("5 s").'
                )
            expected = injection.expected
            if not expected and injection.process is None and not isinstance(injector, Injector):
                expected = (ONLY,)
            found[spec.name] = WatermarkAggregate(
                policy, expected, injection.idle_us, injection.skew_us
            )
        return cls(found, together(topology))

    def only(self, expected: Mapping[str, tuple[str, ...]]) -> WatermarkPublisher:
        """Return the publisher of some processes of some streams: of those that one task reads.

        Args:
            expected: Injected stream -> its processes there, each of which must be heard of.
        """
        return WatermarkPublisher(
            {
                stream: replace(self._injectors[stream], expected=names)
                for stream, names in expected.items()
            },
            self._together,
        )

    def published(
        self,
        processes: Mapping[str, Mapping[str, ProcessState]],
        *,
        wall_time_us: int,
        before: Mapping[str, int],
        last_epoch_us: int,
    ) -> dict[str, int]:
        """Return injected stream -> low watermark to publish with the next epoch; log what changed.

        Args:
            processes: Injected stream -> process -> what is known of it.
            wall_time_us: What time it is.
            before: Injected stream -> what was published before; nothing goes below it.
            last_epoch_us: Clock of the last epoch that has completed.
        """
        found = {}
        for stream, injector in self._injectors.items():
            known = self._excused(stream, processes.get(stream, {}), wall_time_us)
            publication = injector.publication(
                known, wall_time_us, self._read_until_us, last_epoch_us
            )
            self._tell(stream, injector, publication, known, wall_time_us)
            self._last[stream] = publication
            found[stream] = max(before[stream], publication.low_watermark_us)
        return found

    def _excused(
        self, stream: str, known: Mapping[str, ProcessState], wall_time_us: int
    ) -> Mapping[str, ProcessState]:
        """Return the processes, those that are held back as if they had been heard of now.

        Their silence is our doing. Were it taken for idleness, then when the slow ones fall silent
        too nobody would be left to say anything, and they would be held back for good.
        """
        for name in self._waiting.get(stream, ()):
            self._held_until[stream, name] = wall_time_us
        held_until = {name: self._held_until.get((stream, name), MIN_TIMESTAMP) for name in known}
        return {
            name: one.merged(ProcessState(received_us=held_until[name]))
            for name, one in known.items()
        }

    def waiting(
        self,
        stream: str,
        processes: Mapping[str, Mapping[str, ProcessState]],
        published: Mapping[str, int],
    ) -> frozenset[str]:
        """Return the processes of a stream that are held back; log which are too far ahead.

        Args:
            stream: An injected stream.
            processes: Injected stream -> process -> what is known of it.
            published: Injected stream -> low watermark.
        """
        if self.throttle.holds(stream):
            self._waiting[stream] = frozenset(processes.get(stream, {}))
            return EVERYONE
        injector = self._injectors.get(stream)
        if injector is None or injector.skew_us is None:
            self._waiting.pop(stream, None)
            return frozenset()
        low_watermark_us = min(published[other] for other in self._together.get(stream, [stream]))
        known = processes.get(stream, {})
        own = {
            name: injector.policy.published_us(process, self._read_until_us)
            for name, process in known.items()
        }
        waiting = too_far(own, low_watermark_us, injector.skew_us)
        for name in sorted(waiting - self._waiting.get(stream, frozenset())):
            log.info(
                "stream %r: process %r is held back: it is at %s, more than %g s ahead of the low "
                "watermark, %s.",
                stream,
                name,
                format_timestamp(own[name]),
                injector.skew_us / SECOND,
                format_timestamp(low_watermark_us),
            )
        self._waiting[stream] = waiting
        return waiting

    def changes_us(self) -> int:
        """Return from when on another value would be published without news, as of last time."""
        return min((last.changes_us for last in self._last.values()), default=MAX_TIMESTAMP)

    def idle(self) -> dict[str, list[str]]:
        """Return injected stream -> processes left out as idle, as of last time."""
        return {stream: sorted(last.idle) for stream, last in self._last.items() if last.idle}

    def silent(self) -> set[str]:
        """Return the injected streams without a process that publishes, as of last time."""
        return {stream for stream, last in self._last.items() if last.silent}

    def missing(self) -> dict[str, list[str]]:
        """Return injected stream -> expected processes never heard of, as of last time."""
        return {stream: sorted(last.missing) for stream, last in self._last.items() if last.missing}

    def read_until(self, asked_us: int) -> None:
        """Take that sources were asked for news, and that all they had has been read.

        Args:
            asked_us: What time it was before that.
        """
        self._read_until_us = asked_us

    def process_states(
        self,
        seen: Mapping[str, Mapping[str, ProcessState]],
        known: Mapping[str, Mapping[str, ProcessState]],
        wall_time_us: int,
        asked_us: int | None = None,
    ) -> dict[str, dict[str, ProcessState]]:
        """Return what to remember of the processes seen in an epoch, when it is over.

        They were heard now. Expected ones that nobody knows yet are waited for from now on.

        Args:
            seen: Injected stream -> process -> what an epoch saw of it.
            known: The same, of all epochs before.
            wall_time_us: The epoch's clock.
            asked_us: What time it was before sources were asked how far it reads. None: nobody
                knows, but it was before the epoch's clock was taken. So what had arrived by the
                clock of one epoch is sure to have been read by the end of the next, not before.

        Raises:
            PipelineError: There are too many.
        """
        self.read_until(self._last_clock_us if asked_us is None else asked_us)
        self._last_clock_us = wall_time_us
        found: dict[str, dict[str, ProcessState]] = {}
        for stream, injector in self._injectors.items():
            earlier = known.get(stream, {})
            now = ProcessState(received_us=wall_time_us)
            fresh = {name: one.merged(now) for name, one in seen.get(stream, {}).items()}
            for name in injector.expected:
                if name not in earlier:
                    fresh.setdefault(name, now)
            if len({*earlier, *fresh}) > PROCESSES_MAX:
                raise PipelineError(
                    f"stream {stream!r} has more than {PROCESSES_MAX:,} processes (the last are "
                    f"{sorted(fresh)[-3:]}). Each is remembered forever, so inject(process=) must "
                    "name something bounded, such as a source partition. Is it a key by mistake?"
                )
            found[stream] = fresh
        return found

    def _tell(
        self,
        stream: str,
        injector: WatermarkAggregate,
        now: Publication,
        known: Mapping[str, ProcessState],
        wall_time_us: int,
    ) -> None:
        last = self._last.get(stream)
        was_idle = last.idle if last is not None else frozenset[str]()
        for name in sorted(now.idle - was_idle):
            log.warning(
                "stream %r: process %r has been silent for %g s, its time-out: it is idle, and no "
                "longer holds the low watermark. What it sends now may be late.",
                stream,
                name,
                (injector.idle_us or 0) / SECOND,
            )
        for name in sorted(was_idle - now.idle):
            log.warning("stream %r: process %r is not idle any more.", stream, name)
        for name in sorted(now.missing - now.idle):
            process = known.get(name)
            if name == ONLY or process is None or (stream, name) in self._missed:
                continue
            if wall_time_us >= process.received_us + _MISSING_US:
                self._missed.add((stream, name))
                log.warning(
                    "stream %r: expected process %r has not been heard of since %s, so the low "
                    "watermark of the stream stands still. Start it, take it off "
                    "inject(expected=), or give inject(idle=).",
                    stream,
                    name,
                    format_timestamp(process.received_us),
                )
