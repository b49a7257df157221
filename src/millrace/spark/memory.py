"""Memory: records as a list of Spark's rows in the driver."""

from __future__ import annotations

import datetime as dt
from typing import Any

from millrace.connectors.console import Gather, gathered


class Memory:
    """A list of rows in the driver, for notebooks and tests. It starts empty with each process.

    >>> Memory().rows
    []
    """

    def __init__(self) -> None:
        self._epochs: dict[int, list[Any]] = {}

    #: Whether a checkpoint may go back to a savepoint, and this sink with it.
    takes_back = True

    def take_back(self, after: int, until: int) -> None:
        """Forget the records of epochs after one, up to another."""
        self._epochs = {n: rows for n, rows in self._epochs.items() if not after < n <= until}

    def for_tasks(self) -> Gather:
        """Return what tasks hand their rows over with."""
        return Gather()

    def publish(self, epoch: int, receipts: list[bytes]) -> None:
        """Take the records of an epoch, in place of what an earlier attempt at it brought."""
        self._epochs[epoch] = [_as_spark(row) for row in gathered(receipts).to_pylist()]

    @property
    def rows(self) -> list[Any]:
        """All rows so far, epoch by epoch, as ``pyspark.sql.Row``."""
        return [row for epoch in sorted(self._epochs) for row in self._epochs[epoch]]

    def __repr__(self) -> str:
        return "Memory()"


def _as_spark(value: Any) -> Any:
    """Return a value as ``DataFrame.collect`` gives it: rows, and times of the local zone.

    >>> _as_spark({"team": "a", "inner": [{"x": 1}]})
    Row(team='a', inner=[Row(x=1)])
    """
    from pyspark.sql import Row  # importing millrace imports no PySpark

    if isinstance(value, dict):
        return Row(*value)(*map(_as_spark, value.values()))
    if isinstance(value, list):
        return [_as_spark(item) for item in value]
    if isinstance(value, dt.datetime):
        return value.astimezone().replace(tzinfo=None)
    return value
