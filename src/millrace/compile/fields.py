"""Whether the fields that a pipeline chooses by name are there, where formats or sources tell."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import msgspec

from millrace.compile.publishers import StreamProducer
from millrace.dataflow.element_types import Picks, plain_format
from millrace.dataflow.grouping import GroupByKeyAndWindow
from millrace.dataflow.joins.interval_join import JoinByKeyAndTime
from millrace.dataflow.joins.table_join import EnrichByKey
from millrace.dataflow.partials.fanout import CombineByPart
from millrace.model.coder import Coder, type_name
from millrace.model.declarations import Declarations
from millrace.model.pane import PanedCoder
from millrace.model.stream import KEY, KEYS, OF_A_PANE, ByFields, ByKey, KeyExtractor, Spread

#: Computations that take the key that a stream has.
_BY_KEY = (GroupByKeyAndWindow, CombineByPart, JoinByKeyAndTime, EnrichByKey)
_PLAIN = (int, float, str, bytes, bool, list, tuple, set, frozenset)


def check_fields(
    pipeline: Declarations,
    inputs: Mapping[str, Mapping[str, KeyExtractor]],
    publishers: Mapping[str, list[StreamProducer]],
    formats: Mapping[str, tuple[Any, Coder]],
    problems: list[str],
) -> None:
    """Add to ``problems`` each field that is chosen by name and is surely not there.

    Nothing is said of streams of which neither a format nor a source tells the fields.
    """
    streams = _Streams(pipeline, publishers, formats)
    for choice in _choices(pipeline, inputs):
        found = streams.fields(choice.stream)
        if found is None or found.has(choice.field) or streams.beside(choice):
            continue
        if not found.names:
            problems.append(
                f"{choice.who} field {choice.field!r} of stream {choice.stream!r}, whose values "
                f"are {found.of.removeprefix('format ')} and have no fields. Choose by a function "
                "of the value."
            )
            continue
        close = get_close_matches(choice.field, found.names, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        problems.append(
            f"{choice.who} field {choice.field!r} of stream {choice.stream!r}, which its "
            f"{found.of} does not have.{hint} It has: {', '.join(found.names)}."
        )
    for name, computation in pipeline.computations.items():
        for stream, extractor in inputs[name].items():
            plain = extractor.plain if isinstance(extractor, Spread) else extractor
            if not (isinstance(plain, ByKey) and streams.keyless(stream)):
                continue
            if stream not in computation.inputs:
                problems.append(
                    f"computation {name!r} takes stream {stream!r} by key, and records as they are "
                    'injected have none. Choose one there, key="field", or before: '
                    f'p.stream({stream!r}).key_by("field").to("...").'
                )
            elif isinstance(computation, _BY_KEY):
                problems.append(
                    f"the grouping {name!r} groups stream {stream!r} by key, and records as "
                    "they are injected have none. Choose one before the windows: "
                    f'p.stream({stream!r}).key_by("field").window(...).'
                )


@dataclass(frozen=True)
class _Choice:
    """A field chosen by name, who chose it, and whether key and pane may be chosen of as well."""

    who: str
    stream: str
    field: str
    of_record: bool = False


def _choices(
    pipeline: Declarations, inputs: Mapping[str, Mapping[str, KeyExtractor]]
) -> Iterator[_Choice]:
    for name, computation in pipeline.computations.items():
        for stream, extractor in inputs[name].items():
            plain = extractor.plain if isinstance(extractor, Spread) else extractor
            if isinstance(plain, ByFields):
                who = f"computation {name!r} takes its key from"
                yield from (_Choice(who, stream, field, True) for field in plain.fields)
        if not isinstance(computation, GroupByKeyAndWindow | CombineByPart):
            continue
        value, combine = computation.value, computation.combine
        if isinstance(value, Picks):
            fields = value.reads
        elif value is None:
            fields = combine.reads
        else:
            fields = (value,) if isinstance(value, str) else ()
        who = f"the aggregation {name!r} takes its values from"
        yield from (_Choice(who, stream, f) for stream in computation.inputs for f in fields)
    whats = {**dict.fromkeys(KEYS, "keys"), "with_timestamps": "event times"}
    for step in pipeline.steps:
        if step.kind in whats and isinstance(step.function, ByFields):
            who = f"{step.kind.removesuffix('_record')} takes {whats[step.kind]} from"
            yield from (_Choice(who, step.source, field, True) for field in step.function.fields)


@dataclass(frozen=True)
class _Fields:
    """What is known of a stream's fields.

    Attributes:
        of: Whose they are, as text.
        names: Theirs; none if its values have no fields.
        kinds: Classes whose other attributes, such as properties, may be chosen too.
    """

    of: str
    names: tuple[str, ...]
    kinds: Collection[Any] = ()

    def has(self, name: str) -> bool:
        """Return whether a value may have the field."""
        return name in self.names or any(
            hasattr(kind, name) or hasattr(kind, "__getattr__") for kind in self.kinds
        )


class _Streams:
    """What is known of streams."""

    def __init__(
        self,
        pipeline: Declarations,
        publishers: Mapping[str, list[StreamProducer]],
        formats: Mapping[str, tuple[Any, Coder]],
    ) -> None:
        self._pipeline = pipeline
        self._publishers = publishers
        self._formats = formats

    def fields(self, stream: str) -> _Fields | None:
        """Return a stream's fields by its format, else by the source; None if neither tells."""
        kind = plain_format(self._formats[stream][1])
        return self._columns(stream, frozenset()) if kind is Any else _fields_of(kind)

    def keyless(self, stream: str, seen: frozenset[str] = frozenset()) -> bool:
        """Return whether records come to a stream that have no key."""
        if stream in self._pipeline.injections:
            return True
        return stream not in seen and any(
            step.kind not in KEYS and self.keyless(step.source, seen | {stream})
            for step in self._pipeline.steps
            if step.target == stream
        )

    def beside(self, choice: _Choice) -> bool:
        """Return whether a field is none of the value, but the key, or one of its pane."""
        if not choice.of_record:
            return False
        if choice.field == KEY:
            return not self.keyless(choice.stream)
        return choice.field in OF_A_PANE and isinstance(self._formats[choice.stream][1], PanedCoder)

    def _columns(self, stream: str, seen: frozenset[str]) -> _Fields | None:
        """Return the columns that the values of a stream without a format are made of."""
        found: dict[str, None] = {}
        for who in self._publishers[stream]:
            if who.kind == "injector":
                injection = self._pipeline.injections[stream]
                columns = getattr(injection.source, "columns", None)
                if not isinstance(columns, list):
                    return None
                # The event time is no part of such a value.
                found.update(dict.fromkeys(c for c in columns if c != injection.timestamp))
            elif who.kind == "step" and who.name not in seen and self._keeps(who.name, stream):
                kind = plain_format(self._formats[who.name][1])
                above = self._columns(who.name, seen | {stream}) if kind is Any else None
                if above is None:
                    return None
                found.update(dict.fromkeys(above.names))
            else:
                return None
        return _Fields("source", tuple(found))

    def _keeps(self, source: str, target: str) -> bool:
        return all(
            step.keeps_values
            for step in self._pipeline.steps
            if (step.source, step.target) == (source, target)
        )


def _fields_of(kind: Any) -> _Fields | None:
    """Return the fields of a type's values; None if it does not say.

    >>> _fields_of(int), _fields_of(dict)
    (_Fields(of='int', names=(), kinds=()), None)
    """
    origin = typing.get_origin(kind)
    if origin is typing.Annotated:
        return _fields_of(typing.get_args(kind)[0])
    if origin in (typing.Union, types.UnionType):
        members = [_fields_of(one) for one in typing.get_args(kind) if one is not type(None)]
        known = [one for one in members if one is not None]
        if len(known) < len(members):
            return None
        names = dict.fromkeys(name for one in known for name in one.names)
        kinds = tuple(each for one in known for each in one.kinds)
        return _Fields(f"format {type_name(kind)}", tuple(names), kinds)
    if (origin or kind) in _PLAIN:
        return _Fields(type_name(kind), ())
    if not isinstance(kind, type):
        return None
    of = f"format {type_name(kind)}"
    if issubclass(kind, msgspec.Struct):
        return _Fields(of, kind.__struct_fields__, (kind,))
    if dataclasses.is_dataclass(kind):
        return _Fields(of, tuple(field.name for field in dataclasses.fields(kind)), (kind,))
    if typing.is_typeddict(kind):
        return _Fields(of, tuple(typing.get_type_hints(kind)))
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return _Fields(of, kind._fields, (kind,))
    return None
