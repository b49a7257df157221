"""Counts words by minute, from one topic of Kafka to another.

    python -m millrace_examples.kafka.count_words localhost:9092 words counts /tmp/checkpoint

Messages are JSON: ``{"word": "tea", "at": "2026-11-20T09:00:00+00:00"}``. Both topics must be
there. It runs until Ctrl-C, and goes on where it was when it is started again.
"""

from __future__ import annotations

import sys

import msgspec

import millrace as mr


class Word(msgspec.Struct, frozen=True):
    """What comes in."""

    word: str


class Count(msgspec.Struct, frozen=True):
    """What goes out."""

    word: str
    minute: int
    count: int


class CountWords(mr.Computation):
    """Counts a word by minute, and says so when the minute is over."""

    inputs = {"words": mr.by("word")}
    outputs = {"counts": Count}
    minutes = mr.MapState(int)

    def process_record(self, record: mr.Record) -> None:
        """Add one to the record's minute."""
        minute = record.timestamp - record.timestamp % mr.MINUTE
        self.minutes[minute] = self.minutes.get(minute, 0) + 1
        self.set_timer(minute, at=minute + mr.MINUTE)

    def process_timer(self, timer: mr.Timer) -> None:
        """Produce a minute's count."""
        count = Count(self.key, timer.tag, self.minutes.pop(timer.tag))
        self.produce("counts", count, timestamp=timer.at - 1)


def pipeline(servers: str, source: str, target: str) -> mr.Pipeline:
    """Return the pipeline between two topics."""
    p = mr.Pipeline("count-words")
    p.inject(
        "words",
        mr.sources.Kafka(servers, source, schema="word string, at timestamp"),
        timestamp="at",
        low_watermark=mr.BoundedDelay("5 s"),
        idle="1 min",  # a partition without words holds nothing
        skew="10 min",  # and one that is far ahead waits
        format=Word,
    )
    p.add(CountWords)
    p.sink("counts", mr.sinks.Kafka(servers, target))
    return p


def main() -> None:
    """Run until Ctrl-C."""
    from pyspark.sql import SparkSession

    servers, source, target, checkpoint = sys.argv[1:]
    spark = SparkSession.builder.getOrCreate()
    pipeline(servers, source, target).start(spark, checkpoint=checkpoint).wait()


if __name__ == "__main__":
    main()
