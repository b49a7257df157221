"""Every transcript, in the Harness; the same files run on Spark in ``tests/spark``."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from millrace.testing.play import OnHarness, TranscriptMismatch, play
from millrace.testing.transcript import Transcript

HERE = Path(__file__).parent

#: Orders, and batches, in which each is tried.
SEEDS = 10


def written(folder: Path) -> list[Any]:
    """Return the transcripts of a folder: a file may hold several documents."""
    return [
        pytest.param(Transcript.of(document), id=f"{path.stem}: {document['name']}")
        for path in sorted(folder.glob("*.yaml"))
        for document in yaml.safe_load_all(path.read_text())
    ]


@pytest.mark.parametrize("lift", [False, True], ids=["", "lifted"])
@pytest.mark.parametrize("transcript", written(HERE) + written(HERE / "figures"))
def test_transcript(transcript: Transcript, lift: bool) -> None:
    for variant, changed in transcript.variants(seeds=SEEDS):
        executor = OnHarness(changed, lift=lift)
        try:
            play(changed, executor)
        except TranscriptMismatch as mismatch:
            mismatch.add_note(f"with its records {variant}")
            raise
        executor.harness.close()


@pytest.mark.parametrize("transcript", written(HERE) + written(HERE / "figures"))
def test_windows_may_be_assigned_before_the_grouping(transcript: Transcript) -> None:
    early = replace(transcript, settings={**transcript.settings, "assign": True})

    play(early, OnHarness(early))


@pytest.mark.parametrize("transcript", written(HERE / "wrong"))
def test_a_wrong_transcript_is_rejected(transcript: Transcript) -> None:
    with pytest.raises(TranscriptMismatch, match=r"(?s)step \d+:.*expected panes\n.*found\n"):
        play(transcript, OnHarness(transcript))


@pytest.mark.parametrize("transcript", written(HERE) + written(HERE / "figures"))
def test_a_crash_after_every_step_changes_nothing(transcript: Transcript) -> None:
    steps: list[Any] = []
    for step in transcript.steps:
        steps += [step] if step[0] == "panes" else [step, ("crash", None)]
    crashing = Transcript(transcript.name, transcript.settings, tuple(steps))

    play(crashing, OnHarness(crashing))
