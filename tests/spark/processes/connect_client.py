"""A client of a real Spark Connect server, which this starts: what each call answers, as JSON."""

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession

import millrace as mr
from millrace.model.errors import PipelineError

folder = Path(sys.argv[1])
spark = SparkSession.builder.remote("local[1]").config("spark.ui.enabled", "false").getOrCreate()


class Echo(mr.Computation):
    inputs = {"words": mr.by("word")}
    outputs = {"echoes": str}

    def process_record(self, record):
        self.produce("echoes", record.value["word"] * 2)


def pipeline(source):
    p = mr.Pipeline("echo")
    p.inject("words", source, timestamp="time", low_watermark=mr.BoundedDelay("1 s"))
    p.add(Echo)
    p.sink("echoes", mr.sinks.Parquet(str(folder / "echoes")))
    return p


def answer(call):
    try:
        call()
    except PipelineError as error:
        return str(error)
    return "ran"


rows = spark.sql("SELECT 'tea' AS word, timestamp('2026-11-20 09:00:00Z') AS time")
live = spark.readStream.format("rate").load().selectExpr("string(value) word", "timestamp time")
checkpoint = str(folder / "checkpoint")
answers = {
    "session": type(spark).__module__,
    "run_batch": answer(lambda: pipeline(rows).run_batch(spark)),
    "start": answer(lambda: pipeline(live).start(spark, checkpoint=checkpoint)),
    "realtime": answer(lambda: pipeline(live).start(spark, checkpoint=checkpoint, realtime=True)),
    "checkpoint": Path(checkpoint).exists(),
    "rows": rows.count(),
}
Path(folder / "answers.json").write_text(json.dumps(answers))
spark.stop()
