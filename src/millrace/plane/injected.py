"""What an injector reads, as the columns of a source: event times, values, fingerprints of ids.

Both planes read it so: a task that reads pieces in an epoch, and one that follows processes.
"""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from millrace.compile.topology import StreamSpec
from millrace.injectors.injector import Injector
from millrace.injectors.schema import conformed
from millrace.model.time import LATEST_RECORD, TimeUnit, in_microseconds
from millrace.plane.keying import fingerprints
from millrace.plane.runtime import SourceColumns


class Injected(NamedTuple):
    """Rows of an injector.

    Attributes:
        at_us: Event times, null where there is none, or where it is that of the epoch.
        values: The columns that make a value, as one struct.
        fingerprints: Of the source's ids; None if it has none.
    """

    at_us: pa.Array
    values: pa.StructArray
    fingerprints: pa.Array | None


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
    columns = [rows.schema.get_field_index(name) for name in source.columns]
    return Injected(
        pa.nulls(rows.num_rows, pa.int64())
        if injection.ingress
        else microseconds(rows.column(str(injection.timestamp)), injection.unit),
        pa.StructArray.from_arrays(
            [rows.column(n) for n in columns], fields=[rows.schema.field(n) for n in columns]
        ),
        None if source.id is None else fingerprints(rows.column(source.id)),
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
    if unit == "ns":
        # Down, also before 1970, where division goes up.
        cut = pc.divide(whole, 1000)
        return pc.subtract(cut, pc.less(whole, pc.multiply(cut, 1000)).cast(pa.int64()))
    per = in_microseconds(1, unit)
    if per == 1:
        return whole
    most = LATEST_RECORD // per + 1
    within = pc.min_element_wise(
        pc.max_element_wise(whole, -most, skip_nulls=False), most, skip_nulls=False
    )
    return pc.multiply(within, per)
