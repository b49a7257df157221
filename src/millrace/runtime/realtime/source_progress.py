"""Source progress: how far injector tasks have come, what they publish, and when records came.

Each task reads some processes of a stream. To hold back one that is too far ahead, and to go on
where all of its own have fallen silent, a task must know how far the others have come, by way of
the coordinator. Nothing is wrong if it learns so late: a process waits a little longer than it had
to, never less. So a task says it when it has moved by an eighth of what the skew limit allows, and
else now and then: the limit is kept to within an eighth, and who does not need it hears nothing.

Event times by ingress are decided once, and durable before a record leaves. A stamp says: records
of a process up to this number that have no stamp before it came at this time. Stamps are written
down before the records are sent, so what is read again after a failure has the time that it had.

Source: MillWheel 5.2 and 8.4; docs/injectors.md, "Skew"; Dataflow patent and VLDB 2015 paper,
"Processing-time windows"; docs/design/2026-11-23-ingress-in-real-time.md.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from millrace.compile.topology import Topology, injector_name, together
from millrace.injectors.rate_limit import Throttle
from millrace.injectors.watermark_publisher import WatermarkPublisher
from millrace.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP, is_over
from millrace.runtime.packets import ALONE_US
from millrace.runtime.realtime.messages import Hold, StartTask
from millrace.watermark.percentiles import Ahead
from millrace.watermark.propagation import LowWatermarks, Message
from millrace.watermark.report import ProcessState

#: A task says how far it has come when it has moved by such a part of the least skew limit ...
_PARTS = 8
#: ... but no more often than this, and the coordinator passes on no more often, in microseconds;
_OFTEN_US = 20_000
#: and if it has moved by less, so often.
_RARELY_US = 500_000


def steps(topology: Topology) -> dict[str, int]:
    """Return injected stream -> how far it may move untold, in microseconds.

    Of those that somebody must know of: one that has a time-out for silent processes, or feeds a
    computation together with one that has a skew limit.
    """
    step_of = {}
    for stream, group in together(topology).items():
        near = [topology.streams[name].injection for name in group]
        limits = [
            aggregate.skew_us
            for aggregate in near
            if aggregate is not None and aggregate.skew_us is not None
        ]
        own = topology.streams[stream].injection
        if limits:
            step_of[stream] = max(1, min(limits) // _PARTS)
        elif own is not None and own.idle_us is not None:
            step_of[stream] = MAX_TIMESTAMP
    return step_of


class Pacing:
    """One injector task's side.

    Args:
        topology: The pipeline.
        read: The streams that the task reads.
        before: Injected stream -> low watermark as the incarnation began.

    Attributes:
        slowest: Injected stream -> the lowest low watermark of all tasks, as last heard.
    """

    def __init__(self, topology: Topology, read: Iterable[str], before: Mapping[str, int]) -> None:
        known = steps(topology)
        self._steps = {stream: known[stream] for stream in read if stream in known}
        self._reported: dict[str, int] | None = None
        self._reported_us = MIN_TIMESTAMP
        self.slowest = dict(before)

    def take(self, slowest: Mapping[str, int]) -> None:
        """Take what the coordinator says."""
        self.slowest |= slowest

    def word(self, low_watermarks: Mapping[str, int], now_us: int) -> dict[str, int] | None:
        """Return what the coordinator is to be told now; None if nothing, or not yet.

        Args:
            low_watermarks: Injected stream -> this task's own, of those that it has a say in.
            now_us: What time it is, of any clock.
        """
        last = self._reported
        now = {stream: low_watermarks[stream] for stream in self._steps if stream in low_watermarks}
        if now == last or not self._steps:
            return None
        if last is not None and now.keys() == last.keys():
            far = any(us - last[stream] >= self._steps[stream] for stream, us in now.items())
            if not is_over(_OFTEN_US if far else _RARELY_US, self._reported_us, now_us):
                return None
        self._reported, self._reported_us = now, now_us
        return now


class Pace:
    """The coordinator's side, for one incarnation.

    Args:
        readers: Injected stream -> tasks that read it; of those that somebody must know of.
        before: Injected stream -> low watermark as the incarnation began.

    >>> pace = Pace({"s": [0, 1]}, {"s": 10})
    >>> pace.reached(0, {"s": 70}), pace.news(0)
    (None, None)
    >>> pace.reached(1, {"s": 20}), pace.news(0)
    (None, {'s': 20})
    >>> pace.reached(1, {}), pace.news(1_000_000)  # all that it reads is idle
    (None, {'s': 70})
    """

    def __init__(self, readers: Mapping[str, Collection[int]], before: Mapping[str, int]) -> None:
        self._readers = readers
        self._slowest = {stream: before[stream] for stream in readers}
        self._reported: dict[int, Mapping[str, int]] = {}
        self._is_news = False
        self._sent_us = MIN_TIMESTAMP

    def reached(self, task: int, low_watermarks: Mapping[str, int]) -> None:
        """Take what a task says; it has no say in a stream that it leaves out."""
        self._reported[task] = low_watermarks
        for stream, readers in self._readers.items():
            if any(n not in self._reported for n in readers):
                continue
            low_watermarks_us = [
                self._reported[n][stream] for n in readers if stream in self._reported[n]
            ]
            slowest_us = min(low_watermarks_us, default=MIN_TIMESTAMP)
            if slowest_us == MAX_TIMESTAMP and len(low_watermarks_us) < len(readers):
                continue  # those that have ended say nothing of one that is idle, and comes back
            if slowest_us > self._slowest[stream]:
                self._slowest[stream], self._is_news = slowest_us, True

    def news(self, now_us: int) -> dict[str, int] | None:
        """Return what all injector tasks are to be told now; None if nothing, or not yet."""
        if not (self._is_news and is_over(_OFTEN_US, self._sent_us, now_us)):
            return None
        self._is_news, self._sent_us = False, now_us
        return dict(self._slowest)


class Promising:
    """The low watermarks that one injector task publishes in one incarnation.

    Args:
        topology: The pipeline.
        start: Says which processes the task reads, and what is known of them.
        before: What was published before the incarnation.
        wall_us: When it begins.

    Attributes:
        pacing: What is known of the other tasks.
        published: Injected stream -> its low watermark, as far as this task reads it.
        wake_us: When records that were counted may be told of.
    """

    def __init__(
        self,
        topology: Topology,
        start: StartTask,
        before: LowWatermarks,
        wall_us: int,
    ) -> None:
        self._ahead = dict(start.ahead)
        self._publisher = WatermarkPublisher.of(topology).only(
            {stream: tuple(offsets) for stream, offsets in start.input.items()}
        )
        self._read = {stream: len(offsets) for stream, offsets in start.input.items() if offsets}
        # Nobody was silent while nobody listened.
        self._known: dict[str, dict[str, ProcessState]] = {
            stream: {
                name: replace(state, received_us=wall_us)
                for name, state in start.processes.get(stream, {}).items()
            }
            for stream in start.input
        }
        self._fresh: dict[str, dict[str, ProcessState]] = {}
        self.published = {
            spec.name: before.outputs[injector_name(spec.name)] for spec in topology.injected()
        }
        self.pacing = Pacing(topology, start.input, self.published)
        self._counted_us = MIN_TIMESTAMP
        self.wake_us = MAX_TIMESTAMP

    def hear(self, stream: str, process: str, heard: ProcessState) -> None:
        """Take what was heard of a process."""
        known = self._fresh.setdefault(stream, {})
        known[process] = known.get(process, ProcessState()).merged(heard)

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
        heard = self._publisher.process_states(seen, self._known, wall_us)
        for stream, processes in heard.items():
            known = self._known.setdefault(stream, {})
            for name, process in processes.items():
                known[name] = known.get(name, ProcessState()).merged(process)
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
        return replace(message, ahead={injector_name(s): aheads for s, aheads in ahead.items()})

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


#: Each append repeats all stamps since the last mark, so there are at most ten a second.
STEP_US: Final = 100_000

#: Injected stream -> process -> (number of the last record, time of it), both ascending.
Stamps = dict[str, dict[str, list[tuple[int, int]]]]


class IngressTimes:
    """The stamps of one injector task.

    Args:
        stamps: What was written down before.
        counts: Stream by ingress -> process -> number of its next record to be read.

    >>> times = IngressTimes({}, {"s": {"a": 0}})
    >>> times.stamp("s", "a", 4, 250_000, 0), times.stamp("s", "a", 2, 900_000, 0)
    (True, False)
    >>> times.stamp("s", "a", 6, 390_000, 350_000)
    True
    >>> times.of("s", "a", np.array([3, 4, 5])).tolist()
    [200000, 200000, 350000]
    >>> IngressTimes(times.stamps, {"s": {"a": 5}}).stamps
    {'s': {'a': [(6, 350000)]}}
    """

    def __init__(self, stamps: Stamps, counts: Mapping[str, Mapping[str, int]]) -> None:
        self.stamps: Stamps = {
            stream: {
                process: [
                    stamp for stamp in stamps.get(stream, {}).get(process, []) if stamp[0] >= count
                ]
                for process, count in processes.items()
            }
            for stream, processes in counts.items()
        }
        self._counts = counts

    def stamp(self, stream: str, process: str, last: int, wall_us: int, published_us: int) -> bool:
        """Give records up to a number a time if they have none; return whether any had none.

        Args:
            stream: By ingress.
            process: Whose records they are.
            last: Number of the last one.
            wall_us: The time now.
            published_us: The stream's low watermark here: nothing is late.
        """
        known = self.stamps[stream][process]
        at_us = max(wall_us - wall_us % STEP_US, published_us)
        if known:
            through, before_us = known[-1]
            if last <= through:
                return False
            if at_us <= before_us:
                at_us = before_us
                known.pop()
        known.append((last, at_us))
        return True

    def of(
        self, stream: str, process: str, numbers: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int64]:
        """Return the times of records, which have stamps."""
        stamps = np.array(self.stamps[stream][process], np.int64)
        times: npt.NDArray[np.int64] = stamps[np.searchsorted(stamps[:, 0], numbers), 1]
        return times

    def pending_us(self, counts: Mapping[str, Mapping[str, int]]) -> int:
        """Return the earliest time of records that have one and were not read again yet.

        Nothing later may be published before they are: they would be late. ``MAX_TIMESTAMP`` if
        there are none.
        """
        return min(
            (
                next((at_us for last, at_us in known if last >= counts[stream][process]))
                for stream, processes in self.stamps.items()
                for process, known in processes.items()
                if known and known[-1][0] >= counts[stream][process]
            ),
            default=MAX_TIMESTAMP,
        )

    def passed(self, counts: Mapping[str, Mapping[str, int]]) -> None:
        """Forget what came before the mark before this one, which is complete.

        Args:
            counts: As when it was made, for the mark that is passed now.
        """
        times = IngressTimes(self.stamps, self._counts)
        self.stamps, self._counts = times.stamps, counts
