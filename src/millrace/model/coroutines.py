"""Users' functions that are refused: by their parameters, or by a result whose code has not run."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import BuiltinMethodType, FunctionType, MethodType
from typing import Any, Final

from millrace.model.errors import PipelineError, brief

#: What most hooks return; to ask the rest takes as long as a short hook.
_PLAIN: Final = frozenset({bool, bytes, dict, float, int, list, str, tuple, type(None)})


def parameters_refusing(function: Callable[..., Any], count: int) -> inspect.Signature | None:
    """Return a function's parameters if so many positional arguments do not fit them; else None.

    >>> parameters_refusing(lambda rows, epoch: None, 1), parameters_refusing(print, 2)
    (<Signature (rows, epoch)>, None)
    """
    try:
        # What is called is a decorator's own function, whatever that has round it.
        signature = inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):  # some that are written in C have none
        return None
    try:
        signature.bind(*[None] * count)
    except TypeError:
        return signature
    return None


def refuse_parameters(function: Callable[..., Any], taken_by: str, *arguments: str) -> None:
    """Refuse a function that cannot be called with what it will be called with.

    Args:
        function: A user's.
        taken_by: What takes it, up to its place there: ``"map("``.
        arguments: Names of what it is called with.

    Raises:
        PipelineError: It takes more or fewer.

    >>> refuse_parameters(len, "map(", "value")
    >>> refuse_parameters(lambda: 1, "map(", "value")
    Traceback (most recent call last):
        ...
    millrace.model.errors.PipelineError: map(<lambda>) would be called with (value), and has the \
parameters ().
    """
    parameters = parameters_refusing(function, len(arguments))
    if parameters is not None:
        name = getattr(function, "__name__", None) or brief(function, 120)
        raise PipelineError(
            f"{taken_by}{name}) would be called with ({', '.join(arguments)}), and has the "
            f"parameters {parameters}."
        )


def unrun(result: Any) -> str | None:
    """Return what a result is if code in it has not run, and close it; None of any other.

    >>> unrun(n for n in [1]), unrun(1), unrun(None)
    ('a generator', None, None)
    """
    if type(result) in _PLAIN:
        return None
    if inspect.iscoroutine(result):
        result.close()  # Python would warn that nobody awaited it.
        return "a coroutine"
    if inspect.isgenerator(result):
        return "a generator"
    if inspect.isasyncgen(result):
        return "an async generator"
    return "an awaitable" if inspect.isawaitable(result) else None


def refuse_unrun(returned: Any, hook: str) -> None:
    """Refuse what a hook returned if that is code which has not run.

    Raises:
        PipelineError: It is a coroutine or a generator.
    """
    if returned is not None and (kind := unrun(returned)) is not None:
        raise PipelineError(
            f"{hook} returned {kind}, which was never run. Expected None: run it to its end in the "
            "hook, and call self.produce(stream, value) for each value."
        )


def refuse_returned(returned: Any, hook: str) -> None:
    """Refuse what a hook returned, unless that is None: nobody would get it.

    Raises:
        PipelineError: It is anything else.

    >>> refuse_returned(None, "process_timer")
    >>> refuse_returned(7, "process_timer")
    Traceback (most recent call last):
        ...
    millrace.model.errors.PipelineError: process_timer returned 7 (int), which nobody gets. \
Expected None: a value goes on by self.produce(stream, value).
    """
    if returned is None:
        return
    refuse_unrun(returned, hook)
    call = "block.produce(stream, columns)" if hook == "process_batch" else _PRODUCE
    raise PipelineError(
        f"{hook} returned {brief(returned, 120)} ({type(returned).__name__}), which nobody gets. "
        f"Expected None: a value goes on by {call}."
    )


_PRODUCE: Final = "self.produce(stream, value)"


def truth(answer: Any, function: str) -> bool:
    """Return as what a user's function has answered a question.

    Args:
        answer: What it returned: True or False, or anything that Python takes for one of them.
        function: What errors name.

    Raises:
        PipelineError: Nobody has asked it: it is true whatever it would say.

    >>> truth("yes", "filter"), truth(None, "filter")
    (True, False)
    """
    if answer is True or answer is False:
        return answer
    reason = unrun(answer)
    if reason is None and isinstance(answer, FunctionType | MethodType | BuiltinMethodType):
        reason = f"{answer.__qualname__}, a function that was not called"
    if reason is not None:
        raise PipelineError(
            f"{function} returned {reason}. That counts as true for every value. Expected True or "
            "False: call it, or run it to its end, in the function."
        )
    return bool(answer)
