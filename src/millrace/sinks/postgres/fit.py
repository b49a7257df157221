"""Fit: which values of a record's field a column of the user's table holds as they are.

PostgreSQL refuses some of what a column cannot hold, and bends the rest in silence: it rounds to
the scale of a ``numeric(10,2)`` and to the digits of a ``real``, cuts text at a cast, drops a zone
or a time of day, and reads ``01/02/2026`` by a setting of the session.
"""

from __future__ import annotations

import re
from typing import Final

import pyarrow as pa

from millrace.compile.sink_limits import ColumnLimit

#: Name, sizes, and the rest of the name.
_TYPE: Final = re.compile(r"([^(\[]+?)(?:\(([-\d,]+)\))?((?: with(?:out)? time zone)?)(?:\[\])*")
#: The whole numbers of a type, and between which a type of floating-point numbers has all of them.
_WHOLE: Final = {
    "smallint": (-(1 << 15), (1 << 15) - 1),
    "integer": (-(1 << 31), (1 << 31) - 1),
    "real": (-(1 << 24), 1 << 24),
    "double precision": (-(1 << 53), 1 << 53),
}
_TEXTS: Final = frozenset({"text", "character varying", "character"})
_ZONED, _ZONELESS = "timestamp with time zone", "timestamp without time zone"
_DAY, _TIME = r"\d{4,6}-\d\d-\d\d", r"\d\d:\d\d(:\d\d(\.\d{1,6})?)?"
_ZONE: Final = r"(Z|[+-]\d\d(:?\d\d)?)"
#: Of text, what a column reads as one date, time or instant: ISO 8601, and all of it.
_ISO: Final = {
    "date": f"^({_DAY}|-?infinity)$",
    "time without time zone": f"^{_TIME}$",
    "time with time zone": f"^{_TIME}{_ZONE}$",
    _ZONELESS: f"^({_DAY}([T ]{_TIME})?|-?infinity)$",
    _ZONED: f"^({_DAY}[T ]{_TIME}{_ZONE}|-?infinity)$",
}
#: Kind of a field's column -> built-in types that hold its values, all or within a limit.
_HELD: Final = (
    (pa.types.is_boolean, {"boolean"}),
    (pa.types.is_integer, {*_WHOLE, "bigint", "numeric"}),
    (pa.types.is_floating, {"double precision", "numeric"}),
    (pa.types.is_decimal, {"numeric"}),
    (pa.types.is_binary, {"bytea"}),
    (pa.types.is_timestamp, {_ZONED}),
    (pa.types.is_date, {"date", _ZONELESS}),
    # These are read as they are written, or refused; of dates and times those of _ISO.
    (pa.types.is_string, {"smallint", "integer", "bigint", "numeric", "boolean", "bytea", "date",
                          "interval", "time without time zone", "time with time zone",
                          _ZONED, _ZONELESS}),
)  # fmt: skip
#: Built-in types that bend what they do not hold. Others, such as ``uuid`` or an enum, refuse it.
_BENDING: Final = {
    *(name for _, types in _HELD for name in types), "real", "money", "name", '"char"', "bit",
}  # fmt: skip


def fit(kind: pa.DataType, column: str) -> ColumnLimit | None:
    """Return what values of a field a column holds; None if it bends none.

    Args:
        kind: Of the field, as Arrow has it.
        column: The column's type, as PostgreSQL writes it.

    Raises:
        ValueError: The type shows that the column would bend values of the field.

    >>> fit(pa.int64(), "smallint").whole
    (-32768, 32767)
    >>> fit(pa.float64(), "numeric(10,2)")
    Traceback (most recent call last):
    ...
    ValueError: numeric(10,2) would round, cut or reinterpret values of double
    """
    if pa.types.is_list(kind) and column.endswith("[]"):
        return fit(kind.value_type, column)
    matched = _TYPE.fullmatch(column)
    name = "" if matched is None else matched[1] + matched[3]
    sizes = [] if matched is None else [int(size) for size in (matched[2] or "").split(",") if size]
    if name in _TEXTS:
        return ColumnLimit(length=sizes[0]) if sizes and pa.types.is_string(kind) else None
    if name not in _BENDING:
        return None
    if any(holds(kind) and name in types for holds, types in _HELD):
        if not sizes and pa.types.is_string(kind):
            return ColumnLimit(text=_ISO[name]) if name in _ISO else None
        if not sizes:
            return ColumnLimit(whole=_WHOLE.get(name)) if pa.types.is_integer(kind) else None
        scale = sizes[1] if len(sizes) > 1 else 0
        exact = pa.types.is_integer(kind) or pa.types.is_decimal(kind)
        if name == "numeric" and exact and 0 <= scale <= sizes[0]:
            return ColumnLimit(digits=(sizes[0] - scale, scale))
    raise ValueError(f"{column} would round, cut or reinterpret values of {kind}")
