"""Which hooks a computation lacks, as far as its class tells before it runs."""

from __future__ import annotations

import dis
import itertools
from collections.abc import Iterator
from types import CodeType, FunctionType

from millrace.model.computation import Computation, lacks_hook


def hook_problems(name: str, computation: Computation, *, keys: bool = False) -> list[str]:
    """Return what is said of the hooks that a computation would call in vain.

    Args:
        name: Its name in the pipeline.
        computation: As it was added.
        keys: Whether it was given keys.

    >>> class Flush(Computation):
    ...     def process_record(self, record):
    ...         self.set_timer("flush", at=record.timestamp)
    >>> print(*hook_problems("Flush", Flush()))
    computation 'Flush' sets timers (Flush.process_record calls self.set_timer) but has no \
process_timer, so they could not fire. Define process_timer(self, timer).
    """
    problems = []
    if computation.inputs and lacks_hook(computation, "process_record"):
        problems.append(
            f"computation {name!r} has inputs but no process_record, so it could not react to "
            "them. Define process_record(self, record)."
        )
    if keys and lacks_hook(computation, "process_start"):
        problems.append(
            f"computation {name!r} was given keys but has no process_start, so they could not "
            "begin. Define process_start(self), which sets their first timers."
        )
    if not keys and not lacks_hook(computation, "process_start"):
        problems.append(
            f"computation {name!r} has process_start and was given no keys, so it would never be "
            f"called. Give it some: p.add({type(computation).__name__}, keys=[...])."
        )
    if lacks_hook(computation, "process_timer") and (setter := _sets_timers(type(computation))):
        problems.append(
            f"computation {name!r} sets timers ({setter} calls self.set_timer) but has no "
            "process_timer, so they could not fire. Define process_timer(self, timer)."
        )
    return problems


def _sets_timers(kind: type[Computation]) -> str:
    """Return the method that calls ``self.set_timer``; empty if none is seen to.

    Only a call that is surely this one counts: the same name may be another object's method. What
    is not seen here is refused when it happens.
    """
    seen: set[str] = set()
    for base in kind.__mro__:
        if base is Computation:
            break
        for name, method in vars(base).items():
            if name not in seen and isinstance(method, FunctionType):
                code = method.__code__
                if code.co_argcount and _loads(code, code.co_varnames[0], "set_timer"):
                    return method.__qualname__.rpartition("<locals>.")[2]
            seen.add(name)
    return ""


def _loads(code: CodeType, owner: str, attribute: str) -> bool:
    """Return whether code reads an attribute of a variable, in functions within it too."""
    steps = list(_steps(code))
    for (before, variable), (after, read) in itertools.pairwise(steps):
        # Names of instructions change from one Python to the next, how they begin does not.
        on_owner = before.startswith(("LOAD_FAST", "LOAD_DEREF")) and variable == owner
        if on_owner and after.startswith(("LOAD_ATTR", "LOAD_METHOD")) and read == attribute:
            return True
    within = (const for const in code.co_consts if isinstance(const, CodeType))
    return any(owner in inner.co_freevars and _loads(inner, owner, attribute) for inner in within)


def _steps(code: CodeType) -> Iterator[tuple[str, object]]:
    return ((step.opname, step.argval) for step in dis.get_instructions(code))
