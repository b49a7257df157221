"""Novelty of many streams at once, each under a key, as a Millrace pipeline."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

import millrace as mr
from millrace_examples.nab.novelty import Known, novelty


class Reading(msgspec.Struct, frozen=True):
    """One value of a stream.

    Attributes:
        stream: Its name, the key.
        number: Its place in the stream, from 0.
        value: What was measured.
    """

    stream: str
    number: int
    value: float


class Report(msgspec.Struct, frozen=True):
    """A value beyond what was seen before.

    Attributes:
        stream: Name of the stream.
        number: Place of the value in it.
        value: The value.
        score: How novel it is, above 0 and below 1; from 0.5 on a record.
    """

    stream: str
    number: int
    value: float
    score: float


class Arrived(msgspec.Struct, frozen=True):
    """A reading that waits for those before it; `at` is its time, us UTC."""

    at: int
    value: float


class NoveltyDetector(mr.Computation):
    """Reports values that go beyond all that came before them in their stream.

    Readings may come in any order: each waits until the low watermark has passed its time, so that
    all before it are there. What is reported does not depend on epochs, files or retries. A late
    reading is left out; Millrace counts those.
    """

    inputs = {"readings": mr.by("stream")}
    outputs = {"reports": Report}
    waiting = mr.MapState(Arrived)
    known = mr.ValueState(Known)

    def process_record(self, record: mr.Record) -> None:
        """Keep a reading until it is its turn."""
        if record.late:
            return
        self.waiting[record.value.number] = Arrived(record.timestamp, record.value.value)
        self.set_timer("turn", at=self.low_watermark)  # at the end of the bundle

    def process_timer(self, timer: mr.Timer) -> None:
        """Judge the readings whose turn it is, and wait for that of the next."""
        ended = self.low_watermark == mr.MAX_TIMESTAMP
        waiting = sorted(self.waiting.items())
        turn = [each for each in waiting if ended or each[1].at < self.low_watermark]
        if turn:
            self._judge(turn)
        if len(turn) < len(waiting):
            self.set_timer("turn", at=waiting[len(turn)][1].at + 1)

    def _judge(self, turn: list[tuple[int, Arrived]]) -> None:
        known = self.known.get() or Known()
        times = [arrived.at / mr.SECOND for _, arrived in turn]
        scores = novelty(known, times, [arrived.value for _, arrived in turn])
        self.known.set(known)
        for (number, arrived), score in zip(turn, scores, strict=True):
            del self.waiting[number]
            if score > 0.0:
                report = Report(self.key, number, arrived.value, score)
                self.produce("reports", report, timestamp=arrived.at)


def replay(folder: Path) -> mr.sources.Files:
    """Return the files of a folder, each named by its first record's time: ``1388534400.parquet``.

    No record of a file is older than that, so the low watermark goes from file to file.
    """
    return mr.sources.Files(
        folder,
        schema="stream string, number long, value double, at timestamp",
        created=lambda path: int(Path(path).stem) * mr.SECOND,
        bytes_per_epoch=512 << 10,
        forget=20 * 365 * mr.DAY,  # They stay, and are of years.
    )


def build(source: Any = None, *, reports: Callable[..., Any] | None = None) -> mr.Pipeline:
    """Return the pipeline.

    Args:
        source: Injector of rows with the columns of `Reading` and ``at``, a timestamp, such as
            `replay`. None leaves the stream ``"readings"`` to be fed by a
            `millrace.testing.Harness`.
        reports: Sink of the reports.
    """
    p = mr.Pipeline("nab")
    p.inject("readings", source, timestamp="at", format=Reading)
    p.add(NoveltyDetector)
    if reports is not None:
        p.sink("reports", reports)
    return p
