"""The reader of the reports: what comes out of Kafka, and how old it is.

It does what each reader of a `mr.sinks.Kafka` has to do for exactly once: it drops messages with an
id that it has seen. After a failure some come again.
"""

from __future__ import annotations

import datetime as dt
import os
import threading
import time
from bisect import bisect_left
from collections import Counter
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec
import pandas as pd
from confluent_kafka import Consumer, TopicPartition

import millrace as mr

from .pipeline import WINDOW_US


def signed(columns: dict[str, Any]) -> bytes:
    """Return a report as the value of a message, with the process that sends it."""
    return msgspec.json.encode({**columns, "worker": os.getpid()})


class Report(NamedTuple):
    """A report that has arrived.

    Attributes:
        at_us: When, microseconds since 1970.
        latency_us: How long after its newest score was sent; None if no score has just come for it.
        stream: Of the pipeline.
        columns: What it says.
    """

    at_us: int
    latency_us: int | None
    stream: str
    columns: dict[str, Any]


class Reports:
    """All reports so far. One thread takes them, others may look.

    Attributes:
        arrived: Those that do not take another back, in order.
        again: How many messages came again.
        totals: (team, start of window, points) -> how often it was reported and not taken back.
        boards: (start of window, its best teams with their points) -> the same of boards.
        streaks: User -> points of all streaks.
        worker: The process that sent the last one.
    """

    def __init__(self) -> None:
        self.arrived: list[Report] = []
        self.again = 0
        self.totals: Counter[tuple[str, int, int]] = Counter()
        self.boards: Counter[tuple[int, tuple[tuple[str, int], ...]]] = Counter()
        self.streaks: Counter[str] = Counter()
        self.worker = 0
        self._ids: set[bytes] = set()

    def take(self, stream: str, record_id: bytes, value: bytes, at_us: int) -> None:
        """Take a message that has arrived."""
        if record_id in self._ids:
            self.again += 1
            return
        self._ids.add(record_id)
        columns = msgspec.json.decode(value)
        self.worker = columns["worker"]
        retraction = columns.get("_retraction", False)
        latency_us = None
        if stream == "streaks":
            self.streaks[columns["user"]] += columns["points"]
        elif stream == "team_totals":
            slot = columns["team"], _us(columns["_window_start"]), columns["points"]
            self.totals[slot] += -1 if retraction else 1
            if columns["_pane_timing"] != "ON_TIME":  # that one comes with time, not with a score
                latency_us = at_us - columns["sent"]
        else:
            best = tuple((total["team"], total["points"]) for total in columns["value"])
            self.boards[_us(columns["_window_start"]), best] += -1 if retraction else 1
        if not retraction:
            self.arrived.append(Report(at_us, latency_us, stream, columns))

    def since(self, us: int) -> list[Report]:
        """Return what arrived at a time or after it."""
        return self.arrived[bisect_left(self.arrived, us, key=attrgetter("at_us")) :]

    def wrong(self, scores: pd.DataFrame) -> list[str]:
        """Return what differs from the scores that were sent, a sentence each.

        Args:
            scores: All of them, with the columns of `game.SCHEMA`.
        """
        wrong = []
        window = scores["at"] // WINDOW_US * WINDOW_US
        totals = scores.groupby(["team", window])["points"].sum()
        wanted = {(team, start, points): 1 for (team, start), points in totals.items()}
        found = {slot: count for slot, count in self.totals.items() if count}
        if found != wanted:
            differ = dict(found.items() ^ wanted.items())
            wrong.append(f"{len(differ)} totals of teams and windows differ: {list(differ)[:3]}")
        best: dict[int, list[tuple[int, str]]] = {}
        for (team, start), points in totals.items():
            best.setdefault(start, []).append((points, team))
        boards = {
            (start, tuple((team, points) for points, team in sorted(those, reverse=True)[:3])): 1
            for start, those in best.items()
        }
        shown = {board: count for board, count in self.boards.items() if count}
        if shown != boards:
            differ = dict(shown.items() ^ boards.items())
            wrong.append(f"{len(differ)} leaderboards differ: {list(differ)[:3]}")
        played = scores.groupby("user")["points"].sum().to_dict()
        if self.streaks != played:
            wrong.append(
                f"streaks have {self.streaks.total()} points, and {sum(played.values())} were made"
            )
        return wrong


class Reader:
    """A thread that reads topics from their beginning, as soon as something is there.

    Args:
        servers: Of Kafka.
        topics: Stream -> topic of one partition.
        reports: What it adds to.
    """

    def __init__(self, servers: str, topics: dict[str, str], reports: Reports) -> None:
        self._streams = {topic: stream for stream, topic in topics.items()}
        self._reports = reports
        self._ended = threading.Event()
        self._consumer = Consumer(
            {"bootstrap.servers": servers, "group.id": "reader", "enable.auto.commit": False}
        )
        self._consumer.assign([TopicPartition(topic, 0, 0) for topic in self._streams])
        self._thread = threading.Thread(target=self._read, name="reader", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Read all that is there, and stop."""
        self._ended.set()
        self._thread.join()
        self._consumer.close()

    def _read(self) -> None:
        while not self._ended.is_set():
            self._take(0.1)
        partitions = [TopicPartition(topic, 0) for topic in self._streams]
        ends = {at.topic: self._consumer.get_watermark_offsets(at)[1] for at in partitions}
        # Where nothing was read, the position is negative.
        while any(max(0, at.offset) < ends[at.topic] for at in self._consumer.position(partitions)):
            self._take(0.1)

    def _take(self, wait_s: float) -> None:
        message = self._consumer.poll(wait_s)
        if message is not None and message.error() is None:
            ((_, record_id),) = message.headers()
            stream = self._streams[message.topic()]
            self._reports.take(stream, record_id, message.value(), time.time_ns() // 1000)


def _us(text: str) -> int:
    return round(dt.datetime.fromisoformat(text).timestamp() * mr.SECOND)
