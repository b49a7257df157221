"""Callables of users that Millrace calls as plain functions, and those of which nothing would run.

A call of an ``async def`` makes a coroutine, one of a function with ``yield`` a generator. Neither
runs any of its code, and no error says so.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from types import FunctionType, MethodType
from typing import Any, Final

from millrace.model.async_computation import AsyncComputation
from millrace.model.computation import Computation, state_cells
from millrace.model.declarations import Declarations
from millrace.model.stream import Step

#: What a hook writes instead of ``yield``.
_INSTEAD: Final = {
    "process_record": "def process_record(self, record), with self.produce(stream, value) for "
    "each value",
    "process_timer": "def process_timer(self, timer), with self.produce(stream, value) for each "
    "value",
    "process_start": "def process_start(self), which sets the first timers",
}
#: What a method returns of which a generator is as good as any other iterable.
_ITERATED: Final = ("Iterable", "Iterator")
#: Objects of Millrace's own hold users' functions in attributes, so deep at most.
_DEEPEST: Final = 6


def never_runs(function: Any, *, iterated: bool = False) -> str | None:
    """Return as what a callable would run nothing when it is called; None if it would run.

    What a decorator makes of a coroutine is judged as the decorator's own: it may well run it.

    Args:
        function: Anything that can be called.
        iterated: Whether its result is iterated, so that a generator is what it may be.

    >>> async def ask(value): ...
    >>> def spread(value):
    ...     yield value
    >>> never_runs(functools.partial(ask, 1)), never_runs(spread), never_runs(spread, iterated=True)
    ('an async function', 'a generator function', None)
    """
    function = _plain(function)
    if inspect.isasyncgenfunction(function):
        return "an async generator function"
    if inspect.iscoroutinefunction(function):
        return "an async function"
    if inspect.isgeneratorfunction(function) and not iterated:
        return "a generator function"
    return None


def method_problems(name: str, computation: Computation) -> Iterator[str]:
    """Yield what is wrong with a computation's hooks, and the code in its windows and the like."""
    for where, reason, method in _methods(computation):
        instead = _INSTEAD.get(method, f"a plain def {method}(self, ...) that returns its result")
        yield (
            f"computation {name!r}: {where} is {reason}, so calling it would run none of its code. "
            f"Write {instead}."
        )
    # What a user's own object holds, its own methods call, in whatever way that has to be called.
    values: list[Any] = []
    if _ours(type(computation)):
        own = vars(computation).items()
        values = [value for name, value in own if not _is_awaited(computation, name)]
    for value in (*values, *state_cells(computation).values()):
        yield from _held(f"computation {name!r}", value, 0)


def step_problem(step: Step) -> str | None:
    """Return what is wrong with the function of a step; None if it runs."""
    iterated = step.kind in ("flat_map", "assign")
    for function in _functions(step.function, 0):
        reason = never_runs(function, iterated=iterated)
        if reason is not None:
            returns = {
                "flat_map": "an iterable of values, or yields them",
                "filter": "True or False",
                "map": "the value",
                "with_timestamps": "the time",
            }.get(step.kind, "the key")
            kind = "key_by" if step.kind == "key_by_record" else step.kind
            return (
                f"a {kind} step on stream {step.source!r} was given {_name(function)}, which is "
                f"{reason}: calling it would run none of its code. Write a plain function, "
                f"def {_name(function, short=True)}(value), that returns {returns}."
            )
    return None


def callable_problems(pipeline: Declarations) -> Iterator[str]:
    """Yield what is wrong with the functions that a pipeline's steps, sinks and the like have."""
    for step in pipeline.steps:
        if (problem := step_problem(step)) is not None:
            yield problem
    for declaration in pipeline.sinks:
        yield from _held(f"the sink of stream {declaration.stream!r}", declaration.sink, 0)
    for name, evolution in pipeline.evolutions.items():
        for cell, function in evolution.migrations.items():
            yield from _held(f"computation {name!r}, migrate={{{cell!r}: ...}}", function, 0)
    for stream, injection in pipeline.injections.items():
        for where, reason, method in _methods(injection.source):
            yield (
                f"the injector of stream {stream!r}: {where} is {reason}, so calling it would run "
                f"none of its code. Write a plain def {method}(self, ...) that returns its result."
            )


def _held(owner: str, value: Any, depth: int) -> Iterator[str]:
    """Yield what is wrong with a function, or with those that an object of ours holds."""
    if _users(value) and (reason := never_runs(value)) is not None:
        yield (
            f"{owner} was given {_name(value)}, which is {reason}: calling it would run none "
            f"of its code. Write a plain function, def {_name(value, short=True)}(...)."
        )
        return
    if depth == _DEEPEST:
        return
    for where, reason, method in _methods(value):
        yield (
            f"{owner}: {where} is {reason}, so calling it would run none of its code. Write a "
            f"plain def {method}(self, ...) that returns its result."
        )
    if isinstance(value, tuple | list) and len(value) <= 100:
        for item in value:
            yield from _held(owner, item, depth + 1)
    elif _ours(type(value)) and not isinstance(value, type):
        for item in getattr(value, "__dict__", {}).values():
            yield from _held(owner, item, depth + 1)


def _functions(value: Any, depth: int) -> Iterator[Callable[..., Any]]:
    """Yield the functions in a step's function, which may be an extractor or the like of ours."""
    if _users(value):
        yield value
    elif _ours(type(value)) and depth < _DEEPEST:
        for attribute in getattr(value, "__dict__", {}).values():
            yield from _functions(attribute, depth + 1)


def _methods(value: Any) -> Iterator[tuple[str, str, str]]:
    """Yield the overridden methods of an object that would run nothing: name, as what, method.

    Only a method that a class of Millrace declares is called by Millrace; the class also says
    whether its result is iterated.
    """
    kind = type(value)
    if _ours(kind) or not (bases := [base for base in kind.__mro__ if _ours(base)]):
        return
    declared: dict[str, Any] = {}
    for base in reversed(bases):
        declared.update({name: own for name, own in vars(base).items() if _plain_method(own)})
    for name, own in declared.items():
        method = getattr(kind, name, None)
        if method is own or name.startswith("__") or _is_awaited(value, name):
            continue
        returns = str(getattr(own, "__annotations__", {}).get("return", ""))
        if (reason := never_runs(method, iterated=returns.startswith(_ITERATED))) is not None:
            yield _name(method), reason, name


def _is_awaited(value: Any, name: str) -> bool:
    """Return whether an attribute is called by a pool, which awaits what it returns."""
    return name in ("call", "setup") and isinstance(value, AsyncComputation)


def _users(value: Any) -> bool:
    """Return whether something is called that is not an object of Millrace's own."""
    if isinstance(value, FunctionType | MethodType | functools.partial):
        return True
    return callable(value) and not isinstance(value, type) and not _ours(type(value))


def _plain_method(value: Any) -> bool:
    return isinstance(value, FunctionType)


def _plain(function: Any) -> Any:
    """Return what a call of something calls in the end, as far as that hands its result on."""
    for _ in range(100):
        if isinstance(function, functools.partial):
            function = function.func
        elif isinstance(function, MethodType | staticmethod | classmethod):
            function = function.__func__
        elif isinstance(function, functools._lru_cache_wrapper):
            function = function.__wrapped__
        elif isinstance(function, FunctionType | type) or not callable(function):
            break
        else:
            call = getattr(type(function), "__call__", None)  # noqa: B004  it is looked at, not for
            if not isinstance(call, FunctionType | MethodType | staticmethod):
                break
            function = call
    return function


def _ours(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == "millrace"


def _name(function: Any, *, short: bool = False) -> str:
    plain = _plain(function)
    name = getattr(plain, "__qualname__", None) or type(plain).__qualname__
    name = name.rpartition("<locals>.")[2]
    return name.rpartition(".")[2] if short else name
