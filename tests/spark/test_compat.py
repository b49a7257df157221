"""What stands in for what an earlier Spark has not, on the Spark of the suite."""

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from millrace.spark.compat import hashed_to


def test_a_hash_sends_rows_to_the_partition_that_a_column_names(spark: SparkSession) -> None:
    for count in (2, 7):
        numbers = spark.range(40).select((F.col("id") % count).cast("int").alias("pid"))
        sent = numbers.repartition(count, hashed_to(count, "pid"))

        rows = sent.select("pid", F.spark_partition_id().alias("partition")).distinct().collect()

        assert sorted(map(tuple, rows)) == [(number, number) for number in range(count)]
