"""The dashboard: a page in the browser that shows a run, live or dead, from its checkpoint.

It reads what :mod:`millrace.inspect` reads, and writes nothing but requests to the run.
"""

from millrace.dashboard.server import Dashboard

__all__ = ["Dashboard"]
