"""The board for Grafana: each of its queries is PromQL, about metrics that a run gives."""

import json
import re
import urllib.request
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

import millrace as mr
from millrace.cli.main import main
from millrace.inspect import ComputationLoad, KeyShare
from millrace.kernel.results import CallStats, Counters, HookTimes
from millrace.runtime.stuck import Stuck
from millrace.sources import Backlog
from millrace.spark.metrics.grafana import board
from millrace.spark.metrics.prometheus import Scrapes
from millrace.spark.metrics.table import METRICS
from millrace.spark.realtime.latency import StepTimes
from tests.unit.spark.test_status_text import status

pytest.importorskip("prometheus_client")
promql = pytest.importorskip("promql_parser")

FULL = status(
    counters={"Counter": Counters(records=1, late=1)},
    low_watermarks={"Counter": mr.HOUR},
    newest={"searches": mr.HOUR},
    **{
        name: {"searches": 1}
        for name in (
            "injected", "injected_bytes", "dead_letters", "refused_low_watermarks", "dropped",
        )
    },
    **{
        name: {"Counter": 1}
        for name in (
            "oldest_work", "wall_timers", "moved", "received_bytes", "pending_timers",
            "pending_wall_timers",
        )
    },
    epoch_parts={"tasks": 0.5},
    steps={"level 1, turn": StepTimes(0.1, 0.2, 0.3)},
    idle={"searches": ["p"]},
    missing={"searches": ["q"]},
    backlog={"searches": Backlog(records=1, files=1, size=1)},
    load={
        "Counter": ComputationLoad(
            seconds=1.0, committed_bytes=1, state_rows=1, state_bytes=1, busiest=0.5,
            hottest=[KeyShare("tea", 0.5)], times=HookTimes({0: 1}, 0.5),
        )
    },
    standby="ready",
    calls={"Counter": CallStats(made=1, durations={-5: 1}, seconds=0.1)},
    stuck=[Stuck("Counter", "'tea'", "record 1", "process 1", 9.0, "")],
)  # fmt: skip


@pytest.fixture(scope="module")
def exported() -> dict[str, set[str]]:
    """Return the samples of a run's exporter: name -> its labels."""
    from prometheus_client.parser import text_string_to_metric_families as families

    scrapes = Scrapes(0)
    scrapes.serve(lambda: FULL)
    with urllib.request.urlopen(f"http://127.0.0.1:{scrapes.port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    scrapes.close()
    samples = [sample for family in families(text) for sample in family.samples]
    assert {f"millrace_{one.name}" for one in METRICS} == {
        family.name for family in families(text)
    }, "all that there is"
    return {sample.name: set(sample.labels) for sample in samples}


@pytest.fixture(scope="module")
def printed() -> Any:
    result = CliRunner().invoke(main, ["metrics", "grafana"])
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


def queries() -> Iterator[tuple[str, str, str]]:
    for panel in board()["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"], target["legendFormat"]


def parts(node: Any) -> Iterator[Any]:
    """Yield a node of a parsed query, and what is below it."""
    yield node
    for name in ("expr", "lhs", "rhs", "vector_selector", "param"):
        if (below := getattr(node, name, None)) is not None:
            yield from parts(below)
    for each in getattr(node, "args", None) or ():
        yield from parts(each)


@pytest.mark.parametrize(("title", "query", "legend"), list(queries()), ids=lambda text: text[:30])
def test_a_query_is_about_metrics_that_a_run_gives(
    exported: dict[str, set[str]], title: str, query: str, legend: str
) -> None:
    # What Grafana puts in before Prometheus gets it.
    parsed = promql.parse(query.replace("$__rate_interval", "5m"))
    found = list(parts(parsed))
    selectors = [one for one in found if isinstance(one, promql.VectorSelector)]
    known = {selector.name: exported.get(selector.name) for selector in selectors}

    assert known, query
    assert None not in known.values(), f"{title}: no such metric among {sorted(known)}"
    labels = set.intersection(*known.values())  # type: ignore[arg-type]
    for one in found:
        if isinstance(one, promql.AggregateExpr) and one.modifier is not None:
            assert set(one.modifier.labels) <= labels, title
            assert set(re.findall(r"{{(\w+)}}", legend)) <= set(one.modifier.labels), title
    for selector in selectors:
        assert [one.name for one in selector.matchers.matchers] == ["pipeline"]


def test_a_query_of_a_counter_is_of_its_growth() -> None:
    for title, query, _ in queries():
        assert ("_total" in query or "_bucket" in query) == ("[" in query), title


def test_panels_have_places_of_their_own(printed: Any) -> None:
    taken = set[tuple[int, int]]()
    for panel in printed["panels"]:
        place = SimpleNamespace(**panel["gridPos"])
        cells = {
            (x, y)
            for x in range(place.x, place.x + place.w)
            for y in range(place.y, place.y + place.h)
        }
        assert not cells & taken, panel["title"]
        assert place.x + place.w <= 24
        taken |= cells
    ids = [panel["id"] for panel in printed["panels"]]
    assert len(ids) == len(set(ids))


def test_the_command_prints_the_board(printed: Any) -> None:
    assert printed == board()
    assert {one["name"] for one in printed["templating"]["list"]} == {"datasource", "pipeline"}
