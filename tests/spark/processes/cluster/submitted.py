"""A program for spark-submit, which has the pipeline of numbers beside it by ``--py-files``.

It is given a folder that all hosts share, and on which plane to run.
"""

import sys
from pathlib import Path

import live_pipeline
from pyspark.sql import SparkSession

import millrace as mr


class Working(live_pipeline.Counting):
    """Counts; a class of the program itself, which travels by value."""


def main(root: Path, plane: str) -> None:
    realtime = plane == "realtime"
    settings = mr.spark.realtime_settings(tasks=2) if realtime else {}
    spark = SparkSession.builder.config(map=settings).getOrCreate()
    source = live_pipeline.Ticking(root)
    p = live_pipeline.numbers(source, root / "out", Working())
    run = p.start(
        spark, checkpoint=str(root / "checkpoint"), realtime=realtime, tasks=2, progress=False
    )
    while not (source.file.exists() and run.process_available("120 s")):
        if run.wait("0.2 s"):
            raise SystemExit("the run has ended by itself")
    if not run.drain("120 s"):
        raise SystemExit("the run has not ended in two minutes")
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
