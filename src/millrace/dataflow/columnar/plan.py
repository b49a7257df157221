"""Plan: which groupings are kept as columns, and their chunks where a key interval is split."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from millrace.dataflow.aggregations import VectorFold
from millrace.dataflow.aggregations.vector import vector_of
from millrace.dataflow.columnar import sessions, windows
from millrace.dataflow.columnar.sessions import SessionColumns
from millrace.dataflow.columnar.windows import WindowColumns
from millrace.dataflow.element_types import picker, plain_format
from millrace.dataflow.partials.partial import PartialCoder
from millrace.dataflow.triggers import AtWatermark
from millrace.dataflow.triggers.watermark import WatermarkOnly, runner
from millrace.dataflow.windowing import OutputTime
from millrace.dataflow.windows.window_fn import has_columns
from millrace.model.coder import Coder
from millrace.model.pane import PanedCoder

if TYPE_CHECKING:
    from millrace.dataflow.grouping.computation import GroupByKeyAndWindow


def columns_of(
    grouping: GroupByKeyAndWindow, coders: Sequence[Coder]
) -> WindowColumns | SessionColumns | None:
    """Return how windows are kept as columns, if each emits one pane and is then over.

    That depends on the grouping alone, and on the format of what it gets.

    Args:
        grouping: Bound to its inputs.
        coders: Of the inputs.
    """
    how, fold, window_fn = grouping.windowing, grouping.combine, grouping.windowing.window_fn
    kind = grouping.kind_of(coders)
    if not (
        isinstance(runner(how.trigger), WatermarkOnly)
        and not how.allowed_lateness_us
        and how.output_time is OutputTime.END_OF_WINDOW
        and window_fn.ends
        and has_columns(window_fn)
        and not any(isinstance(coder, PanedCoder | PartialCoder) for coder in coders)
        and isinstance(fold, VectorFold)
        and vector_of(fold, kind) is fold
        and fold.keeps(kind)
    ):
        return None
    columns_class = SessionColumns if window_fn.merges else WindowColumns
    pick = picker(grouping.value, plain_format(coders[0]))
    trigger = repr(AtWatermark())
    return columns_class(fold, pick, trigger, grouping.output, window_fn, grouping.key_fields)


def cut_chunk(chunk: bytes, start: int, end: int) -> bytes | None:
    """Return what a chunk has of the keys with hashes in ``[start, end)``; None if nothing.

    Args:
        chunk: Of windows that merge or of others, as its interval has it.
        start: The lowest hash.
        end: One past the highest.
    """
    kind = (
        windows.WindowChunk
        if len(msgspec.msgpack.decode(chunk)) == _FIELDS
        else sessions.SessionChunk
    )
    decoded: Any = msgspec.msgpack.decode(chunk, type=kind)
    hashes = np.frombuffer(decoded.hashes, "<u8")
    chosen = np.flatnonzero((hashes >= np.uint64(start)) & (hashes <= np.uint64(end - 1)))
    if len(chosen) == len(hashes):
        return chunk
    if not len(chosen):
        return None

    def taken(column: bytes) -> bytes:
        return np.frombuffer(column, "<u8")[chosen].tobytes()

    left = {
        name: taken(value) for name in kind.__struct_fields__
        if isinstance(value := getattr(decoded, name), bytes)
    }  # fmt: skip
    keys = [decoded.keys[n] for n in chosen.tolist()]
    columns = [taken(column) for column in decoded.columns]
    return msgspec.msgpack.encode(
        msgspec.structs.replace(decoded, **left, keys=keys, columns=columns)
    )


_FIELDS = len(windows.WindowChunk.__struct_fields__)
