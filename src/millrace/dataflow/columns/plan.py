"""Which groupings are kept as columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from millrace.dataflow.aggregations import VectorFold
from millrace.dataflow.aggregations.vector import vector_of
from millrace.dataflow.columns.sessions import SessionColumns
from millrace.dataflow.columns.windows import WindowColumns
from millrace.dataflow.formats import picker, plain_format
from millrace.dataflow.partial import PartialCoder
from millrace.dataflow.strategy import OutputTime
from millrace.dataflow.triggers import AtWatermark
from millrace.dataflow.triggers.watermark_only import WatermarkOnly, runner
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
    made = SessionColumns if window_fn.merges else WindowColumns
    pick = picker(grouping.value, plain_format(coders[0]))
    return made(fold, pick, repr(AtWatermark()), grouping.output, window_fn)
