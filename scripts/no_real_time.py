"""Asks for real time on a Spark that cannot do it: python no_real_time.py 4.2.1.

For the environments that `scripts/spark_versions.sh` makes.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

import millrace as mr


def main() -> None:
    """Fail unless it is that Spark, and it is refused before a checkpoint is made."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = SparkSession.builder.master("local[2]").getOrCreate()
    if spark.version != sys.argv[1]:
        raise SystemExit(f"this is Spark {spark.version}, expected {sys.argv[1]}")
    pipeline = mr.Pipeline("refused")
    checkpoint = Path(tempfile.mkdtemp()) / "checkpoint"
    try:
        pipeline.start(spark, checkpoint=str(checkpoint), realtime=True)
    except mr.MillraceError as refusal:
        if "Real-time Mode cannot" not in str(refusal):
            raise
        print(f"Spark {spark.version}: {refusal}")
    else:
        raise SystemExit(f"real time on Spark {spark.version} was not refused")
    if checkpoint.exists():
        raise SystemExit(f"{checkpoint} was made")


if __name__ == "__main__":
    main()
