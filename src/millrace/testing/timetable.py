"""Timetable: many transcripts side by side in one run, epoch by epoch.

An epoch on Spark costs some tenths of a second whatever is in it, and a query seconds to start. So
transcripts share both, as groupings of one pipeline, and the timetable says what every epoch brings
to all of them: records, low watermarks, the wall clock. Each sees its steps in its order, one an
epoch, as in an executor of its own; with ``rebatch: true``, records come with the clock step before
them. (With a low watermark they cannot: on Spark, what an epoch reads comes after it.)

The wall clock is one: it moves, to the next time that any transcript names, when all wait for it.
Low watermarks move likewise, for those that share an injected stream. Transcripts share one if each
can go on whatever the others do, and sees no more than low watermarks on the way to its own next:
those without clock steps, a few together, and those with the same low watermarks at the same clock.
Of these, transcripts with the same settings, such as the variants of one, share a grouping too, and
have keys of their own. (But not where windows depend on the key.)

Lanes: transcripts on their way through a timetable, and which of them share a stream.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from millrace.injectors.injector import Injector
from millrace.injectors.watermark_policy import WatermarkColumn
from millrace.model.errors import PipelineError
from millrace.model.time import MIN_TIMESTAMP
from millrace.pipeline import Pipeline
from millrace.testing.output import Output
from millrace.testing.transcript import Transcript, TranscriptElement

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

    def lines(self, elements: tuple[TranscriptElement, ...]) -> list[tuple[str, Line, int]]:
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


#: Columns of :meth:`Timetable.rows`, as Spark spells a schema. Of punctuation, what counts is the
#: stream and its low watermark.
COLUMNS = (
    "stream int, grouping int, key string, value string, at bigint, low_watermark bigint, "
    "punctuation boolean"
)


@dataclass
class Epoch:
    """What one epoch brings.

    Attributes:
        clock_us: The wall clock.
        lines: (stream, line, timestamp) of records, in order.
        low_watermarks: Injected stream -> its low watermark from this epoch on.
        percentiles: Percentile -> injected stream -> its low watermark from this epoch on.
        crash: Whether the run loses its soft state when the epoch is over.
    """

    clock_us: int
    lines: list[tuple[str, Line, int]] = field(default_factory=list)
    low_watermarks: dict[str, int] = field(default_factory=dict)
    percentiles: dict[int, dict[str, int]] = field(default_factory=dict)
    crash: bool = False


class Timetable:
    """What each epoch brings to each of several transcripts.

    Args:
        transcripts: Any; a variant is one more.

    Attributes:
        epochs: What they bring. The first brings nothing.
        streams: Names of the injected streams.

    >>> first, second = (
    ...     Transcript.of(
    ...         {
    ...             "name": name,
    ...             "windows": "FixedWindows(10)",
    ...             "steps": [{"records": {"a": [1, 2]}}, {"watermark": end}, {"panes": []}],
    ...         }
    ...     )
    ...     for name, end in [("complete", 10), ("incomplete", 9)]
    ... )
    >>> timetable = Timetable([first, second])
    >>> [epoch.low_watermarks for epoch in timetable.epochs]
    [{}, {}, {'elements-0': 9}, {'elements-0': 10}]
    """

    def __init__(self, transcripts: Iterable[Transcript]) -> None:
        self.transcripts = list(transcripts)
        self.epochs: list[Epoch] = [Epoch(0)]
        groupings: dict[Any, int] = {}
        self._lanes = []
        self.streams: list[str] = []
        sharing = Sharing()
        for number, transcript in enumerate(self.transcripts):
            stream = f"elements-{sharing.stream_of(transcript)}"
            if stream not in self.streams:
                self.streams.append(stream)
            grouping = groupings.setdefault((stream, transcript.identity), len(groupings))
            self._lanes.append(Lane(number, transcript, stream, grouping))
        sizes = Counter(lane.grouping for lane in self._lanes)
        for lane in self._lanes:
            lane.shares = sizes[lane.grouping] > 1
        while self._go_on():
            self.epochs.append(self._next())

    def pipeline(self, sources: Mapping[str, Any] | None = None) -> Pipeline:
        """Return the pipeline: every transcript's grouping, and its panes on stream ``panes``.

        Args:
            sources: Injected stream -> DataFrame with the columns of :data:`COLUMNS` but the first,
                or an injector with those up to ``at``; by default a Harness feeds them.
        """
        p = Pipeline("timetable")
        injected = {
            name: p.inject(
                name,
                None if sources is None else sources[name],
                timestamp=None if sources is None else "at",
                low_watermark=None
                if sources is not None and isinstance(sources[name], Injector)
                else Scripted(self.percentiles(name)),
                format=Line,
            )
            for name in self.streams
        }
        panes = []
        for number, lane in {lane.grouping: lane for lane in self._lanes}.items():
            own = injected[lane.stream].filter(_IsOf(number)).key_by("key").map(_value)
            taken, steps = {*p.computations, *(step.target for step in p.steps)}, len(p.steps)
            made = lane.transcript.grouped(own)
            if twice := sorted(taken & {step.target for step in p.steps[steps:]}):
                raise PipelineError(
                    f"transcript {lane.transcript.name!r}: its grouping "
                    f"{lane.transcript.settings['grouping']!r} names {twice}, and those are named "
                    "already: it is run several times side by side, with other steps. Leave the "
                    "names to who calls it, or play the transcripts one by one."
                )
            panes.append(made.to(f"panes-{number}").map(_AsText(number)))
        panes[0].flatten(*panes[1:]).to("panes", format=str)
        return p

    def rows(self, epoch: int) -> list[dict[str, Any]]:
        """Return the rows of the source that Spark reads in an epoch.

        What a source says of its low watermark in one epoch is published with the next, so these
        are the records of the epoch and the low watermarks of the one after it.
        """
        found = [
            {
                "stream": self.streams.index(stream), "at": at_us,
                "low_watermark": None, "punctuation": False, **msgspec.structs.asdict(line),
            }
            for stream, line, at_us in self.epochs[epoch].lines
        ]  # fmt: skip
        following = self.epochs[epoch + 1 : epoch + 2]
        return found + [
            {
                "stream": self.streams.index(stream), "at": 0, "grouping": -1, "key": "",
                "value": "", "low_watermark": to_us, "punctuation": True,
            }
            for each in following
            for stream, to_us in each.low_watermarks.items()
        ]  # fmt: skip

    def percentiles(self, stream: str) -> list[dict[int, int]]:
        """Return, for each epoch, where the percentiles' low watermarks of a stream are by then."""
        found: list[dict[int, int]] = [{}]
        for epoch in self.epochs:
            said = {p: of[stream] for p, of in epoch.percentiles.items() if stream in of}
            found.append(found[-1] | said)
        return found[1:]

    def played(self, outputs: Sequence[Sequence[Output]]) -> list[Played]:
        """Return an executor for each transcript, in order, that has run already.

        Args:
            outputs: For each epoch, the records of stream ``panes``.
        """
        found: list[list[list[Output]]] = [[[] for _ in self.epochs] for _ in self._lanes]
        alone = {lane.grouping: lane.number for lane in self._lanes if not lane.shares}
        for epoch, of_epoch in enumerate(outputs[: len(self.epochs)]):
            for output in of_epoch:
                grouping, value = msgspec.json.decode(output.value)
                number, key = alone.get(grouping), output.key
                if number is None:
                    mark, bar, key = str(output.key).partition("|")
                    if not bar or not mark.isdigit():
                        raise PipelineError(
                            f"a pane has the key {output.key!r}. Transcripts that share a grouping "
                            "are distinguished by a prefix of their keys, so a function under test "
                            "must not change keys. Or play the transcripts one by one."
                        )
                    number = int(mark)
                found[number][epoch].append(replace(output, key=key, value=value))
        return [Played(found[lane.number], lane.looks) for lane in self._lanes]

    def _go_on(self) -> bool:
        """Let each lane look at what there is by now; return whether any has a step left."""
        left = [lane.looks_at(len(self.epochs)) for lane in self._lanes]
        return any(left)

    def _next(self) -> Epoch:
        """Return the next epoch: one step of each lane that can take one."""
        epoch = Epoch(self.epochs[-1].clock_us)
        moved = False
        for lane in self._lanes:
            kind, what = lane.step
            if kind == "records":
                epoch.lines += lane.lines(what)
                lane.take()
                moved = True
        for stream in self.streams:
            lanes = [lane for lane in self._lanes if lane.stream == stream]
            waiting = [lane for lane in lanes if lane.step[0] in TIME and not lane.took]
            ended = [lane for lane in lanes if lane.step[0] == "end" and not lane.took]
            if not waiting or len(waiting) + len(ended) < len(lanes):
                continue
            kind, what = min((lane.step for lane in waiting), key=_instant)
            if kind == "watermark":
                epoch.low_watermarks[stream] = what
            else:
                percentile, to_us = what
                epoch.percentiles.setdefault(percentile, {})[stream] = to_us
            for lane in waiting:
                if lane.step == (kind, what):
                    lane.take()
            moved = True
        crashing = [lane for lane in self._lanes if lane.step[0] == "crash" and not lane.took]
        if crashing and not any(lane.took and lane.crashes for lane in self._lanes):
            # To start a query takes as long as ten epochs, so they wait for one another.
            epoch.crash = moved = True
            for lane in crashing:
                lane.take()
        if not moved:
            epoch.clock_us = min(lane.step[1] for lane in self._lanes if lane.step[0] == "clock")
            for lane in [lane for lane in self._lanes if lane.step == ("clock", epoch.clock_us)]:
                lane.take()
                kind, what = lane.step
                if kind == "records" and lane.transcript.settings["rebatch"]:
                    epoch.lines += lane.lines(what)
                    lane.take()
        for lane in self._lanes:
            lane.took = False
        return epoch


class Scripted(WatermarkColumn):
    """Takes low watermarks from the rows, and those of percentiles from the script.

    Elsewhere they are estimated from many records; a script has few.
    """

    def __init__(self, percentiles: Sequence[Mapping[int, int]]) -> None:
        super().__init__("low_watermark", punctuation="punctuation")
        self._percentiles = percentiles

    def percentile_us(self, percentile: int, epoch: int) -> int:
        """Return the low watermark of a percentile in an epoch, or in one after the last."""
        by_then = self._percentiles[min(epoch, len(self._percentiles) - 1)]
        return by_then.get(percentile, MIN_TIMESTAMP)


class Played:
    """Plays back what a run of a timetable made of one transcript.

    Args:
        outputs: The transcript's panes, by epoch.
        looks: For each of its ``panes`` steps, and for the end, how many epochs come before.
    """

    def __init__(self, outputs: Sequence[Sequence[Output]], looks: Sequence[int]) -> None:
        self._outputs = outputs
        self._looks = iter(looks)
        self._end = looks[-1]

    @property
    def outputs(self) -> list[Output]:
        """All panes, up to the transcript's end."""
        return [output for of_epoch in self._outputs[: self._end] for output in of_epoch]

    def records(self, elements: tuple[TranscriptElement, ...]) -> None:
        """Do nothing: the run had them."""

    def watermark(self, to_us: int) -> None:
        """Do nothing: the run had it."""

    def percentile(self, percentile_to_us: tuple[int, int]) -> None:
        """Do nothing: the run had it."""

    def clock(self, to_us: int) -> None:
        """Do nothing: the run had it."""

    def crash(self) -> None:
        """Do nothing: the run had it."""

    def panes(self) -> list[Output]:
        """Return the panes of the epochs before the next ``panes`` step."""
        before = self._outputs[: next(self._looks)]
        return [output for of_epoch in before for output in of_epoch]


def _instant(step: tuple[str, Any]) -> tuple[int, str]:
    """Return where a low watermark goes; that of a percentile is never behind that of all."""
    kind, what = step
    return (what if kind == "watermark" else what[1]), kind


class _IsOf:
    """Whether a line is of a grouping. A class: worker processes get it by pickle."""

    def __init__(self, grouping: int) -> None:
        self.grouping = grouping

    def __call__(self, line: Line) -> bool:
        return line.grouping == self.grouping


class _AsText:
    """Makes text of a pane's value and the number of its grouping: panes of all share a stream."""

    def __init__(self, grouping: int) -> None:
        self.grouping = grouping

    def __call__(self, value: Any) -> str:
        return msgspec.json.encode((self.grouping, value)).decode()


def _value(line: Line) -> Any:
    return msgspec.json.decode(line.value)
