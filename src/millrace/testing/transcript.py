"""Transcript: a scenario of windows and triggers, written down step by step, for any executor.

A transcript is plain data, as read from a YAML file::

    name: a late record bridges two sessions
    windows: Sessions(10)
    trigger: Repeat(AtWatermark())
    mode: ACCUMULATING
    allowed_lateness: 20
    aggregate: group()
    steps:
      - records: {k: [1, 12]}
      - watermark: 30
      - panes:
          - {window: [1, 11], value: [1], timing: ON_TIME}
          - {window: [12, 22], value: [12], timing: ON_TIME}
      - records: {k: [6]}
      - panes: [{window: [1, 22], value: [1, 6, 12], timing: LATE}]

A key is text. A record is its timestamp, which is its value too, or ``"value@timestamp"``, or
``{value: ..., at: ...}`` with any plain value. A time is microseconds, or ``"12:05:30"``, or ``end
of time``; ``watermark: {90: 10}`` is of the 90th percentile. ``panes`` lists all panes since the
last ``panes``, in order of each key, with as many of their properties as matter; after the last
step there must be none left.

What is tested may also be a function of one's own, ``grouping: totals``: it takes the stream of the
values, with their keys, and returns the stream of what comes of them. The names of such functions,
and of triggers, windows and aggregations of one's own, are given beside the transcript.

An executor plays it (:mod:`~millrace.testing.player`). :meth:`Transcript.variants` has it with the
records of a step in other orders, unless it says ``permute: false``, and, if it says ``rebatch:
true``, with those between two other steps in other batches. Many run side by side in a
:mod:`~millrace.testing.timetable`, where records then come with the clock step before them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

from millrace.dataflow import aggregations, triggers, windowing, windows
from millrace.dataflow.aggregations import catalog
from millrace.dataflow.stream import Stream
from millrace.model.errors import PipelineError, brief, brief_error
from millrace.model.pane import Window
from millrace.model.record import LOW_WATERMARK, WALL_TIME
from millrace.model.stream import of_record
from millrace.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP, SECOND
from millrace.pipeline import Pipeline

#: What a transcript may say of its windows, and what it says if it does not.
_WINDOWING: dict[str, Any] = {
    "windows": "GlobalWindow()", "trigger": "Repeat(AtWatermark())", "mode": "ACCUMULATING",
    "allowed_lateness": 0, "output_time": "END_OF_WINDOW", "allow_data_loss": False,
    "aggregate": "sum()", "assign": False, "lift": None,
}  # fmt: skip

#: What else it may say.
_DEFAULTS: dict[str, Any] = {**_WINDOWING, "grouping": None, "permute": True, "rebatch": False}


#: What its lambdas know of themselves. Of one without a module cloudpickle asks all that there are.
_GLOBALS: dict[str, Any] = {"__builtins__": {}, "__name__": "a transcript"}

#: What its expressions may name.
_NAMES: dict[str, Any] = {
    "Window": Window,
    "LOW_WATERMARK": LOW_WATERMARK,
    "WALL_TIME": WALL_TIME,
    "of_record": of_record,
    **{mode.name: mode for mode in windowing.AccumulationMode},
    **{output_time.name: output_time for output_time in windowing.OutputTime},
    **{
        name: getattr(module, name)
        for module in (aggregations, catalog, triggers, windows)
        for name in module.__all__
    },
}


#: What becomes of the records of a step: as many steps.
_Change = Callable[[tuple["TranscriptElement", ...]], list[tuple["TranscriptElement", ...]]]


@dataclass(frozen=True)
class TranscriptElement:
    """A record of a transcript."""

    key: str
    value: Any
    timestamp_us: int


@dataclass(frozen=True)
class Transcript:
    """A scenario: a grouping, and what happens to it.

    Attributes:
        name: What it shows.
        settings: What is not a step, by name.
        steps: (kind, what): ``records`` with Elements, ``watermark`` and ``clock`` with a time,
            ``percentile`` with a percentile of the low watermark and a time, ``panes`` with the
            panes expected, ``crash`` with None.
        names: What its expressions may name besides the Dataflow layer.
    """

    name: str
    settings: Mapping[str, Any]
    steps: tuple[tuple[str, Any], ...]
    names: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls, written: Mapping[str, Any], *, names: Mapping[str, Any] | None = None
    ) -> Transcript:
        """Return the transcript that was written.

        Args:
            written: The document, as read from YAML or JSON.
            names: What it names that is not Millrace's: name -> trigger, window function,
                aggregation, or function of a stream.

        Raises:
            PipelineError: It is not one.

        >>> def longest(words):
        ...     return words.window(windows.FixedWindows(10)).max(len)
        >>> written = {"name": "words", "grouping": "longest", "steps": []}
        >>> Transcript.of(written, names={"longest": longest}).pipeline()
        Pipeline('transcript')
        """
        unknown = set(written) - {"name", "about", "steps", *_DEFAULTS}
        if unknown or "name" not in written or "steps" not in written:
            raise PipelineError(
                f"a transcript has a name, steps, and any of {sorted(_DEFAULTS)}; this one has "
                f"{sorted(written)}."
            )
        if "grouping" in written and (said := sorted(set(written) & set(_WINDOWING))):
            raise PipelineError(
                f"transcript {written['name']!r}: the function of its grouping, "
                f"{written['grouping']!r}, defines the windows itself. Leave out {said}."
            )
        settings = {name: written.get(name, default) for name, default in _DEFAULTS.items()}
        steps = []
        for number, step in enumerate(written["steps"], 1):
            where = f"transcript {written['name']!r}, step {number}"
            try:
                ((kind, what),) = step.items()
                steps.append(_step(kind, what))
            except PipelineError as error:
                raise PipelineError(f"{where}: {error}.") from None
            except (AttributeError, LookupError, TypeError, ValueError) as error:
                raise PipelineError(
                    f"{where}: {brief(step)} is not one ({brief_error(error, 120)}). Expected one "
                    f"of {', '.join(_STEPS)}, {{'crash': None}}."
                ) from error
        return cls(written["name"], settings, tuple(steps), dict(names or {}))

    def pipeline(self, source: Any = None, **inject: Any) -> Pipeline:
        """Return the pipeline: stream ``elements`` in, of (key, value); stream ``panes`` out."""
        p = Pipeline("transcript")
        elements = p.inject("elements", source, format=tuple[str, Any], **inject)
        self.grouped(elements.key_by(_key).map(_value)).to("panes")
        return p

    def grouped(self, values: Stream) -> Stream:
        """Return what comes of a stream of values with keys: what the settings say."""
        if self.settings["grouping"] is not None:
            own = self._setting("grouping")(values)
            if not isinstance(own, Stream):
                raise PipelineError(
                    f"transcript {self.name!r}: its grouping {self.settings['grouping']!r} gave "
                    f"{own!r}. Expected a function that takes a stream and returns one."
                )
            return own
        windowed = values.window(
            self._setting("windows"),
            trigger=self._setting("trigger"),
            mode=self._setting("mode"),
            allowed_lateness=self.settings["allowed_lateness"],
            output_time=self._setting("output_time"),
            allow_data_loss=self.settings["allow_data_loss"],
            lift=self.settings["lift"],
        )
        if self.settings["assign"]:
            windowed = windowed.assign()
        made: Stream = self._evaluate(f"windowed.{self.settings['aggregate']}", windowed=windowed)
        return made

    @property
    def identity(self) -> tuple[Any, ...]:
        """What its pipeline depends on: those with the same can share one, and tell keys apart."""
        of_steps = ("permute", "rebatch")
        said = tuple((name, str(s)) for name, s in self.settings.items() if name not in of_steps)
        # A window that depends on the key must see the key that the transcript has.
        alone = id(self) if getattr(self._setting("windows"), "phase_shift", False) else None
        return (*said, alone, frozenset((name, id(what)) for name, what in self.names.items()))

    @property
    def needs_batch(self) -> bool:
        """Whether nothing fires before the end of the input: refused over a stream."""
        if self.settings["grouping"] is not None:
            return False
        return (
            not self._setting("windows").ends
            and not self._setting("trigger").fires_before_end_of_input
        )

    @property
    def has_percentiles(self) -> bool:
        """Whether a step sets a percentile of the low watermark."""
        return any(kind == "percentile" for kind, _ in self.steps)

    @property
    def is_lifted(self) -> bool:
        """Whether values may be combined before they are shuffled, and some come together."""
        together = any(len(what) > 1 for kind, what in self.steps if kind == "records")
        return together and any(edge.lift is not None for edge in self.pipeline().build().edges)

    @property
    def is_batch(self) -> bool:
        """Whether a batch does the same: nothing is late, and all panes come at the end of time."""
        if self.settings["grouping"] is not None:
            return False
        if self.settings["trigger"] != _DEFAULTS["trigger"]:
            return False
        low_watermark_us, looks = MIN_TIMESTAMP, 0
        for kind, what in self.steps:
            if kind == "watermark":
                low_watermark_us = what
            elif kind == "records":
                if any(each.timestamp_us < low_watermark_us for each in what):
                    return False
            elif kind == "panes":
                looks += 1
            elif kind == "percentile":
                return False
        return looks == 1 and low_watermark_us == MAX_TIMESTAMP and self.steps[-1][0] == "panes"

    def variants(self, seeds: int = 1) -> Iterator[tuple[str, Transcript]]:
        """Yield this transcript, and those that must have the same panes, with a name each.

        Args:
            seeds: How many shuffled ones, and how many in other batches.
        """
        yield "as written", self
        if self.settings["permute"]:
            yield "reversed", self._with_records(lambda records: [records[::-1]])
            for seed in range(seeds):
                yield f"shuffled ({seed})", self._with_records(_shuffle(f"{self.name}/{seed}"))
        if self.settings["rebatch"]:
            yield "one by one", self._with_records(lambda records: [(each,) for each in records])
            for seed in range(seeds):
                yield (
                    f"in other batches ({seed})",
                    self._with_records(_cut(f"{self.name}/{seed}"), together=True),
                )

    def _with_records(self, change: _Change, *, together: bool = False) -> Transcript:
        """Return it with other records steps for each, or for all that follow each other."""
        steps: list[tuple[str, Any]] = []
        for kind, group in groupby(self.steps, key=lambda step: step[0]):
            whats = [what for _, what in group]
            if kind == "records":
                if together:
                    whats = [tuple(each for what in whats for each in what)]
                whats = [part for what in whats for part in change(what)]
            steps += [(kind, what) for what in whats]
        return replace(self, steps=tuple(steps))

    def _setting(self, setting: str) -> Any:
        return self._evaluate(self.settings[setting])

    def _evaluate(self, text: str, **names: Any) -> Any:
        """Return what an expression means: names of the Dataflow layer and its own, and lambdas."""
        try:
            return eval(text, {**_GLOBALS, **_NAMES, **self.names, **names})
        except NameError as unknown:
            raise PipelineError(
                f"transcript {self.name!r}, {text!r}: {unknown}. Pass names of your own beside it: "
                f"names={{{unknown.name!r}: {unknown.name}}}."
            ) from None
        except (SyntaxError, AttributeError, TypeError) as wrong:
            raise PipelineError(f"transcript {self.name!r}, {text!r}: {wrong}.") from wrong


def read_transcripts(
    path: str | Path, *, names: Mapping[str, Any] | None = None
) -> list[Transcript]:
    """Return the transcripts of a YAML file, one a document, or of all such files of a folder.

    Args:
        path: A file, or a folder whose ``*.yaml`` are read in order of their names.
        names: What they name that is not Millrace's; see :meth:`Transcript.of`.

    Raises:
        PipelineError: There is none, or one is wrong.
        ModuleNotFoundError: PyYAML is not installed.
    """
    import yaml  # not needed by those who write transcripts in Python

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        """Has a time as text: to YAML 1.1, 12:05:30 is a number of base 60."""

        def construct_object(self, node: Any, deep: bool = False) -> Any:
            if isinstance(node, yaml.ScalarNode) and node.style is None and ":" in node.value:
                return node.value
            return super().construct_object(node, deep)

    path = Path(path)
    files = sorted(path.glob("*.yaml")) if path.is_dir() else [path]
    found = [
        Transcript.of(document, names=names)
        for file in files
        for document in yaml.load_all(file.read_text(), Loader)
    ]
    if not found:
        raise PipelineError(f"{str(path)!r} has no transcripts. Expected a YAML file, or a folder.")
    return found


def time_us(written: Any) -> int:
    """Return a time of a transcript in microseconds.

    >>> time_us("00:01:30"), time_us(7), time_us("end of time") == MAX_TIMESTAMP
    (90000000, 7, True)
    """
    if written == "end of time":
        return MAX_TIMESTAMP
    if isinstance(written, str) and ":" in written:
        hours, minutes, seconds = written.split(":")
        return (int(hours) * 3600 + int(minutes) * 60) * SECOND + round(float(seconds) * SECOND)
    return int(written)


#: What steps look like.
_STEPS = (
    "{'records': {key: ['value@timestamp', ...]}}", "{'watermark': time}",
    "{'watermark': {percentile: time}}", "{'clock': time}", "{'panes': [{'value': ...}, ...]}",
)  # fmt: skip


def _step(kind: str, what: Any) -> tuple[str, Any]:
    """Return a step as a transcript has it; raise if it is none."""
    if kind == "records":
        return kind, tuple(_element(str(key), each) for key in what for each in what[key])
    if kind == "watermark" and isinstance(what, Mapping):
        ((percentile, to),) = what.items()
        return "percentile", (int(percentile), time_us(to))
    if kind in ("watermark", "clock"):
        return kind, time_us(what)
    if kind == "panes":
        return kind, tuple(dict(pane) for pane in what)
    if kind != "crash":
        raise PipelineError(f"no step is called {kind!r}")
    return kind, what


def _element(key: str, written: Any) -> TranscriptElement:
    if isinstance(written, Mapping):
        return TranscriptElement(key, written["value"], time_us(written["at"]))
    if isinstance(written, str) and "@" in written:
        value, _, at = written.partition("@")
        return TranscriptElement(key, _number(value), time_us(at))
    return TranscriptElement(key, time_us(written), time_us(written))


def _number(text: str) -> Any:
    try:
        return int(text)
    except ValueError:
        return text


def _shuffle(seed: str) -> _Change:
    order = random.Random(seed)
    return lambda records: [tuple(order.sample(records, len(records)))]


def _cut(seed: str) -> _Change:
    """Return what shuffles records and cuts them into batches, anywhere."""
    order = random.Random(seed)

    def batches(records: tuple[TranscriptElement, ...]) -> list[tuple[TranscriptElement, ...]]:
        shuffled = tuple(order.sample(records, len(records)))
        inner = range(1, len(records))
        cuts = [0, *sorted(order.sample(inner, order.randint(0, len(inner)))), len(records)]
        return [shuffled[start:end] for start, end in pairwise(cuts)]

    return batches


def _key(element: Any) -> Any:
    return element[0]


def _value(element: Any) -> Any:
    return element[1]
