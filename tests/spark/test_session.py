"""The session that the tier's other tests get."""

import sys
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.functions import spark_partition_id


def test_a_shuffle_has_two_partitions_that_are_not_merged(spark: SparkSession) -> None:
    rows = spark.range(100).repartition("id").select(spark_partition_id()).distinct().collect()

    assert sorted(row[0] for row in rows) == [0, 1]


def test_workers_run_the_interpreter_of_the_tests(spark: SparkSession) -> None:
    def executable(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.RecordBatch.from_pydict({"python": [sys.executable] * batch.num_rows})

    rows = spark.range(3).mapInArrow(executable, "python string").collect()

    assert [row.python for row in rows] == [sys.executable] * 3
