"""Expressions: what a step computes of the fields of its stream's values, by columns.

They are narwhals expressions, evaluated over Arrow: whole columns where there are many values, a
column of one where there is one. So an expression has one meaning, wherever a step runs.

Source: docs/design/2026-11-28-expressions.md.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import functools
import re
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final, Self

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from millrace.model.coder import struct_fields
from millrace.model.errors import PipelineError
from millrace.model.row_expression import Compute, Unsure, compute_of

#: Type of a field -> type of its column.
_COLUMNS: Final[dict[Any, pa.DataType]] = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    bytes: pa.binary(),
    dt.datetime: pa.timestamp("us", tz="UTC"),
    dt.date: pa.date32(),
}
#: By this name of the zone Python's values have ``timezone.utc``.
_INSTANT: Final = pa.timestamp("us", "+00:00")
#: The column of an expression that is alone.
_ALONE: Final = "value"
#: Operations that give a value for every value, and none only for none.
_TOTAL: Final = frozenset(
    (
        "col", "lit", "alias", "__add__", "__sub__", "__mul__", "__truediv__", "__radd__",
        "__rsub__", "__rmul__", "__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__",
        "__and__", "__or__", "__rand__", "__ror__", "__invert__", "is_between", "is_in", "is_null",
        "is_nan", "str.to_lowercase", "str.to_uppercase", "str.len_chars", "str.contains",
        "str.starts_with", "str.ends_with", "str.strip_chars", "str.replace_all", "str.slice",
    )
)  # fmt: skip


def is_expression(thing: Any) -> bool:
    """Return whether something is a narwhals expression; imports nothing.

    >>> import millrace as mr
    >>> is_expression(mr.col("price") > 5), is_expression(len)
    (True, False)
    """
    return type(thing).__module__.partition(".")[0] == "narwhals" and hasattr(thing, "alias")


def column_type_of(kind: Any) -> tuple[pa.DataType, bool] | None:
    """Return the type of the column of a field's values, and whether it may have nulls.

    Args:
        kind: Of the field.

    Returns:
        None if the values make no column that an expression can name.

    >>> column_type_of(int | None), column_type_of(list[int])
    ((DataType(int64), True), None)
    """
    if typing.get_origin(kind) is typing.Annotated:
        kind = typing.get_args(kind)[0]
    options = [kind]
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        options = [option for option in typing.get_args(kind) if option is not type(None)]
    nullable = options != [kind] and type(None) in typing.get_args(kind)
    if len(options) != 1:
        return None
    try:
        found = _COLUMNS.get(options[0])
    except TypeError:  # not hashable
        return None
    return None if found is None else (found, nullable)


def known_fields(format: Any) -> dict[str, Any] | None:
    """Return the fields of the values of a format; None if it does not say them.

    >>> known_fields(dict), known_fields(int)
    (None, None)
    """
    kind = format if isinstance(format, type) else getattr(format, "type", format)
    if typing.is_typeddict(kind):
        return typing.get_type_hints(kind)
    if not isinstance(kind, type):
        return None
    if issubclass(kind, msgspec.Struct):
        return {info.name: info.type for info in struct_fields(kind)}
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        return {field.name: hints[field.name] for field in dataclasses.fields(kind)}
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        hints = typing.get_type_hints(kind)
        return {name: hints.get(name, Any) for name in kind._fields}
    return None


def value_type(column: pa.DataType) -> Any:
    """Return the type of the values of a column; None if no field has such values."""
    if pa.types.is_integer(column):
        return int
    if pa.types.is_floating(column):
        return float
    if pa.types.is_string(column) or pa.types.is_large_string(column):
        return str
    if pa.types.is_timestamp(column):
        return None if column.tz is None else dt.datetime
    return next((kind for kind, one in _COLUMNS.items() if one == column), None)


def as_field_column(array: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return what an expression has made as a column of the type that its field has.

    Raises:
        pa.ArrowInvalid: It has an integer that 64 bits do not hold.
    """
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks() if array.num_chunks != 1 else array.chunk(0)
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks)
    kind = _COLUMNS[value_type(array.type)]
    return array if array.type == kind else array.cast(kind)


def column_of(values: Sequence[Any], kind: pa.DataType | None) -> pa.Array:
    """Return values of Python's as a column.

    Args:
        values: Of one type.
        kind: Of the column; None: what Arrow makes of them.

    Raises:
        ValueError: A datetime has no time zone. Arrow would take it for one in UTC.
    """
    column = pa.array(values, kind)
    if pa.types.is_timestamp(column.type):
        for value in values:
            if isinstance(value, dt.datetime) and value.tzinfo is None:
                raise ValueError(
                    f"{value!r} has no time zone, so it names no instant. Give it one, such as "
                    "tzinfo=datetime.timezone.utc."
                )
    return column


def without_nanoseconds(array: pa.Array | pa.ChunkedArray) -> Any:
    """Return a column whose times Python holds: what is finer than a microsecond is cut off, down.

    >>> without_nanoseconds(pa.array([-1, 1999], pa.timestamp("ns", "UTC"))).cast(
    ...     "int64"
    ... ).to_pylist()
    [-1, 1]
    """
    kind = array.type
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        whole = pc.floor_temporal(array.cast(pa.timestamp("ns")), unit="microsecond")
        return whole.cast(pa.timestamp("us")).cast(pa.int64()).cast(pa.timestamp("us", kind.tz))
    if pa.types.is_duration(kind) and kind.unit == "ns":
        return array.cast(pa.duration("us"), safe=False)
    return array


def listed(array: pa.Array) -> list[Any]:
    """Return the values of a column, as fields have them."""
    array = without_nanoseconds(array)
    if pa.types.is_timestamp(array.type):
        array = array.cast(_INSTANT)
    return array.to_pylist()  # type: ignore[no-any-return]


@dataclass(frozen=True, eq=False)
class Expression:
    """Expressions in the place of a step's function.

    Attributes:
        expressions: Each with the name of its column.
        fields: Field of the stream's values -> its type, as the pipeline is built; what they
            compute is unknown before.
    """

    #: What the step is called that it is given to.
    step: ClassVar[str] = ""

    expressions: tuple[Any, ...]
    fields: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, value: Any) -> Any:
        """Return what it makes of a value."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return ", ".join(map(_named_text, self.expressions))

    def bound(self, fields: Mapping[str, Any]) -> Self:
        """Return the same over fields of known types."""
        return replace(self, fields=dict(fields))

    @functools.cached_property
    def reads(self) -> tuple[str, ...]:
        """The fields that are named, each once."""
        return tuple(
            dict.fromkeys(name for expression in self.expressions for name in _names(expression))
        )

    def problem(self, fields: Mapping[str, Any]) -> str | None:
        """Return what is wrong with it over fields of these types, whose names are known."""
        for expression in self.expressions:
            if (wrong := _not_of_a_row(expression)) is not None:
                return wrong
        for name in self.reads:
            if name in fields and column_type_of(fields[name]) is None:
                return (
                    f"field {name!r} is {_text(fields[name])}, of which there are no columns. "
                    "Expressions take bool, int, float, str, bytes, datetime and date, and each "
                    "of these or None. Use a function of the value."
                )
        try:
            made = self.bound(fields).made()
        except Exception as refused:  # noqa: BLE001  narwhals and Arrow have their own errors
            return f"it cannot be computed: {type(refused).__name__}: {refused}"
        return self.refusal(made)

    def refusal(self, made: Mapping[str, pa.DataType]) -> str | None:
        """Return what is wrong with the types of the columns that it makes."""
        for name, column in made.items():
            if value_type(column) is None:
                return (
                    f"{name!r} would be {column}, which no field can be. Make it another type: "
                    '.cast(...), or .dt.replace_time_zone("UTC").'
                )
        return None

    def made(self) -> dict[str, pa.DataType]:
        """Return the columns that it makes: name -> type."""
        schema = self.computed(self._table({}, 0)).schema
        return {one.name: one.type for one in schema}

    def kinds(self) -> dict[str, Any]:
        """Return the fields that it makes: name -> type."""
        optional = {
            name
            for name, one in zip(self.made(), self.expressions, strict=False)
            if _may_be_null(one, self.fields)
        }
        return {
            name: value_type(column) | None if name in optional else value_type(column)
            for name, column in self.made().items()
        }

    def computed(self, table: pa.Table) -> pa.Table:
        """Return what the expressions make of each row of a table of fields."""
        import narwhals as nw

        frame = nw.from_native(table, eager_only=True)
        whole = frame.with_columns(*self.expressions)
        return whole.select(*map(_name, self.expressions)).to_native()

    def columns(self, columns: Mapping[str, pa.Array], count: int) -> dict[str, pa.Array]:
        """Return what it makes of many values, as columns of the types that fields have.

        Args:
            columns: Field -> its values, as columns of the types that fields have; more than it
                names are let be.
            count: How many values there are.
        """
        made = self.computed(self._table(columns, count))
        return {name: as_field_column(made.column(name)) for name in made.column_names}

    def gathered(self, values: Sequence[Any]) -> dict[str, pa.Array]:
        """Return the fields of values that it names, as columns."""
        return {
            name: column_of([_field(value, name) for value in values], kind)
            for name, kind in self._types.items()
        }

    def of_values(self, values: Sequence[Any]) -> dict[str, list[Any]]:
        """Return what it makes of values, by name."""
        made = self.columns(self.gathered(values), len(values))
        return {name: listed(column) for name, column in made.items()}

    def of_value(self, value: Any) -> dict[str, Any]:
        """Return what it makes of a value, by name."""
        if self._computes is not None:
            kinds = self._kinds

            def field(name: str) -> Any:
                found = _field(value, name)
                if found is not None and (
                    type(found) is not kinds[name]
                    or (type(found) is int and not -(1 << 63) <= found < 1 << 63)
                ):
                    raise Unsure
                return found

            try:
                return {name: compute(field) for name, compute in self._computes.items()}
            except Unsure:
                pass
        return {name: found for name, (found,) in self.of_values([value]).items()}

    @functools.cached_property
    def _computes(self) -> dict[str, Compute] | None:
        """What computes each of the expressions of a value; None if one is not known."""
        if not self._kinds.keys() >= set(self.reads):
            return None
        found = {_name(expression): compute_of(expression) for expression in self.expressions}
        known = {name: compute for name, compute in found.items() if compute is not None}
        return known if len(known) == len(found) else None

    @functools.cached_property
    def _kinds(self) -> dict[str, type]:
        """The types of the fields that are numbers, text, true or false."""
        columns = {name: column_type_of(self.fields.get(name)) for name in self.reads}
        kinds = {
            name: value_type(column[0]) for name, column in columns.items() if column is not None
        }
        return {name: kind for name, kind in kinds.items() if kind in (int, float, str, bool)}

    def __getstate__(self) -> dict[str, Any]:
        return {"expressions": self.expressions, "fields": self.fields}

    @functools.cached_property
    def _types(self) -> dict[str, pa.DataType]:
        found = {name: column_type_of(self.fields[name]) for name in self.reads}
        return {name: one[0] for name, one in found.items() if one is not None}

    def _table(self, columns: Mapping[str, pa.Array], count: int) -> pa.Table:
        kinds = self._types
        arrays = [
            columns[name] if name in columns else pa.nulls(count, kind)
            for name, kind in kinds.items()
        ]
        names = list(kinds)
        if not names:  # only literals, which need as many rows
            arrays, names = [pa.nulls(count, pa.bool_())], ["\0"]
        return pa.Table.from_arrays(arrays, names=names)


class Condition(Expression):
    """Which values a filter keeps: those of which an expression is true; null is not."""

    step = "filter"

    def __call__(self, value: Any) -> bool:
        """Return whether it is true of a value."""
        (found,) = self.of_value(value).values()
        return found is True

    def refusal(self, made: Mapping[str, pa.DataType]) -> str | None:
        """Refuse what is not true or false."""
        (column,) = made.values()
        if pa.types.is_boolean(column):
            return None
        return f"a filter needs true or false, and this is {column}. Compare it: ... == 0."


class Result(Expression):
    """The value that an expression makes of another."""

    step = "map"

    def __call__(self, value: Any) -> Any:
        """Return what it makes of a value."""
        (found,) = self.of_value(value).values()
        return found


class Selection(Expression):
    """The dicts that expressions make of values, with just these fields."""

    step = "select"

    def __call__(self, value: Any) -> dict[str, Any]:
        """Return what they make of a value."""
        return self.of_value(value)


class Extension(Expression):
    """The dicts of the fields of values, and of those that expressions make."""

    step = "with_columns"

    def __call__(self, value: Any) -> dict[str, Any]:
        """Return what they make of a value."""
        whole = (
            dict(value)
            if isinstance(value, Mapping)
            else {name: _field(value, name) for name in self.fields}
        )
        return whole | self.of_value(value)

    def kinds(self) -> dict[str, Any]:
        """Return the fields of the results: name -> type."""
        return {**self.fields, **super().kinds()}


def alone(expression: Any) -> Any:
    """Return an expression whose column has a name that nobody needs."""
    return expression.alias(_ALONE)


def named(step: str, expressions: Sequence[Any], by_name: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return expressions, each with the name of the field that it makes.

    Args:
        step: Which asks, for messages.
        expressions: Names of fields, and expressions that have a name of their own: that of the
            first field in them, or of ``.alias(...)``.
        by_name: Others by the name that is to be theirs; what is no expression is a value.

    Raises:
        PipelineError: There are none, or two have one name.
    """
    import narwhals as nw

    made = []
    for expression in expressions:
        for each in expression if isinstance(expression, list | tuple) else (expression,):
            if not isinstance(each, str) and not is_expression(each):
                raise PipelineError(
                    f"{step}({each!r}): expected the name of a field or an expression, "
                    'mr.col("price") * 2.'
                )
            made += _each(nw.col(each)) if isinstance(each, str) else _each(each)
    made += [
        (one if is_expression(one) else nw.lit(one)).alias(name) for name, one in by_name.items()
    ]
    names = list(map(_name, made))
    if wrong := [name for name in names if not name.isidentifier()]:
        raise PipelineError(
            f"{step}(...): {wrong[0]!r} cannot be a field. Give it a name that can be, "
            f'{step}(total=...) or .alias("total").'
        )
    if not made:
        raise PipelineError(f'{step}() makes no field. Name some: {step}("price").')
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise PipelineError(
            f"{step}(...) makes {twice[0]!r} twice. Give one of them another name: "
            f"{step}(other=...)."
        )
    return tuple(made)


def _each(expression: Any) -> list[Any]:
    """Return an expression of several fields as one of each."""
    import narwhals as nw

    nodes = nodes_of(expression)
    if len(nodes) == 1 and nodes[0].name == "col":
        return [nw.col(name) for name in nodes[0].kwargs["names"]]
    return [expression]


def nodes_of(expression: Any) -> tuple[Any, ...]:
    """Return the operations of an expression, in order.

    Raises:
        PipelineError: This narwhals has them elsewhere.
    """
    nodes = getattr(expression, "_nodes", None)
    if nodes is None:
        import narwhals as nw

        raise PipelineError(
            f"narwhals {nw.__version__} is not one that Millrace knows. Install narwhals>=2.20,<3."
        )
    return tuple(nodes)


def _walk(expression: Any) -> Iterator[Any]:
    """Yield the operations of an expression and of those in it."""
    for node in nodes_of(expression):
        yield node
        for inner in node.exprs:
            if is_expression(inner):
                yield from _walk(inner)


def _names(expression: Any) -> Iterator[str]:
    for node in _walk(expression):
        if node.name == "col":
            yield from node.kwargs["names"]
        elif not node.str_as_lit:  # text in the place of an expression is the name of a field
            yield from (inner for inner in node.exprs if isinstance(inner, str))


def _name(expression: Any) -> str:
    """Return the name of an expression's column."""
    for node in reversed(nodes_of(expression)):
        if node.name == "alias":
            return str(node.kwargs["name"])
    first = nodes_of(expression)[0]
    if first.name == "col":
        return str(first.kwargs["names"][0])
    return next((_name(inner) for inner in first.exprs if is_expression(inner)), "literal")


def _not_of_a_row(expression: Any) -> str | None:
    """Return why an expression cannot be computed of a row by itself; None if it can."""
    for node in _walk(expression):
        if node.name == "col":
            if len(node.kwargs["names"]) != 1:
                return "it names several fields at once. Write an expression for each."
        elif node.kind.name not in ("ELEMENTWISE", "LITERAL"):
            return (
                f"{node.name} depends on other records, and a step sees one. Aggregate in windows, "
                "or keep state."
            )
        elif node.name in _NOT_ONCE:
            return f"{node.name} is not the same each time, or calls Python. Use a function."
    return None


#: Operations that call Python, or whose result is another when a record is computed again.
_NOT_ONCE: Final = frozenset(("map_batches", "sample"))


def _may_be_null(expression: Any, fields: Mapping[str, Any]) -> bool:
    """Return whether a row's result may be null."""
    for node in _walk(expression):
        if node.name not in _TOTAL:
            return True
        if node.name == "lit" and node.kwargs.get("value", 0) is None:
            return True
    return any(
        (column := column_type_of(fields[name])) is None or column[1] for name in _names(expression)
    )


def _named_text(expression: Any) -> str:
    """Return an expression as an argument: by its name, if it was given one last."""
    *before, last = nodes_of(expression)
    text = expression_text(expression)
    if not before or last.name != "alias" or last.kwargs["name"] == _ALONE:
        return text
    end = f".alias(name={last.kwargs['name']!r})"
    return f"{last.kwargs['name']}={text.removesuffix(end).removeprefix('(').removesuffix(')')}"


_OPERATORS: Final = {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "**",
    "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "and": "&", "or": "|",
}  # fmt: skip


def expression_text(expression: Any) -> str:
    """Return an expression nearly as it was written.

    >>> import millrace as mr
    >>> expression_text(mr.col("price") * 0.9 > 5), expression_text(mr.col("name").str.len_chars())
    ("(col('price') * 0.9) > 5", "col('name').str.len_chars()")
    """
    text = ""
    for node in nodes_of(expression):
        inner = [
            expression_text(expr) if is_expression(expr) else repr(expr) for expr in node.exprs
        ]
        operator = _OPERATORS.get(node.name.strip("_"))
        if node.name == "when_then":
            before = expression_text(nodes_of(node.exprs[0])[0].exprs[0])
            text = f"when({before}).then({inner[1]})"
            text += f".otherwise({inner[2]})" if len(inner) > 2 else ""
        elif node.name == "col":
            text = f"col({', '.join(map(repr, node.kwargs['names']))})"
        elif node.name == "lit":
            text = repr(node.kwargs.get("value"))
        elif operator is not None and len(inner) == 1:
            left = f"({text})" if " " in text else text
            text = f"{left} {operator} {f'({inner[0]})' if ' ' in inner[0] else inner[0]}"
        elif node.name == "alias" and node.kwargs["name"] == _ALONE:
            continue
        else:
            inner += [f"{key}={value!r}" for key, value in node.kwargs.items()]
            start = f"({text})." if " " in text else f"{text}." if text else ""
            text = f"{start}{node.name}({', '.join(inner)})"
    return re.sub(r"\s+", " ", text)


def _field(value: Any, name: str) -> Any:
    return value[name] if isinstance(value, Mapping) else getattr(value, name)


def _text(kind: Any) -> str:
    return str(getattr(kind, "__qualname__", kind)) if isinstance(kind, type) else repr(kind)
