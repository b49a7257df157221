"""Evolution: what a program says of the state that an earlier version of a computation left."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from millrace.model.errors import PipelineError

#: Makes a cell's value of what it was.
Migration = Callable[[Any], Any]


def names(was: str | Iterable[str]) -> tuple[str, ...]:
    """Return earlier names, of which there may be one or several.

    >>> names("Counts"), names(["Counts", "Tallies"])
    (('Counts',), ('Counts', 'Tallies'))
    """
    return (was,) if isinstance(was, str) else tuple(was)


@dataclass(frozen=True)
class Evolution:
    """What becomes of what a checkpoint knows otherwise.

    Attributes:
        was: Names that the computation had before.
        dropped: Cells whose rows are to go.
        migrations: Cell -> what makes its values of what they were.
    """

    was: tuple[str, ...] = ()
    dropped: frozenset[str] = frozenset()
    migrations: Mapping[str, Migration] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        name: str,
        was: str | Iterable[str],
        dropped: Iterable[str],
        migrations: Mapping[str, Migration] | None,
    ) -> Evolution:
        """Return what ``p.add(was=, dropped=, migrate=)`` say.

        Raises:
            PipelineError: A migration is no function with a name, by which a checkpoint knows that
                it has run.
        """
        if isinstance(dropped, str):
            dropped = (dropped,)
        for cell, function in (migrations or {}).items():
            known = getattr(function, "__name__", "<lambda>")
            if not callable(function) or known == "<lambda>":
                raise PipelineError(
                    f"p.add({name}, migrate={{{cell!r}: {function!r}}}): expected a function with "
                    "a name of its own, def to_cents(old): ...; by the name a checkpoint knows "
                    "that it has run."
                )
        return cls(names(was), frozenset(dropped), dict(migrations or {}))
