"""What an injector reads, as the columns of a source: event times, values, fingerprints of ids.

Both planes read it so: a task that reads pieces in an epoch, and one that follows processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.compile.topology import StreamSpec
from millrace.injectors.columns import conformed
from millrace.injectors.injector import Injector
from millrace.injectors.refusals import column_of
from millrace.model.time import LATEST_RECORD, TimeUnit, in_microseconds
from millrace.plane.keying import fingerprints
from millrace.plane.runtime import SourceColumns


class Injected(NamedTuple):
    """Rows of an injector.

    Attributes:
        at_us: Event times, null where there is none, or where it is that of the epoch.
        rows: With the columns of the injector's schema.
        names: Of the columns that make a value.
        fingerprints: Of the source's ids; None if it has none.
        refusals: Why its injector refuses a row, null where it does not; None if it refuses none.
    """

    at_us: pa.Array
    rows: pa.RecordBatch
    names: Sequence[str]
    fingerprints: pa.Array | None
    refusals: pa.StructArray | None = None

    def where(self, flags: npt.NDArray[np.bool_]) -> Injected:
        """Return the rows whose flags are true."""
        mask = pa.array(flags)
        return Injected(
            self.at_us.filter(mask),
            self.rows.filter(mask),
            self.names,
            None if self.fingerprints is None else self.fingerprints.filter(mask),
            None if self.refusals is None else self.refusals.filter(mask),
        )

    @property
    def refused(self) -> npt.NDArray[np.bool_]:
        """Whether a row is refused, of each."""
        if self.refusals is None:
            return np.zeros(self.rows.num_rows, dtype=bool)
        flags: npt.NDArray[np.bool_] = self.refusals.is_valid().to_numpy(zero_copy_only=False)
        return flags

    @property
    def columns(self) -> dict[str, pa.Array]:
        """The columns that make a value, by name."""
        return {name: self.rows.column(name) for name in self.names}

    @property
    def values(self) -> pa.StructArray:
        """The same as one struct."""
        return pa.StructArray.from_arrays(
            list(self.columns.values()), fields=[self.rows.schema.field(n) for n in self.names]
        )

    @property
    def nbytes(self) -> int:
        """About how many bytes the values have."""
        return sum(_bytes_of(self.rows.column(name)) for name in self.names)


def injected(
    source: SourceColumns, stream: StreamSpec, rows: pa.RecordBatch, where: str
) -> Injected:
    """Return what an injector has read as the columns of its source.

    Args:
        source: The source.
        stream: The injected stream.
        rows: As the injector gives them.
        where: They come from, for messages.

    Raises:
        PipelineError: A column of the injector's schema is missing, or of another type.
    """
    injection = stream.injection
    assert injection is not None, "only injected streams are read"
    injector = injection.source
    assert isinstance(injector, Injector), "a task reads nothing else"
    rows = conformed(rows, injector.schema, where)
    return Injected(
        pa.nulls(rows.num_rows, pa.int64())
        if injection.ingress
        else microseconds(rows.column(str(injection.timestamp)), injection.unit),
        rows,
        source.columns,
        None if source.id is None else fingerprints(rows.column(source.id)),
        column_of(rows),
    )


def microseconds(column: pa.Array, unit: TimeUnit | None) -> pa.Array:
    """Return event times as microseconds, null where there is none.

    What would overflow is as far out of range as can be said.

    >>> microseconds(pa.array([1, None, 1 << 62]), "s").to_pylist()
    [1000000, None, 9223372037000000]
    """
    if pa.types.is_timestamp(column.type):
        if column.type.unit != "us":
            column = column.cast(pa.timestamp("us", column.type.tz))
        return column.view(pa.int64())
    whole = column if column.type == pa.int64() else column.cast(pa.int64())
    per = 0 if unit == "ns" else in_microseconds(1, unit)
    if per == 1:
        return whole
    nulls = whole.is_null().to_numpy(zero_copy_only=False) if whole.null_count else None
    at = (whole if nulls is None else whole.fill_null(0)).to_numpy()
    if unit == "ns":
        return pa.array(at // 1000, mask=nulls)
    most = LATEST_RECORD // per + 1
    return pa.array(np.clip(at, -most, most) * per, mask=nulls)


def _bytes_of(column: pa.Array) -> int:
    # Arrow looks at each buffer, which takes long for few rows.
    if pa.types.is_primitive(column.type):
        return len(column) * int(column.type.bit_width) // 8
    return int(column.nbytes)
