"""Where commits are that lie in journals.

Commits of an interval are numbered without gaps, and journals keep their order. So for each
interval it takes a first number and an array of places: eight bytes a commit, as there may be
millions; and as many of those as there are gaps in the journals, where commits are in segments.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import NamedTuple, Protocol

from millrace.model.errors import DamagedStore
from millrace.store.commit import Commit
from millrace.store.journal import Covered, JournalName
from millrace.store.journal_bytes import commit_of, names_of

#: A group is at such a place in its journal, and has such a body.
Placed = tuple[int, bytes]

_ORDINAL_BITS = 24


class Bodies(Protocol):
    """Reads the groups of sealed journals."""

    def bodies(self, name: JournalName) -> Iterator[Placed] | None:
        """Return a journal's groups, None if it has been removed."""
        ...

    def body(self, name: JournalName, place: int) -> bytes | None:
        """Return one group, None if its journal has been removed."""
        ...


class _Run(NamedTuple):
    """Commits of an interval, from number ``first`` on: frame and place in it, in one number."""

    first: int
    places: array[int]


class Index:
    """What sealed journals hold.

    Args:
        journals: Reads them.
        names: Those that are sealed.

    Raises:
        DamagedStore: A journal cannot be read, or a commit is in two places.
    """

    def __init__(self, journals: Bodies, names: Iterable[JournalName | None]) -> None:
        self._journals = journals
        self._names = sorted(name for name in names if name is not None)
        # In order of their numbers; mostly there is one.
        self._runs: dict[tuple[str, int], list[_Run]] = {}
        # Of each frame: which journal, and where in it.
        self._journal = array("I")
        self._place = array("Q")
        for at, name in enumerate(self._names):
            self._add(at, name)

    def _add(self, at: int, name: JournalName) -> None:
        for place, body in self._journals.bodies(name) or ():
            frame = len(self._place) << _ORDINAL_BITS
            self._journal.append(at)
            self._place.append(place)
            for ordinal, (computation, interval, number) in enumerate(names_of(body)):
                runs = self._runs.setdefault((computation, interval), [])
                following = runs[-1].first + len(runs[-1].places) if runs else number
                if number < following:
                    raise DamagedStore(
                        f"commit {number} of interval {interval} of computation {computation!r} is "
                        f"in journal {name}, and was in one before it. Restore the checkpoint from "
                        f"a copy."
                    )
                if not runs or number > following:
                    runs.append(_Run(number, array("Q")))
                runs[-1].places.append(frame | ordinal)

    def read(self, computation: str, interval: int, number: int) -> Commit | None:
        """Return a commit, None if it is in no sealed journal, or was removed with it."""
        place = self._placed(computation, interval, number)
        if place is None:
            return None
        frame, ordinal = place >> _ORDINAL_BITS, place & ((1 << _ORDINAL_BITS) - 1)
        body = self._journals.body(self._names[self._journal[frame]], self._place[frame])
        return None if body is None else commit_of(body, ordinal)

    def _placed(self, computation: str, interval: int, number: int) -> int | None:
        for run in reversed(self._runs.get((computation, interval), ())):
            if run.first <= number < run.first + len(run.places):
                return run.places[number - run.first]
        return None

    def exists(self, computation: str, interval: int, number: int) -> bool:
        """Return whether a commit is there."""
        return self.read(computation, interval, number) is not None

    def numbers(self, computation: str) -> dict[int, list[range]]:
        """Return interval id -> numbers of the commits in sealed journals."""
        return {
            interval: self.numbers_of(name, interval)
            for name, interval in self._runs
            if name == computation
        }

    def numbers_of(self, computation: str, interval: int) -> list[range]:
        """Return the numbers of an interval's commits in sealed journals."""
        runs = self._runs.get((computation, interval), ())
        return [range(run.first, run.first + len(run.places)) for run in runs]

    @cached_property
    def covered(self) -> Mapping[JournalName, Covered]:
        """Return what each journal has: the last number of each interval."""
        found: dict[JournalName, dict[str, dict[int, int]]] = {name: {} for name in self._names}
        for (computation, interval), runs in self._runs.items():
            for run in runs:
                for number, place in enumerate(run.places, run.first):
                    name = self._names[self._journal[place >> _ORDINAL_BITS]]
                    found[name].setdefault(computation, {})[interval] = number
        return found
