"""The Zeitgeist pipeline: which computation reads what."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import millrace as mr

from .computations import DipDetector, ModelCalculator, SpikeDetector, WindowCounter
from .records import Departure


def build(
    source: Any = None,
    *,
    anomalies: Callable[..., Any] | None = None,
    traffic: Callable[..., Any] | None = None,
) -> mr.Pipeline:
    """Return the pipeline.

    Args:
        source: Spark DataFrame of departures, see `flights.read_stream`. None leaves the stream
            ``"departures"`` to be fed by a `millrace.testing.Harness`.
        anomalies: Sink of the anomalies found.
        traffic: Sink of the airports' hourly traffic, actual and expected.
    """
    p = mr.Pipeline("zeitgeist")
    p.inject(
        "departures",
        source,
        timestamp="scheduled",
        # A flight is heard of when it departs. Three hours of delay cover 99 in 100; the others
        # are late records.
        low_watermark=mr.BoundedDelay("3 h"),
        format=Departure,
    )
    p.add(WindowCounter)
    p.add(ModelCalculator)
    p.add(SpikeDetector)
    p.add(DipDetector)
    if traffic is not None:
        p.sink("traffic", traffic)
    if anomalies is not None:
        p.sink("anomalies", anomalies)
    return p
