"""Values that a join keeps: in lists by their time, replaced and never changed in place."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

from millrace.dataflow.formats import itself
from millrace.model.coder import Coder, JsonCoder, MsgpackCoder
from millrace.model.pane import PanedCoder
from millrace.model.state import MapState


class KeptCoder(MsgpackCoder):
    """msgpack of what was checked when it came by its stream, and is not changed in place."""

    __slots__ = ()

    immutable = True

    def encode(self, value: Any) -> bytes:
        """Return the value as msgpack."""
        return self._encode(value)

    def __reduce__(self) -> tuple[Any, ...]:
        return KeptCoder, (self.type,)


#: What a value is kept as, and how it is read from that.
Forms = tuple[Callable[[Any], Any], Callable[[Any], Any]]


def plain_coder(coder: Coder) -> Coder:
    """Return the coder of a stream's values without their panes."""
    return coder.inner if isinstance(coder, PanedCoder) else coder


def kept_as(coder: Coder) -> tuple[Any, Forms]:
    """Return the type of what a stream's value is kept as, and the forms of a value there.

    A value of a coder of the user's own is kept as the bytes of that.
    """
    plain = plain_coder(coder)
    if isinstance(plain, MsgpackCoder | JsonCoder):
        return plain.type, (itself, itself)
    return bytes, (plain.encode, plain.decode)


def kept_by_time(coder: Coder, *more: Any) -> tuple[MapState[Any], Forms]:
    """Return a cell for lists of a stream's values by time, and the forms of a value there.

    Args:
        coder: Of the stream.
        more: Types of what is kept beside each value.
    """
    kind, forms = kept_as(coder)
    item = types.GenericAlias(tuple, (kind, *more))
    return MapState(KeptCoder(types.GenericAlias(list, (item,)))), forms
