"""What a run has found: the sinks' epochs read back, one Parquet file, and a table for people."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
from rich.table import Table

from . import events
from .flights import LOCAL_ZONE
from .records import Anomaly, Traffic

STRONGEST = 12
"""Rows of the table: what fits on a screen."""


class Epochs:
    """The rows of a Parquet sink; epochs read once are kept.

    Args:
        directory: Of the sink, with a directory for each epoch that had rows.
        fields: Columns to read; `times` of them are microseconds and become UTC timestamps.
        times: See `fields`.
    """

    def __init__(self, directory: Path, fields: tuple[str, ...], times: tuple[str, ...]) -> None:
        self.directory = directory
        self.fields = fields
        self.times = times
        self._epochs: dict[str, pd.DataFrame] = {}

    @classmethod
    def of_anomalies(cls, directory: Path) -> Epochs:
        """Return the reader of the anomalies' sink."""
        return cls(directory, Anomaly.__struct_fields__, ("start", "end"))

    @classmethod
    def of_traffic(cls, directory: Path) -> Epochs:
        """Return the reader of the airports' traffic."""
        return cls(directory, Traffic.__struct_fields__, ("bucket",))

    def read(self) -> pd.DataFrame:
        """Return all rows so far, in an order that does not depend on the epochs."""
        for epoch in self.directory.glob("epoch=*"):
            if epoch.name not in self._epochs:
                parts = [pq.ParquetFile(file).read() for file in epoch.glob("*.parquet")]
                frames = [part.select(self.fields).to_pandas() for part in parts]
                self._epochs[epoch.name] = pd.concat(frames)
        empty = pd.DataFrame(columns=self.fields)
        rows = pd.concat(list(self._epochs.values())) if self._epochs else empty
        for name in self.times:
            rows[name] = pd.to_datetime(rows[name], unit="us", utc=True)
        return rows.sort_values([*self.times, "key"], ignore_index=True)


def strongest(anomalies: pd.DataFrame) -> Table:
    """Return a table of the anomalies with the most flights missing or added."""
    excess = anomalies["actual"] - anomalies["expected"]
    order = excess.abs().sort_values(ascending=False).index[:STRONGEST]
    title = f"The strongest of {len(anomalies)} anomalies (New York time)"
    table = Table(title=title, title_justify="left", box=None, header_style="dim")
    for name in ("where", "what", "from", "to"):
        table.add_column(name, no_wrap=True)
    for name in ("flights", "expected"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for row in anomalies.loc[order].itertuples():
        start, end = (at.tz_convert(LOCAL_ZONE).tz_localize(None) for at in (row.start, row.end))
        table.add_row(
            row.key,
            f"[{'red' if row.kind == 'dip' else 'green'}]{row.kind}[/]",
            f"{start:%b %d %H:%M}",
            f"{end:%b %d %H:%M}",
            f"{row.actual}",
            f"{row.expected:.0f}",
            f"[dim]{events.name(start, end)}[/]",
        )
    return table
