"""A Grafana board of a run's metrics, as Grafana imports it: JSON with a panel a question.

Every query is about the names of :mod:`millrace.spark.metrics.table` as Prometheus has them.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

#: Panels are that many units of the board's grid of 24 wide.
_THIRD: Final = 8
_STAT: Final = 4
_HIGH: Final = 8
_STAT_HIGH: Final = 4
#: The pipelines chosen at the head of the board.
_OF: Final = '{pipeline=~"$pipeline"}'
_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}


class Panel(NamedTuple):
    """A panel of the board.

    Attributes:
        title: Its title.
        unit: Of its values, as Grafana calls it.
        queries: PromQL and the legend of its lines, in pairs.
        help: What it says, for who points at its title.
        stacked: Whether values add up.
    """

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    help: str = ""
    stacked: bool = False


def _sum(name: str, label: str) -> tuple[str, str]:
    return f"sum by (pipeline, {label}) ({name}{_OF})", f"{{{{{label}}}}}"


def _max(name: str, label: str) -> tuple[str, str]:
    return f"max by (pipeline, {label}) ({name}{_OF})", f"{{{{{label}}}}}"


def _rate(name: str, label: str) -> tuple[str, str]:
    return (
        f"sum by (pipeline, {label}) (rate({name}{_OF}[$__rate_interval]))",
        f"{{{{{label}}}}}",
    )


def _calls(share: str) -> tuple[str, str]:
    buckets = f"rate(millrace_hook_duration_seconds_bucket{_OF}[$__rate_interval])"
    return (
        f"histogram_quantile({share}, sum by (le, pipeline, computation) ({buckets}))",
        f"{{{{computation}}}} p{share[2:]}",
    )


#: Numbers at the head of the board.
STATS: Final = (
    Panel("Runs", "none", ((f"sum(millrace_up{_OF})", ""),), "Runs that go on"),
    Panel("Records a second", "cps",
          ((f"sum(rate(millrace_injected_records_total{_OF}[$__rate_interval]))", ""),),
          "Read from all sources"),
    Panel("Behind the newest record", "s",
          ((f"max(millrace_low_watermark_lag_seconds{_OF})", ""),),
          "The computation furthest behind, in event time"),
    Panel("Backlog", "short", ((f"sum(millrace_backlog_records{_OF})", ""),),
          "Records in their sources, not read yet"),
    Panel("Dead letters in an hour", "short",
          ((f"sum(increase(millrace_dead_letters_total{_OF}[1h]))", ""),)),
    Panel("Stuck calls", "short", ((f"sum(millrace_stuck_calls{_OF})", ""),),
          "Calls of user code that have not returned for long"),
)  # fmt: skip

#: Title of a row -> its panels.
ROWS: Final = {
    "Throughput": (
        Panel("Records read", "cps", (_rate("millrace_injected_records_total", "stream"),)),
        Panel("Records delivered", "cps", (_rate("millrace_records_total", "computation"),),
              "To user code"),
        Panel("Rows sent", "cps", (_rate("millrace_productions_total", "computation"),),
              "To consumers and sinks"),
    ),
    "Event time": (
        Panel("Behind the newest record", "s",
              (_max("millrace_low_watermark_lag_seconds", "computation"),),
              "By how much a low watermark is behind, in event time"),
        Panel("Since the low watermark moved", "s", ((
            f"time() - max by (pipeline, computation) "
            f"(millrace_low_watermark_moved_timestamp_seconds{_OF})", "{{computation}}"),),
            "A line that climbs is one that stands still"),
        Panel("Late records", "cps", (_rate("millrace_late_records_total", "computation"),)),
    ),
    "Backlog": (
        Panel("Records that wait", "short", (_sum("millrace_backlog_records", "stream"),)),
        Panel("Files that wait", "short", (_sum("millrace_backlog_files", "stream"),)),
        Panel("Bytes that wait", "bytes", (_sum("millrace_backlog_bytes", "stream"),)),
    ),
    "Latency": (
        Panel("Steps of a record", "s", (_max("millrace_step_p95_seconds", "step"),),
              "In real time: 95 of 100 records take less"),
        Panel("Epochs by part", "s", (_max("millrace_epoch_part_seconds", "part"),),
              "Of the last epoch; none in real time", stacked=True),
        Panel("Calls of user code", "s", (_calls("0.50"), _calls("0.99")),
              "A record or timer each"),
    ),
    "State": (
        Panel("State", "bytes", (_max("millrace_state_bytes", "computation"),),
              "About its size, of key intervals that have worked"),
        Panel("Pending timers", "short", (_max("millrace_pending_timers", "computation"),)),
        Panel("Written", "Bps", (_rate("millrace_committed_bytes_total", "computation"),),
              "What commits hold"),
    ),
    "Failures": (
        Panel("Dead letters", "cps", (_rate("millrace_dead_letters_total", "origin"),)),
        Panel("Hot keys and busy intervals", "percentunit", (
            (f"max by (pipeline, computation) (millrace_hottest_key_ratio{_OF})",
             "{{computation}}, hottest key"),
            (f"max by (pipeline, computation) (millrace_busiest_interval_ratio{_OF})",
             "{{computation}}, busiest interval"),
        )),
        Panel("Calls to services that failed", "cps",
              (_rate("millrace_service_failures_total", "computation"),),
              "Records whose call failed for good"),
        Panel("Calls to services", "s", (
            (f"histogram_quantile(0.95, sum by (le, pipeline, computation) "
             f"(rate(millrace_service_call_duration_seconds_bucket{_OF}[$__rate_interval])))",
             "{{computation}} p95"),
        ), "95 of 100 take less"),
        Panel("Records that wait for a call", "short",
              (_max("millrace_service_calls_waiting", "computation"),)),
        Panel("Silent and missing processes", "short", (
            (f"sum by (pipeline, stream) (millrace_idle_processes{_OF})", "{{stream}}, silent"),
            (f"sum by (pipeline, stream) (millrace_missing_processes{_OF})",
             "{{stream}}, missing"),
        )),
    ),
}  # fmt: skip


def board() -> dict[str, Any]:
    """Return the board.

    >>> found = board()
    >>> found["title"], [panel["title"] for panel in found["panels"]][:2]
    ('Millrace', ['Runs', 'Records a second'])
    """
    panels = [
        _drawn(panel, "stat", x * _STAT, 0, _STAT, _STAT_HIGH) for x, panel in enumerate(STATS)
    ]
    y = _STAT_HIGH
    for title, row in ROWS.items():
        place = {"x": 0, "y": y, "w": 24, "h": 1}
        panels.append({"type": "row", "title": title, "gridPos": place, "panels": []})
        panels += [
            _drawn(panel, "timeseries", n % 3 * _THIRD, y + 1 + n // 3 * _HIGH, _THIRD, _HIGH)
            for n, panel in enumerate(row)
        ]
        y += 1 + -(-len(row) // 3) * _HIGH
    return {
        "title": "Millrace",
        "uid": "millrace",
        "description": "Runs of Millrace, by the metrics that they give Prometheus.",
        "tags": ["millrace"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "utc",
        "templating": {
            "list": [
                {"name": "datasource", "type": "datasource", "query": "prometheus"},
                {
                    "name": "pipeline",
                    "type": "query",
                    "datasource": _SOURCE,
                    "query": {"query": "label_values(millrace_up, pipeline)", "refId": "pipeline"},
                    "refresh": 2,
                    "includeAll": True,
                    "multi": True,
                    "current": {"text": ["All"], "value": ["$__all"]},
                },
            ]
        },
        "panels": [{"id": id, **panel} for id, panel in enumerate(panels, 1)],
    }


def _drawn(panel: Panel, kind: str, x: int, y: int, wide: int, high: int) -> dict[str, Any]:
    stat = kind == "stat"
    custom = {"fillOpacity": 10, "stacking": {"mode": "normal" if panel.stacked else "none"}}
    return {
        "type": kind,
        "title": panel.title,
        "description": panel.help,
        "datasource": _SOURCE,
        "gridPos": {"x": x, "y": y, "w": wide, "h": high},
        "fieldConfig": {
            "defaults": {"unit": panel.unit, **({} if stat else {"min": 0, "custom": custom})},
            "overrides": [],
        },
        "options": {"reduceOptions": {"calcs": ["lastNotNull"]}}
        if stat
        else {"legend": {"displayMode": "list", "placement": "bottom"}},
        "targets": [
            {"refId": chr(ord("A") + n), "expr": query, "legendFormat": legend}
            for n, (query, legend) in enumerate(panel.queries)
        ],
    }
