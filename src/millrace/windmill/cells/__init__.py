"""State cells with a key under them: reads through the view, writes gathered for the commit.

One bound cell serves all keys of a computation: the machine points the shared
:class:`~millrace.windmill.timers.KeyRows` at a key, calls ``begin``, runs user code, and calls
``flush``. Nothing is encoded that did not change.
"""

from millrace.windmill.cells.binding import CellBinding

__all__ = ["CellBinding"]
