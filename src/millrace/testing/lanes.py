"""Lanes: transcripts on their way through a timetable, and which of them share a stream."""

from __future__ import annotations

from typing import Any

import msgspec

from millrace.testing.transcript import Element, Transcript

#: Steps that move a low watermark.
TIME = ("watermark", "percentile")

#: Each injected stream costs a branch of the plan, and each low watermark on it an epoch; so a
#: stream is shared until it has so many.
_SHARED_MAX = 8


class Line(msgspec.Struct, frozen=True):
    """An element on its way to a transcript.

    Attributes:
        grouping: Number of the grouping.
        key: Of the element; ``<number of the transcript>|<key>`` where transcripts share the
            grouping.
        value: As JSON, for one column has the values of all.
    """

    grouping: int
    key: str
    value: str


class Lane:
    """How far one transcript has come.

    Attributes:
        looks: For each ``panes`` step that was passed, and for the end, the epochs before it.
        took: Whether it has taken a step in the epoch that is being made.
        shares: Whether other transcripts have the same grouping.
    """

    def __init__(self, number: int, transcript: Transcript, stream: str, grouping: int) -> None:
        self.number = number
        self.transcript = transcript
        self.stream = stream
        self.grouping = grouping
        self.looks: list[int] = []
        self.took = False
        self.shares = False
        self._taken = 0

    @property
    def step(self) -> tuple[str, Any]:
        """The next step; of kind ``end`` after the last."""
        steps = self.transcript.steps
        return steps[self._taken] if self._taken < len(steps) else ("end", None)

    @property
    def crashes(self) -> bool:
        """Whether a crash is among the steps that are left."""
        return any(kind == "crash" for kind, _ in self.transcript.steps[self._taken :])

    def take(self) -> None:
        """Go on to the next step."""
        self._taken += 1
        self.took = True

    def looks_at(self, epochs: int) -> bool:
        """Pass the ``panes`` that come now, after so many epochs; return whether a step is left."""
        while self.step[0] == "panes":
            self.looks.append(epochs)
            self._taken += 1
        if self.step[0] == "end":
            if self._taken == len(self.transcript.steps):
                self.looks.append(epochs)
                self._taken += 1
            return False
        return True

    def lines(self, elements: tuple[Element, ...]) -> list[tuple[str, Line, int]]:
        """Return elements on their way here: stream, line, and timestamp."""
        return [
            (
                self.stream,
                Line(
                    self.grouping,
                    f"{self.number}|{each.key}" if self.shares else each.key,
                    msgspec.json.encode(each.value).decode(),
                ),
                each.timestamp_us,
            )
            for each in elements
        ]


class Sharing:
    """Says which transcripts share an injected stream."""

    def __init__(self) -> None:
        self._streams = 0
        self._exact: dict[Any, int] = {}
        self._loose: dict[int, set[Any]] = {}

    def stream_of(self, transcript: Transcript) -> int:
        """Return the number of a transcript's stream."""
        clock_us, clocked, moments = 0, False, []
        for kind, what in transcript.steps:
            if kind == "clock":
                clock_us, clocked = what, True
            elif kind in TIME:
                moments.append((clock_us, kind, what))
        if clocked:
            # One that waits for the clock holds a low watermark back for which another waits.
            if tuple(moments) not in self._exact:
                self._exact[tuple(moments)] = self._new()
            return self._exact[tuple(moments)]
        named = {(kind, what) for _, kind, what in moments}
        for number, known in self._loose.items():
            if len(known | named) <= max(_SHARED_MAX, len(known)):
                known |= named
                return number
        number = self._new()
        self._loose[number] = named
        return number

    def _new(self) -> int:
        self._streams += 1
        return self._streams - 1
