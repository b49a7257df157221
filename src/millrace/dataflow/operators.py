"""Choice of the operator of a computation: each built-in one has its own, all others share one.

The operators of two kinds are here. Computations that make calls get a cell for their pending
calls, and computations over columns the types of their blocks.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa

from millrace.dataflow.calls import PENDING, CallEach
from millrace.dataflow.element_types import plain_format
from millrace.dataflow.grouping import GroupByKeyAndWindow, GroupingOperator
from millrace.dataflow.joins.interval_join import JoinByKeyAndTime, TimeJoinOperator
from millrace.dataflow.joins.join_state import KeptCoder
from millrace.dataflow.joins.table_join import EnrichByKey, EnrichOperator
from millrace.dataflow.joins.window_join import JoinByKeyAndWindow, JoinOperator
from millrace.dataflow.operator import Operator
from millrace.dataflow.partials.fanout import CombineByPart, PartOperator
from millrace.model.async_computation import AsyncComputation
from millrace.model.coder import Coder, type_name
from millrace.model.column_computation import PLAIN, BlockSchema, ColumnComputation
from millrace.model.computation import Computation, state_cells
from millrace.model.errors import PipelineError
from millrace.model.expression import column_type_of, known_fields
from millrace.model.pane import PanedCoder
from millrace.model.state import MapState, StateDescriptor, ValueState


class ColumnOperator(Operator):
    """The operator of :class:`~millrace.model.column_computation.ColumnComputation`."""

    def bound(self, formats: Mapping[str, Coder], *, unbounded: bool) -> Computation:
        """Return the computation with the types of its blocks."""
        bound = copy.copy(super().bound(formats, unbounded=unbounded))
        assert isinstance(bound, ColumnComputation)
        title = type(bound).__name__
        if len(formats) != 1:
            raise PipelineError(
                f"{title} has {len(formats)} inputs, and a block is of one stream. Send "
                'them to one first: a.to("all", Row) and b.to("all", Row).'
            )
        (coder,) = formats.values()
        bound.block_schema = BlockSchema(
            title,
            _columns(title, coder),
            {name: _cell_column(title, name, cell) for name, cell in state_cells(bound).items()},
            {stream: _class_of(format) for stream, format in bound.outputs.items()},
        )
        bound.hook = copy.copy(bound).process_batch
        return bound

    def described(self) -> list[str]:
        """Return that it runs in blocks."""
        return ["runs   over columns, the records of many keys in a block"]

    def in_blocks(self, formats: Mapping[str, Coder]) -> bool:
        """Return whether values come without panes, which a block does not have."""
        return not any(isinstance(coder, PanedCoder) for coder in formats.values())


def _columns(title: str, coder: Coder) -> dict[str, pa.DataType]:
    """Return the fields of values that make columns."""
    plain = plain_format(coder)
    fields = known_fields(plain)
    types = {
        name: column_type_of(kind)
        for name, kind in ({PLAIN: plain} if fields is None else fields).items()
    }
    columns = {name: known[0] for name, known in types.items() if known is not None}
    if not columns:
        raise PipelineError(
            f"{title} reads values of format {type_name(plain)}, which says no fields that make "
            "columns. Declare them with a msgspec.Struct or a dataclass: inject(..., format=Bid) "
            "or to(name, Bid)."
        )
    return columns


def _cell_column(title: str, name: str, cell: StateDescriptor[Any]) -> pa.DataType:
    """Return the type of a cell's column."""
    kind = getattr(cell.coder, "type", None)
    known = column_type_of(kind)
    if type(cell) is not ValueState or cell.expires is not None or known is None:
        raise PipelineError(
            f"{title}.{name} is {cell!r}, which makes no column of state. A mr.ColumnComputation "
            "has cells mr.ValueState of bool, int, float, str, bytes, datetime and date, without "
            "expires. Use a mr.Computation with process_record for others."
        )
    return known[0]


def _class_of(format: Any) -> type | None:
    """Return the class that values of a format are made of; None: they are as columns have them."""
    kind = plain_format(format)
    if not isinstance(kind, type) or issubclass(kind, dict) or known_fields(kind) is None:
        return None
    return kind


class CallOperator(Operator):
    """The operator of computations that make calls: it gives them their hidden cell."""

    def bound(self, formats: Mapping[str, Coder], *, unbounded: bool) -> Computation:
        """Return the computation with a cell for what is pending."""
        bound = copy.copy(super().bound(formats, unbounded=unbounded))
        vars(bound)[PENDING] = MapState(KeptCoder(tuple[str, bytes, int, bool, int, int]))
        if isinstance(bound, CallEach):
            bound.derive(formats)
        return bound

    def described(self) -> list[str]:
        """Return how calls are made."""
        computation = self._computation
        assert isinstance(computation, AsyncComputation)
        batch = "" if computation.batch is None else f", {computation.batch!r}"
        return [f"calls  {computation.calls!r}{batch}"]


_OPERATORS: Final[dict[type[Computation], Any]] = {
    AsyncComputation: CallOperator,
    ColumnComputation: ColumnOperator,
    Computation: Operator,
    CombineByPart: PartOperator,
    EnrichByKey: EnrichOperator,
    GroupByKeyAndWindow: GroupingOperator,
    JoinByKeyAndTime: TimeJoinOperator,
    JoinByKeyAndWindow: JoinOperator,
}


def operator_of(computation: Computation) -> Operator:
    """Return the operator of a computation, by its class or the nearest one above.

    >>> operator_of(Computation()).described()
    ()
    """
    kind = next(kind for kind in type(computation).__mro__ if kind in _OPERATORS)
    operator: Operator = _OPERATORS[kind](computation)
    return operator
