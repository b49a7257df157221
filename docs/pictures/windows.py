"""Draw the pictures of docs/windows-and-triggers.md: ``python docs/pictures/windows.py``.

They are the Dataflow patent's FIG. 6B to 6J: each is a transcript under ``tests/transcripts``, run
in the Harness. Needs ``pip install 'millrace-spark[plots]'`` and PyYAML.
"""

from __future__ import annotations

from pathlib import Path

import yaml
from matplotlib.figure import Figure

import millrace as mr
from millrace.testing.player import OnHarness, play
from millrace.testing.transcript import Transcript

HERE = Path(__file__).parent
FIGURES = HERE.parents[1] / "tests" / "transcripts" / "figures"


def draw(figure: Path) -> None:
    """Play a figure's transcript, and draw its panes."""
    transcript = Transcript.of(yaml.safe_load(figure.read_text()))
    executor = OnHarness(transcript)
    play(transcript, executor)
    picture = mr.plot.panes(
        executor.harness,
        "panes",
        records="elements",
        value=lambda element: element[1],
        title=transcript.name,
        axes=Figure(figsize=(7, 5.2), layout="constrained").add_subplot(),
    )
    picture.savefig(HERE / f"{figure.stem.replace('_', '-')}.png", dpi=100)


if __name__ == "__main__":
    for figure in sorted(FIGURES.glob("*.yaml")):
        draw(figure)
