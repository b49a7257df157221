"""Event time by ingress: windows of the processing clock, with a low watermark that follows it."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

import millrace as mr
from millrace.model.errors import PipelineError


class Counts(mr.sources.Injector):
    """A process that has as many records as it is told."""

    schema = "word string"

    def __init__(self) -> None:
        self.words: list[str] = []

    def processes(self) -> list[str]:
        return ["all"]

    def advance(self, process: str, offset: Any) -> mr.sources.Advance:
        return mr.sources.Advance(len(self.words))

    def read(self, process: str, start: Any, end: Any) -> list[tuple[str]]:
        return [(word,) for word in self.words[start or 0 : end]]


def pipeline(source: Any = None, **options: Any) -> mr.Pipeline:
    p = mr.Pipeline("ingress")
    words = p.inject("words", source, timestamp=mr.INGRESS, format=str, **options)
    words.key_by(lambda word: word).window(mr.FixedWindows("1 min")).count().to("counts")
    return p


def panes(h: mr.testing.Harness) -> list[tuple[Any, ...]]:
    return [
        (out.key, out.value, out.pane.window.start // mr.MINUTE, str(out.pane.timing))
        for out in h.outputs("counts")
    ]


def test_windows_go_by_the_clock_at_which_records_are_read() -> None:
    with mr.testing.Harness(pipeline(), publish=True) as h:
        h.advance_clock(50 * mr.SECOND)
        h.inject("words", [("tea", None), ("milk", None)])
        h.advance_clock(59 * mr.SECOND)
        h.inject("words", [("tea", None)])
        assert panes(h) == []
        h.advance_clock(60 * mr.SECOND)
        h.inject("words", [("tea", None)])
        assert sorted(panes(h)) == [("milk", 1, 0, "ON_TIME"), ("tea", 2, 0, "ON_TIME")]
        h.advance_clock(119 * mr.SECOND)
        assert len(panes(h)) == 2
        # Nothing comes, and the low watermark follows all the same.
        h.advance_clock(120 * mr.SECOND)

    assert panes(h)[2:] == [("tea", 1, 1, "ON_TIME")]
    assert {out.timestamp for out in h.outputs("words")} == {s * mr.SECOND for s in (50, 59, 60)}


def test_an_injector_s_rows_need_no_time() -> None:
    source = Counts()
    with mr.testing.Harness(pipeline(source), publish=True) as h:
        h.advance_clock(5)
        source.words += ["tea"]
        h.poll("words")
        assert [(out.value, out.timestamp) for out in h.outputs("words")] == [("tea", 5)]


@pytest.mark.parametrize("seed", range(5))
def test_a_record_has_the_time_of_its_first_attempt_whenever_the_process_dies(seed: int) -> None:
    """Each is in one window, none is late, and the input's records say which."""
    draw = random.Random(seed)
    p = pipeline()
    p.late_records("late")
    with mr.testing.Harness(p, publish=True) as h:
        clock = 0
        for _ in range(30):
            clock += draw.randrange(20) * mr.SECOND
            if draw.random() < 0.5:
                h.crash_in_next_epoch(draw.randrange(8))
            h.advance_clock(clock)
            if draw.random() < 0.5:
                h.crash_in_next_epoch(draw.randrange(8))
            h.inject("words", [(draw.choice("ab"), None) for _ in range(draw.randrange(1, 4))])
        for _ in range(3):
            clock += mr.MINUTE
            h.advance_clock(clock)

    expected = Counter((out.value, out.timestamp // mr.MINUTE) for out in h.outputs("words"))
    assert {(key, at): n for key, n, at, _ in panes(h)} == expected
    assert len(panes(h)) == len(expected)
    assert h.late_records() == []


def test_what_makes_no_sense_is_refused() -> None:
    h = mr.testing.Harness(pipeline())
    with pytest.raises(PipelineError, match=r"event time by ingress.*\(value, None\)"):
        h.inject("words", [("tea", 5)])
    with pytest.raises(PipelineError, match="gives the unit of a column"):
        pipeline(unit="ms")
    p = mr.Pipeline("p")
    with pytest.raises(PipelineError, match=r"timestamp=7\): expected the name of a column, or mr"):
        p.inject("words", timestamp=7)  # type: ignore[arg-type]


def test_it_is_explained() -> None:
    assert "event time by ingress" in str(pipeline(Counts()).explain())
