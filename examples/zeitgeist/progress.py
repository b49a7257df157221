"""The running demo as a person sees it: rate, epoch, low watermark, late records, anomalies."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pandas as pd
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

import millrace as mr

from .flights import LOCAL_ZONE
from .results import Epochs

REFRESH_PER_SECOND = 4

LINE_EVERY_S = 5.0
"""Seconds between two lines where there is no terminal to redraw."""

NEWEST = 6
"""Anomalies shown while the demo runs."""


class Progress:
    """What is shown of a run.

    Args:
        run: The handle of the run.
        anomalies: Reader of the anomalies' sink.
        total: Records that the replay holds; None if nobody knows how many will come.
    """

    def __init__(self, run: Any, anomalies: Epochs, total: int | None) -> None:
        self._run = run
        self._anomalies = anomalies
        self._total = total

    def line(self) -> str:
        """Return the state in one line."""
        status, found = self._run.status(), self._anomalies.read()
        records = sum(status.injected.values())
        share = f" ({records / self._total:.0%})" if self._total else ""
        return (
            f"{records:,} records{share}, {status.records_per_second:,.0f}/s, "
            f"epoch {status.epoch}, low watermark {_local(status.low_watermark)}, "
            f"{_hours(status.lag)} behind, {status.late:,} late, {len(found)} anomalies"
        )

    def panel(self) -> RenderableType:
        """Return the state for a terminal."""
        status, found = self._run.status(), self._anomalies.read()
        records = sum(status.injected.values())
        numbers = Table.grid(padding=(0, 2))
        numbers.add_column(style="dim")
        numbers.add_column()
        done = f" of {self._total:,}" if self._total else ""
        numbers.add_row("records", f"{records:,}{done}, {status.records_per_second:,.0f} a second")
        numbers.add_row("epoch", f"{status.epoch}, {status.epoch_seconds:.2f} s")
        numbers.add_row(
            "low watermark",
            f"{_local(status.low_watermark)}, {_hours(status.lag)} behind the newest flight",
        )
        numbers.add_row("late records", f"{status.late:,}")
        dips = int((found["kind"] == "dip").sum())
        numbers.add_row("anomalies", f"{dips} dips, {len(found) - dips} spikes")
        return Group(numbers, *(_brief(row) for row in found.tail(NEWEST).itertuples()))


@contextmanager
def shown(progress: Progress, console: Console) -> Iterator[None]:
    """Show the progress until the block ends: redrawn on a terminal, else a line now and then."""
    if console.is_terminal:
        with Live(
            console=console,
            get_renderable=progress.panel,
            refresh_per_second=REFRESH_PER_SECOND,
        ):
            yield
        return
    with _repeated(
        lambda: console.print(progress.line(), highlight=False, soft_wrap=True), LINE_EVERY_S
    ):
        yield


@contextmanager
def _repeated(action: Callable[[], None], every_s: float) -> Iterator[None]:
    over = threading.Event()

    def repeat() -> None:
        while not over.wait(every_s):
            action()

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        action()


def _brief(anomaly: Any) -> Text:
    start = anomaly.start.tz_convert(LOCAL_ZONE)
    style = "red" if anomaly.kind == "dip" else "green"
    return Text.assemble(
        (f"{anomaly.kind:>13}  ", style),
        f"{anomaly.key:<7}  {start:%a %b %d %H:%M}  ",
        (f"{anomaly.actual} flights, {anomaly.expected:.0f} expected", "dim"),
    )


def _local(us: int) -> str:
    if us >= mr.MAX_TIMESTAMP:
        return "end of time"
    if us <= mr.MIN_TIMESTAMP:
        return "unknown"
    return f"{pd.Timestamp(us, unit='us', tz='UTC').tz_convert(LOCAL_ZONE):%a %b %d %H:%M}"


def _hours(lag_s: float | None) -> str:
    return "?" if lag_s is None else f"{lag_s / 3600:.1f} h"
