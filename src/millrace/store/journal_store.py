"""JournalStore: the journals of a checkpoint, wherever it is.

Beside the journals stand two blobs for a session. ``00000008.begun`` says that session 8 has
begun, and its tasks may go on as long as it is there: the next session removes it before it looks
at journals. ``00000008.seal`` says where the journals before it end.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Protocol

from millrace.model.errors import DamagedStore
from millrace.store.blobs import Blobs
from millrace.store.commit import Commit
from millrace.store.journal import Covered, Group, Journal, JournalName, Sealing
from millrace.store.journal_bytes import group_of
from millrace.store.journal_index import Index, Placed
from millrace.store.sealing import End, decode_sealing, encode_sealing, sealing_of

_FOLDER = "journals"
_MARKER = re.compile(rf"{_FOLDER}/(\d{{8,}})\.(begun|seal)")


class JournalFiles(Protocol):
    """What a kind of storage does for blobs that are appended to, in the folder ``journals``."""

    def names(self) -> list[str]:
        """Return the names of the journals that are there, or of which something is left.

        Among them may be names of blobs that are in the same folder.
        """
        ...

    def create(self, name: JournalName) -> Journal:
        """See :meth:`millrace.store.Journals.create`."""
        ...

    def sizes(self) -> dict[JournalName, int]:
        """Return the journals that are there -> their size; 0 where there is no group for sure."""
        ...

    def end_of(self, name: JournalName, size: int, newest: bool) -> End | None:
        """Return where a journal ends, None if it has no group.

        Args:
            name: Of the journal.
            size: What to look at.
            newest: Whether it is its task's last. Only that one may have a torn end.
        """
        ...

    def groups(self, name: JournalName, length: int, tail: bytes) -> Iterator[Placed] | None:
        """Return the bodies of a journal's groups, each with where it is; None if it has gone."""
        ...

    def group(self, name: JournalName, length: int, tail: bytes, place: int) -> bytes | None:
        """Return the body of one group, by where it is; None if the journal has gone."""
        ...

    def remove_journals(self, names: Iterable[JournalName]) -> None:
        """See :meth:`millrace.store.Journals.remove`."""
        ...


class JournalStore:
    """The :class:`~millrace.store.Journals` of a checkpoint. Threads may share it.

    Args:
        blobs: Where markers and seals are.
        files: Where the journals are.
        fixed: Taken for the last seal, whatever there is.

    Attributes:
        turns: The lock of the threads; another one where those of a simulation share it.
    """

    def __init__(self, blobs: Blobs, files: JournalFiles, fixed: Sealing | None = None) -> None:
        self._blobs = blobs
        self._files = files
        self._where = f"{blobs.where}/{_FOLDER}"
        self.turns: AbstractContextManager[object] = threading.RLock()
        self._fixed = fixed
        self._known: Sealing | None = None
        self._index: Index | None = None
        self._removed: set[JournalName] = set()

    @property
    def far(self) -> bool:
        """See :attr:`millrace.store.Journals.far`."""
        return self._blobs.far

    def seal(self, session: int) -> Sealing | None:
        """See :meth:`millrace.store.Journals.seal`. Cost: six fsyncs, or four PUTs."""
        blobs, files, begun = self._blobs, self._files, _begun(session)
        if self.last() >= session or not blobs.put_if_absent(begun, _unlike_others()):
            return None
        if self.last() > session:
            # It was free only because a later session had removed it.
            blobs.remove([begun], durable=True)
            return None
        earlier = [_begun(number) for number in self._numbers("begun") if number < session]
        blobs.remove(earlier, durable=True)
        previous = self._last_seal()
        sealing = sealing_of(session, previous, files.sizes, files.end_of)
        if not blobs.put_if_absent(_seal(session), encode_sealing(sealing)):
            return None
        if self.superseded(session):
            return None
        self._know(sealing)
        blobs.remove(
            [_seal(number) for number in self._numbers("seal") if number < session], durable=True
        )
        there = sorted(filter(None, map(JournalName.parse, set(files.names()))))
        files.remove_journals(
            name for name in there if name.session < session and str(name) not in sealing.lengths
        )
        return sealing

    def last(self) -> int:
        """See :meth:`millrace.store.Journals.last`. Cost: a list."""
        return max((*self._numbers("begun"), *self._numbers("seal")), default=0)

    def superseded(self, session: int) -> bool:
        """See :meth:`millrace.store.Journals.superseded`."""
        return not self._blobs.exists(_begun(session))

    def create(self, session: int, level: int, task: int, part: int) -> Journal:
        """See :meth:`millrace.store.Journals.create`."""
        return self._files.create(JournalName(session, level, task, part))

    def groups(self, name: JournalName) -> Iterator[Group]:
        """See :meth:`millrace.store.Journals.groups`."""
        found = self.bodies(name)
        if found is None:
            raise DamagedStore(
                f"journal {self._where}/{name}: it has gone. If no run has collected it "
                f"meanwhile, restore it from a copy of the checkpoint."
            )
        return (group_of(body) for _, body in found)

    def finished(
        self, names: Iterable[JournalName]
    ) -> Iterator[tuple[JournalName, Iterator[Commit]]]:
        """See :meth:`millrace.store.Journals.finished`. Cost: a list, and reading the parts."""
        wanted = list(names)
        if not wanted:
            return
        sizes, sealed = self._files.sizes(), self._last_seal()
        for name in wanted:
            length = sealed.lengths.get(str(name), sizes.get(name, 0))
            bodies = self._files.groups(name, length, sealed.tails.get(str(name), b""))
            if name in sizes and bodies is not None:
                yield name, (commit for _, body in bodies for commit in group_of(body).commits)

    def names(self) -> list[JournalName]:
        """See :meth:`millrace.store.Journals.names`. Cost: two lists, and reading the seal."""
        sealing = self._last_seal()
        self._know(sealing)
        return [name for name in sorted(self._files.sizes()) if str(name) in sealing.lengths]

    def covered(self) -> Mapping[JournalName, Covered]:
        """See :meth:`millrace.store.Journals.covered`. Cost: reading the journals, once a seal."""
        covered = self.index.covered
        return {name: covered[name] for name in covered.keys() - self._removed}

    def remove(self, names: Iterable[JournalName]) -> None:
        """See :meth:`millrace.store.Journals.remove`."""
        names = list(names)
        self._files.remove_journals(names)
        self._removed.update(names)

    def under_way(self) -> JournalStore:
        """See :meth:`millrace.store.Journals.under_way`. Cost: lists, reading the newest parts."""
        sealed = self._last_seal()
        now = sealing_of(self.last() + 1, sealed, self._files.sizes, self._files.end_of)
        lengths = {name: size for name, size in now.lengths.items() if name not in sealed.lengths}
        return JournalStore(
            self._blobs, self._files, Sealing(now.session, lengths, now.notes, now.tails)
        )

    # -- what the commit log reads -----------------------------------------------------------------

    @property
    def index(self) -> Index:
        """Where the commits are that are in sealed journals; made when it is first wanted."""
        index = self._index
        if index is None:
            with self.turns:
                if self._index is None:
                    if self._known is None:
                        self._known = self._last_seal()
                    self._index = Index(self, map(JournalName.parse, self._known.lengths))
                index = self._index
        return index

    def bodies(self, name: JournalName) -> Iterator[Placed] | None:
        """Return the bodies of a journal's sealed groups, each with where it is."""
        return self._files.groups(name, *self._ends(name))

    def body(self, name: JournalName, place: int) -> bytes | None:
        """Return the body of one group, None if its journal has been removed."""
        return self._files.group(name, *self._ends(name), place)

    def _ends(self, name: JournalName) -> tuple[int, bytes]:
        with self.turns:
            if self._known is None:
                self._known = self._last_seal()
            sealing = self._known
        if str(name) not in sealing.lengths:
            raise DamagedStore(
                f"journal {self._where}/{name}: seal {sealing.session} does not name it, so "
                f"what is in it does not count. Expected one of names()."
            )
        return sealing.lengths[str(name)], sealing.tails.get(str(name), b"")

    # -- markers and seals -------------------------------------------------------------------------

    def _know(self, sealing: Sealing) -> None:
        with self.turns:
            if self._known is None or self._known.session != sealing.session:
                self._known, self._index = sealing, None
                self._removed.clear()

    def _numbers(self, kind: str) -> list[int]:
        found = map(_MARKER.fullmatch, self._blobs.names(_FOLDER))
        return sorted(int(match[1]) for match in found if match and match[2] == kind)

    def _last_seal(self) -> Sealing:
        if self._fixed is not None:
            return self._fixed
        while numbers := self._numbers("seal"):
            name = _seal(numbers[-1])
            data = self._blobs.read(name)
            if data is not None:  # or a later session has removed it
                return decode_sealing(data, numbers[-1], f"{self._blobs.where}/{name}")
        return Sealing(0)


def _unlike_others() -> bytes:
    return os.urandom(16).hex().encode() + b"\n"


def _begun(session: int) -> str:
    return f"{_FOLDER}/{session:08d}.begun"


def _seal(session: int) -> str:
    return f"{_FOLDER}/{session:08d}.seal"
