"""Window and Pane: which result of an aggregation a value is, travelling with the value.

A stream that comes out of a grouping carries :class:`Paned` values, encoded by a
:class:`PanedCoder`. Stateless steps, key extractors and computations see the plain value; the pane
stays with it, through steps, shuffles and commits, to the sinks.

Source: Dataflow patent, "Processing Context API" (watermark percentile, production time, trigger,
anti-datum), and the 4-tuples (key, value, event time, window) of its model.
"""

from __future__ import annotations

import datetime as dt
import enum
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from millrace.model.coder import Coder, coder_for
from millrace.model.errors import CoderError
from millrace.model.stream import Element, KeyExtractor, Step
from millrace.model.time import datetime_of


class Window(msgspec.Struct, frozen=True, array_like=True, repr_omit_defaults=True):
    """A half-open interval of event time, ``[start, end)``; the global window has neither.

    >>> Window(0, 10)
    Window(0, 10)
    >>> Window()
    Window()
    """

    start: int | None = None
    end: int | None = None

    @property
    def start_time(self) -> dt.datetime | None:
        """``start`` as a datetime, UTC; None of the global window."""
        return None if self.start is None else datetime_of(self.start)

    @property
    def end_time(self) -> dt.datetime | None:
        """``end`` as a datetime, UTC; None of the global window."""
        return None if self.end is None else datetime_of(self.end)

    def __repr__(self) -> str:
        return "Window()" if self.start is None else f"Window({self.start}, {self.end})"


class Timing(enum.StrEnum):
    """When a pane was emitted, by the low watermark and the end of its window."""

    #: Before the low watermark had reached the end of the window.
    EARLY = "EARLY"
    #: When the low watermark had: the first pane after that, without late records in it.
    ON_TIME = "ON_TIME"
    #: After that, because of late records.
    LATE = "LATE"


EARLY = Timing.EARLY
ON_TIME = Timing.ON_TIME
LATE = Timing.LATE


class Pane(msgspec.Struct, frozen=True, array_like=True):
    """One of the results of a window, and how it relates to the others.

    Attributes:
        window: The window.
        index: 0 for the first pane of the window, and so on. Of a retraction: that of the pane
            which it takes back.
        timing: EARLY, ON_TIME or LATE.
        is_first: Whether no pane of this window came before.
        is_last: Whether none can follow.
        retraction: Whether it takes an earlier pane back: the value is that pane's, exactly.
        production_time: Wall-clock time of its emission, microseconds.
        percentile: The largest percentile of the low watermark that had reached the end of the
            window: 100, or one that the pipeline waits for. 0 if none had, None if it is late.
        trigger: The trigger that fired, as text.
    """

    window: Window
    index: int = 0
    timing: Timing = Timing.ON_TIME
    is_first: bool = True
    is_last: bool = True
    retraction: bool = False
    production_time: int = 0
    percentile: int | None = None
    trigger: str = ""


class Paned(msgspec.Struct, frozen=True):
    """A value and the pane that it is."""

    value: Any
    pane: Pane


def plain(value: Any) -> Any:
    """Return a value without its pane, as user code sees it."""
    return value.value if type(value) is Paned else value


class PanedCoder:
    """The coder of streams whose values carry panes.

    Args:
        format: Of the plain values: a type or a coder.
        retracts: Whether retractions may be among them.

    A value without a pane passes as it is, so that a stream may have other publishers too.
    """

    __slots__ = ("_inner", "format", "retracts")

    def __init__(self, format: Any = Any, *, retracts: bool = False) -> None:
        self.format = format
        self.retracts = retracts
        self._inner = coder_for(format)

    @property
    def inner(self) -> Coder:
        """The coder of the plain values."""
        return self._inner

    def with_inner(self, inner: Coder) -> PanedCoder:
        """Return a coder whose plain values another coder writes, to the same bytes."""
        made = PanedCoder(self.format, retracts=self.retracts)
        made._inner = inner
        return made

    def encode(self, value: Any) -> bytes:
        """Return pane and value as msgpack."""
        if type(value) is Paned:
            return _encode((self._inner.encode(value.value), value.pane))
        return _encode((self._inner.encode(value), None))

    def encode_panes(
        self, values: Sequence[Any], pane: Pane, windows: Sequence[tuple[int, int]] | None = None
    ) -> list[bytes]:
        """Return what :meth:`encode` does for many values with one pane, but for the window.

        >>> pane = Pane(Window(0, 10))
        >>> PanedCoder(int).encode_panes([7], pane) == [PanedCoder(int).encode(Paned(7, pane))]
        True
        >>> PanedCoder(int).encode_panes([7], Pane(Window()), [(0, 10)]) == [
        ...     PanedCoder(int).encode(Paned(7, pane))
        ... ]
        True
        """
        if windows is None:
            tails = [encode_pane(pane)] * len(values)
        else:
            # An array, of which the window is the first.
            rest = _encode(pane)[1 + len(_encode(pane.window)) :]
            head = _encode(pane)[:1]
            tails = [head + _encode(window) + rest for window in windows]
        return self.encode_with(values, tails)

    def encode_with(self, values: Sequence[Any], tails: Sequence[bytes]) -> list[bytes]:
        """Return what :meth:`encode` does for many values, each with a pane that is encoded."""
        encode_all = getattr(self._inner, "encode_all", None)
        inner = list(map(self._inner.encode, values)) if encode_all is None else encode_all(values)
        return [
            b"\x92\xc4" + _LENGTHS[len(data)] + data + tail
            if len(data) < 256
            else b"\x92" + _encode(data) + tail
            for data, tail in zip(inner, tails, strict=True)
        ]

    def parts(self, data: bytes) -> tuple[Any, bytes]:
        """Return the plain value and its pane, encoded; see :func:`decode_pane`."""
        try:
            inner, pane = _decode_parts(data)
        except msgspec.ValidationError as refused:
            raise CoderError(f"these bytes are not a value with its pane: {refused}.") from None
        return self._inner.decode(inner), bytes(pane)

    def decode(self, data: bytes) -> Any:
        """Return a :class:`Paned`, or a plain value if it had no pane."""
        try:
            inner, pane = _decode(data)
        except msgspec.ValidationError as refused:
            raise CoderError(f"these bytes are not a value with its pane: {refused}.") from None
        value = self._inner.decode(inner)
        return value if pane is None else Paned(value, pane)

    def describe(self) -> dict[str, Any]:
        """Return what a checkpoint knows it by."""
        return {"name": "value with pane", "value": self._inner}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PanedCoder) and other._inner == self._inner

    def __hash__(self) -> int:
        return hash((PanedCoder, self._inner))

    def __repr__(self) -> str:
        return f"PanedCoder({self._inner!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _paned_coder, (self.format, self.retracts)


def _paned_coder(format: Any, retracts: bool) -> PanedCoder:
    return PanedCoder(format, retracts=retracts)


def with_retractions(format: Any, *inputs: Any) -> Any:
    """Return the output format of a computation with inputs of these formats.

    A result that is computed from a retraction is a retraction. So if an input may have some, the
    output's format must have the flag.

    >>> with_retractions(int, str, PanedCoder(str))
    <class 'int'>
    >>> with_retractions(int, PanedCoder(str, retracts=True)).retracts
    True
    """
    if not any(isinstance(each, PanedCoder) and each.retracts for each in inputs):
        return format
    return PanedCoder(format.format if isinstance(format, PanedCoder) else format, retracts=True)


_encode = msgspec.msgpack.Encoder().encode
_LENGTHS = [bytes([length]) for length in range(256)]
_decode = msgspec.msgpack.Decoder(tuple[bytes, Pane | None]).decode
_decode_parts = msgspec.msgpack.Decoder(tuple[bytes, msgspec.Raw]).decode

#: Returns a pane as bytes.
encode_pane: Callable[[Pane], bytes] = _encode

#: Returns an encoded pane, or None, as it was.
decode_pane = msgspec.msgpack.Decoder(Pane | None).decode


@dataclass(frozen=True, repr=False)
class PanedExtractor(KeyExtractor):
    """A key extractor on a stream whose values carry panes: it sees the plain value."""

    plain: KeyExtractor

    def __call__(self, value: Any, key: Any) -> Any:
        """Return the key for the plain value, or for the pane that it is."""
        if self.plain.sees and type(value) is Paned:
            return self.plain.of(Element(value.value, key, 0, value.pane))
        return self.plain(plain(value), key)

    def __repr__(self) -> str:
        return repr(self.plain)


@dataclass(frozen=True)
class PanedStep(Step):
    """A stateless step on a stream whose values carry panes: each keeps its pane.

    Source: the patent, "all non-GroupByKey operations on an anti-datum produce more anti-data
    (similar to timestamp propagation)".
    """

    #: A record has a pane of its own, so it goes record by record.
    expression = None
    only_names = False

    def apply(
        self, value: Any, key: Any, at_us: int, pane: Any = None
    ) -> Iterable[tuple[Any, Any]]:
        """Return what the step makes of the plain value, with its pane."""
        if type(value) is not Paned:
            return super().apply(value, key, at_us)
        pane = value.pane
        found = super().apply(value.value, key, at_us, pane)
        if self.kind == "assign":
            # A retraction stays one, in the windows that the result which it takes back got.
            return [
                (
                    Paned(made.value, msgspec.structs.replace(pane, window=made.pane.window)),
                    made_key,
                )
                for made, made_key in found
            ]
        return [(Paned(made, pane), made_key) for made, made_key in found]

    def moved(self, value: Any, key: Any, from_us: int, pane: Any = None) -> int:
        """Return the timestamp that the step gives the plain value."""
        if type(value) is not Paned:
            return super().moved(value, key, from_us)
        return super().moved(value.value, key, from_us, value.pane)


def with_panes(step: Step) -> Step:
    """Return a step as it runs on a stream whose values carry panes."""
    return PanedStep(step.source, step.target, step.kind, step.function, step.backwards_us)
