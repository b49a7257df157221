"""Which operator a computation has: built-in ones their own, all others that of users'."""

from __future__ import annotations

from typing import Any, Final

from millrace.dataflow.call_operator import CallOperator
from millrace.dataflow.column_operator import ColumnOperator
from millrace.dataflow.grouping import GroupByKeyAndWindow, GroupingOperator
from millrace.dataflow.joins.interval_join import JoinByKeyAndTime, TimeJoinOperator
from millrace.dataflow.joins.table_join import EnrichByKey, EnrichOperator
from millrace.dataflow.joins.window_join import JoinByKeyAndWindow, JoinOperator
from millrace.dataflow.operator import Operator
from millrace.dataflow.partials.fanout import CombineByPart, PartOperator
from millrace.model.async_computation import AsyncComputation
from millrace.model.column_computation import ColumnComputation
from millrace.model.computation import Computation

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
    made: Operator = _OPERATORS[kind](computation)
    return made
