"""Numbering: the place of a row in a source that Spark reads, the second half of its id."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # the name all of Spark's documentation uses

from millrace.windmill.record_ids import LAST_ROW, ROW_BITS

#: Column with the first part of a row's place in its source.
_PARTITION = "partition"


class Numbering:
    """Gives a batch's rows a column ``sequence``, the second half of the record ids.

    It is the partition of the row's own source, not of all sources together, which one that is cut
    otherwise would shift; and the row in it. Every consumer of a record sees the same id, so rows
    are numbered before they are multiplied. The columns are made at the first batch, as making one
    takes several calls to the JVM.
    """

    def __init__(self) -> None:
        row = F.monotonically_increasing_id().bitwiseAND(F.lit(LAST_ROW))
        partition = F.col(_PARTITION).cast("long")
        self._sequence = F.shiftleft(partition, ROW_BITS).bitwiseOR(row)
        self._single: list[Column] | None = None

    def apply(self, rows: DataFrame) -> DataFrame:
        """Return a batch's rows, numbered, one for each edge."""
        if _PARTITION not in rows.columns:
            return rows  # only pieces, whose rows are numbered by who reads them
        rows = rows.withColumn("sequence", self._sequence).drop(_PARTITION)
        if self._single is None:
            self._single = []
            if "to" in rows.columns:
                others = [name for name in rows.columns if name != "to"]
                # A row that stands for a piece is for no edge, and stays.
                inline = F.inline_outer if "piece" in others else F.inline
                self._single = [inline("to"), *map(F.col, others)]
        return rows.select(*self._single) if self._single else rows


def partition() -> Column:
    """Return the number of the partition of a row's own source."""
    return F.spark_partition_id().alias(_PARTITION)
