"""NAB's rule by hand, and the detector on made data, in the Harness; nothing of NAB is here."""

import itertools
import json
import math
import random
from pathlib import Path

import pandas as pd
import pytest

import millrace as mr
from millrace_examples.nab import scoring, streams
from millrace_examples.nab.__main__ import by_numpy, held_out, write
from millrace_examples.nab.novelty import Known, novelty
from millrace_examples.nab.pipeline import Reading, build, replay
from tests.live import Kept, Live

STEP_S = 1800
RECORDS = 900
ODD = 700


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def detector(*at: int, windows=((40, 49),)) -> scoring.Stream:
    return scoring.Stream([1.0 if n in at else 0.0 for n in range(100)], windows)


def sinus(seed: int = 1) -> list[float]:
    """A day's wave with some noise, and one value far below what its time of day has."""
    noise = random.Random(seed)
    values = [100 + 50 * math.sin(n * math.tau / 48) + noise.gauss(0, 2) for n in range(RECORDS)]
    values[ODD] -= 120
    return values


def times() -> list[float]:
    return [float(n * STEP_S) for n in range(RECORDS)]


def score(stream: scoring.Stream, profile: scoring.Profile = scoring.STANDARD) -> float:
    return scoring.best([stream], profile, threshold=0.5).score


def test_the_earliest_detection_of_a_window_counts_by_where_it_is():
    first = 2 * sigmoid(5) - 1
    middle = (2 * sigmoid(5 * 5 / 10) - 1) / first

    assert score(detector(40)) == pytest.approx(100)
    assert score(detector(45)) == pytest.approx(100 * (middle + 1) / 2)
    assert score(detector(45, 46, 49)) == pytest.approx(score(detector(45)))


def test_a_false_alarm_costs_less_just_behind_a_window():
    behind = 0.11 * (2 * sigmoid(-5 * 2 / 9) - 1)

    assert score(detector(30)) == pytest.approx(100 * -0.11 / 2)
    assert score(detector(51)) == pytest.approx(100 * behind / 2)
    assert score(detector(99)) == pytest.approx(100 * -0.11 / 2)


def test_profiles_weigh_false_alarms_and_misses():
    cautious, eager = scoring.PROFILES[1:]

    assert score(detector(30), cautious) == pytest.approx(100 * -0.22 / 2)
    assert score(detector(40, 30), eager) == pytest.approx(100 * (3 - 0.11) / 3)


def test_the_first_records_are_not_scored():
    assert score(detector(0, 14)) == 0
    assert score(detector(15)) < 0


def test_the_best_threshold_is_taken_for_all_streams_together():
    strong = scoring.Stream([0.9 if n == 40 else 0.0 for n in range(100)], [(40, 49)])
    weak = scoring.Stream([0.7 if n in (20, 40) else 0.0 for n in range(100)], [(40, 49)])

    verdict = scoring.best([strong, weak])

    assert (verdict.threshold, verdict.found, verdict.false_alarms) == (0.7, 2, 1)
    assert verdict.score == pytest.approx(100 * (4 - 0.11) / 4)
    assert held_out([strong, weak]) == pytest.approx(100 * (1 + 0) / 2)


def test_a_benchmark_without_windows_is_refused():
    with pytest.raises(ValueError, match="no labelled window"):
        scoring.best([detector(windows=())])


def test_a_folder_is_read_as_nab_has_it(tmp_path: Path):
    (tmp_path / "labels").mkdir()
    (tmp_path / "data" / "made").mkdir(parents=True)
    windows = {"made/a.csv": [["2014-01-01 00:05:00.000000", "2014-01-01 00:10:00.000000"]]}
    (tmp_path / "labels" / "combined_windows.json").write_text(json.dumps(windows))
    rows = [f"2014-01-01 00:{minute:02}:00,{minute}" for minute in (0, 5, 10)]
    (tmp_path / "data" / "made" / "a.csv").write_text("\n".join(["timestamp,value", *rows]))

    (name,) = streams.names(tmp_path)

    assert streams.labelled(tmp_path, name, [0, 1, 0]).windows == [(1, 2)]
    with pytest.raises(ValueError, match="2 scores for 3 records"):
        streams.labelled(tmp_path, name, [0, 1])
    with pytest.raises(FileNotFoundError, match="NAB=folder"):
        streams.names(tmp_path / "none")


def test_what_is_odd_for_its_time_of_day_is_a_record():
    scores = novelty(Known(), times(), sinus())

    assert scores.index(max(scores[400:])) == ODD
    assert scores[ODD] > 0.6


def test_scores_do_not_depend_on_how_a_stream_is_cut():
    values, cuts, known, scores = sinus(), [0, 1, 7, 49, 50, 333, 698, 701, RECORDS], Known(), []
    for first, last in itertools.pairwise(cuts):
        scores += novelty(known, times()[first:last], values[first:last])

    assert scores == novelty(Known(), times(), values)


def test_nothing_is_known_of_what_comes_later():
    values = sinus()

    before = novelty(Known(), times()[:ODD], values[:ODD])

    assert before == novelty(Known(), times(), values)[:ODD]


def made() -> pd.DataFrame:
    """Return three streams, one of them far from the others in time, in order of time."""
    return pd.concat(
        pd.DataFrame(
            {
                "stream": name,
                "number": range(RECORDS),
                "value": sinus(seed),
                "at": pd.to_datetime(times(), unit="s", utc=True) + pd.Timedelta(days=days),
            }
        )
        for name, seed, days in (("a", 1, 0), ("b", 2, 3), ("c", 3, 700))
    ).sort_values(["at", "stream"], ignore_index=True)


def test_epochs_over_files_score_as_the_functions_do(tmp_path: Path):
    """File after file: the low watermark says when a reading has all before it."""
    rows = made()
    write(rows, tmp_path / "replay", files=4)
    with mr.testing.Harness(build(replay(tmp_path / "replay")), publish=True) as h:
        while h.poll("readings"):
            pass
        h.advance_watermark("readings", mr.MAX_TIMESTAMP)
        scores = {name: [0.0] * RECORDS for name in "abc"}
        for output in h.outputs("reports"):
            scores[output.value.stream][output.value.number] = output.value.score
        assert h.counters("NoveltyDetector").late == 0
    assert scores == by_numpy(rows)


@pytest.mark.parametrize("seed", [None, 5])
def test_live_tasks_score_as_the_functions_do(tmp_path: Path, seed: int | None):
    rows = made()
    write(rows, tmp_path / "replay", files=4)
    kept = Kept()
    live = Live(build(replay(tmp_path / "replay"), reports=kept))
    live.clock_us = 60 * 365 * mr.DAY
    live.boot()
    if seed is not None:
        live.play(random.Random(seed), turns=60, crash=0.05, mark=0.1)
    live.finish()
    scores = {name: [0.0] * RECORDS for name in "abc"}
    for row in kept.rows:
        scores[row["stream"]][row["number"]] = row["score"]
    assert scores == by_numpy(rows)


def test_the_pipeline_reports_the_same_in_any_order_and_through_a_crash():
    made = {"a": sinus(), "b": sinus(seed=2)}
    wanted = {
        (name, number, score)
        for name, values in made.items()
        for number, score in enumerate(novelty(Known(), times(), values))
        if score
    }
    readings = [
        (Reading(name, number, value), int(times()[number]) * mr.SECOND)
        for name, values in made.items()
        for number, value in enumerate(values)
    ]
    random.Random(3).shuffle(readings)

    with mr.testing.Harness(build()) as h:
        h.inject("readings", readings)
        h.advance_watermark("readings", 500 * STEP_S * mr.SECOND)
        h.crash()
        h.advance_watermark("readings", mr.MAX_TIMESTAMP)
        reports = [output.value for output in h.outputs("reports")]

    assert {(each.stream, each.number, each.score) for each in reports} == wanted
    assert len(reports) == len(wanted)
