"""The real-time plane on Spark beside transcripts and the Harness, in one session.

``live_oracles.py`` is the program that runs the cases.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from millrace.testing import Transcript, TranscriptMismatch, play
from millrace_examples.nexmark import oracle, results, suite
from tests.spark import test_nexmark, test_transcripts
from tests.spark.test_transcripts import Runs

#: Returns what a case has found; raises what the case did.
Case = Callable[[str], Any]

#: Transcripts that are not played in real time, and why.
NOT_IN_REAL_TIME = {
    "a percentile, then the low watermark, then late records": "sets a percentile",
    "merging sessions wait for the percentile of the merged window": "sets a percentile",
}
PLAYED = [one for one in test_transcripts.STREAMING if one.name not in NOT_IN_REAL_TIME]


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory, live_driver: Any) -> Case:
    found = live_driver("live_oracles", tmp_path_factory.mktemp("oracles"))

    def found_by(name: str) -> Any:
        result, failure = found[name]
        assert not failure, failure
        return result

    return found_by


@pytest.fixture(scope="module")
def transcripts(case: Case) -> Runs:
    runs: Runs = case("transcripts")
    return runs


@pytest.mark.parametrize("transcript", PLAYED, ids=lambda transcript: transcript.name)
def test_transcript_in_real_time(transcript: Transcript, transcripts: Runs) -> None:
    test_transcripts.compare(transcripts, transcript)


@pytest.mark.parametrize("transcript", test_transcripts.WRONG, ids=lambda one: one.name)
def test_a_wrong_transcript_is_rejected_in_real_time(
    transcript: Transcript, transcripts: Runs
) -> None:
    for _, changed, played in transcripts[transcript.name]:
        with pytest.raises(TranscriptMismatch):
            play(changed, played)


def test_all_transcripts_are_played_but_those_that_are_listed(transcripts: Runs) -> None:
    streaming = {one.name for one in test_transcripts.STREAMING}
    wrong = {one.name for one in test_transcripts.WRONG}
    percentiles = {one.name for one in test_transcripts.STREAMING if one.has_percentiles}

    assert set(NOT_IN_REAL_TIME) == percentiles
    assert set(transcripts) == (streaming | wrong) - set(NOT_IN_REAL_TIME)
    killed = [
        name
        for name, runs in transcripts.items()
        if any(kind == "crash" for _, changed, _ in runs for kind, _ in changed.steps)
    ]
    assert len(killed) >= 12, "their crash steps are kills of a worker"


def test_after_each_step_of_everything_real_time_has_done_what_the_harness_has(case: Case) -> None:
    case("same_as_harness")


@pytest.fixture(scope="module")
def nexmark(case: Case) -> Any:
    return case("nexmark")


@pytest.fixture(scope="module")
def database() -> Any:
    return oracle.database((event, 0) for _, event in test_nexmark.MADE)


@pytest.mark.parametrize("query", suite.QUERIES)
def test_nexmark_in_real_time_has_the_rows_of_sql(query: str, nexmark: Any, database: Any) -> None:
    # Of query 12 nobody knows the windows, which are those of the machine's clock.
    verdict = results.compare(query, nexmark["tables"][query], database, clock=False)

    assert verdict.agrees, verdict
    assert verdict.rows >= 2


def test_nexmark_in_real_time_lost_two_workers_amid_twenty_thousand_events(nexmark: Any) -> None:
    events = Counter(stream for stream, _ in test_nexmark.MADE)
    assert sum(events.values()) == 20_000
    assert nexmark["injected"] == events | {"arrivals": events["bids"]}
    assert nexmark["killed"] == [(1, 0), (2, 1)]


def test_panes_in_real_time_are_those_of_the_harness(case: Case) -> None:
    case("windows")
