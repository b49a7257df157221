"""Journals: commits of the real-time plane, appended in groups by tasks that live for a session.

A journal has one writer: one task of one session, and a new part for each mark. So a group of
commits costs one write and one fsync of data, and nobody has to win a name. What tells a live
writer from one that was left behind is the *seal*: a session begins by writing down how long every
journal before it is, and what is appended behind that does not exist.

Source: docs/design/2026-11-22-where-a-journal-ends.md; MillWheel 6.2, sequencers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec

from millrace.store.commit import Commit

_NAME = re.compile(r"(\d{8,})-(\d{2,})-(\d{4,})-(\d{8,})")

#: Computation -> interval id -> number of a commit.
Covered = Mapping[str, Mapping[int, int]]


class JournalName(NamedTuple):
    """Whose journal it is; names sort as their writers' groups came.

    Attributes:
        session: Number of the session, from 1.
        level: The task's level.
        task: Its number in the level.
        part: From 1 in each session; a new one begins with each mark.

    >>> str(JournalName(7, 2, 3, 12))
    '00000007-02-0003-00000012'
    >>> JournalName.parse("00000007-02-0003-00000012") == JournalName(7, 2, 3, 12)
    True
    """

    session: int
    level: int
    task: int
    part: int

    def __str__(self) -> str:
        return f"{self.session:08d}-{self.level:02d}-{self.task:04d}-{self.part:08d}"

    @classmethod
    def parse(cls, text: str) -> JournalName | None:
        """Return the journal of that name; None if it is no journal's."""
        match = _NAME.fullmatch(text)
        return None if match is None else cls(*map(int, match.groups()))


class Group(NamedTuple):
    """What was appended at once.

    Attributes:
        commits: Of several computations and intervals; those of each interval in order.
        note: The task's own, opaque to the store.
    """

    commits: list[Commit]
    note: bytes


class Sealing(msgspec.Struct, array_like=True):
    """What a session's seal says: where every journal of an older session ends.

    A journal that is not named does not exist.

    Attributes:
        session: The session that begins with it.
        lengths: Name of a journal -> its bytes; in an object store, its groups.
        notes: Name of a journal -> note of its last group, of the last journal with a group of each
            task and session.
        tails: Name of a journal -> what comes after those bytes: its last group, where nobody
            knows whether that is durable in the journal itself.
    """

    session: int
    lengths: dict[str, int] = {}
    notes: dict[str, bytes] = {}
    tails: dict[str, bytes] = {}


class Journal(Protocol):
    """One part of a task's journal, open for its one writer."""

    @property
    def name(self) -> JournalName:
        """Its name."""
        ...

    def append(self, commits: Sequence[Commit], note: bytes = b"") -> None:
        """Append a group; it is durable on return, whole, or the session's next seal drops it.

        Args:
            commits: In order; none for a note alone.
            note: The task's own.

        Raises:
            CheckpointUnwritable: Nobody knows whether it is durable. The task is over: this
                journal takes nothing more, and no other part may follow it.
        """
        ...

    def close(self) -> None:
        """Give back what it holds; nothing more can be appended."""
        ...


class CommitIndex(Protocol):
    """Finds commits in journals; as :class:`~millrace.store.CommitLog` does, and takes none."""

    def read(self, computation: str, interval: int, number: int) -> Commit | None:
        """Return a commit, None if it is in no journal, or was removed with it."""
        ...

    def exists(self, computation: str, interval: int, number: int) -> bool:
        """Return whether a commit is there."""
        ...

    def numbers(self, computation: str) -> Mapping[int, Sequence[range]]:
        """Return interval id -> numbers of the commits in journals."""
        ...

    def numbers_of(self, computation: str, interval: int) -> Sequence[range]:
        """Return the numbers of one interval's commits, ascending."""
        ...


class Journals(Protocol):
    """The journals of a checkpoint.

    What :meth:`groups`, :meth:`covered` and the commit log say is by the last seal that this
    object knows: that of its last call of :meth:`seal` or :meth:`names`, or the one that was there
    when it was first asked.
    """

    @property
    def far(self) -> bool:
        """Whether an append is a request to another machine, of some 30 to 100 ms."""
        ...

    def seal(self, session: int) -> Sealing | None:
        """Begin a session: fence all before it, and write down what their tasks have left.

        Once this has begun, :meth:`superseded` is true of every older session; only then are
        lengths taken, deepest level first. So whatever was appended before its writer found itself
        not superseded is inside, and so is what it was made from.

        Args:
            session: ``last() + 1`` as the caller knows it.

        Returns:
            What was sealed, now and before; None if this session or a later one has begun, by
            another caller.

        Raises:
            CheckpointUnwritable: The session has not begun; its number may be used up.
            DamagedStore: A journal is damaged before its end; says where.
        """
        ...

    def last(self) -> int:
        """Return the number of the last session that has begun; 0 if none has."""
        ...

    def superseded(self, session: int) -> bool:
        """Return whether a later session has begun. Cost: one open, or one HEAD.

        Who asks after its append has returned, and is told no, knows that the next seal has it.
        """
        ...

    def create(self, session: int, level: int, task: int, part: int) -> Journal:
        """Make a journal; its name is durable on return.

        Raises:
            ZombieWriter: There is one: another attempt at the task writes it.
            CheckpointUnwritable: It was not made.
        """
        ...

    def groups(self, name: JournalName) -> Iterator[Group]:
        """Yield the sealed groups of a journal, in order.

        Raises:
            DamagedStore: It is damaged, or has gone, or is not sealed.
        """
        ...

    def finished(
        self, names: Iterable[JournalName]
    ) -> Iterator[tuple[JournalName, Iterator[Commit]]]:
        """Yield some parts with their commits, in order; pass over those that are not there.

        Args:
            names: Of parts that are sealed, or that their writers have closed after their last
                append had returned.

        Raises:
            DamagedStore: One is damaged.
        """
        ...

    def names(self) -> list[JournalName]:
        """Return the sealed journals that are still there, ascending, by the last seal there is."""
        ...

    @property
    def index(self) -> CommitIndex:
        """Where the commits are that are in sealed journals. Cost: reading them, once a seal."""
        ...

    def under_way(self) -> Journals:
        """Return the journals that no seal names yet, as if they were sealed now; to be read.

        For who looks at a checkpoint and takes no part in it: what a session goes on to write, the
        result does not have.
        """
        ...

    def covered(self) -> Mapping[JournalName, Covered]:
        """Return what each sealed journal has: the last number of each interval with a commit."""
        ...

    def remove(self, names: Iterable[JournalName]) -> None:
        """Remove journals, in the order given; pass over those that are not there.

        Raises:
            StoreError: What could not be removed, and all after it, is still there.
        """
        ...
