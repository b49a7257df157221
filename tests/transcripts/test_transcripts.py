"""Every transcript, in the Harness; the same files run on Spark in ``tests/spark``."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from realtime_transcripts import OnRealTime

from millrace.model.errors import PipelineError
from millrace.testing import Transcript, TranscriptMismatch, play, read_transcripts
from millrace.testing.player import OnHarness
from tests.transcripts.asking import NAMES

HERE = Path(__file__).parent

#: Orders, and batches, in which each is tried; and with ``--fast``.
SEEDS = 10
FAST_SEEDS = 1


def written(folder: Path) -> list[Any]:
    """Return the transcripts of a folder: a file may hold several documents."""
    return [
        pytest.param(transcript, id=f"{path.stem}: {transcript.name}")
        for path in sorted(folder.glob("*.yaml"))
        for transcript in read_transcripts(path, names=NAMES)
    ]


def begins_by_itself(transcript: Transcript) -> bool:
    return bool(transcript.pipeline().starts)


@pytest.mark.parametrize("lift", [False, True], ids=["", "lifted"])
@pytest.mark.parametrize("transcript", written(HERE) + written(HERE / "figures"))
def test_transcript(transcript: Transcript, lift: bool, pytestconfig: pytest.Config) -> None:
    seeds = FAST_SEEDS if pytestconfig.getoption("fast") else SEEDS
    for variant, changed in transcript.variants(seeds=seeds):
        executor = OnHarness(changed, lift=lift)
        try:
            play(changed, executor)
        except TranscriptMismatch as mismatch:
            mismatch.add_note(f"with its records {variant}")
            raise
        executor.harness.close()


@pytest.mark.parametrize("lift", [False, True], ids=["", "lifted"])
@pytest.mark.parametrize("transcript", written(HERE) + written(HERE / "figures"))
def test_transcript_in_real_time(transcript: Transcript, lift: bool) -> None:
    if begins_by_itself(transcript):
        with pytest.raises(PipelineError, match="keys that begin by themselves"):
            OnRealTime(transcript, lift=lift)
        return
    play(transcript, OnRealTime(transcript, lift=lift))


@pytest.mark.parametrize("transcript", written(HERE) + written(HERE / "figures"))
def test_windows_may_be_assigned_before_the_grouping(transcript: Transcript) -> None:
    early = replace(transcript, settings={**transcript.settings, "assign": True})

    play(early, OnHarness(early))


@pytest.mark.parametrize("transcript", written(HERE / "wrong"))
def test_a_wrong_transcript_is_rejected(transcript: Transcript) -> None:
    with pytest.raises(
        TranscriptMismatch, match=r"(?s)step.*:\n  expected panes\n.*found\n.*pane \d+ of key"
    ):
        play(transcript, OnHarness(transcript))


@pytest.mark.parametrize("transcript", written(HERE) + written(HERE / "figures"))
def test_a_crash_after_every_step_changes_nothing(transcript: Transcript) -> None:
    steps: list[Any] = []
    for step in transcript.steps:
        steps += [step] if step[0] == "panes" else [step, ("crash", None)]
    crashing = replace(transcript, steps=tuple(steps))

    play(crashing, OnHarness(crashing))
    if not begins_by_itself(transcript):
        play(crashing, OnRealTime(crashing, lift=True))
