"""What a run's status says as metrics, to OpenTelemetry's own SDK with a reader in memory."""

from typing import Any

import pytest

import millrace as mr
from millrace.inspect import ComputationLoad
from millrace.kernel.results import HookTimes
from millrace.spark.metrics.opentelemetry import observe
from tests.unit.spark.test_status_text import BEFORE_ANYTHING, IN_THE_MIDDLE, NINE, status

sdk = pytest.importorskip("opentelemetry.sdk.metrics")
export = pytest.importorskip("opentelemetry.sdk.metrics.export")


class Collected:
    """What an application's provider collects."""

    def __init__(self) -> None:
        self.reader = export.InMemoryMetricReader()
        self.provider = sdk.MeterProvider(metric_readers=[self.reader])

    def metrics(self) -> dict[str, Any]:
        data = self.reader.get_metrics_data()
        scopes = [] if data is None else data.resource_metrics[0].scope_metrics
        return {metric.name: metric for scope in scopes for metric in scope.metrics}

    def values(self, name: str) -> dict[tuple[Any, ...], float]:
        points = self.metrics()[name].data.data_points
        return {tuple(dict(sorted(p.attributes.items())).values()): p.value for p in points}


def test_an_instrumented_application_has_the_metrics_among_its_own() -> None:
    collected = Collected()
    end = observe(lambda: IN_THE_MIDDLE, collected.provider)
    assert collected.values("millrace.records")["Counter", "zeitgeist"] == 1_234_567
    assert collected.values("millrace.epoch") == {("zeitgeist",): 41}
    assert collected.values("millrace.injected_records") == {("zeitgeist", "searches"): 1_234_567}
    lags = collected.values("millrace.low_watermark_lag")
    assert lags["Counter", "zeitgeist"] == 5
    at = collected.values("millrace.low_watermark_timestamp")["Counter", "zeitgeist"]
    assert at == NINE / mr.SECOND
    found = collected.metrics()
    assert (found["millrace.low_watermark_lag"].unit, found["millrace.records"].unit) == ("s", "1")
    assert found["millrace.records"].data.is_monotonic
    assert found["millrace.snapshot"].unit == "By"
    end()
    assert collected.metrics() == {}


def test_each_run_is_told_apart_by_its_pipeline_and_instruments_are_made_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    collected = Collected()
    ends = [
        observe(lambda: IN_THE_MIDDLE, collected.provider),
        observe(lambda: status(pipeline="other", epoch=7), collected.provider),
    ]
    assert collected.values("millrace.epoch") == {("zeitgeist",): 41, ("other",): 7}
    ends[0]()
    ends.append(observe(lambda: BEFORE_ANYTHING, collected.provider))
    assert collected.values("millrace.epoch") == {("other",): 7, ("zeitgeist",): -1}
    assert not caplog.records
    for end in ends:
        end()
        end()


def test_calls_of_user_code_come_as_percentiles() -> None:
    collected = Collected()
    times = HookTimes({-10: 98, -3: 2}, 0.4)
    load = ComputationLoad(
        seconds=1.5,
        committed_bytes=9,
        state_rows=7,
        state_bytes=70,
        busiest=0.5,
        hottest=[],
        times=times,
    )
    end = observe(lambda: status(load={"Counter": load}), collected.provider)
    found = collected.values("millrace.hook_duration_percentile")
    end()
    names = [("Counter", percent, "zeitgeist") for percent in (50, 95, 99)]
    assert [found[name] for name in names] == times.percentiles((50, 95, 99))
    assert found[names[2]] > 10 * found[names[0]]


def test_without_a_provider_of_the_application_nothing_is_done() -> None:
    observe(lambda: IN_THE_MIDDLE)()
