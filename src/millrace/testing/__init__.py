"""Whole pipelines under test, in process, without a JVM; and scenarios as data, also on Spark."""

from millrace.testing.faults import exceed_time_limit
from millrace.testing.harness import Harness
from millrace.testing.on_spark import play_on_spark, run_on_spark
from millrace.testing.output import Output, outputs_of
from millrace.testing.player import TranscriptMismatch, play
from millrace.testing.transcript import Transcript, read_transcripts

__all__ = [
    "Harness",
    "Output",
    "Transcript",
    "TranscriptMismatch",
    "exceed_time_limit",
    "outputs_of",
    "play",
    "play_on_spark",
    "read_transcripts",
    "run_on_spark",
]
