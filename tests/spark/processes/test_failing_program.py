"""A user's program that fails, in a session as users make one: what its terminal shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys

from pyspark.sql import SparkSession

import millrace as mr


class Touchy(mr.Computation):
    inputs = {"bids": mr.by("auction")}
    outputs = {"prices": int}

    def process_record(self, record):
        self.produce("prices", price_of(record.value))


def price_of(bid):
    if bid["price"] == 13:
        raise ValueError("thirteen is unlucky")
    return bid["price"]


folder, mode = sys.argv[1:]
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
schema = "auction long, price long, time timestamp"
spark.sql("SELECT id % 3, id, timestamp_seconds(id) FROM range(20)").toDF(
    "auction", "price", "time"
).write.parquet(f"{folder}/bids")

p = mr.Pipeline("the auctions")
if mode == "batch":
    bids = spark.read.parquet(f"{folder}/bids")
else:
    bids = spark.readStream.schema(schema).parquet(f"{folder}/bids")
p.inject("bids", bids, timestamp="time", low_watermark=mr.BoundedDelay("5 s"))
p.add(Touchy)
p.sink("prices", mr.sinks.Parquet(f"{folder}/prices"))
if mode == "batch":
    p.run_batch(spark, tasks=2)
else:
    p.start(spark, checkpoint=f"{folder}/checkpoint").process_available()
"""

MESSAGE = """\
  value {'auction': 1, 'price': 13}
  Traceback (most recent call last):
    File "PROGRAM", line 14, in process_record
      self.produce("prices", price_of(record.value))
                             ^^^^^^^^^^^^^^^^^^^^^^
    File "PROGRAM", line 19, in price_of
      raise ValueError("thirteen is unlucky")
  ValueError: thirteen is unlucky
"""


@pytest.mark.parametrize("mode", ["stream", "batch"])
def test_a_failure_is_told_once_whole_and_last(mode: str, tmp_path: Path) -> None:
    program = tmp_path / "main.py"
    program.write_text(PROGRAM)
    environment = {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "TMPDIR": str(tmp_path),
    }

    ended = subprocess.run(
        [sys.executable, str(program), str(tmp_path / "data"), mode],
        capture_output=True,
        env=environment,
        timeout=240,
        check=False,
    )

    # Spark's progress bar writes over its line, and once more while the program ends.
    said = re.sub(r"\r?\[Stage [^\r\n]*\r?", "", ended.stderr.decode())
    assert ended.returncode == 1, said
    assert said.count("\n") < 40, said
    assert said.count("Touchy raised ValueError: thirteen is unlucky") == 1
    assert MESSAGE.replace("PROGRAM", str(program)) in said
    (log,) = tmp_path.glob("millrace-the-auctions-*.log")
    assert said.rstrip().endswith(f"with every traceback: {log}")
    rest = log.read_text()
    assert "An exception was thrown from the Python worker" in rest
    assert "in run_job" in rest  # the driver's side
    assert "in _run_bundle" in rest  # and the worker's
