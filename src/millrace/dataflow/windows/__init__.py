"""Windows: where in event time values are grouped."""

from millrace.dataflow.windows.fixed import FixedWindows
from millrace.dataflow.windows.global_window import GlobalWindow
from millrace.dataflow.windows.sessions import Sessions
from millrace.dataflow.windows.sliding import SlidingWindows
from millrace.dataflow.windows.window_fn import WindowFn

__all__ = ["FixedWindows", "GlobalWindow", "Sessions", "SlidingWindows", "WindowFn"]
