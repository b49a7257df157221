"""User code that hangs, without a wait: for tests of what then becomes of its record."""

from __future__ import annotations

from typing import NoReturn

from millrace.model.errors import TimeLimitExceeded


def exceed_time_limit() -> NoReturn:
    """End the hook that this is called in, as ``start(time_limit=)`` ends one that takes too long.

    A test calls it where a service that the hook asks would hang. The Harness ends nothing of its
    own accord: it has no clock but the test's.

    >>> import millrace as mr
    >>> class Lookup(mr.Computation):
    ...     inputs = {"words": mr.by(lambda value: value)}
    ...     outputs = {"found": str}
    ...
    ...     def process_record(self, record):
    ...         try:
    ...             if record.value == "tea":
    ...                 mr.testing.exceed_time_limit()
    ...         except Exception:
    ...             pass  # it is no Exception
    ...         self.produce("found", record.value)
    >>> p = mr.Pipeline("lookup")
    >>> p.inject("words", format=str)
    Stream('words')
    >>> p.add(Lookup)
    >>> p.dead_letter("rejects")
    Stream('rejects')
    >>> with mr.testing.Harness(p) as h:
    ...     h.inject("words", [("tea", 5), ("milk", 6)])
    ...     [output.value for output in h.outputs("found")]
    ...     [output.value.reason for output in h.outputs("rejects")]
    ['milk']
    ['TimeLimitExceeded: the test said so']
    """
    raise TimeLimitExceeded("the test said so")
