"""A driver that reads Kafka and writes to PostgreSQL, until it is killed or has seen everything."""

import json
import sys

import msgspec
from pyspark.sql import SparkSession

import millrace as mr


class Seen(msgspec.Struct):
    sender: str
    number: int
    count: int


class Count(mr.Computation):
    inputs = {"numbers": mr.by("sender")}
    outputs = {"seen": Seen}
    count = mr.ValueState(int)

    def process_record(self, record):
        self.count.set(self.count.get(0) + 1)
        self.produce("seen", Seen(self.key, record.value["number"], self.count.get()))


def main(settings):
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        # It is killed before better compiled code would pay.
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    p = mr.Pipeline("numbers")
    source = mr.sources.Kafka(
        settings["servers"],
        settings["topic"],
        schema="sender string, number long, at long, kafka_id string",
        records_per_epoch=20,
    )
    p.inject("numbers", source, timestamp="at", low_watermark=mr.BoundedDelay(1000), id="kafka_id")
    p.add(Count)
    p.sink("seen", mr.sinks.PostgreSQL(settings["conninfo"], "seen"))
    run = p.start(spark, checkpoint=settings["checkpoint"])
    while run.status().injected.get("numbers", 0) < settings["until"]:
        run.process_available("60 s")
    run.stop()


main(json.loads(sys.argv[1]))
