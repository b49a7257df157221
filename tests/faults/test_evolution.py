"""The Zeitgeist pipeline through all its versions, on one checkpoint, with crashes in between."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pandas as pd
import pytest

import millrace as mr
from millrace.model.errors import CheckpointMismatch
from millrace_examples.zeitgeist import backfill, evolution, flights
from millrace_examples.zeitgeist.pipeline import build
from millrace_examples.zeitgeist.records import Anomaly, Departure

#: Small routes: those had episodes before July, after it, or over it.
ROUTES = (
    "EWR-ALB", "EWR-BDL", "EWR-CMH", "EWR-PVD", "EWR-ROC", "LGA-BTV", "LGA-CVG", "LGA-GSO",
    "LGA-MSN", "LGA-ORF",
)  # fmt: skip

Batch = tuple[pd.Timestamp, list[tuple[Departure, int]]]


@pytest.fixture(scope="module")
def weeks() -> list[Batch]:
    """The departures of some routes, a batch for each week in which they departed."""
    there = flights.arrivals(flights.read_scheduled())
    there = there.assign(key=there["origin"] + "-" + there["destination"])
    there = there[there["key"].isin(ROUTES)]
    found = []
    for week, rows in there.groupby(there["departed"].dt.floor("7D")):
        assert isinstance(week, pd.Timestamp)
        at_us = rows["scheduled"].astype("int64").tolist()
        departures = [Departure(key) for key in rows["key"]]
        found.append((week, list(zip(departures, at_us, strict=True))))
    return found


@pytest.fixture(scope="module")
def final(weeks: list[Batch]) -> list[Anomaly]:
    """What the final code finds that runs from the start."""
    with mr.testing.Harness(build()) as h:
        for _ in weekly(h, weeks):
            pass
        return anomalies(h)


def weekly(h: mr.testing.Harness, weeks: list[Batch]) -> Iterator[pd.Timestamp]:
    for week, departures in weeks:
        yield week
        h.inject("departures", departures)
        h.advance_watermark("departures", us(week) + 7 * mr.DAY - 3 * mr.HOUR)


def anomalies(h: mr.testing.Harness) -> list[Anomaly]:
    h.advance_watermark("departures", mr.MAX_TIMESTAMP)
    found = [output.value for output in h.outputs("anomalies")]
    return sorted(found, key=lambda one: (one.start, one.key, one.kind))


def us(at: pd.Timestamp) -> int:
    return int(at.value) // 1000


@pytest.mark.parametrize("seed", range(2))
def test_a_year_of_changes_finds_what_the_final_code_finds(
    weeks: list[Batch], final: list[Anomaly], seed: int
) -> None:
    dice, versions = random.Random(seed), list(evolution.VERSIONS)
    switched = us(pd.Timestamp(versions[-1].since, tz="UTC")) + 7 * mr.DAY
    with mr.testing.Harness(versions.pop(0).pipeline()) as h:
        for week in weekly(h, weeks):
            if versions and week >= pd.Timestamp(versions[0].since, tz="UTC"):
                h.update(versions.pop(0).pipeline())
                if versions:  # the program of before can go on, too, until something is dropped
                    h.crash()
            if dice.random() < 0.5:
                h.crash_in_next_epoch(dice.randrange(40))
        # Every day of the tally was counted to its end, and nothing of it is left.
        assert len({output.value.bucket for output in h.outputs("tallies")}) >= 92
        assert not h._durable.commits.numbers("Tally")
        found = anomalies(h)
        heard = dict[str, int]()
        for prediction in (o.value for o in h.outputs("models") if o.timestamp >= switched):
            heard[prediction.key] = min(prediction.bucket, heard.get(prediction.key, 2**62))

    # A detector judges a key from the first bucket on that was predicted since it is there.
    def comparable(one: Anomaly) -> bool:
        return one.start >= max(switched + evolution.BLIND_US, heard.get(one.key, 2**62))

    assert not versions
    expected = list(filter(comparable, final))
    assert list(filter(comparable, found)) == expected
    assert len(expected) >= 5
    assert len(final) > len(expected)  # in the first half nobody looked for any


def test_a_model_of_the_first_half_is_switched_on_in_the_second(
    weeks: list[Batch], final: list[Anomaly]
) -> None:
    dice = random.Random(2013)
    before = [one for one in weeks if one[0] + pd.Timedelta("7D") <= backfill.SWITCHED_ON]
    rest = weeks[len(before) :]
    with mr.testing.Harness(backfill.first_half()) as h:
        for _ in weekly(h, before):
            pass
        h.update(backfill.second_half())
        # While the stream goes on, the files are read, in which there is more than the first half.
        for _ in weekly(h, rest[:2]):
            h.crash_in_next_epoch(dice.randrange(40))
        for week, departures in weeks[: len(before) + 3]:
            h.crash_in_next_epoch(dice.randrange(40))
            h.inject("first half", departures)
            h.advance_watermark("first half", us(week) + 7 * mr.DAY - 3 * mr.HOUR)
        h.advance_watermark("first half", mr.MAX_TIMESTAMP)
        h.update(backfill.second_half(past=False))
        for _ in weekly(h, rest[2:]):
            pass
        found = anomalies(h)
        daily = sum(output.value.count for output in h.outputs("daily"))
    assert found == final
    assert daily == sum(len(departures) for _, departures in weeks)


def test_each_version_says_what_it_changes_and_the_one_before_may_come_back() -> None:
    p = {version.since[5:7]: version.pipeline for version in evolution.VERSIONS}
    with mr.testing.Harness(p["01"]()) as h:
        h.inject("departures", [(Departure("JFK"), mr.HOUR)])
        h.advance_watermark("departures", mr.DAY)
        h.update(p["03"]())
        with pytest.raises(CheckpointMismatch, match=r"say so: p\.remove\('Tally'\)"):
            h.update(p["01"]())
        h.update(p["04"]())
        with pytest.raises(CheckpointMismatch, match="was Model, is ListedModel now"):
            h.update(p["03"]())  # the model is in the new format, and there is no way back
        h.update(p["06"]())
        h.update(p["04"]())
        h.update(p["06"]())
        h.update(p["07"]())
        assert h.checkpoint().computations == [
            "DipDetector", "ModelCalculator", "SpikeDetector", "WindowCounter",
        ]  # fmt: skip
