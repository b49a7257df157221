"""The real-time plane on Spark beside transcripts and the Harness, in one session.

``live_oracles.py`` is the program that runs the cases.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.spark import test_transcripts
from tests.spark.test_transcripts import Runs

from millrace.testing import Transcript, TranscriptMismatch, play

PROGRAM = Path(__file__).with_name("live_oracles.py")

#: Returns what a case has found; raises what the case did.
Case = Callable[[str], Any]

#: Transcripts that are not played in real time, and why.
NOT_IN_REAL_TIME = {
    "a percentile, then the low watermark, then late records": "sets a percentile",
    "merging sessions wait for the percentile of the merged window": "sets a percentile",
}
PLAYED = [one for one in test_transcripts.STREAMING if one.name not in NOT_IN_REAL_TIME]


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory, program: Any) -> Iterator[Case]:
    root = tmp_path_factory.mktemp("oracles")
    ran = program(PROGRAM, root)

    def found(name: str) -> Any:
        file = root / f"{name}.pickle"
        assert file.exists(), ran.output()
        return pickle.loads(file.read_bytes()).what

    try:
        assert ran.process.wait(900) == 0, ran.output()
        yield found
    finally:
        ran.end()


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


def test_panes_in_real_time_are_those_of_the_harness(case: Case) -> None:
    case("windows")
