"""The Dataflow layer: what, where, when and how, compiled to one computation.

It needs only the model: windows and triggers live in user space.
"""

# Nobody imports them from here; but whoever imports a module of a folder below first would meet a
# circle of the folders `grouping` and `triggers`, whose modules have none.
from millrace.dataflow.stream import Stream, WindowedStream

__all__ = ["Stream", "WindowedStream"]
