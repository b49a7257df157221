"""Metrics for OpenTelemetry: observed by the meter provider of the application, if it has one.

Nothing has to be asked for. Where the API is installed, each run lets the global meter provider
observe it; as long as the application has set none, that is one that does nothing. So an
application that is instrumented, or started by ``opentelemetry-instrument``, has Millrace's metrics
among its own, and sends them where it sends those.

Names are the ones of Prometheus by the conventions of OpenTelemetry: dots, and the unit aside, so
that ``millrace_epoch_duration_seconds`` is ``millrace.epoch_duration`` in ``s``. What the API calls
a histogram cannot be observed, so that of calls of user code comes as percentiles.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, Final

from millrace.spark.metrics.table import COUNTER, HISTOGRAMS, NUMBERS, SINCE_1970, Metric
from millrace.spark.status import Status

#: Unit -> as UCUM has it, and the end of a name that says it.
_UNITS: Final = {
    "s": ("s", "_seconds"),
    SINCE_1970: ("s", "_seconds"),
    "bytes": ("By", "_bytes"),
    "1": ("1", "_ratio"),
}
#: All metrics of one collection are of one status, which is asked for again after so long.
_FRESH_S: Final = 0.5
_SHARES: Final = (50, 95, 99)

_lock = threading.Lock()
_numbers = count()
#: Provider -> the runs that it observes, by a number. A provider is there as soon as it has the
#: instruments: each may be made once, whatever runs come and go.
_runs: dict[Any, dict[int, _Observed]] = {}


class _Observed:
    """One run, and its status a moment ago."""

    def __init__(self, status: Callable[[], Status]) -> None:
        self._status = status
        self._asked_s = 0.0
        self._last: Status | None = None

    def status(self) -> Status:
        """Return the run's status, as it was a moment ago."""
        now_s = time.monotonic()
        if self._last is None or now_s - self._asked_s > _FRESH_S:
            self._last = self._status()
            self._asked_s = now_s
        return self._last


def observe(status: Callable[[], Status], provider: Any = None) -> Callable[[], None]:
    """Let a meter provider observe a run; return what ends that.

    Without OpenTelemetry's API it does nothing.

    Args:
        status: Returns where the run stands; any thread may call it.
        provider: By default the global one, whenever it is set.
    """
    try:
        from opentelemetry import metrics
    except ImportError:
        return _nothing
    from millrace.model.distribution import version

    with _lock:
        number = next(_numbers)
        if provider not in _runs:
            _runs[provider] = {}
            meter = metrics.get_meter("millrace", version(), provider)
            _make(meter, _runs[provider])
        runs = _runs[provider]
        runs[number] = _Observed(status)

    def end() -> None:
        with _lock:
            runs.pop(number, None)

    return end


def _nothing() -> None:
    pass


def _make(meter: Any, runs: dict[int, _Observed]) -> None:
    """Make every instrument: which there are does not depend on the run."""
    for metric in NUMBERS:
        name, unit = _named(metric)
        counts = metric.kind == COUNTER
        create = meter.create_observable_counter if counts else meter.create_observable_gauge
        create(f"millrace.{name}", [_values(runs, metric)], unit=unit, description=metric.help)
    for metric in HISTOGRAMS:
        name, unit = _named(metric)
        meter.create_observable_gauge(
            f"millrace.{name}_percentile", [_percentiles(runs, metric)], unit=unit,
            description=f"{metric.help}: so many percent of them at most",
        )  # fmt: skip


def _named(metric: Metric) -> tuple[str, str]:
    """Return a metric's name without its unit, and the unit.

    >>> from millrace.spark.metrics.table import METRICS
    >>> names = {metric.name: _named(metric) for metric in METRICS}
    >>> names["epoch_duration_seconds"], names["records"], names["oldest_work_timestamp_seconds"]
    (('epoch_duration', 's'), ('records', '1'), ('oldest_work_timestamp', 's'))
    """
    unit, end = _UNITS.get(metric.unit, ("1", ""))
    return metric.name.removesuffix(end), unit


def _statuses(runs: dict[int, _Observed]) -> Iterator[Status]:
    with _lock:
        statuses = list(runs.values())
    for run in statuses:
        yield run.status()


def _values(runs: dict[int, _Observed], metric: Metric) -> Callable[[Any], Iterator[Any]]:
    from opentelemetry.metrics import Observation

    def observed(_: Any) -> Iterator[Any]:
        for status in _statuses(runs):
            for label, value in metric.draw(status).items():
                of_it = {f"millrace.{metric.label}": label} if metric.label else {}
                yield Observation(value, {"millrace.pipeline": status.pipeline, **of_it})

    return observed


def _percentiles(runs: dict[int, _Observed], metric: Metric) -> Callable[[Any], Iterator[Any]]:
    from opentelemetry.metrics import Observation

    def observed(_: Any) -> Iterator[Any]:
        for status in _statuses(runs):
            for label, times in metric.draw(status).items():
                for percent, seconds in zip(_SHARES, times.percentiles(_SHARES), strict=True):
                    attributes: dict[str, str | int] = {
                        "millrace.pipeline": status.pipeline,
                        f"millrace.{metric.label}": label,
                        "millrace.percentile": percent,
                    }
                    yield Observation(seconds, attributes)

    return observed
