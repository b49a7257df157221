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

from millrace.spark.metrics.families import Family, families
from millrace.spark.status import Status

#: End of a name -> the unit that it says, by UCUM.
_UNITS: Final = {"_timestamp_seconds": "s", "_seconds": "s", "_bytes": "By", "_ratio": "1"}
#: All metrics of one collection are of one status, which is asked for again after so long.
_FRESH_S: Final = 0.5
_CALLS: Final = "hook_duration_percentile"

_lock = threading.Lock()
_numbers = count()
#: Provider, by its id -> the runs that it observes, by a number. A provider is there as soon as it
#: has the instruments: each may be made once, whatever runs come and go.
_runs: dict[int, dict[int, _Observed]] = {}


class _Observed:
    """One run, and its status a moment ago."""

    def __init__(self, status: Callable[[], Status]) -> None:
        self._status = status
        self._asked_s = 0.0
        self._last: tuple[Status, dict[str, Family]] | None = None

    def families(self) -> tuple[Status, dict[str, Family]]:
        """Return the run's metrics by name."""
        now_s = time.monotonic()
        if self._last is None or now_s - self._asked_s > _FRESH_S:
            status = self._status()
            self._last = status, {family.name: family for family in families(status)}
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
        if id(provider) not in _runs:
            _runs[id(provider)] = {}
            meter = metrics.get_meter("millrace", version(), provider)
            _make(meter, _runs[id(provider)], status())
        runs = _runs[id(provider)]
        runs[number] = _Observed(status)

    def end() -> None:
        with _lock:
            runs.pop(number, None)

    return end


def _nothing() -> None:
    pass


def _make(meter: Any, runs: dict[int, _Observed], status: Status) -> None:
    """Make every instrument: which there are does not depend on the run."""
    for family in families(status):
        name, unit = _named(family.name)
        made = meter.create_observable_counter if family.counter else meter.create_observable_gauge
        made(f"millrace.{name}", [_values(runs, family.name)], unit=unit, description=family.help)
    meter.create_observable_gauge(
        f"millrace.{_CALLS}", [_percentiles(runs)], unit="s",
        description="About how long calls of user code took, in this process's epochs: so many "
        "percent of them at most",
    )  # fmt: skip


def _named(name: str) -> tuple[str, str]:
    """Return a name without its unit, and the unit.

    >>> _named("epoch_duration_seconds"), _named("records"), _named("oldest_work_timestamp_seconds")
    (('epoch_duration', 's'), ('records', '1'), ('oldest_work_timestamp', 's'))
    """
    for end, unit in _UNITS.items():
        if name.endswith(end):
            kept = "_timestamp" if end.startswith("_timestamp") else ""
            return name.removesuffix(end) + kept, unit
    return name, "1"


def _observed(runs: dict[int, _Observed]) -> Iterator[tuple[Status, dict[str, Family]]]:
    with _lock:
        found = list(runs.values())
    for run in found:
        yield run.families()


def _values(runs: dict[int, _Observed], name: str) -> Callable[[Any], Iterator[Any]]:
    from opentelemetry.metrics import Observation

    def observed(_: Any) -> Iterator[Any]:
        for status, found in _observed(runs):
            family = found[name]
            for of, value in family.samples.items():
                of_it = {f"millrace.{family.label}": of} if family.label else {}
                yield Observation(value, {"millrace.pipeline": status.pipeline, **of_it})

    return observed


def _percentiles(runs: dict[int, _Observed]) -> Callable[[Any], Iterator[Any]]:
    from opentelemetry.metrics import Observation

    wanted = (50, 95, 99)

    def observed(_: Any) -> Iterator[Any]:
        for status, _found in _observed(runs):
            for name, load in status.load.items():
                if not load.times.calls:
                    continue
                for percent, seconds in zip(wanted, load.times.percentiles(wanted), strict=True):
                    attributes: dict[str, str | int] = {
                        "millrace.pipeline": status.pipeline,
                        "millrace.computation": name,
                        "millrace.percentile": percent,
                    }
                    yield Observation(seconds, attributes)

    return observed
