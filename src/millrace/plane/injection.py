"""Injection: records of an injected stream through stateless steps and key functions, to edges.

Whoever reads a source uses it: the encode stage on Spark, the Harness, the simulator. What cannot
be sent becomes a dead letter, or an error where the pipeline declares no stream for them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.injectors.letters import letter_in
from millrace.injectors.refusals import Refusal, refusals_of
from millrace.model.errors import RAISED, brief_error
from millrace.model.time import EARLIEST_RECORD
from millrace.plane.origins import BatchOrigins, FindOrigins
from millrace.plane.outbox import Outbox
from millrace.plane.refusal import EventTimes, refuse, refuse_again
from millrace.plane.reports import TaskReport
from millrace.plane.task import Task
from millrace.plane.values import shown
from millrace.watermark.ahead import Ahead
from millrace.windmill.record_ids import injected_origin, place
from millrace.windmill.router import RowsBuilder
from millrace.windmill.source_ids import NO_FINGERPRINT, null_id
from millrace.windmill.user_errors import note

#: Returns both halves of the ids of rows, given how many each record has become.
RowIds = Callable[[npt.NDArray[np.int64]], tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]


class Injection:
    """Sends what one partition of one injected stream delivers in an epoch.

    Args:
        task: The task that reads.
        stream: The injected stream.
        partition: Number of the source partition: part of the records' ids.
        outbox: Takes the rows.
        report: Takes what is seen.
        times: Which event times are accepted.
    """

    def __init__(
        self,
        task: Task,
        stream: str,
        partition: int,
        outbox: Outbox,
        report: TaskReport,
        times: EventTimes,
    ) -> None:
        self._task = task
        self._stream = stream
        self._partition = partition
        self._outbox = outbox
        self._report = report
        self._times = times
        spec = task.topology.streams[stream]
        self._id = getattr(spec.injection, "id", None)
        self._origin = injected_origin(spec.number, task.manifest.epoch)
        self._sent = 0

    def send(
        self,
        values: Sequence[Any],
        timestamps: Sequence[int | None],
        fingerprints: Sequence[bytes | None] | None = None,
        refused: Mapping[int, Refusal] | None = None,
        ids: RowIds | None = None,
        origins: FindOrigins | None = None,
    ) -> list[int]:
        """Send records in order; return the positions of those that were accepted.

        Args:
            values: Of the stream's format.
            timestamps: Event times in microseconds; None where there is none.
            fingerprints: Of their source ids, None where one is missing; None if the stream has no
                ids.
            refused: Positions that were refused already, and why.
            ids: Gives the rows their ids, where the source numbers its records; by default they
                are counted.
            origins: Finds what those that are refused were in their source.

        Raises:
            RecordRejected: One was refused, and there is no dead-letter stream.
        """
        stream, productions = self._stream, RowsBuilder()
        router = self._task.runtime.router
        if (
            not refused
            and stream != self._task.topology.again
            and self._sound(timestamps)
            and router.send_all(productions, stream, values, timestamps, fingerprints)
        ):
            accepted, counts = list(range(len(values))), [1] * len(values)
        else:
            found = self._one_by_one(
                productions, values, timestamps, fingerprints, refused or {}, ids, origins
            )
            accepted, counts = found
        if ids is not None:
            self._outbox.add_all(productions, *ids(np.array(counts, dtype=np.int64)))
        else:
            self._count(productions)
        if accepted:
            taken, ahead = np.array([timestamps[n] for n in accepted], dtype=np.int64), None
            if self._task.topology.percentiles:
                ahead = Ahead.of(taken, self._task.manifest.injectors[stream])
            self._report.source(stream).count(len(accepted), int(taken.max()), ahead)
        return accepted

    def send_columns(
        self,
        values: pa.StructArray,
        timestamps: Sequence[int | None],
        fingerprints: Sequence[bytes | None] | None = None,
        ids: RowIds | None = None,
        refusals: pa.StructArray | None = None,
        origins: FindOrigins | None = None,
    ) -> list[int]:
        """Send records whose values are in columns; otherwise as :meth:`send`.

        Args:
            values: A struct of the columns.
            timestamps: Event times in microseconds; None where there is none.
            fingerprints: Of their source ids.
            ids: Gives the rows their ids.
            refusals: Why their injector refuses some of them.
            origins: Finds what those that are refused were in their source.
        """
        read, refused = self._task.runtime.readers[self._stream].read(values), refusals_of(refusals)
        for n, reason in read.refused.items():
            read.values[n] = shown(values, n)  # what a dead letter or an error shows
            # Where the time is a field as well, its format could only say that this is null.
            refused.setdefault(n, Refusal(self._times.refusal(timestamps[n]) or reason))
        return self.send(read.values, timestamps, fingerprints, refused, ids, origins)

    def _sound(self, timestamps: Sequence[int | None]) -> bool:
        """Return whether all event times are accepted."""
        if None in timestamps or not timestamps:
            return False
        try:
            at_us = np.array(timestamps, dtype=np.int64)
        except OverflowError:
            return False
        return self._times.accepts_all(at_us)

    def _one_by_one(
        self,
        productions: RowsBuilder,
        values: Sequence[Any],
        timestamps: Sequence[int | None],
        fingerprints: Sequence[bytes | None] | None,
        refused: Mapping[int, Refusal],
        ids: RowIds | None,
        origins: FindOrigins | None,
    ) -> tuple[list[int], list[int]]:
        """Append the rows of records; return those that were accepted, and each one's rows."""
        stream, topology = self._stream, self._task.topology
        router, accepted, counts = self._task.runtime.router, list[int](), list[int]()
        send, again, places = router.send_injected, stream == topology.again, None
        sources = None if origins is None else BatchOrigins(origins, len(values))
        for n, value in enumerate(values):
            before, at_us = len(productions), timestamps[n]
            fingerprint = None if fingerprints is None else fingerprints[n]
            known = refused.get(n)
            if known is not None and known.dropped:
                self._report.source(stream).dropped += 1
                counts.append(0)
                continue
            reason = self._times.refusal(at_us) if known is None else known.reason
            cause: BaseException | None = None
            if reason is None and fingerprints is not None and fingerprint is None:
                reason = null_id(str(self._id))
            if reason is None:
                assert at_us is not None, "a record without a time is refused"
                try:
                    if again:
                        router.send_letter(productions, letter_in(value), at_us)
                    else:
                        send(productions, stream, value, at_us, fingerprint)
                    accepted.append(n)
                except RAISED as error:
                    reason, cause = brief_error(error), error
            if reason is not None:
                epoch = self._task.manifest.epoch
                if ids is None:
                    here = self._origin, place(self._partition, self._sent + before)
                else:
                    if places is None:
                        places = ids(np.ones(len(values), dtype=np.int64))
                    here = int(places[0][n]), int(places[1][n])
                if again:
                    letter = refuse_again(letter_in(value), reason, epoch, cause)
                else:
                    known_whole = known is not None and known.value is not None
                    letter = refuse(
                        topology,
                        stream,
                        "",
                        known or Refusal(reason),
                        value,
                        at_us,
                        epoch,
                        timely=self._times.refusal(at_us) is None,
                        ids=here,
                        origin=sources.at(n) if sources is not None and not known_whole else None,
                        cause=cause,
                    )
                note(self._report.source(stream).letters, letter)
                send(
                    productions,
                    str(topology.dead_letters),
                    letter,
                    max(EARLIEST_RECORD, min(at_us or 0, self._times.latest_us)),
                    None if fingerprints is None else NO_FINGERPRINT,
                )
            counts.append(len(productions) - before)
        return accepted, counts

    def _count(self, productions: RowsBuilder) -> None:
        # A record may have become several rows, or none.
        first = place(self._partition, self._sent)
        self._sent += len(productions)
        places = range(first, first + len(productions))
        self._outbox.add(productions, self._origin, places)
