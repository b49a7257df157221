"""Names that a computation's class has a meaning for: none for a user's own cells and methods.

They are what is documented of :class:`~millrace.model.computation.Computation`, and nothing else:
how built-in computations are compiled is asked of an
:class:`~millrace.dataflow.operator.Operator`.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, Final

from millrace.model.computation import Computation
from millrace.model.state import StateDescriptor

#: What a subclass declares, and what that is.
_DECLARED: Final[Mapping[str, str]] = {
    "inputs": "where it says which streams it reads",
    "outputs": "where it says which streams it makes",
    "may_produce_late": "where it says how late it may produce",
    "percentiles": "where it says which percentile low watermarks it waits for",
    "productions": "where it says mr.STRONG or mr.WEAK",
    "delivery": "where it says mr.EXACTLY_ONCE or mr.AT_LEAST_ONCE",
}

#: What Millrace calls.
_HOOKS: Final[Mapping[str, str]] = {
    "process_record": "a method that is called with each record",
    "process_start": "a method that is called with each key that it is given",
    "process_timer": "a method that is called with each due timer",
}

#: What Millrace gives.
_GIVEN: Final[Mapping[str, str]] = {
    "key": "the current key",
    "low_watermark": "the low watermark of its input",
    "percentile_low_watermarks": "the low watermarks of shares of its input",
    "wall_time": "the wall clock",
    "produce": "the call that sends a value to an output",
    "set_timer": "the call that sets a timer",
    "delete_timer": "the call that cancels a timer",
    "hold": "the call that holds the low watermark",
    "increment": "the call that adds to a counter",
}

#: Reserved name -> what it is in every computation.
RESERVED: Final[Mapping[str, str]] = {**_DECLARED, **_HOOKS, **_GIVEN}


def reserved_problems(name: str, computation: Computation) -> list[str]:
    """Return what is said of members that have a name with another meaning.

    Args:
        name: The computation's name in the pipeline.
        computation: As it was added.

    >>> class Echo(Computation):
    ...     key = "k"
    >>> print(*reserved_problems("echo", Echo()))
    computation 'echo': Echo.key is 'k', and the name 'key' is reserved: in every computation it \
is the current key. Give it another name.
    """
    problems = []
    for member, (owner, value) in sorted(_members(computation).items()):
        what = _misuse(member, value)
        if what:
            meaning = RESERVED.get(member, "Python's own")
            problems.append(
                f"computation {name!r}: {owner}.{member} is {what}, and the name {member!r} is "
                f"reserved: in every computation it is {meaning}. Give it another name."
            )
    return problems


def _members(computation: Computation) -> dict[str, tuple[str, Any]]:
    """Return what a user has defined under the names of ``Computation``: name -> class, value."""
    found: dict[str, tuple[str, Any]] = {}
    kind = type(computation)
    taken = dir(Computation)
    above = kind.__mro__[: kind.__mro__.index(Computation)]
    for base in reversed(above):
        found |= {
            name: (base.__name__, value) for name, value in vars(base).items() if name in taken
        }
    mine = vars(computation).items()
    return found | {name: (kind.__name__, value) for name, value in mine if name in taken}


def _misuse(name: str, value: Any) -> str:
    """Return what a value is that does not go with its name; empty if it does."""
    if isinstance(value, StateDescriptor):
        return "a state cell"
    if name in _GIVEN:
        return "a method" if inspect.isroutine(value) else _shown(value)
    if name in _DECLARED and inspect.isroutine(value):
        return "a method"
    if name in _HOOKS and not (callable(value) or hasattr(value, "__get__")):
        return _shown(value)
    return ""


def _shown(value: Any) -> str:
    return "a property" if isinstance(value, property) else repr(value)
