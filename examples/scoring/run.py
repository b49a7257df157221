"""The scoring as a program of its own, so that it can be killed: runs until its input ends.

    python -m millrace_examples.scoring.run SERVERS MODEL_URL OUT TOPICS_SUFFIX

It prints a line when it runs. When its standard input ends, it processes what is there, prints a
line and ends. Started again it goes on from the checkpoint in OUT.
"""

from __future__ import annotations

import sys
from pathlib import Path

import millrace as mr
from millrace_examples.local_spark import session

from .pipeline import PAYMENTS_SCHEMA, PROFILES_SCHEMA, build

_SLOTS = 2


def main() -> None:
    """Run until the input ends."""
    servers, url, folder, suffix = sys.argv[1:]
    out = Path(folder)
    pipeline = build(
        url,
        mr.sources.Kafka(servers, f"payments-{suffix}", schema=PAYMENTS_SCHEMA),
        mr.sources.Kafka(servers, f"profiles-{suffix}", schema=PROFILES_SCHEMA),
        lambda stream: mr.sinks.Kafka(servers, f"{stream}-{suffix}"),
    )
    spark = session("fraud-scoring", out, slots=_SLOTS)
    run = pipeline.start(spark, checkpoint=str(out / "checkpoint"), tasks=_SLOTS, progress=False)
    sys.stdout.write("running\n")
    sys.stdout.flush()
    sys.stdin.read()
    run.process_available()
    run.drain()
    calls = run.status().calls["Score"]
    sys.stdout.write(f"{calls.made} calls, {calls.retried} of them retries\n")
    spark.stop()


if __name__ == "__main__":
    main()
