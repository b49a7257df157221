"""Partials: values of a key and window are combined before they are shuffled.

A sender folds what it has for a grouping, whole columns at a time, and sends one
:class:`~millrace.dataflow.partials.partial.Partial` for many records. The panes are the same ones:
what could change them is sent as it is. A fan-out combines the values of a hot key in several key
intervals, and those partials in one.

Source: docs/design/2026-11-20-lifting.md; VLDB 2015 Dataflow paper, "partial aggregation".
"""

from millrace.dataflow.partials.lift import Lift, Lifted
from millrace.dataflow.partials.plan import lift_of

__all__ = ["Lift", "Lifted", "lift_of"]
