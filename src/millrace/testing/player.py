"""Player: runs a transcript on an executor, and compares its panes with the expected ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import msgspec

from millrace.model.errors import PipelineError
from millrace.testing.harness import Harness
from millrace.testing.output import Output
from millrace.testing.transcript import Transcript, TranscriptElement, time_us


class TranscriptMismatch(AssertionError):
    """An executor did not do what a transcript says."""


class Executor(Protocol):
    """Runs a transcript's pipeline."""

    def records(self, elements: tuple[TranscriptElement, ...]) -> None:
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

    def records(self, elements: tuple[TranscriptElement, ...]) -> None:
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


def play(transcript: Transcript, executor: Executor | None = None) -> None:
    """Run a transcript, and compare.

    Args:
        transcript: To be run.
        executor: What runs it; by default a Harness. On Spark:
            :func:`millrace.testing.play_on_spark`.

    Raises:
        TranscriptMismatch: A pane is missing, is another, or is too many. It says after which step,
            what was expected, what came, and where they differ first.

    >>> hour = {
    ...     "name": "a sum when the window is over",
    ...     "windows": "FixedWindows(10)",
    ...     "steps": [
    ...         {"records": {"red": ["5@1", "7@9"]}},
    ...         {"watermark": 10},
    ...         {"panes": [{"key": "red", "value": 13}]},
    ...     ],
    ... }
    >>> play(Transcript.of(hour))
    Traceback (most recent call last):
    millrace.testing.player.TranscriptMismatch: transcript 'a sum when the window is over', step 3:
      expected panes
        {'key': 'red', 'value': 13}
      found
        {'key': 'red', 'window': [0, 10], 'value': 12, 'timing': 'ON_TIME'}
      pane 1 of key 'red': value is 12, expected 13
    """
    executor = OnHarness(transcript) if executor is None else executor
    seen = 0
    for number, (kind, what) in enumerate([*transcript.steps, ("panes", ())], 1):
        if kind == "panes":
            found = executor.panes()
            new, seen = found[seen:], len(found)
            where = f"step {number}" if number <= len(transcript.steps) else "after the last step"
            _compare(transcript, where, what, new)
        elif kind == "crash":
            executor.crash()
        else:
            getattr(executor, kind)(what)


def _compare(
    transcript: Transcript, where: str, expected: tuple[dict[str, Any], ...], found: list[Output]
) -> None:
    unordered = transcript.settings["aggregate"].startswith("group")
    wanted: dict[Any, list[dict[str, Any]]] = {}
    for pane in expected:
        wanted.setdefault(str(pane["key"]) if "key" in pane else None, []).append(pane)
    if None in wanted:  # of a transcript with one key, which need not be named
        wanted = {found[0].key if found else None: wanted[None]}
    got: dict[Any, list[dict[str, Any]]] = {}
    for output in sorted(found, key=lambda output: str(output.key)):  # of keys there is no order
        got.setdefault(output.key, []).append(_plain_output(output))
    for key in sorted({**wanted, **got}, key=str):
        differs = _difference(wanted.get(key, []), got.get(key, []), unordered=unordered)
        if differs is None:
            continue
        named = {name for pane in expected for name in pane} | _NAMED
        panes = [
            {
                name: what
                for name, what in pane.items()
                if name in named or (name == "retraction" and what)
            }
            for of_key in got.values()
            for pane in of_key
        ]
        raise TranscriptMismatch(
            f"transcript {transcript.name!r}, {where}:\n"
            f"  expected panes\n{_lines(expected)}\n  found\n{_lines(panes)}\n"
            f"  pane {differs[0]} of key {key!r}: {differs[1]}"
        )


def _difference(
    wanted: list[dict[str, Any]], got: list[dict[str, Any]], *, unordered: bool
) -> tuple[int, str] | None:
    """Return the number of the first pane of a key that is not as expected, and how so."""
    for number, (expected, found) in enumerate(zip(wanted, got, strict=False), 1):
        for name, given in {"retraction": False, **expected}.items():
            if name not in found and name != "retraction":
                raise PipelineError(f"a pane has no {name!r}; it has {sorted(found)}.")
            value, want = found.get(name, False), _meant(name, given)
            as_one = unordered and name == "value" and isinstance(value, list)
            if (_sorted(value) != _sorted(want)) if as_one else value != want:
                return number, f"{name} is {value!r}, expected {want!r}"
    if len(wanted) == len(got):
        return None
    number = min(len(wanted), len(got)) + 1
    return number, "expected, and not found" if len(wanted) > len(
        got
    ) else "found, and not expected"


def _sorted(values: Any) -> Any:
    """Return values that have no order in one, whatever they are."""
    return sorted(values, key=msgspec.json.encode) if isinstance(values, list) else values


def _meant(name: str, given: Any) -> Any:
    if name == "key":
        return str(given)
    if name == "window":
        return [None if at is None else time_us(at) for at in given or (None, None)]
    if name in ("timestamp", "production_time"):
        return time_us(given)
    return _plain(given)


#: What is told of every pane that was found, whatever was expected.
_NAMED = {"key", "window", "value", "timing"}


def _plain_output(output: Output) -> dict[str, Any]:
    fields = {"key": output.key, "value": _plain(output.value), "timestamp": output.timestamp}
    pane = output.pane
    if pane is None:  # of a function of one's own that ends outside of windows
        return fields
    return {
        "key": output.key, "window": [pane.window.start, pane.window.end], "value": fields["value"],
        "timing": str(pane.timing), "retraction": pane.retraction, "index": pane.index,
        "is_first": pane.is_first, "is_last": pane.is_last, "timestamp": output.timestamp,
        "production_time": pane.production_time, "percentile": pane.percentile,
        "trigger": pane.trigger,
    }  # fmt: skip


def _lines(panes: Iterable[Mapping[str, Any]]) -> str:
    return "\n".join(f"    {dict(pane)}" for pane in panes) or "    none"


def _plain(value: Any) -> Any:
    """Return a value as JSON has it: what a transcript can say, and the same from everywhere."""
    return msgspec.json.decode(msgspec.json.encode(value))
