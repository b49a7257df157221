"""Play: a transcript run by an executor, and what comes compared with what it expects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from millrace.model.errors import PipelineError
from millrace.testing.harness import Harness
from millrace.testing.output import Output
from millrace.testing.transcript import Element, Transcript, time_us


class TranscriptMismatch(AssertionError):
    """An executor did not do what a transcript says."""


class Executor(Protocol):
    """Runs a transcript's pipeline."""

    def records(self, elements: tuple[Element, ...]) -> None:
        """Deliver records, at once and in order."""

    def watermark(self, to_us: int) -> None:
        """Advance the low watermark."""

    def percentile(self, percentile_to_us: tuple[int, int]) -> None:
        """Advance a percentile of the low watermark."""

    def clock(self, to_us: int) -> None:
        """Advance the wall clock."""

    def crash(self) -> None:
        """Forget all soft state."""

    def panes(self) -> list[Output]:
        """Return all panes so far, in order for each key."""


class OnHarness:
    """Runs a transcript in the Harness.

    Args:
        transcript: To be run.
        lift: Whether values are combined before they are shuffled, where that changes nothing.
    """

    def __init__(self, transcript: Transcript, *, lift: bool = False) -> None:
        self.harness = Harness(transcript.pipeline(), lift=lift)

    def records(self, elements: tuple[Element, ...]) -> None:
        """Inject them as one epoch."""
        self.harness.inject("elements", [((e.key, e.value), e.timestamp_us) for e in elements])

    def watermark(self, to_us: int) -> None:
        """Publish it."""
        self.harness.advance_watermark("elements", to_us)

    def percentile(self, percentile_to_us: tuple[int, int]) -> None:
        """Publish it."""
        percentile, to_us = percentile_to_us
        self.harness.advance_watermark("elements", to_us, percentile=percentile)

    def clock(self, to_us: int) -> None:
        """Set it."""
        self.harness.advance_clock(to_us)

    def crash(self) -> None:
        """Recover from the store."""
        self.harness.crash()

    def panes(self) -> list[Output]:
        """Return the outputs."""
        return self.harness.outputs("panes")


def play(transcript: Transcript, executor: Executor) -> None:
    """Run a transcript, and compare.

    Raises:
        TranscriptMismatch: A pane is missing, is another, or is too many.
    """
    seen = 0
    for number, (kind, what) in enumerate([*transcript.steps, ("panes", ())], 1):
        if kind == "panes":
            found = executor.panes()
            new, seen = found[seen:], len(found)
            _compare(transcript, number, what, new)
        elif kind == "crash":
            executor.crash()
        else:
            getattr(executor, kind)(what)


def _compare(
    transcript: Transcript, number: int, expected: tuple[dict[str, Any], ...], found: list[Output]
) -> None:
    unordered = transcript.settings["aggregate"].startswith("group")
    wanted: dict[Any, list[dict[str, Any]]] = {}
    for pane in expected:
        wanted.setdefault(pane.get("key"), []).append(pane)
    if None in wanted:  # of a transcript with one key, which need not be named
        wanted = {found[0].key if found else None: wanted[None]}
    got: dict[Any, list[Output]] = {}
    for output in found:
        got.setdefault(output.key, []).append(output)
    same = wanted.keys() == got.keys() and all(
        len(wanted[key]) == len(got[key])
        and all(
            _matches(pane, output, unordered=unordered)
            for pane, output in zip(wanted[key], got[key], strict=True)
        )
        for key in wanted
    )
    if not same:
        lines = "\n".join(f"    {pane}" for pane in expected) or "    none"
        panes = "\n".join(f"    {_shown(output)}" for output in found) or "    none"
        raise TranscriptMismatch(
            f"transcript {transcript.name!r}, step {number}:\n  expected panes\n{lines}\n"
            f"  found\n{panes}"
        )


def _matches(expected: Mapping[str, Any], output: Output, *, unordered: bool) -> bool:
    found = _shown(output)
    for name, wanted in expected.items():
        if name not in found:
            raise PipelineError(f"a pane has no {name!r}; it has {sorted(found)}.")
        value = found[name]
        if name == "window":
            wanted = [None if at is None else time_us(at) for at in wanted or (None, None)]
        elif name in ("timestamp", "production_time"):
            wanted = time_us(wanted)
        elif name == "value" and unordered:
            value, wanted = sorted(value), sorted(wanted)
        if value != wanted:
            return False
    return bool(found["retraction"] == expected.get("retraction", False))


def _shown(output: Output) -> dict[str, Any]:
    pane = output.pane
    return {
        "key": output.key, "window": [pane.window.start, pane.window.end], "value": output.value,
        "timing": str(pane.timing), "retraction": pane.retraction, "index": pane.index,
        "is_first": pane.is_first, "is_last": pane.is_last, "timestamp": output.timestamp,
        "production_time": pane.production_time, "percentile": pane.percentile,
        "trigger": pane.trigger,
    }  # fmt: skip
