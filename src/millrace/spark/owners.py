"""Owners: the column that names the task which owns a row's key, by the interval maps of an epoch.

It is made for each epoch, since maps change between epochs; the rows before it are those of the
query, from its first batch to its last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # the name all of Spark's documentation uses

from millrace.compile.topology import Edge
from millrace.watermark.intervals import IntervalMap
from millrace.windmill.manifest import Manifest, Partition

#: Flips the sign bit, so that signed numbers sort as the unsigned ones do.
_SIGN = -(1 << 63)


class Owners:
    """Adds a column ``pid`` to rows that have an edge and the hash of a key.

    Args:
        edges: Those of the rows.
    """

    def __init__(self, edges: Sequence[Edge]) -> None:
        self._edges = edges
        # Made again when a map is another: making a column takes several calls to the JVM.
        self._made: tuple[tuple[Mapping[str, Partition], int], Column] | None = None

    def apply(self, rows: DataFrame, manifest: Manifest, tasks: int) -> DataFrame:
        """Return the rows of an epoch with the task that each goes to, of so many a level."""
        if "hash" not in rows.columns:
            return rows  # who encodes the keys in Python says so there
        if self._made is None or self._made[0] != (manifest.intervals, tasks):
            maps = {
                edge.number: manifest.interval_map(str(edge.computation)) for edge in self._edges
            }
            self._made = (manifest.intervals, tasks), task_column(maps, tasks)
        return rows.withColumn("pid", self._made[1])


def task_column(maps: Mapping[int, IntervalMap], tasks: int) -> Column:
    """Return the task that owns a row's hash; the same as ``IntervalMap.task_of``.

    Args:
        maps: Number of an edge -> the interval map of its consumer.
        tasks: Tasks a level.
    """
    edges = list(maps)
    made = _owner(maps[edges[0]], tasks)
    for number in edges[1:]:
        if maps[number] != maps[edges[0]]:
            made = F.when(F.col("edge") == number, _owner(maps[number], tasks)).otherwise(made)
    return made.cast("int")


def _owner(intervals: IntervalMap, tasks: int) -> Column:
    hashed, count = F.col("hash"), len(intervals)
    if count == 1:
        return F.lit(0)
    if not count & (count - 1) and intervals == IntervalMap.uniform(count):
        position = F.shiftrightunsigned(hashed, 64 - (count.bit_length() - 1))
        return F.floor(position * tasks / count)
    return _found(hashed.bitwiseXOR(F.lit(_SIGN)), intervals.firsts(tasks))


def _found(sorting: Column, firsts: Sequence[tuple[int, int]]) -> Column:
    """Return a search by halves for the last of some hashes that is not above one."""
    if len(firsts) == 1:
        return F.lit(firsts[0][1])
    half = len(firsts) // 2
    below = sorting < F.lit(firsts[half][0] + _SIGN)
    return F.when(below, _found(sorting, firsts[:half])).otherwise(_found(sorting, firsts[half:]))
