"""Element types: what a grouping knows of its elements, their columns and their keys."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import inspect
import types
import typing
import uuid
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from functools import partial
from operator import attrgetter
from typing import Any, Final

import msgspec

from millrace.dataflow.value import text
from millrace.model.coder import BytesCoder, Coder, coder_for, struct_fields, type_name
from millrace.model.coroutines import refuse_parameters, truth
from millrace.model.declarations import Declarations
from millrace.model.errors import CoderError, PipelineError, brief
from millrace.model.pane import PanedCoder
from millrace.model.plain_stream import PlainStream
from millrace.model.stream import KEYS, ByFields, KeyExtractor, OfRecord, by, by_key

#: What to aggregate of an element: a column name, or a function of it; None: itself.
Chosen = str | Callable[[Any], Any] | None


class SideBySide(Sequence[tuple[Any, ...]]):
    """Tuples of which the items lie side by side, in columns.

    >>> tuples = SideBySide([[1, 2, 3], [True, False, True]], 3)
    >>> tuples[1], len(tuples)
    ((2, False), 3)
    """

    def __init__(self, columns: list[Sequence[Any]], count: int) -> None:
        self.columns = columns
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, position: Any) -> Any:
        return tuple([column[position] for column in self.columns])


class Picks:
    """Chooses all that several aggregates need of an element, as one tuple.

    The values come first, then of each filter whether the element passes it. A value that nobody
    needs of an element that did not pass is not looked for: it is None.

    Args:
        sources: What is chosen.
        wheres: The filters.
        needed: Of each source the positions of the filters of which one must be passed for anybody
            to need it; None: it is needed always.
        kind: The type of the elements, where it is known.

    >>> picks = Picks(("price",), (lambda bid: bid["price"] > 5,), (None,))
    >>> picks({"price": 7}), picks({"price": 3})
    ((7, True), (3, False))
    """

    def __init__(
        self,
        sources: tuple[Chosen, ...],
        wheres: tuple[Chosen, ...],
        needed: tuple[tuple[int, ...] | None, ...],
        kind: Any = Any,
    ) -> None:
        self.sources = sources
        self.wheres = wheres
        self.needed = needed
        self._kind = kind
        self._sources = [picker(source, kind) for source in sources]
        self._wheres = [picker(where, kind) for where in wheres]

    def __call__(self, element: Any) -> tuple[Any, ...]:
        """Return the tuple."""
        if not self._wheres:
            return tuple([pick(element) for pick in self._sources])
        passed = [truth(where(element), _WHERE) for where in self._wheres]
        return (
            *[
                pick(element) if needed is None or any(passed[n] for n in needed) else None
                for pick, needed in zip(self._sources, self.needed, strict=True)
            ],
            *passed,
        )

    def __repr__(self) -> str:
        sources = ", ".join("itself" if each is None else text(each) for each in self.sources)
        return sources + "".join(f" where {text(each)}" for each in self.wheres)

    def columns(self, elements: Sequence[Any]) -> list[Sequence[Any]]:
        """Return the items of the tuples of many elements, side by side."""
        passed = [_truths(list(map(where, elements))) for where in self._wheres]
        columns: list[Sequence[Any]] = []
        for pick, needed in zip(self._sources, self.needed, strict=True):
            if needed is None:
                columns.append(elements if pick is itself else list(map(pick, elements)))
                continue
            wanted = map(any, zip(*[passed[n] for n in needed], strict=True))
            pairs = zip(elements, wanted, strict=True)
            columns.append([pick(each) if some else None for each, some in pairs])
        return [*columns, *passed]

    def of_all(self, elements: Sequence[Any]) -> SideBySide:
        """Return the tuples of many elements."""
        return SideBySide(self.columns(elements), len(elements))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Picks) and self._made_with == other._made_with

    def __hash__(self) -> int:
        return hash(self._made_with)

    @property
    def _made_with(self) -> tuple[Any, ...]:
        return self.sources, self.wheres, self.needed, self._kind

    def __reduce__(self) -> tuple[Any, ...]:
        return Picks, self._made_with

    @property
    def reads(self) -> tuple[str, ...]:
        """The columns that are chosen by name."""
        return tuple(each for each in (*self.sources, *self.wheres) if isinstance(each, str))

    @property
    def named(self) -> bool:
        """Whether all is chosen by name, so that no element is needed as a whole."""
        return len(self.reads) == len(self.sources) + len(self.wheres)

    def typed(self, kind: Any) -> Picks:
        """Return the same for elements of a type."""
        return Picks(self.sources, self.wheres, self.needed, kind)

    def kind_of(self, kind: Any) -> Any:
        """Return the type of the tuples, for elements of a type."""
        sources = [field_type(kind, source) for source in self.sources]
        made: Any = tuple
        return made[(*sources, *[bool for _ in self.wheres])]


#: What errors call the function of a filter.
_WHERE: Final = "the function of where="


def _truths(answers: list[Any]) -> list[bool]:
    """Return the answers of a filter of aggregates as bools."""
    if set(map(type, answers)) <= {bool}:
        return answers
    return [truth(answer, _WHERE) for answer in answers]


def plain_format(format: Any) -> Any:
    """Return the type of a stream's plain values; Any if its format does not say.

    >>> plain_format(PanedCoder(int)), plain_format(BytesCoder())
    (<class 'int'>, <class 'bytes'>)
    """
    if isinstance(format, PanedCoder):
        return plain_format(format.format)
    if isinstance(format, BytesCoder):
        return bytes
    if isinstance(format, Coder) and not isinstance(format, type):
        return getattr(format, "type", Any)
    return format


def retracts(format: Any) -> bool:
    """Return whether retractions may be among the values of a stream's format."""
    return isinstance(format, PanedCoder) and format.retracts


def field_type(kind: Any, chosen: Any) -> Any:
    """Return the type of a chosen column of values of a type.

    Args:
        kind: The values' type.
        chosen: A column name; None, the value itself; or a function: of that nothing is known,
            unless its annotation says what it returns.
    """
    if chosen is None:
        return kind
    if isinstance(chosen, Picks):
        return chosen.kind_of(kind)
    if isinstance(chosen, AsAnnotated):
        return chosen.kind
    if isinstance(chosen, str) and isinstance(kind, type):
        if issubclass(kind, msgspec.Struct):
            return next((f.type for f in struct_fields(kind) if f.name == chosen), Any)
        if dataclasses.is_dataclass(kind) or typing.is_typeddict(kind):
            return typing.get_type_hints(kind).get(chosen, Any)
    return Any


def picker(chosen: Chosen, kind: Any = Any) -> Callable[[Any], Any]:
    """Return the function that chooses what to aggregate of an element.

    Args:
        chosen: A column name, a function of the element, or None: itself.
        kind: The elements' type, where it is known.

    Raises:
        PipelineError: It is neither a column name, nor a function, nor None.

    >>> picker("points")({"points": 3}), picker(None)(3)
    (3, 3)
    """
    if chosen is None:
        return itself
    if isinstance(chosen, Picks):
        return chosen.typed(kind)
    if isinstance(chosen, OfRecord):
        raise PipelineError(
            f"{chosen!r} cannot choose the input of an aggregation: that is computed from the "
            "value alone, without its key. Put a step before: .map(mr.of_record(...))."
        )
    if isinstance(chosen, str):
        if isinstance(kind, type) and (
            issubclass(kind, msgspec.Struct) or dataclasses.is_dataclass(kind)
        ):
            return attrgetter(chosen)
        return partial(by(chosen), key=None)
    if callable(chosen):
        refuse_parameters(chosen, "an aggregation by (", "element")
        return chosen
    raise PipelineError(
        f"{chosen!r} chooses nothing to aggregate. Expected a column name, a function of the "
        "element, or nothing: the element itself."
    )


def itself(element: Any) -> Any:
    """Return the element: it is aggregated as it is."""
    return element


def as_stored(chosen: Chosen, fold: str | None) -> Chosen:
    """Return what to aggregate, with what a function of it returns in the form that state has.

    Args:
        chosen: As it was given.
        fold: What compares the values; None if nothing does.
    """
    if not callable(chosen) or isinstance(chosen, Picks | OfRecord):
        return chosen
    kind = _annotated(chosen)
    if kind is not Any:
        return AsAnnotated(chosen, kind)
    return chosen if fold is None else AsStored(chosen, fold)


#: Values that come back from state as they were, also where their type is not known.
_PLAIN: Final = frozenset((int, float, str, bytes, bool, type(None)))
#: Of these state without a type has text or a list, which is ordered otherwise, or not at all.
_TEXTS: Final = (Decimal, dt.date, dt.time, dt.timedelta, uuid.UUID, set, frozenset)


#: These come back from state as they were, where their type is known.
_EXACT: Final[frozenset[type]] = frozenset(
    (Decimal, dt.date, dt.time, dt.timedelta, dt.datetime, uuid.UUID)
)
_UNIONS: Final = (types.UnionType, typing.Union)


def _annotated(function: Callable[[Any], Any]) -> Any:
    """Return the type that a function says it returns; Any if state needs none, or has no such.

    >>> def amount(sale) -> Decimal: ...
    >>> def count(sale) -> int: ...
    >>> _annotated(amount), _annotated(count), _annotated(len)
    (<class 'decimal.Decimal'>, typing.Any, typing.Any)
    """
    if isinstance(function, type):
        return Any
    routine = function if inspect.isroutine(function) else getattr(type(function), "__call__", None)  # noqa: B004
    try:
        kind = typing.get_type_hints(routine).get("return", Any)
        parts = typing.get_args(kind) if typing.get_origin(kind) in _UNIONS else (kind,)
        if kind is Any or all(part in _PLAIN for part in parts):
            return Any
        coder_for(kind)
    except (NameError, TypeError, AttributeError, CoderError):  # as for type checkers only
        return Any
    return kind


class AsAnnotated:
    """A function of an element whose values are kept by the type that its annotation says.

    Args:
        function: As it was given.
        kind: What it returns.

    >>> AsAnnotated(lambda bid: (bid["price"], "EUR"), tuple[Decimal, str])({"price": 5})
    (Decimal('5'), 'EUR')
    """

    def __init__(self, function: Callable[[Any], Any], kind: Any) -> None:
        self._function = function
        self.kind = kind
        self._coder = coder_for(kind)
        self._exact = kind if kind in _EXACT else None
        self.__qualname__ = text(function)

    def __call__(self, element: Any) -> Any:
        """Return the value in the form that comes back from state.

        Raises:
            PipelineError: It is not of the type.
        """
        value = self._function(element)
        if type(value) is self._exact:
            return value
        try:
            return self._coder.decode(self._coder.encode(value))
        except CoderError as refused:
            raise PipelineError(
                f"{self.__qualname__} returned {brief(value, 120)} ({type(value).__name__}), and "
                f"its annotation says {type_name(self.kind)}: {refused}"
            ) from None


class AsStored:
    """A function of an element whose values are compared with those that come back from state.

    Nobody knows the type of its values, so a tuple comes back as a list, and a Struct as a dict.
    They are made so at once: a value has one form, whether its bundle kept it or one before.

    Args:
        function: As it was given.
        fold: What compares, for messages.

    >>> AsStored(lambda bid: (bid["price"], bid["who"]), "max")({"price": 5, "who": "Ann"})
    [5, 'Ann']
    """

    def __init__(self, function: Callable[[Any], Any], fold: str) -> None:
        self._function = function
        self._fold = fold
        self.__qualname__ = text(function)

    def __call__(self, element: Any) -> Any:
        """Return the value in the form that comes back.

        Raises:
            PipelineError: It would come back as text.
        """
        value = self._function(element)
        return value if type(value) in _PLAIN else self._stored(value)

    def _stored(self, value: Any) -> Any:
        if type(value) in _PLAIN:
            return value
        if isinstance(value, list | tuple):
            return list(map(self._stored, value))
        if isinstance(value, dict):
            return {key: self._stored(item) for key, item in value.items()}
        if isinstance(value, msgspec.Struct):
            return self._stored(msgspec.structs.asdict(value))
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return {f.name: self._stored(getattr(value, f.name)) for f in dataclasses.fields(value)}
        if isinstance(value, enum.Enum):
            return self._stored(value.value)
        if isinstance(value, dt.datetime) and value.tzinfo is not None:
            return value
        if isinstance(value, _TEXTS):
            raise PipelineError(
                f"{self._fold} was given {brief(value, 120)} ({type(value).__name__}) by a "
                "function, which does not say its type: state would have it as text, in another "
                f"order. Say it by an annotation, def amount(value) -> {type(value).__name__}, or "
                f"choose it by the name of a field, {self._fold}('field')."
            )
        return value


#: A stream by its name, and how its keys are extracted.
Side = tuple[str, KeyExtractor]


def keyed(stream: PlainStream) -> Side:
    """Return the stream to subscribe to for a stream with keys, and how the keys are extracted.

    Directly after ``key_by`` that is the stream before it, so that the key is extracted where the
    stream's own consumers' are: by Spark itself, if it is a column.
    """
    made_by = [step for step in stream.pipeline.steps if step.target == stream.name]
    if len(made_by) == 1 and made_by[0].kind == "key_by":
        assert isinstance(made_by[0].function, KeyExtractor)
        return made_by[0].source, made_by[0].function
    return stream.name, by_key()


def keyless(pipeline: Declarations, stream: str, seen: frozenset[str] = frozenset()) -> bool:
    """Return whether records come to a stream that have no key."""
    if stream in pipeline.injections:
        return True
    return stream not in seen and any(
        step.kind not in KEYS and keyless(pipeline, step.source, seen | {stream})
        for step in pipeline.steps
        if step.target == stream
    )


def sides(left: PlainStream, right: PlainStream, call: str) -> tuple[Side, Side]:
    """Return what a computation of two streams subscribes to.

    Args:
        left: The one.
        right: The other; it may be the same stream by another key.
        call: Of which method, for the message.

    Raises:
        PipelineError: They are of two pipelines, or one stream by one key.
    """
    if not isinstance(right, PlainStream) or right.pipeline is not left.pipeline:
        raise PipelineError(
            f"{left!r}.{call}({right!r}): expected another stream of {left.pipeline!r}."
        )
    both = keyed(left), keyed(right)
    if both[0][0] == both[1][0]:
        both = (left.name, by_key()), (right.name, by_key())
    if both[0][0] == both[1][0]:
        raise PipelineError(
            f"stream {left.name!r} is joined with itself by one key. Give one side a name or a "
            "step of its own."
        )
    return both


def check_keys(name: str, inputs: Mapping[str, KeyExtractor], formats: Mapping[str, Coder]) -> None:
    """Refuse two sides whose keys are surely of different types, which would never be equal."""
    (left, of_left), (right, of_right) = (
        (stream, _key_type(extractor, formats[stream])) for stream, extractor in inputs.items()
    )
    if of_left is None or of_right is None or of_left == of_right:
        return
    said = [", ".join(map(type_name, kinds)) for kinds in (of_left, of_right)]
    raise PipelineError(
        f"the join {name!r} has keys of different types, which are never equal: {said[0]} of "
        f"{left!r} ({inputs[left]!r}), and {said[1]} of {right!r} ({inputs[right]!r}). Make them "
        "alike: key_by(lambda value: str(value.id))."
    )


def _key_type(extractor: KeyExtractor, coder: Coder) -> tuple[type, ...] | None:
    """Return the types that a key is made of, if they are surely those."""
    if not isinstance(extractor, ByFields):
        return None
    kinds = key_types(extractor, coder)
    return kinds if all(kind in (str, int, bytes, bool, float) for kind in kinds) else None


def key_names(extractor: KeyExtractor) -> tuple[str, ...]:
    """Return what the fields of a key are called in a row: ``key``, if they have no name.

    >>> key_names(by("origin", "dest")), key_names(by_key())
    (('origin', 'dest'), ('key',))
    """
    if not isinstance(extractor, ByFields):
        return ("key",)
    return tuple(field.removeprefix("_") for field in extractor.fields)


def declared_key_types(
    pipeline: Declarations, stream: str, extractor: KeyExtractor
) -> tuple[Any, ...]:
    """Return the types of a key's fields by the nearest format, or source, before a stream.

    Args:
        pipeline: Whose stream it is.
        stream: That the key is extracted of.
        extractor: How.
    """
    if not isinstance(extractor, ByFields):
        return (Any,)
    while True:
        injection = pipeline.injections.get(stream)
        kind = pipeline.formats.get(stream, Any) if injection is None else injection.format
        steps = [step for step in pipeline.steps if step.target == stream]
        if kind is not Any or len(steps) != 1 or not steps[0].keeps_values:
            break
        stream = steps[0].source
    columns = (
        {} if injection is None or plain_format(kind) not in (Any, dict) else injection.columns
    )
    known = [field_type(plain_format(kind), field) for field in extractor.fields]
    return tuple(
        columns.get(field, Any) if kind is Any else kind
        for field, kind in zip(extractor.fields, known, strict=True)
    )


def key_types(extractor: KeyExtractor, coder: Any) -> tuple[Any, ...]:
    """Return the type of each field that a key is made of; nothing of a key that is no fields."""
    if not isinstance(extractor, ByFields):
        return ()
    return tuple(field_type(plain_format(coder), field) for field in extractor.fields)
