"""Every transcript and figure on Spark, all in one query; the same files as in ``transcripts/``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import millrace as mr
from millrace.testing import Transcript, TranscriptMismatch, play, read_transcripts, run_on_spark
from millrace.testing.player import OnHarness
from millrace.testing.timetable import Played
from tests.transcripts.asking import NAMES

TRANSCRIPTS = Path(__file__).parents[1] / "transcripts"
RIGHT = read_transcripts(TRANSCRIPTS, names=NAMES) + read_transcripts(TRANSCRIPTS / "figures")
WRONG = read_transcripts(TRANSCRIPTS / "wrong")

#: What Spark made of transcripts, by name: the variant, the transcript, and what plays it back.
Runs = dict[str, list[tuple[str, Transcript, Played]]]


def run(spark: SparkSession, transcripts: list[Transcript], **how: Any) -> Runs:
    variants = [variant for each in transcripts for variant in each.variants()]
    variants += [("unlifted", unlifted(each)) for each in transcripts if each.is_lifted]
    if not how.get("batch"):
        variants.append(("restarted", restarted(transcripts[-1])))
    found: Runs = {}
    runs = run_on_spark(spark, [changed for _, changed in variants], **how)
    for (variant, changed), played in zip(variants, runs, strict=True):
        found.setdefault(changed.name, []).append((variant, changed, played))
    return found


def restarted(transcript: Transcript) -> Transcript:
    """Return it with another run amid its steps, for all that are run with it."""
    half = len(transcript.steps) // 2
    steps = (*transcript.steps[:half], ("crash", None), *transcript.steps[half:])
    return replace(transcript, steps=steps)


def unlifted(transcript: Transcript) -> Transcript:
    return replace(transcript, settings={**transcript.settings, "lift": False})


def compare(runs: Runs, transcript: Transcript) -> None:
    for variant, changed, executor in runs[transcript.name]:
        try:
            play(changed, executor)
        except TranscriptMismatch as mismatch:
            mismatch.add_note(f"with its records {variant}")
            raise


STREAMING = [each for each in RIGHT if not each.needs_batch]
BATCH = [each for each in RIGHT if each.is_batch]


@pytest.fixture(scope="module")
def streamed(spark: SparkSession) -> Runs:
    return run(spark, WRONG + STREAMING)


@pytest.fixture(scope="module")
def in_batch(spark: SparkSession) -> Runs:
    return run(spark, BATCH, batch=True)


@pytest.mark.parametrize("transcript", STREAMING, ids=lambda transcript: transcript.name)
def test_transcript(transcript: Transcript, streamed: Runs) -> None:
    compare(streamed, transcript)


@pytest.mark.parametrize("transcript", BATCH, ids=lambda transcript: transcript.name)
def test_transcript_in_batch(transcript: Transcript, in_batch: Runs) -> None:
    compare(in_batch, transcript)


@pytest.mark.parametrize(
    "transcript", [each for each in STREAMING if each.name.startswith("FIG.")], ids=lambda t: t.name
)
def test_a_figure_of_the_rows_of_a_sink_is_that_of_the_harness(
    transcript: Transcript, streamed: Runs
) -> None:
    harness, mode = OnHarness(transcript), transcript.settings["mode"]
    play(transcript, harness)
    (_, _, executor), *_ = streamed[transcript.name]

    ours = mr.plot.panes(harness.harness, "panes")
    theirs = mr.plot.panes(executor.outputs, watermark=harness.harness, mode=getattr(mr, mode))

    assert drawn(theirs) == drawn(ours)


def drawn(figure: Any) -> Any:
    (axes,) = figure.axes
    return (
        [patch.get_xy().tolist() for patch in axes.patches],
        [(text.get_text(), text.get_position()) for text in axes.texts],
    )


def test_transcripts_are_run_lifted_and_unlifted(streamed: Runs, in_batch: Runs) -> None:
    """Their panes are compared with the others'."""
    for runs, least in ((streamed, 6), (in_batch, 3)):
        found = [name for name, of in runs.items() if "unlifted" in {v for v, _, _ in of}]
        assert len(found) >= least, found


def test_each_transcript_is_run() -> None:
    assert {id(each) for each in RIGHT} == {id(each) for each in STREAMING + BATCH}


@pytest.mark.parametrize("transcript", WRONG, ids=lambda transcript: transcript.name)
def test_a_wrong_transcript_is_rejected_with_the_words_of_the_harness(
    transcript: Transcript, streamed: Runs
) -> None:
    with pytest.raises(TranscriptMismatch, match=r"(?s)expected panes\n.*found\n") as expected:
        play(transcript)
    for variant, changed, played in streamed[transcript.name]:
        with pytest.raises(TranscriptMismatch) as found:
            play(changed, played)
        if variant == "as written":
            assert str(found.value) == str(expected.value)
