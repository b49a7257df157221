"""What an injector task publishes: the low watermarks of its streams, as far as it reads them."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from millrace.compile.topology import Topology, injector_name
from millrace.injectors.rate_limit import Throttle
from millrace.injectors.watermark_publisher import WatermarkPublisher
from millrace.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP, is_over
from millrace.plane.realtime.messages import Hold, Start
from millrace.plane.realtime.pacing import Pacing
from millrace.plane.realtime.telling import ALONE_US
from millrace.watermark.ahead import Ahead
from millrace.watermark.propagation import LowWatermarks, Message
from millrace.watermark.report import Process


class Promising:
    """The low watermarks that one injector task publishes in one session.

    Args:
        topology: The pipeline.
        start: Says which processes the task reads, and what is known of them.
        before: What was published before the session.
        wall_us: When it begins.

    Attributes:
        pacing: What is known of the other tasks.
        published: Injected stream -> its low watermark, as far as this task reads it.
        wake_us: When records that were counted may be told of.
    """

    def __init__(
        self,
        topology: Topology,
        start: Start,
        before: LowWatermarks,
        wall_us: int,
    ) -> None:
        self._ahead = dict(start.ahead)
        self._publisher = WatermarkPublisher.of(topology).only(
            {stream: tuple(of) for stream, of in start.input.items()}
        )
        self._read = {stream: len(of) for stream, of in start.input.items() if of}
        # Nobody was silent while nobody listened.
        self._known: dict[str, dict[str, Process]] = {
            stream: {
                name: replace(one, heard_us=wall_us)
                for name, one in start.processes.get(stream, {}).items()
            }
            for stream in start.input
        }
        self._fresh: dict[str, dict[str, Process]] = {}
        self.published = {
            spec.name: before.outputs[injector_name(spec.name)] for spec in topology.injected()
        }
        self.pacing = Pacing(topology, start.input, self.published)
        self._counted_us = MIN_TIMESTAMP
        self.wake_us = MAX_TIMESTAMP

    def hear(self, stream: str, process: str, heard: Process) -> None:
        """Take what was heard of a process."""
        known = self._fresh.setdefault(stream, {})
        known[process] = known.get(process, Process()).merged(heard)

    def count(self, ahead: Mapping[str, Ahead]) -> None:
        """Take how far ahead of what is published records came, by stream."""
        for stream, more in ahead.items():
            if more.counts:
                self._ahead[stream] = self._ahead.get(stream, Ahead()).merged(more)

    def hold(self, message: Hold) -> None:
        """Take which streams an operator holds back."""
        rates, read = message.rates, self._read
        here = {stream: rates[stream] * read[stream] for stream in rates.keys() & read.keys()}
        self.throttle.take(message.paused, here)

    @property
    def throttle(self) -> Throttle:
        """What holds streams back here: a rate is that of all processes that the task reads."""
        return self._publisher.throttle

    def publish(self, wall_us: int, *, draining: bool) -> None:
        """Bring what each stream publishes up to now; to the end of time if draining."""
        if draining:
            self.published = dict.fromkeys(self.published, MAX_TIMESTAMP)
            return
        seen, self._fresh = self._fresh, {}
        heard = self._publisher.heard(seen, self._known, wall_us)
        for stream, processes in heard.items():
            known = self._known.setdefault(stream, {})
            for name, process in processes.items():
                known[name] = known.get(name, Process()).merged(process)
        now = self._publisher.published(
            self._known, wall_time_us=wall_us, before=self.published, last_epoch_us=wall_us
        )
        self.published |= now
        for stream in self._publisher.silent():
            # Nobody here has a say: it goes on as the others do.
            slowest_us = self.pacing.slowest[stream]
            self.published[stream] = max(self.published[stream], slowest_us)

    def waiting(self, stream: str) -> frozenset[str]:
        """Return the processes of a stream that are too far ahead to be read."""
        return self._publisher.waiting(stream, self._known, self.pacing.slowest)

    def word(self, now_us: int) -> dict[str, int] | None:
        """Return what the coordinator is to be told of how far this task has come, if anything."""
        silent = self._publisher.silent()
        has_say = {stream: us for stream, us in self.read().items() if stream not in silent}
        return self.pacing.word(has_say, now_us)

    def message(self, wall_us: int, *, everyone: bool) -> Message:
        """Return what the first level is to know now.

        Args:
            wall_us: What time it is.
            everyone: Whether all its tasks are told, as with a mark. They are too where records are
                counted in it, as each task counts all of them once.
        """
        message = Message(
            {injector_name(stream): us for stream, us in self.reported().items()}, {}, {}
        )
        self.wake_us = MAX_TIMESTAMP
        if not self._ahead:
            return message
        if not (everyone or is_over(ALONE_US, self._counted_us, wall_us)):
            self.wake_us = self._counted_us + ALONE_US
            return message
        ahead, self._ahead, self._counted_us = self._ahead, {}, wall_us
        return replace(message, ahead={injector_name(s): of for s, of in ahead.items()})

    def reported(self) -> dict[str, int]:
        """Return what this task reports of each stream: of one that it does not read, the end."""
        return {
            stream: us if stream in self._known else MAX_TIMESTAMP
            for stream, us in self.published.items()
        }

    def read(self) -> dict[str, int]:
        """Return what is published of the streams that the task reads."""
        return {stream: us for stream, us in self.published.items() if stream in self._known}

    @property
    def output_watermark_us(self) -> int:
        """The highest low watermark of the streams that the task reads."""
        return max(self.read().values(), default=MIN_TIMESTAMP)
