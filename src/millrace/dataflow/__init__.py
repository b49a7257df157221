"""The Dataflow layer: what, where, when and how, compiled to one computation.

It needs only the model: windows and triggers live in user space.
"""

from millrace.dataflow.stream import Stream, WindowedStream

__all__ = ["Stream", "WindowedStream"]
