"""Appends: a table of a lake as an injector, commit by commit, of which each adds whole files.

What a commit adds never changes, and its files are taken in order of their paths. So between two
places there are always the same rows, whatever was committed or compacted since.

Source: MillWheel, "Injector and Low Watermark API" (5.2).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, Final, NamedTuple, Protocol

from millrace.injectors.advance import Advance, Backlog
from millrace.injectors.injector import Injector
from millrace.model.errors import PipelineError
from millrace.model.time import Instant, timestamp_us

#: Bytes of small files that one task reads together; one file is never parted.
_PIECE: Final = 32 << 20


class File(NamedTuple):
    """A file of a table.

    Attributes:
        rows: How many it has.
        size: In bytes.
        what: Which it is, as those who read it want it.
    """

    rows: int
    size: int
    what: Any


class CommitFiles(NamedTuple):
    """Files of one commit that are to be read.

    Attributes:
        start: The place before all of them: a named tuple with ``files``, how many were read; None:
            all that there are.
        committed_us: When it was committed, by the clock of who did it.
        begun: How many of them were read before.
        files: All of them, in order.
    """

    start: Any
    committed_us: int
    begun: int
    files: list[File]

    def place(self, files: int) -> Any:
        """Return where so many of them were read."""
        return self.start._replace(files=None if files == len(self.files) else files)


class TableHistory(Protocol):
    """The commits of a table at one moment."""

    def place(self, offset: Any) -> Any:
        """Return the place that an offset, a list, stands for."""
        ...

    def after(self, place: Any, until: Any = None) -> Iterator[CommitFiles]:
        """Yield the files after a place, commit by commit in order, up to that of another place.

        Raises:
            InputLost: What follows the place is gone.
            PipelineError: A commit does more than append.
        """
        ...

    def waiting(self, place: Any) -> int | None:
        """Return how many rows there are after a place; None if that is not said."""
        ...


class Appends(Injector):
    """What both Delta and Iceberg do; a class for each says how its history is found.

    Args:
        table: Its name: the one process.
        schema: Columns of a row, as Spark writes them.
        records_per_epoch: How many records an epoch reads at the most, but for the last file.
    """

    called: ClassVar[str]

    def __init__(self, table: str, schema: str, records_per_epoch: int) -> None:
        if records_per_epoch < 1:
            raise PipelineError(
                f"{self.called}(records_per_epoch={records_per_epoch}): expected 1 or more."
            )
        self.schema = schema
        self._process = table
        self._records = records_per_epoch

    def __repr__(self) -> str:
        return f"{self.called}({self._process!r})"

    @abstractmethod
    def _history(self) -> Any:
        """Return the history of the table as it is now: a :class:`TableHistory`."""

    @abstractmethod
    def _beginning(self, history: Any, before_us: int | None) -> Any:
        """Return the place where to begin, to read what was committed before an instant.

        None: there is nothing yet.
        """

    @abstractmethod
    def _piece(self, files: CommitFiles, begun: int, until: int) -> tuple[Any, Any]:
        """Return what ``read_arrow`` gets for some of the files of a commit."""

    def processes(self) -> Iterable[str]:
        """Return the one process: the table."""
        return [self._process]

    def advance(self, process: str, offset: Any) -> Advance:
        """Return the place after the files that an epoch may read."""
        return Advance(self._next(self._history(), offset))

    def until_now(self, process: str, before: Instant | None = None) -> Iterable[Advance]:
        """Yield advances to the newest commit there is now, or was made before then."""
        history, offset = self._history(), None
        while True:
            last = offset
            offset = self._next(history, last, None if before is None else timestamp_us(before))
            if offset == last:
                return
            yield Advance(offset)

    def backlog(self, process: str, offset: Any) -> Backlog | None:
        """Return how many records wait, as the table says."""
        history: TableHistory = self._history()
        place = self._beginning(history, None) if offset is None else history.place(offset)
        waiting = 0 if place is None else history.waiting(place)
        return None if waiting is None else Backlog(records=waiting)

    def split(self, process: str, start: Any, end: Any) -> Iterable[tuple[Any, Any]]:
        """Return pieces of whole files; several small ones are one piece."""
        if start is None:  # where it begins was noted, and nothing is read
            return
        history: TableHistory = self._history()
        last = history.place(end)
        for files in history.after(history.place(start), last):
            within = last.files is not None and files.start == last._replace(files=0)
            until = last.files if within else len(files.files)
            begun, size = files.begun, 0
            for n in range(files.begun, until):
                size += files.files[n].size
                if size >= _PIECE or n + 1 == until:
                    yield self._piece(files, begun, n + 1)
                    begun, size = n + 1, 0

    def _next(self, history: TableHistory, offset: Any, before_us: int | None = None) -> Any:
        """Return the offset to which the next epoch reads: the same if there is nothing more."""
        if offset is None:
            # Where it begins is written down before anything is read: it is another place later.
            begin = self._beginning(history, before_us)
            return None if begin is None else [*begin]
        place, room = history.place(offset), self._records
        try:
            for files in history.after(place):
                if before_us is not None and files.committed_us >= before_us:
                    break
                for n in range(files.begun, len(files.files)):
                    if room <= 0:
                        return [*place]
                    room -= files.files[n].rows
                    place = files.place(n + 1)
                place = files.place(len(files.files))
        except PipelineError:
            if [*place] == offset:
                raise
            # What came before it is read first.
        return [*place]
