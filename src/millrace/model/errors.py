"""The exceptions of Millrace, in one tree.

Every message says what was given, what was expected, where it happened and what to do next.

.. code-block:: text

    MillraceError
    ├── PipelineError            the pipeline as written cannot run; raised when it is built
    │   ├── CoderError           a value or a key its coder cannot encode or decode
    │   │   └── AccumulatorRefused   so is what a CombineFn keeps of a window
    │   └── LateProduction       a production behind what its computation has shown consumers
    ├── RecordRejected           a record that its injector or record format refuses
    ├── UserCodeError            an exception in a computation's own code, with where it happened
    │   └── TimerLoop            a computation re-arms a due timer without end
    ├── ProcessKilled            a computation's own code ends the process that it runs in
    ├── InputLost                an external system no longer has what is to be read from it
    ├── WatermarkRegression      somebody reported a low watermark below an earlier one
    ├── StoreError               hard state cannot be read or written
    │   ├── CheckpointUnwritable the checkpoint location refuses writes, or is full
    │   ├── CheckpointMismatch   the checkpoint belongs to another pipeline, topology or version
    │   ├── NotKept              what a checkpoint was after an epoch, and is not kept any more
    │   ├── DamagedStore         stored bytes fail their checksum, or a needed object is gone
    │   │   └── DamagedCache     so do those of a cache, which can be built again
    │   └── ZombieWriter         a newer run, or another attempt, owns what this one tried to write
    ├── SinkError                what stands behind a sink cannot be reached, or refuses records
    ├── UpdateFailed             a changed pipeline did not take over from one that ran
    ├── RunFailed                a run on Spark ended with an error (cause and log are attached)
    └── InvariantViolation       the kernel broke one of its own rules: a bug in Millrace

Outside of it is ``TimeLimitExceeded``, which ends user code that takes too long. It is a
``BaseException``, so that a hook's own ``except Exception`` does not keep the hook from ending.
"""

from __future__ import annotations

from pathlib import Path


class MillraceError(Exception):
    """Base of every exception that Millrace raises on purpose."""


class PipelineError(MillraceError, ValueError):
    """The pipeline as written cannot run: unknown stream, cycle, wrong argument, and so on."""


class CoderError(PipelineError):
    """A value or a key that its coder cannot encode or decode."""


class AccumulatorRefused(CoderError):
    """What a CombineFn keeps of a window, which cannot be stored; the message names the window."""


class LateProduction(PipelineError):
    """A production behind the low watermark that its computation has shown its consumers."""


class RecordRejected(MillraceError):
    """A record that its injector or record format refuses, and no dead-letter stream takes."""


class DeadLettersExceeded(MillraceError):
    """More records became dead letters than ``p.dead_letter(at_most=)`` allows; none is lost."""


class ProcessKilled(MillraceError):
    """What a call of user code fails with that was found to end its process, if it were made."""


class TimeLimitExceeded(BaseException):
    """Raised in a hook that takes longer than ``time_limit=``; its record becomes a dead letter."""


class UserCodeError(MillraceError):
    """An exception in a computation's code; ``__cause__`` is the user's own exception."""


class TimerLoop(UserCodeError):
    """A computation re-arms a timer that is already due, without end."""


class InputLost(MillraceError):
    """An external system no longer has what an injector has still to read from it."""


class WatermarkRegression(MillraceError, ValueError):
    """A low watermark was reported below an earlier report of the same reporter."""


class StoreError(MillraceError):
    """Hard state cannot be read or written."""


class CheckpointUnwritable(StoreError, OSError):
    """The checkpoint location refuses writes: permissions, a read-only mount, a full disk."""


class CheckpointMismatch(StoreError):
    """The checkpoint belongs to another pipeline, another topology or another version."""


class NotKept(StoreError):
    """What a checkpoint was after some epoch is not kept, or not any more: the run has gone on."""


class DamagedStore(StoreError):
    """Stored bytes fail their checksum, or an object that must be there is gone."""


class DamagedCache(DamagedStore):
    """A cache is not what was written, or of another history. Nothing is lost: build it again."""


class ZombieWriter(StoreError):
    """A newer run, or another attempt, owns what this writer tried to write."""


class SinkError(MillraceError):
    """What stands behind a sink cannot be reached, or refuses an epoch's records."""


class RunFailed(MillraceError):
    """A run on Spark ended with an error. Its message is all that a user needs.

    Attributes:
        cause: What Spark, or a sink, raised; not ``__cause__``, which would be printed with all of
            Java's traces before the message.
        log: Where the driver wrote those; None if it could not.
    """

    def __init__(
        self, message: str, *, cause: BaseException | None = None, log: Path | None = None
    ) -> None:
        super().__init__(message)
        self.cause = cause
        self.log = log


class UpdateFailed(MillraceError):
    """A changed pipeline did not take over from one that ran.

    Attributes:
        run: Of the pipeline that ran, which goes on; None if that could not be started again.
    """

    def __init__(self, message: str, *, run: object = None) -> None:
        super().__init__(message)
        self.run = run


class InvariantViolation(MillraceError, AssertionError):
    """The kernel broke one of its own rules. Always a bug in Millrace, never the user's."""
