"""Batches of requests as the user's function is given them, and responses as it returns them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from types import NoneType
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from millrace.model.errors import PipelineError, brief
from millrace.model.expression import without_nanoseconds

#: Units of NumPy that Python's times do not have.
_FINE: Final = frozenset({"ns", "ps", "fs", "as"})


class WrongNumber(PipelineError):
    """A function of a batch returned fewer or more responses than it was given requests."""


def table_of(requests: Sequence[Any]) -> pa.Table:
    """Return requests as a table: a column for each field, or ``value`` where they have none.

    Raises:
        TypeError: Values of a field are of several types; or Arrow refuses them.

    >>> table_of([{"card": "a", "amount": 3}, {"card": "b"}]).to_pydict()
    {'card': ['a', 'b'], 'amount': [3, None]}
    >>> table_of([1, 2]).to_pydict()
    {'value': [1, 2]}
    """
    rows = [_fields(request) for request in requests]
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {name: [row.get(name) for row in rows] for name in names}
    for name, values in columns.items():
        _check_types(name, values)
    return pa.table(columns)


def _check_types(name: str, values: Sequence[Any]) -> None:
    """Refuse values that Arrow would make values of one type: of a date and an instant, two dates.

    Integers beside floats are refused by Arrow itself where a float cannot hold them.
    """
    types = {*map(type, values)} - {NoneType}
    if len(types) > 1 and not (types <= {int, float} or types <= {list, tuple}):
        listed = ", ".join(sorted(each.__name__ for each in types))
        raise TypeError(f"the values of {name!r} are of several types, {listed}")


def _fields(value: Any) -> Mapping[str, Any]:
    if isinstance(value, Mapping):
        return value
    if isinstance(value, msgspec.Struct):
        return msgspec.structs.asdict(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        fields: dict[str, Any] = value._asdict()
        return fields
    return {"value": value}


def responses_of(answer: Any, requests: int, name: str) -> list[Any]:
    """Return what a function of a batch has answered, one response for each request.

    Args:
        answer: A list or tuple, an Arrow table (a response is a row, as a dict) or array, or
            anything with ``tolist()``, as an array of NumPy has.
        requests: How many there were.
        name: Of the computation, for messages.

    Raises:
        WrongNumber: There are fewer or more.
        PipelineError: It is something else.

    >>> import numpy as np
    >>> responses_of(np.array([0.5, 1.0]), 2, "label")
    [0.5, 1.0]
    """
    if isinstance(answer, list | tuple):
        responses = list(answer)
    elif isinstance(answer, pa.Table | pa.RecordBatch):
        columns = map(without_nanoseconds, answer.columns)
        responses = pa.Table.from_arrays([*columns], answer.schema.names).to_pylist()
    elif isinstance(answer, pa.Array | pa.ChunkedArray):
        responses = without_nanoseconds(answer).to_pylist()
    elif hasattr(answer, "tolist"):
        responses = _listed(answer)
    else:
        responses = answer
    if not isinstance(responses, list):
        raise WrongNumber(
            f"{name}: the function of a batch returned {brief(answer, 80)}. Expected {requests} "
            "responses, in the order of the requests: a list, an Arrow table or array, or an array "
            "of NumPy."
        )
    if len(responses) != requests:
        raise WrongNumber(
            f"{name}: the function of a batch returned {len(responses)} responses for {requests} "
            "requests. Expected one for each, in their order; None may be one."
        )
    return responses


def _listed(column: Any) -> list[Any]:
    """Return the values of a column of NumPy, pandas or the like as Python has them.

    Of times in nanoseconds ``tolist()`` makes integers, and of what pandas has by itself objects of
    pandas: a ``Timestamp``, ``NA``, or NaN where a text is missing.
    """
    kind = getattr(column, "dtype", None)
    if isinstance(kind, np.dtype):
        if kind.kind in "mM" and np.datetime_data(kind)[0] in _FINE:
            column = np.asarray(column).astype(f"{kind.kind}8[us]")
    elif kind is not None and hasattr(column, "array"):
        return without_nanoseconds(pa.array(column)).to_pylist()  # type: ignore[no-any-return]
    return column.tolist()  # type: ignore[no-any-return]
