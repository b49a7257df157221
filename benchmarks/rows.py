"""Rows of the tables in docs/benchmarks.md, made of results files; and which files have them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.evaluation.report import COMBINATIONS, PAPER_LAG, PAPER_LATENCY
from benchmarks.figures import Result, Rows


def has_rivals(*rivals: str, **settings: str) -> Callable[[Result], bool]:
    """Return whether a file has these rivals, and these settings."""

    def wanted(result: Result) -> bool:
        given = result["settings"]
        return all(f"'{rival}'" in given["rivals"] for rival in rivals) and all(
            given[name] == value for name, value in settings.items()
        )

    return wanted


def has_figures(
    key: str, *names: str, of: str = "contender", **values: Any
) -> Callable[[Result], bool]:
    """Return whether a file has figures of these contenders."""

    def wanted(result: Result) -> bool:
        rows = [row for row in result[key] if all(row[n] == value for n, value in values.items())]
        return set(names) <= {row[of] for row in rows}

    return wanted


def only(key: str, **values: Any) -> Callable[[Result], Rows]:
    return lambda result: [
        row for row in result[key] if all(row[name] in value for name, value in values.items())
    ]


def latencies(place: str | None = None) -> Callable[[Result], Rows]:
    """Return rows of latencies, one each place where they were taken, or those of one place."""

    def rows(result: Result) -> Rows:
        return [
            {**each, "place": named, "ms": ms}
            for each in result["measurements"]
            for named, ms in each["latencies_ms"].items()
            if place in (None, named)
        ]

    return rows


def called(result: Result) -> Rows:
    """Return rows of calls to a service, a contender each."""
    return [
        {
            "contender": name,
            "rate": statistics.median(rates),
            "share": result["shares"].get(name),
            "of_server": result.get("of_server", {}).get(name),
            "cpu_us": result.get("cpu_us", {}).get(name),
        }
        for name, rates in result["rates"].items()
    ]


def nexmark(result: Result) -> Rows:
    rows: dict[str, dict[str, Any]] = {}
    for each in result["measurements"]:
        if each["agrees"] and each["records_per_s"] is not None:
            figures = f"{each['records_per_s'] / 1000:,.0f}; {each['cpu_s_per_million']:.1f}"
            rows.setdefault(each["query"], {"query": each["query"]})[each["rival"]] = figures
    return list(rows.values())


def soak(result: Result) -> Rows:
    minutes, samples = result["latency by minute: p50, p99, max"], result["samples"]
    tenths = {
        "first tenth": slice(len(samples) // 10, len(samples) // 5),
        "last tenth": slice(-len(samples) // 10, None),
    }
    rows = []
    for name, part in tenths.items():
        some = samples[part]
        of_minutes = (
            minutes[len(minutes) // 10 : len(minutes) // 5]
            if name[0] == "f"
            else minutes[-len(minutes) // 10 :]
        )
        rows.append(
            {
                "when": name,
                "p50": statistics.median(minute[0] for minute in of_minutes),
                "p99": statistics.median(minute[1] for minute in of_minutes),
                **_resources(some),
            }
        )
    return rows


def _resources(samples: Rows) -> dict[str, float]:
    """Return medians of what the processes of a run hold."""
    return {
        "memory": statistics.median(sum(each["rss_mib"].values()) for each in samples),
        "threads": statistics.median(each["threads"] for each in samples),
        "files": statistics.median(each["open_files"] for each in samples),
        "checkpoint": statistics.median(each["disk_mib"]["checkpoint"] for each in samples),
        "cache": statistics.median(each["disk_mib"]["cache"] for each in samples),
    }


def overload(result: Result) -> Rows:
    moments = result["moments"]
    tenth = len(moments) // 10
    rows = []
    for name, part in (
        ("second tenth", moments[tenth : 2 * tenth]),
        ("last tenth", moments[-tenth:]),
    ):
        began, ended = part[0], part[-1]
        seconds = ended["taken"]["at_s"] - began["taken"]["at_s"]
        rate = (ended["injected"] - began["injected"]) / seconds
        marks = seconds / (ended["mark"] - began["mark"])
        resources = _resources([moment["taken"] for moment in part])
        rows.append({"when": name, "rate": rate, "mark_s": marks, **resources})
    return rows


def has_part(name: str) -> Callable[[Result], bool]:
    return lambda result: name in result["parts"] and not result["quick"]


def evaluated(result: Result) -> Rows:
    rows = []
    for each in result["parts"]["latency"]["latency"]["measurements"]:
        measured = each["cell"]
        combination = COMBINATIONS[measured["rival"]]
        paper = PAPER_LATENCY.get(combination) if measured["stages"] == 2 else None
        rows.append(
            {"how": combination, **measured, "ms": each["latencies_ms"]["code"], "paper": paper}
        )
    return rows


def scaled(result: Result) -> Rows:
    return [
        {**each["cell"], "ms": each["latencies_ms"]["code"]}
        for found in result["parts"]["scale"].values()
        for each in found["measurements"]
    ]


def lag(result: Result) -> Rows:
    lag = result["parts"]["lag"]
    return [
        {
            "stage": number + 1,
            "paper": mean,
            "epochs": lag["epochs"]["stages"][number]["mean_ms"],
            "live": lag["real time"]["stages"][number]["mean_ms"],
        }
        for number, (mean, _) in enumerate(PAPER_LAG)
    ]


def cached(result: Result) -> Rows:
    cases = result["parts"]["cache"]["cache"]["cases"]
    least = min(case["cpu_us"] for case in cases)
    return [{**case, "ratio": case["cpu_us"] / least} for case in cases]


def empty(result: Result) -> Rows:
    depths: dict[int, dict[str, Any]] = {}
    for each in result["costs"]:
        depths.setdefault(each["depth"], {"depth": each["depth"]})[each["contender"]] = each[
            "median_ms"
        ]
    return list(depths.values())


def started(result: Result) -> Rows:
    cases: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for run in result["runs"]:
        cases.setdefault((run["plane"], run["workers"]), []).append(run)
    return [
        {
            "plane": plane,
            "workers": workers,
            "first_s": statistics.median(run["first"]["s"] for run in runs),
            "back_s": statistics.median(back["s"] for run in runs for back in run["back"]),
            "back_cpu_s": statistics.median(
                back["python_cpu_s"] for run in runs for back in run["back"]
            ),
        }
        for (plane, workers), runs in cases.items()
    ]


def recovered(result: Result) -> Rows:
    return [
        {"from": name, **result[key], "mb": result[key]["bytes_read"] / 1e6}
        for name, key in (("the log alone", "from_log"), ("snapshots and log", "from_snapshots"))
    ]


def large(result: Result) -> Rows:
    disk = {name: size / 1e9 for name, size in result["bytes_on_disk"].items()}
    sizes = {
        name: result[name] / 1e9 for name in ("state_bytes", "limit_bytes", "anonymous_bytes_max")
    }
    return [{**result, **sizes, "disk": disk}]


def many(result: Result) -> Rows:
    sizes = {"state": "state_bytes", "caches": "cache_bytes"}
    return [
        {**each, **{name: each[key] / 1e9 for name, key in sizes.items()}}
        for each in result["cases"]
    ]


def in_memory(result: Result) -> bool:
    return all(each.get("cache") == "/dev/shm" for each in result["cases"])


def limited(result: Result) -> bool:
    return any(each["limit_gigabytes"] > 0 for each in result["cases"])


def side(result: Result) -> Rows:
    names = {
        "none": "no table",
        "still": "nothing changes",
        "some": "a hundredth changes each epoch",
        "changing": "all of it changes each epoch",
    }
    none = result["costs"][0]["cpu_ms"]
    return [
        {**each, "table": names[each["case"]], "ratio": each["cpu_ms"] / none}
        for each in result["costs"]
    ]


def ratio(key: str, of: str) -> Callable[[Result], Rows]:
    """Return rows with the ratio of a figure to that of the first row."""

    def rows(result: Result) -> Rows:
        first = result[key][0][of]
        return [{**each, "ratio": each[of] / first} for each in result[key]]

    return rows


def rests(result: Result) -> Rows:
    kinds: dict[str, list[float]] = {}
    for rest in result["rests"]:
        kinds.setdefault(rest["what"], []).append(rest["gap_s"])
    return [
        {"what": what, "least": min(gaps), "median": statistics.median(gaps), "most": max(gaps)}
        for what, gaps in kinds.items()
    ]


def balanced(result: Result) -> Rows:
    return [{**each, "on": "on" if each["balanced"] else "off"} for each in result["cases"]]


def requests(result: Result) -> Rows:
    return [
        {**each, "sent_kb": each["sent"] / 1000}
        for each in result["costs"]
        if each["kind"] != "objects, one an interval"
    ]


def simulated(result: Result) -> Rows:
    phases: dict[str, list[Mapping[str, Any]]] = {}
    for each in result["rounds"]:
        phases.setdefault(each["phase"], []).append(each)
    return [
        {
            "phase": phase,
            "rounds": len(rounds),
            "remaps": sum(each["moves"] + each["splits"] + each["given"] for each in rounds),
            "gb": sum(each["bytes"] for each in rounds) / 1e9,
            "worst": max(each["worst"] for each in rounds),
            "last": rounds[-1]["worst"],
            "balancer_s": max(each["balancer_s"] for each in rounds),
        }
        for phase, rounds in phases.items()
    ]
