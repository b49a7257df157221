"""What a grouping knows of its elements: their type, and that of a column of theirs."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import Any

import msgspec

from millrace.model.coder import BytesCoder, Coder
from millrace.model.errors import PipelineError
from millrace.model.pane import PanedCoder
from millrace.model.stream import by


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


def field_type(kind: Any, chosen: Any) -> Any:
    """Return the type of what is chosen of values of a type.

    Args:
        kind: The values' type.
        chosen: A column name; None, the value itself; or a function: of that nothing is known.
    """
    if chosen is None:
        return kind
    if isinstance(chosen, str) and isinstance(kind, type):
        if issubclass(kind, msgspec.Struct):
            return next((f.type for f in msgspec.structs.fields(kind) if f.name == chosen), Any)
        if dataclasses.is_dataclass(kind):
            return typing.get_type_hints(kind).get(chosen, Any)
    return Any


def picker(chosen: str | Callable[[Any], Any] | None, kind: Any = Any) -> Callable[[Any], Any]:
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
    if isinstance(chosen, str):
        if isinstance(kind, type) and (
            issubclass(kind, msgspec.Struct) or dataclasses.is_dataclass(kind)
        ):
            return attrgetter(chosen)
        return partial(by(chosen), key=None)
    if callable(chosen):
        return chosen
    raise PipelineError(
        f"{chosen!r} chooses nothing to aggregate. Expected a column name, a function of the "
        "element, or nothing: the element itself."
    )


def itself(element: Any) -> Any:
    """Return the element: it is aggregated as it is."""
    return element
