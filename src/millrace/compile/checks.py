"""What is wrong with a pipeline, found before it runs and told all at once.

It looks whether the fields that a pipeline chooses by name are there, where formats or sources
tell; which hooks a computation lacks, as far as its class tells before it runs; and at names.

Names that a computation's class has a meaning for are none for a user's own cells and methods. They
are what is documented of :class:`~millrace.model.computation.Computation`, and nothing else:
how built-in computations are compiled is asked of an
:class:`~millrace.dataflow.operator.Operator`.

Names of columns: those that sinks have beside the fields of a record, and those they refuse.

Spark finds a column whatever the case of its name, so two names are the same if they differ in
nothing else.
"""

from __future__ import annotations

import dataclasses
import dis
import inspect
import itertools
import re
import types
import typing
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from types import CodeType, FunctionType
from typing import Any, Final

import msgspec

from millrace.compile.callables import callable_problems, method_problems
from millrace.compile.sink_limits import JSON, NO_LIMITS, SinkLimits, bare, column_type, fields_of
from millrace.compile.stream_types import StreamProducer, letters_on
from millrace.dataflow.element_types import Picks, keyless, plain_format
from millrace.dataflow.grouping import GroupByKeyAndWindow
from millrace.dataflow.joins.interval_join import JoinByKeyAndTime
from millrace.dataflow.joins.table_join import EnrichByKey
from millrace.dataflow.partials.fanout import CombineByPart
from millrace.model.async_computation import AsyncComputation
from millrace.model.calls import BatchPolicy, CallPolicy
from millrace.model.coder import Coder, type_name
from millrace.model.column_computation import ColumnComputation
from millrace.model.computation import STRONG, Computation, lacks_hook, state_cells
from millrace.model.declarations import Declarations, Evolution
from millrace.model.errors import PipelineError
from millrace.model.pane import PanedCoder
from millrace.model.state import StateDescriptor
from millrace.model.stream import (
    KEY,
    KEYS,
    OF_A_PANE,
    ByFields,
    ByKey,
    ByRecord,
    KeyExtractor,
    Spread,
)
from millrace.model.time import duration_us


def hook_problems(name: str, computation: Computation, *, keys: bool = False) -> list[str]:
    """Return what is said of the hooks that a computation would call in vain.

    Args:
        name: Its name in the pipeline.
        computation: As it was added.
        keys: Whether it was given keys.

    >>> class Flush(Computation):
    ...     def process_record(self, record):
    ...         self.set_timer("flush", at=record.timestamp)
    >>> print(*hook_problems("Flush", Flush()))
    computation 'Flush' sets timers (Flush.process_record calls self.set_timer) but has no \
process_timer, so they could not fire. Define process_timer(self, timer).
    """
    if isinstance(computation, AsyncComputation):
        return call_problems(name, computation)
    if isinstance(computation, ColumnComputation):
        return block_problems(name, computation)
    problems = []
    if computation.inputs and lacks_hook(computation, "process_record"):
        problems.append(
            f"computation {name!r} has inputs but no process_record, so it could not react to "
            "them. Define process_record(self, record)."
        )
    if keys and lacks_hook(computation, "process_start"):
        problems.append(
            f"computation {name!r} was given keys but has no process_start, so they could not "
            "begin. Define process_start(self), which sets their first timers."
        )
    if not keys and not lacks_hook(computation, "process_start"):
        problems.append(
            f"computation {name!r} has process_start and was given no keys, so it would never be "
            f"called. Give it some: p.add({type(computation).__name__}, keys=[...])."
        )
    if lacks_hook(computation, "process_timer") and (setter := _sets_timers(type(computation))):
        problems.append(
            f"computation {name!r} sets timers ({setter} calls self.set_timer) but has no "
            "process_timer, so they could not fire. Define process_timer(self, timer)."
        )
    return problems


def block_problems(name: str, computation: ColumnComputation) -> list[str]:
    """Return what is said of a computation over columns whose hooks would not be called.

    >>> print(*block_problems("Spend", ColumnComputation()))
    computation 'Spend' has no process_batch, so it could not react to its records. Define \
process_batch(self, block).
    """
    problems, kind = [], type(computation)
    if kind.process_batch is ColumnComputation.process_batch:
        problems.append(
            f"computation {name!r} has no process_batch, so it could not react to its records. "
            "Define process_batch(self, block)."
        )
    if kind.process_record is not ColumnComputation.process_record:
        problems.append(
            f"computation {name!r} is a mr.ColumnComputation and has process_record, which would "
            "be called for some records only. Define process_batch(self, block) alone."
        )
    problems += [
        f"computation {name!r} is a mr.ColumnComputation and has {hook}, which would never be "
        "called. Use a mr.Computation behind it."
        for hook in ("process_timer", "process_start")
        if not lacks_hook(computation, hook)
    ]
    return problems


def call_problems(name: str, computation: AsyncComputation) -> list[str]:
    """Return what is said of a computation that could not make its calls.

    >>> class Score(AsyncComputation):
    ...     async def call(self, request): ...
    >>> print(*call_problems("Score", Score()))
    computation 'Score' has no process_response, so nothing would come of its calls. Define \
process_response(self, record, response).
    """
    kind, problems = type(computation), []
    for hook, why, parameters in (
        ("call", "so it would ask nobody", "self, request"),
        ("process_response", "so nothing would come of its calls", "self, record, response"),
    ):
        if getattr(getattr(computation, hook), "__func__", None) is getattr(AsyncComputation, hook):
            problems.append(
                f"computation {name!r} has no {hook}, {why}. Define {hook}({parameters})."
            )
    for hook, instead in (
        ("process_record", "request(self, record) and process_response(self, record, response)"),
        ("process_timer", "timers in the computation behind it, whose low watermark waits for it"),
        ("process_start", "keys for the computation before it"),
    ):
        if not lacks_hook(computation, hook):
            problems.append(
                f"computation {name!r} is a mr.AsyncComputation and has {hook}, which would never "
                f"be called. Define {instead}."
            )
    if not isinstance(computation.calls, CallPolicy):
        problems.append(
            f"computation {name!r}: {kind.__name__}.calls is {computation.calls!r}, and says how "
            "calls are made: calls = mr.CallPolicy(concurrency=200)."
        )
    if not isinstance(computation.batch, BatchPolicy | None):
        problems.append(
            f"computation {name!r}: {kind.__name__}.batch is {computation.batch!r}, and says how "
            "requests are gathered: batch = mr.BatchPolicy(max_size=64), or None."
        )
    if computation.productions is not STRONG:
        problems.append(
            f"computation {name!r} is a mr.AsyncComputation with productions = "
            f"{computation.productions!r}. They would be made again by further calls, which may "
            "answer otherwise. Leave productions= out: they are mr.STRONG."
        )
    return problems


def _sets_timers(kind: type[Computation]) -> str:
    """Return the method that calls ``self.set_timer``; empty if none is seen to.

    Only a call that is surely this one counts: the same name may be another object's method. What
    is not seen here is refused when it happens.
    """
    seen: set[str] = set()
    for base in kind.__mro__:
        if base is Computation:
            break
        for name, method in vars(base).items():
            if name not in seen and isinstance(method, FunctionType):
                code = method.__code__
                if code.co_argcount and _loads(code, code.co_varnames[0], "set_timer"):
                    return method.__qualname__.rpartition("<locals>.")[2]
            seen.add(name)
    return ""


def _loads(code: CodeType, owner: str, attribute: str) -> bool:
    """Return whether code reads an attribute of a variable, in functions within it too."""
    steps = list(_steps(code))
    for (before, variable), (after, read) in itertools.pairwise(steps):
        # Names of instructions change from one Python to the next; some load two variables.
        loads = "LOAD_FAST" in before or before.startswith("LOAD_DEREF")
        on_owner = loads and (variable[-1] if isinstance(variable, tuple) else variable) == owner
        if on_owner and after.startswith(("LOAD_ATTR", "LOAD_METHOD")) and read == attribute:
            return True
    within = (const for const in code.co_consts if isinstance(const, CodeType))
    return any(owner in inner.co_freevars and _loads(inner, owner, attribute) for inner in within)


def _steps(code: CodeType) -> Iterator[tuple[str, object]]:
    return ((step.opname, step.argval) for step in dis.get_instructions(code))


def evolution_problems(name: str, computation: Computation, evolution: Evolution) -> list[str]:
    """Return what is wrong with what is said of a computation's earlier cells."""
    cells = state_cells(computation)
    problems = [
        f"p.add(..., migrate={{{cell!r}: ...}}): computation {name!r} has no cell {cell!r}. Name "
        f"one of {sorted(cells)}, as it is called now."
        for cell in sorted(evolution.migrations.keys() - cells.keys())
    ]
    problems += [
        f"computation {name!r} both has and drops the cell {cell!r}. Leave dropped=[{cell!r}] out "
        "to keep it; one that begins empty needs another name, or a start without it between."
        for cell in sorted(evolution.dropped & cells.keys())
    ]
    problems += [
        f"computation {name!r} both has and renames the cell {cell.was!r}: {own!r} was it, too. "
        "Only one can keep its state."
        for own, cell in cells.items()
        if cell.was in cells
        or sum(known.was == cell.was for known in cells.values() if cell.was) > 1
    ]
    return problems


def check_subscriptions(
    pipeline: Declarations,
    inputs: Mapping[str, Mapping[str, Any]],
    publishers: Mapping[str, Any],
    problems: list[str],
) -> None:
    """Add to ``problems`` what is wrong with inputs, outputs, sinks and the streams they name.

    Args:
        pipeline: As it is declared.
        inputs: Computation -> all streams that it reads, with key extractors.
        publishers: Stream -> all that feed it.
        problems: Gets them.
    """

    def known(stream: str, who: str) -> None:
        if stream not in publishers:
            hint = ""
            if close := get_close_matches(stream, publishers, n=1):
                hint = f" Did you mean {close[0]!r}?"
            elif unnamed := _unnamed(pipeline, inputs, publishers):
                hint = f" {unnamed!r} has no name of yours: give it one by .to({stream!r})."
            problems.append(
                f"{who} subscribes to stream {stream!r}, which nobody injects or produces.{hint} "
                f"Known streams: {', '.join(sorted(publishers)) or 'none'}."
            )

    for name, computation in pipeline.computations.items():
        if not isinstance(computation.inputs, Mapping):
            problems.append(
                f"computation {name!r} declares inputs = {computation.inputs!r}. Each input needs "
                'a key extractor: inputs = {"searches": mr.by("query")}.'
            )
            continue
        if not isinstance(computation.outputs, Mapping):
            problems.append(
                f"computation {name!r} declares outputs = {computation.outputs!r}. Each output "
                'needs a record format: outputs = {"counts": Count}.'
            )
        if not computation.inputs and name not in pipeline.starts:
            problems.append(
                f"computation {name!r} has no inputs, so it would never run. "
                'Declare inputs = {"stream": mr.by("field")}; or give it keys, which begin by '
                "themselves and set timers: p.add(..., keys=[...])."
            )
        problems += hook_problems(name, computation, keys=name in pipeline.starts)
        problems += method_problems(name, computation)
        for stream, extractor in inputs[name].items():
            known(stream, f"computation {name!r}")
            if not isinstance(extractor, KeyExtractor):
                problems.append(
                    f"computation {name!r} has no key extractor for stream {stream!r} (it has "
                    f'{extractor!r}). Write {{"{stream}": mr.by("field")}}, '
                    "mr.by(lambda value: ...), or mr.by_key() to keep the producer's key."
                )
            elif isinstance(extractor, ByRecord):
                problems.append(
                    f"computation {name!r} takes the keys of stream {stream!r} {extractor!r}, and "
                    f"only a step sees records: .key_by({extractor.function!r}) before it, and "
                    "mr.by_key() here."
                )
            elif stream in publishers and (letters := letters_on(stream, publishers)):
                problems.append(
                    f"computation {name!r} subscribes to {stream!r}, which carries {letters}. "
                    f"Only stateless steps and sinks can: a computation's own {letters} would "
                    "come back to it."
                )
    problems += callable_problems(pipeline)
    for declaration in pipeline.sinks:
        known(declaration.stream, "a sink")
    for step in pipeline.steps:
        known(step.source, f"a {step.kind} step")
    streams = [*pipeline.injections, *(step.target for step in pipeline.steps)]
    if streams and not pipeline.computations and not pipeline.sinks:
        problems.append(
            "it has neither computations nor sinks, so it would do nothing. Add one, such as "
            f"p.sink({streams[-1]!r}, mr.sinks.Memory())."
        )


def _unnamed(
    pipeline: Declarations, inputs: Mapping[str, Mapping[str, Any]], publishers: Iterable[str]
) -> str:
    """Return a stream that nobody named or reads; empty if there is none.

    >>> import millrace as mr
    >>> p = mr.Pipeline("words")
    >>> _ = p.inject("lines").map(str.split)
    >>> _unnamed(p, {}, ["lines", "lines.map-1"])
    'lines.map-1'
    """
    read = {step.source for step in pipeline.steps}.union(*inputs.values())
    return next((s for s in publishers if _DERIVED.search(s) and s not in read), "")


#: How the name of a stream ends that a step or grouping got by itself.
_DERIVED: Final = re.compile(r"\.\w+-\d+$")


def check_steps(pipeline: Declarations) -> None:
    """Refuse steps that lead back to where they began."""
    following: dict[str, list[str]] = {}
    for step in pipeline.steps:
        following.setdefault(step.source, []).append(step.target)

    def visit(stream: str, path: tuple[str, ...]) -> None:
        if stream in path:
            circle = " -> ".join([*path[path.index(stream) :], stream])
            raise PipelineError(
                f"{pipeline!r} has a cycle of stateless steps: {circle}. A record would run around "
                "it forever. Give one of the streams another name."
            )
        for target in following.get(stream, ()):
            visit(target, (*path, stream))

    for stream in following:
        visit(stream, ())


def checked_percentiles(name: str, computation: Computation) -> frozenset[int]:
    """Return the percentiles that a computation declares, or refuse those that are none."""
    declared: Any = computation.percentiles
    for percentile in declared if isinstance(declared, Iterable) else (None,):
        if type(percentile) is not int or not 1 <= percentile <= 99:
            raise PipelineError(
                f"computation {name!r}, percentiles = {declared!r}: {percentile!r} is no "
                "percentile. Expected whole numbers from 1 to 99, (90,) or (90, 99); 100, the low "
                "watermark itself, is always there."
            )
    return frozenset(declared)


def late_bound_us(name: str, computation: Computation) -> int:
    """Return how far behind what it has shown a computation may produce, in microseconds."""
    try:
        return duration_us(computation.may_produce_late)
    except PipelineError as refused:
        raise PipelineError(
            f"computation {name!r}, may_produce_late = {computation.may_produce_late!r}: {refused} "
            "mr.UNBOUNDED_PAST allows any lateness."
        ) from None


def together(pipeline: Declarations, problems: list[str]) -> str:
    """Return one text of all problems."""
    if len(problems) == 1:
        return f"{pipeline!r}: {problems[0]}"
    lines = "\n".join(f"  {n}. {problem}" for n, problem in enumerate(problems, 1))
    return f"{pipeline!r} has {len(problems)} problems:\n{lines}"


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
        fields = streams.fields(choice.stream)
        if fields is None or fields.has(choice.field) or streams.of_key_or_pane(choice):
            continue
        if not fields.names:
            problems.append(
                f"{choice.who} field {choice.field!r} of stream {choice.stream!r}, whose values "
                f"are {fields.of.removeprefix('format ')} and have no fields. Choose by a function "
                "of the value."
            )
            continue
        close = get_close_matches(choice.field, fields.names, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        problems.append(
            f"{choice.who} field {choice.field!r} of stream {choice.stream!r}, which its "
            f"{fields.of} does not have.{hint} It has: {', '.join(fields.names)}."
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

    def keyless(self, stream: str) -> bool:
        """Return whether records come to a stream that have no key."""
        return keyless(self._pipeline, stream)

    def of_key_or_pane(self, choice: _Choice) -> bool:
        """Return whether a field is none of the value, but the key, or one of its pane."""
        if not choice.of_record:
            return False
        if choice.field == KEY:
            return not self.keyless(choice.stream)
        return choice.field in OF_A_PANE and isinstance(self._formats[choice.stream][1], PanedCoder)

    def _columns(self, stream: str, seen: frozenset[str]) -> _Fields | None:
        """Return the columns that the values of a stream without a format are made of."""
        names: dict[str, None] = {}
        for who in self._publishers[stream]:
            if who.kind == "injector":
                injection = self._pipeline.injections[stream]
                columns = getattr(injection.source, "columns", None)
                if not isinstance(columns, list):
                    return None
                # The event time is no part of such a value.
                names.update(dict.fromkeys(c for c in columns if c != injection.timestamp))
            elif who.kind == "step" and who.name not in seen and self._keeps(who.name, stream):
                kind = plain_format(self._formats[who.name][1])
                above = self._columns(who.name, seen | {stream}) if kind is Any else None
                if above is None:
                    return None
                names.update(dict.fromkeys(above.names))
            else:
                return None
        return _Fields("source", tuple(names))

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
        members = [
            _fields_of(option) for option in typing.get_args(kind) if option is not type(None)
        ]
        known = [member for member in members if member is not None]
        if len(known) < len(members):
            return None
        names = dict.fromkeys(name for fields in known for name in fields.names)
        kinds = tuple(each for fields in known for each in fields.kinds)
        return _Fields(f"format {type_name(kind)}", tuple(names), kinds)
    if (origin or kind) in _PLAIN:
        return _Fields(type_name(kind), ())
    if not isinstance(kind, type):
        return None
    title = f"format {type_name(kind)}"
    if issubclass(kind, msgspec.Struct):
        return _Fields(title, kind.__struct_fields__, (kind,))
    if dataclasses.is_dataclass(kind):
        return _Fields(title, tuple(field.name for field in dataclasses.fields(kind)), (kind,))
    if typing.is_typeddict(kind):
        return _Fields(title, tuple(typing.get_type_hints(kind)))
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return _Fields(title, kind._fields, (kind,))
    return None


#: What a subclass declares, and what that is.
_DECLARED: Final[Mapping[str, str]] = {
    "inputs": "where it says which streams it reads",
    "outputs": "where it says which streams it makes",
    "may_produce_late": "where it says how late it may produce",
    "percentiles": "where it says which percentile low watermarks it waits for",
    "productions": "where it says mr.STRONG or mr.WEAK",
    "delivery": "where it says mr.EXACTLY_ONCE or mr.AT_LEAST_ONCE",
}

#: What Millrace calls.
_HOOKS: Final[Mapping[str, str]] = {
    "process_record": "a method that is called with each record",
    "process_start": "a method that is called with each key that it is given",
    "process_timer": "a method that is called with each due timer",
}

#: What Millrace gives.
_GIVEN: Final[Mapping[str, str]] = {
    "key": "the current key",
    "low_watermark": "the low watermark of its input",
    "percentile_low_watermarks": "the low watermarks of shares of its input",
    "wall_time": "the wall clock",
    "produce": "the call that sends a value to an output",
    "set_timer": "the call that sets a timer",
    "delete_timer": "the call that cancels a timer",
    "hold": "the call that holds the low watermark",
    "increment": "the call that adds to a counter",
}

#: Reserved name -> what it is in every computation.
RESERVED: Final[Mapping[str, str]] = {**_DECLARED, **_HOOKS, **_GIVEN}


def reserved_problems(name: str, computation: Computation) -> list[str]:
    """Return what is said of members that have a name with another meaning.

    Args:
        name: The computation's name in the pipeline.
        computation: As it was added.

    >>> class Echo(Computation):
    ...     key = "k"
    >>> print(*reserved_problems("echo", Echo()))
    computation 'echo': Echo.key is 'k', and the name 'key' is reserved: in every computation it \
is the current key. Give it another name.
    """
    problems = []
    for member, (owner, value) in sorted(_members(computation).items()):
        misuse = _misuse(member, value)
        if misuse:
            meaning = RESERVED.get(member, "Python's own")
            problems.append(
                f"computation {name!r}: {owner}.{member} is {misuse}, and the name {member!r} is "
                f"reserved: in every computation it is {meaning}. Give it another name."
            )
    return problems


def _members(computation: Computation) -> dict[str, tuple[str, Any]]:
    """Return what a user has defined under the names of ``Computation``: name -> class, value."""
    members: dict[str, tuple[str, Any]] = {}
    kind = type(computation)
    taken = dir(Computation)
    above = kind.__mro__[: kind.__mro__.index(Computation)]
    for base in reversed(above):
        members |= {
            name: (base.__name__, value) for name, value in vars(base).items() if name in taken
        }
    own = vars(computation).items()
    return members | {name: (kind.__name__, value) for name, value in own if name in taken}


def _misuse(name: str, value: Any) -> str:
    """Return what a value is that does not go with its name; empty if it does."""
    if isinstance(value, StateDescriptor):
        return "a state cell"
    if name in _GIVEN:
        return "a method" if inspect.isroutine(value) else _kind_text(value)
    if name in _DECLARED and inspect.isroutine(value):
        return "a method"
    if name in _HOOKS and not (callable(value) or hasattr(value, "__get__")):
        return _kind_text(value)
    return ""


def _kind_text(value: Any) -> str:
    return "a property" if isinstance(value, property) else repr(value)


#: What a sink's DataFrame has of every record.
OF_RECORDS: Final = ("_key", "_timestamp", "_id")
#: What it has of the pane as well, on a stream that comes out of a grouping.
OF_PANES: Final = (
    "_window_start", "_window_end", "_pane_index", "_pane_timing", "_is_first", "_is_last",
    "_retraction", "_production_time", "_percentile", "_trigger",
)  # fmt: skip


def refused_field(stream: str, format: Any, coder: Coder, sink: Any) -> str:
    """Return what is wrong with a stream's fields as columns of a sink; empty if nothing is.

    Args:
        stream: Name of the stream.
        format: Of its records.
        coder: Of its records.
        sink: The sink. The names in its attribute ``adds``, if it has one, are of columns that it
            makes itself; its attribute ``limits`` tells what names it can write.
    """
    if isinstance(coder, PanedCoder):
        format = coder.format
    taken = {name.lower(): "that sinks get beside the record's" for name in OF_RECORDS}
    if isinstance(coder, PanedCoder):
        taken |= {name.lower(): "that sinks get of a pane" for name in OF_PANES}
    taken |= {name.lower(): f"that {sink!r} adds" for name in getattr(sink, "adds", ())}
    limits: SinkLimits = getattr(sink, "limits", NO_LIMITS)
    taken |= dict.fromkeys(limits.names, f"of {sink!r} itself")
    has = f"{type_name(format)}, the format of stream {stream!r}, has"
    for name in fields_of(format) or ():
        if name.lower() in taken:
            return (
                f"{has} a field {name!r}, which is the name of a column {taken[name.lower()]} "
                "(case makes no difference). One would hide the other. Rename the field."
            )
        if limits.name_bytes is not None and len(name.encode()) > limits.name_bytes:
            return (
                f"{has} a field {name!r} of {len(name.encode())} bytes, and a column of {sink!r} "
                f"has a name of at most {limits.name_bytes}. Rename the field."
            )
    return _refused_names(format, has, sink, ())


def _refused_names(format: Any, has: str, sink: Any, within: tuple[Any, ...]) -> str:
    """Return which name of a field no sink can write, of a record and of those in it."""
    there: dict[str, str] = {}
    # That names are identifiers, which every sink can write, msgspec and dataclasses see to.
    for name, kind in (fields_of(format) or {}).items():
        if (other := there.setdefault(name.lower(), name)) != name:
            return (
                f"{has} the fields {other!r} and {name!r}, which differ only in case: as columns "
                f"of {sink!r} they are one. Rename one of them."
            )
        for record in _records_in(kind):
            if record not in within and (
                wrong := _refused_names(
                    record,
                    f"{has} a field {name!r}, which has" if not within else has,
                    sink,
                    (*within, record),
                )
            ):
                return wrong
    return ""


def _records_in(kind: Any) -> Iterator[Any]:
    """Yield the records that become structs in the column of a type."""
    if column_type(kind) is JSON:
        return
    kind = bare(kind)
    if fields_of(kind):
        yield kind
    for argument in typing.get_args(kind):
        yield from _records_in(argument)
