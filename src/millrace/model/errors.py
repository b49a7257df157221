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
    ├── LeaseReleased            the run that a program waited to take over from was stopped
    ├── RunFailed                a run on Spark ended with an error (cause and log are attached)
    └── InvariantViolation       the kernel broke one of its own rules: a bug in Millrace

Outside of it is ``TimeLimitExceeded``, which ends user code that takes too long. It is a
``BaseException``, so that a hook's own ``except Exception`` does not keep the hook from ending.

Brief: what is said of a value or an exception where it is named and not handed on.

It has a bounded length, can be encoded as UTF-8, and raises nothing, whatever the value's own
``__repr__`` or ``__str__`` do: what is told of a bad value must not be a second failure.
"""

from __future__ import annotations

import reprlib
import traceback
from pathlib import Path
from typing import Any, Final

import msgspec


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
    """A cache is damaged or of another history. Nothing is lost: build it again."""


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


class LeaseReleased(MillraceError):
    """The run whose lease a program waited for was stopped or drained: nobody is to go on."""


class InvariantViolation(MillraceError, AssertionError):
    """The kernel broke one of its own rules. Always a bug in Millrace, never the user's."""


#: What is raised again when the same input comes again; rarely it is not. Python and msgspec raise
#: the same of wrong code and of wrong data, whoever calls it: a hook, a source, a sink.
_OF_CODE: Final = (
    UserCodeError,
    RecordRejected,
    InputLost,
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    NameError,
    NotImplementedError,
    RecursionError,
    TypeError,
    ValueError,
    msgspec.MsgspecError,
)


def is_of_code(error: BaseException) -> bool:
    """Return whether an exception is one of code or data, and not of an outage, which ends.

    >>> is_of_code(KeyError("zone")), is_of_code(ConnectionResetError("by peer"))
    (True, False)
    """
    # ssl.SSLCertVerificationError is both, and requests.JSONDecodeError.
    return isinstance(error, _OF_CODE) and not isinstance(error, OSError)


#: Characters of a key, value or reason in a dead letter or late record: each is some lines of a
#: log at least, and all of a letter together fit into the smallest message that a broker takes.
LETTER_MOST: Final = 10_000
#: Characters of a traceback in a dead letter.
TRACE_MOST: Final = 20_000

#: Millrace goes on after these, as after any exception of user code.
RAISED: Final = (Exception, SystemExit, GeneratorExit)

#: Of what is nested so deep that Python cannot write it, the outermost levels are written.
_OUTER = reprlib.Repr()
_OUTER.maxlevel = 20
_OUTER.maxstring = _OUTER.maxother = LETTER_MOST


def brief(value: Any, most: int = 400) -> str:
    """Return the repr of a value, cut.

    Args:
        value: Anything.
        most: Characters; by default five lines of a terminal, by which who knows it knows it.

    >>> brief("tea"), len(brief("x" * 1_000_000)), brief(b"x" * 1_000_000)[-5:]
    ("'tea'", 400, 'xx...')
    >>> deep = []
    >>> for _ in range(100_000):
    ...     deep = [deep]
    >>> brief(deep)
    '[[[[[[[[[[[[[[[[[[[[[...]]]]]]]]]]]]]]]]]]]]]'
    """
    # Of a long one only so much is written out: a status may name it once an epoch.
    long = isinstance(value, str | bytes) and len(value) > most
    try:
        text = repr(value[:most] if long else value)
    except RAISED as error:
        text, long = _unwritten(value, error), False
    text = encodable(text)
    return f"{text[: most - 3]}..." if long or len(text) > most else text


def brief_error(error: BaseException, most: int = LETTER_MOST) -> str:
    """Return the kind and the message of an exception, cut.

    >>> brief_error(KeyError("tea"))
    "KeyError: 'tea'"
    """
    try:
        text = f"{type(error).__name__}: {error}"
    except RAISED as another:
        text = f"{type(error).__name__}, of which str() raised {type(another).__name__}"
    return cut(encodable(text), most)


def message_of(error: BaseException) -> str:
    r"""Return what an exception says, whole.

    >>> message_of(ValueError("no \udcff"))
    'no \\udcff'
    """
    try:
        text = str(error)
    except RAISED as another:
        text = f"str() of it raised {type(another).__name__}"
    return encodable(text)


def brief_trace(error: BaseException, most: int = TRACE_MOST) -> str:
    """Return the traceback of an exception, its middle cut out."""
    try:
        text = "".join(traceback.format_exception(error))
    except RAISED as another:
        text = f"{type(error).__name__}, whose traceback raised {type(another).__name__}"
    return cut(encodable(text), most)


def cut(text: str, most: int) -> str:
    """Return a text of so many characters at most: its beginning and its end.

    >>> cut("abcdefghijklmnop", 11), cut("abc", 11)
    ('abc ... nop', 'abc')
    """
    if len(text) <= most:
        return text
    half = (most - 5) // 2
    return f"{text[:half]} ... {text[len(text) - half :]}"


def encodable(text: str) -> str:
    """Return a text with lone surrogates escaped, as no sink could write them."""
    if text.isascii():
        return text
    return text.encode("utf-8", "backslashreplace").decode()


def _unwritten(value: Any, error: BaseException) -> str:
    """Return what can be told of a value whose repr raises."""
    if isinstance(error, RecursionError) and type(value) in (list, dict, tuple, set, frozenset):
        try:
            return _OUTER.repr(value)
        except RAISED as another:
            error = another
    return f"<{type(value).__name__}, of which repr() raised {type(error).__name__}>"
