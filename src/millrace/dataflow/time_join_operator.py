"""What a join by key and time says of itself, and how it is bound to its inputs."""

from __future__ import annotations

from collections.abc import Mapping

from millrace.dataflow.keyed import check_keys
from millrace.dataflow.operator import Operator, Refuse
from millrace.dataflow.time_join import JoinByKeyAndTime
from millrace.model.coder import Coder
from millrace.model.errors import PipelineError


class TimeJoinOperator(Operator):
    """The operator of :class:`JoinByKeyAndTime`."""

    def __init__(self, join: JoinByKeyAndTime) -> None:
        super().__init__(join)
        self._join = join

    def set_refuse(self, refuse: Refuse) -> None:
        """Have single values without a partner refused."""
        self._join.refuse = refuse

    def settings(self) -> dict[str, str]:
        """Return what is kept depends on."""
        join = self._join
        return {"join": join.how, "of": " and ".join(join.inputs), "near": str(join.nearness)}

    def described(self) -> list[str]:
        """Return which values meet, and when those without a partner are out."""
        join = self._join
        when = "at once" if join.nearness.at_once else "when none can come"
        lines = [f"join   {join.how}, {join.nearness}"]
        return lines if join.how == "inner" else [*lines, f"alone  paired with None {when}"]

    def bound(self, formats: Mapping[str, Coder], *, unbounded: bool) -> JoinByKeyAndTime:
        """Return the join with state of the right types for its inputs."""
        join = self._join
        near = join.nearness
        if unbounded and not near.at_once and None in (near.first_us, near.end_us):
            raise PipelineError(
                f"the join {join.output!r} has an interval without end, {near}, over a stream, "
                "which has none either: what it keeps could never be forgotten, and what has no "
                "partner never be known. Give within= two times, or leave it out for a join for "
                "ever."
            )
        check_keys(join.output, join.inputs, formats)
        return join.typed(formats)
