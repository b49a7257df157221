"""process_available waits for all that is there, and for no longer than that."""

from __future__ import annotations

from typing import Any

import millrace as mr


class Echo(mr.Computation):
    inputs = {"words": mr.by("word")}
    outputs = {"echoes": str}

    def process_record(self, record: mr.Record) -> None:
        self.produce("echoes", record.value["word"])


def _pipeline(tools: Any) -> tuple[mr.Pipeline, Any, Any]:
    feed, sink = tools.feed("word string, at long"), tools.Kept()
    p = mr.Pipeline("echo")
    p.inject("words", feed.stream, timestamp="at", low_watermark=mr.BoundedDelay("1 s"))
    p.add(Echo)
    p.sink("echoes", sink)
    return p, feed, sink


def test_records_that_move_no_low_watermark_are_waited_for(tools: Any) -> None:
    p, feed, sink = _pipeline(tools)
    feed.add(("a", 100))
    run = tools.start(p)
    tools.step(run)

    feed.add(("b", 50))
    assert run.process_available("60 s")

    assert sink.values == ["a", "b"]


def test_each_call_sees_what_was_added_before_it(tools: Any) -> None:
    """On a clock that is behind the machine's, epochs follow each other without a pause."""
    p, feed, sink = _pipeline(tools)
    run = tools.start(p, clock=lambda: 1_000_000)
    tools.step(run)
    for n in range(8):
        feed.add((f"w{n}", n))
        assert run.process_available("60 s")
        assert sink.values == [f"w{m}" for m in range(n + 1)]
