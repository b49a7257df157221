"""MemoryJournals: journals in dictionaries, for the Harness and for simulations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from millrace.model.errors import CheckpointUnwritable, ZombieWriter
from millrace.store.commit import Commit
from millrace.store.journal import JournalName
from millrace.store.journal_bytes import encode_body, note_of
from millrace.store.journal_index import Placed
from millrace.store.sealing import End


class MemoryJournal:
    """One part of a task's journal, in a list of its groups' bodies."""

    def __init__(self, name: JournalName, bodies: list[bytes]) -> None:
        self.name = name
        self._bodies = bodies
        self._closed = False

    def append(self, commits: Sequence[Commit], note: bytes = b"") -> None:
        """See :meth:`millrace.store.Journal.append`."""
        if self._closed:
            raise CheckpointUnwritable(f"journal {self.name} is closed; nothing can be appended")
        self._bodies.append(encode_body(commits, note))

    def close(self) -> None:
        """See :meth:`millrace.store.Journal.close`."""
        self._closed = True


class MemoryJournals:
    """The :class:`~millrace.store.journal_store.JournalFiles` of a :class:`MemoryHardState`."""

    def __init__(self) -> None:
        self._journals: dict[JournalName, list[bytes]] = {}

    def names(self) -> list[str]:
        """Return the names of all journals."""
        return [*map(str, self._journals)]

    def create(self, name: JournalName) -> MemoryJournal:
        """Make a journal."""
        bodies: list[bytes] = []
        if self._journals.setdefault(name, bodies) is not bodies:
            raise ZombieWriter(
                f"zombie writer: journal {name} is there already: another attempt at task "
                f"{name.task} of level {name.level} writes it."
            )
        return MemoryJournal(name, bodies)

    def sizes(self) -> dict[JournalName, int]:
        """Return the journals that are there, with their groups."""
        return {name: len(bodies) for name, bodies in list(self._journals.items())}

    def end_of(self, name: JournalName, size: int, newest: bool) -> End | None:
        """Return where a journal ends."""
        return End(size, note_of(self._journals[name][size - 1]))

    def groups(self, name: JournalName, length: int, tail: bytes) -> Iterator[Placed] | None:
        """Return the bodies of a journal's groups."""
        bodies = self._journals.get(name)
        return None if bodies is None else enumerate(bodies[:length])

    def group(self, name: JournalName, length: int, tail: bytes, place: int) -> bytes | None:
        """Return the body of one group."""
        bodies = self._journals.get(name)
        return None if bodies is None else bodies[place]

    def remove_journals(self, names: Iterable[JournalName]) -> None:
        """Remove journals."""
        for name in names:
            self._journals.pop(name, None)

    def copy(self) -> MemoryJournals:
        """Return a copy of the journals."""
        made = MemoryJournals()
        made._journals = {name: list(bodies) for name, bodies in self._journals.items()}
        return made
