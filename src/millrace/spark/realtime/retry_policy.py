"""The retry policy: whether a run that has failed is to be tried again, and how soon."""

from __future__ import annotations

from millrace.model.errors import (
    CheckpointMismatch,
    DeadLettersExceeded,
    InputLost,
    InvariantViolation,
    PipelineError,
    RecordRejected,
    UserCodeError,
    WatermarkRegression,
    ZombieWriter,
)
from millrace.spark.realtime.hang import TaskHung

#: To try again would change nothing.
_FINAL = (ZombieWriter, CheckpointMismatch, DeadLettersExceeded)
#: What is raised again when the same input comes again; rarely it is not.
_OWN = (
    UserCodeError,
    PipelineError,
    RecordRejected,
    InputLost,
    WatermarkRegression,
    InvariantViolation,
)

_SHORTEST_S, _LONGEST_S = 0.1, 10.0


class RetryPolicy:
    """Counts failures since something went well.

    What comes from outside (a worker that is killed, a disk that is full, a server that is away) is
    tried again for as long as it takes, if a session of this run has ever begun; what the
    pipeline's own code raises, and a hang that may be its own, so many times.

    Args:
        attempts: How often the same may be tried without a mark completed between.

    >>> policy = RetryPolicy(attempts=2)
    >>> policy.well()
    >>> policy.after(UserCodeError("no")), policy.after(UserCodeError("no"))
    (0.1, None)

    A full disk is waited for:

    >>> from millrace.model.errors import CheckpointUnwritable
    >>> policy.well()
    >>> [policy.after(CheckpointUnwritable("full")) for _ in range(9)][-3:]
    [6.4, 10.0, 10.0]

    So is a disk that does not answer; but not user code that never returns:

    >>> policy.well()
    >>> [policy.after(TaskHung("at its journal", outside=True)) for _ in range(3)]
    [0.1, 0.2, 0.4]
    >>> policy.after(TaskHung("at a key")), policy.after(TaskHung("at a key"))
    (0.8, None)
    """

    def __init__(self, attempts: int) -> None:
        self._attempts = attempts
        self._own = self._all = 0
        self._ever = False

    @property
    def tried_in_vain(self) -> bool:
        """Whether there is one attempt left of those that are given."""
        return self._attempts > 1 and self._all >= self._attempts - 1

    def begun(self) -> None:
        """Take it that a session has begun."""
        self._ever = True

    def well(self) -> None:
        """Take it that a mark was completed."""
        self._ever = True
        self._own = self._all = 0

    def after(self, error: BaseException) -> float | None:
        """Return for how many seconds to wait after a failure; None to give up."""
        self._all += 1
        hung = isinstance(error, TaskHung) and not error.outside
        own = hung or isinstance(error, _OWN)
        self._own += own
        counted = self._own if own else 0 if self._ever else self._all
        if isinstance(error, _FINAL) or counted >= self._attempts:
            return None
        return min(_SHORTEST_S * 2.0 ** (self._all - 1), _LONGEST_S)
