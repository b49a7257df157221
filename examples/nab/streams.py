"""The streams of the Numenta Anomaly Benchmark, their labels, and the published results.

A folder of it is a clone of https://github.com/numenta/NAB. Nothing of it is part of Millrace.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path

from millrace_examples.nab.scoring import Stream


def names(folder: Path) -> list[str]:
    """Return the names of the streams as its labels have them: ``"realTraffic/speed_6005.csv"``."""
    return sorted(_windows(folder))


def read(folder: Path, name: str) -> Iterator[tuple[str, float]]:
    """Return time, as text, and value of each record of a stream, in order."""
    with (folder / "data" / name).open(newline="") as file:
        for row in csv.DictReader(file):
            yield row["timestamp"], float(row["value"])


def labelled(folder: Path, name: str, scores: list[float]) -> Stream:
    """Return a detector's scores of a stream together with the labels.

    Raises:
        ValueError: There is not one score for each record.
    """
    times = [time for time, _ in read(folder, name)]
    if len(times) != len(scores):
        raise ValueError(f"{name}: {len(scores)} scores for {len(times)} records, expected as many")
    windows = [
        (times.index(first.split(".")[0]), times.index(last.split(".")[0]))
        for first, last in _windows(folder)[name]
    ]
    return Stream(scores, windows)


def published(folder: Path) -> dict[str, dict[str, float]]:
    """Return NAB's own table: detector -> profile -> score."""
    table: dict[str, dict[str, float]] = json.loads(
        (folder / "results" / "final_results.json").read_text()
    )
    return table


def published_threshold(folder: Path, detector: str, profile: str) -> float:
    """Return the threshold with which NAB scored a detector's bundled results."""
    with (folder / "results" / detector / f"{detector}_{profile}_scores.csv").open() as rows:
        return float(next(csv.DictReader(rows))["Threshold"])


def bundled(folder: Path, detector: str) -> Iterator[Stream]:
    """Return all streams with the anomaly scores that NAB bundles for a detector."""
    for name in names(folder):
        group, file = name.split("/")
        with (folder / "results" / detector / group / f"{detector}_{file}").open(
            newline=""
        ) as rows:
            scores = [float(row["anomaly_score"]) for row in csv.DictReader(rows)]
        yield labelled(folder, name, scores)


def _windows(folder: Path) -> dict[str, list[list[str]]]:
    path = folder / "labels" / "combined_windows.json"
    if not path.is_file():
        raise FileNotFoundError(
            f"no {path}: expected a clone of https://github.com/numenta/NAB there; `make nab` "
            "fetches one, NAB=folder names another"
        )
    windows: dict[str, list[list[str]]] = json.loads(path.read_text())
    return windows
