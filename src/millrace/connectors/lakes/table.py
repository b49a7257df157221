"""A table of a lake to which an epoch, or a mark, is one commit: Delta Lake, Iceberg.

::

    _staging/epoch=7-00000-<random>.parquet    what an attempt at a task has written
    part-7-00000-<random>.parquet              the same file, by the name that the table knows

Each task of the last level writes a Parquet file aside; the driver adds them all to the table in
one commit, which also names the checkpoint and the epoch. What comes again after a failure is known
by that.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from millrace.connectors.lakes.partitions import (
    PartitionedWriter,
    PartitionField,
    StagedFile,
    staged_files,
)
from millrace.connectors.parquet.files import FILE_LIMITS, STAGING
from millrace.connectors.table_files import TableFiles
from millrace.model.errors import MillraceError, PipelineError, SinkError

if TYPE_CHECKING:
    from millrace.runtime.sink_contract import Binding, TaskWriter

_log = logging.getLogger("millrace")


#: How often an epoch is tried again after another writer has committed first.
_TRIES: Final = 5

#: What :func:`placed` calls files.
_FILE: Final = re.compile(r"part-(\d+)-\d+-[0-9a-f]+\.parquet")


class Commits:
    """Commits epochs to one table, each once.

    Args:
        files: Its files.
        columns: Of the rows, a struct type.
        sink: The sink, for messages.
    """

    def __init__(self, files: TableFiles, columns: pa.StructType, sink: str) -> None:
        self._files = files
        self._columns = pa.schema(list(columns))
        self._sink = sink

    def check(self) -> None:
        """Refuse a table that cannot take the rows.

        Raises:
            PipelineError: There is such a table, or nobody knows whether there is one.
        """
        table = self._open()
        if table is not None and (why := self._refused(table)):
            raise PipelineError(f"the sink {self._sink} cannot take its stream: {why}")

    def prepare(self) -> None:
        """Make the table if it is not there."""
        if self._open() is None:
            self._make()

    def has(self, epoch: int) -> bool:
        """Return whether the table has an epoch."""
        table = self._open()
        return table is not None and self._has(table, epoch)

    #: By which the table's rows are partitioned.
    partitions: tuple[PartitionField, ...] = ()
    #: Whether its files have the columns by which they are partitioned.
    whole = True

    def append(self, epoch: int, files: list[StagedFile]) -> None:
        """Add an epoch's records in one durable commit, unless the table has the epoch.

        A driver that was superseded in this epoch, and woke up, may be doing the same: one of the
        two commits is refused, and then the epoch is found.

        Args:
            epoch: The epoch.
            files: That tasks have written, and that count.

        Raises:
            SinkError: Others keep changing the table, or have made of it what cannot take the rows.
        """

        def add() -> None:
            try:
                table = self._open() or self._make()
                if self._has(table, epoch):
                    self._settle(table)
                    return
                if why := self._refused(table):
                    raise self._error(epoch, why)
                self._add(table, epoch, files)
            except FileNotFoundError:
                # Another driver has added the epoch meanwhile, and removed what was staged.
                if not self.has(epoch):
                    raise
                add()

        refusal = self._change(add)
        if refusal is not None:
            raise self._error(
                epoch,
                f"the commit was refused {_TRIES} times, at last by {type(refusal).__name__}: "
                f"{self._files.words(refusal)}. Do others write to it all the time, or change what "
                "it is like, or is it out of reach?",
            ) from None  # its own words may have a secret in them

    def take_back(self, after: int, until: int) -> None:
        """Remove the files that epochs have added from the table, in one durable commit.

        Args:
            after: The epoch before the first of them.
            until: The last.

        Raises:
            SinkError: Others have rewritten them, or keep changing the table.
        """

        def remove() -> None:
            table = self._open()
            if table is not None:
                self._remove(table, after, until)

        refusal = self._change(remove)
        if refusal is not None:
            raise SinkError(
                f"{self._sink}: what epochs {after + 1} to {until} have added cannot be taken "
                f"back: {type(refusal).__name__}: {self._files.words(refusal)}. Start again when "
                "nobody else changes the table."
            ) from None

    def _change(self, attempt: Callable[[], None]) -> Exception | None:
        """Try to commit a change to the table as it is now; return the last refusal, if all are."""
        conflicts = self._conflicts()
        refusal: Exception | None = None
        for _ in range(_TRIES):
            try:
                attempt()
            except MillraceError:
                raise
            except conflicts as conflict:
                refusal = conflict
                self._forget()
            else:
                return None
        return refusal

    def _rewritten(self, files: list[str]) -> SinkError:
        return SinkError(
            f"{self._sink}: files that are to be taken back, such as {files[0]}, were rewritten by "
            "another writer (compacted, or rows were deleted), so nobody knows where their rows "
            "are. Restore the table by its own history, or copy the savepoint, and go on from the "
            "copy with another table."
        )

    def _unknown(self, after: int, foreign: str) -> SinkError:
        return SinkError(
            f"{self._sink}: the table's history does not go back to epoch {after} any more, and "
            f"{foreign} is not one of the sink's files. It may have rows of the epochs that are to "
            "be taken back: was the table compacted, and its log cleaned, or were its snapshots "
            "expired? Copy the savepoint, and go on from the copy with another table."
        )

    def _open(self) -> Any:
        """Return the table as it is now; None if there is none."""
        raise NotImplementedError

    def _remove(self, table: Any, after: int, until: int) -> None:
        """Commit that files of some epochs are no more, and make the commit durable."""
        raise NotImplementedError

    def _make(self) -> Any:
        """Make the table, unless another has, and return it."""
        raise NotImplementedError

    def _has(self, table: Any, epoch: int) -> bool:
        raise NotImplementedError

    def _refused(self, table: Any) -> str:
        """Return why rows cannot be added to a table; empty if they can."""
        raise NotImplementedError

    def _add(self, table: Any, epoch: int, files: list[StagedFile]) -> None:
        """Commit an epoch, and make the commit durable."""
        raise NotImplementedError

    def _settle(self, table: Any) -> None:
        """Make durable what a driver has committed that may have died before it could."""
        raise NotImplementedError

    def _conflicts(self) -> type[Exception] | tuple[type[Exception], ...]:
        """Return what is raised where a commit is to be tried again."""
        raise NotImplementedError

    def _forget(self) -> None:
        """Forget what is known of the table: another has changed it."""

    def _error(self, epoch: int, why: str) -> SinkError:
        return SinkError(
            f"{self._sink}, epoch {epoch}: {why} Nothing of the epoch is in the table, and its "
            "files are kept: it is added when the pipeline is started again."
        )


class TableSink:
    """What the sinks that write tables of a lake have in common.

    Args:
        files: Of the table, which driver and workers reach.
    """

    limits = FILE_LIMITS

    def __init__(self, files: TableFiles) -> None:
        self._files = files
        self._table: Commits | None = None

    def commits(self, binding: Binding) -> Commits:
        """Return what commits a checkpoint's epochs; nothing is written yet."""
        raise NotImplementedError

    #: Whether a checkpoint may go back to a savepoint, and this sink with it.
    takes_back = True
    #: Columns by which rows are replaced; such a table goes on as it is.
    key: tuple[str, ...] = ()

    def take_back(self, after: int, until: int) -> None:
        """Remove what epochs have added; a table by key goes on as it is.

        Args:
            after: The epoch before the first of them.
            until: The last.

        Raises:
            SinkError: The disk refuses, or others have rewritten what was added.
        """
        if not self.key:
            with self._files.refusing(repr(self)):
                self._bound().take_back(after, until)
                self._files.clear(until)

    def bind(self, binding: Binding) -> str:
        """Claim the table for a checkpoint, and return where it is; before a run writes anything.

        Raises:
            CheckpointMismatch: Another checkpoint has written there.
            StoreError: The directory, or the bucket, cannot be written.
            PipelineError: There is a table that cannot take the stream's records.
        """
        table = self.commits(binding)
        table.check()
        place = self._files.claim(binding.owner, repr(self))
        self._table = table
        return place

    def claim(self, generation: int, completed: int) -> None:
        """Make the table if it is not there, so that it can be read before there are records.

        Args:
            generation: Of the run.
            completed: Its last completed epoch.

        Raises:
            SinkError: The disk refuses.
        """
        with self._files.refusing(repr(self)):
            self._bound().prepare()

    def for_tasks(self) -> TaskWriter:
        """Return what tasks write with; they need no more than PyArrow."""
        writer = self._files.writer(repr(self))
        table = self._table
        if table is None or self.key or not table.partitions:
            return writer
        return PartitionedWriter(writer, table.partitions, table.whole)

    def publish(self, epoch: int, receipts: list[bytes]) -> None:
        """Add the records of an epoch to the table, unless it has that epoch: the same rows.

        Raises:
            SinkError: The disk refuses, the table has become another one, or a record has no key.
        """
        table = self._bound()
        with self._files.refusing(f"{self!r}, epoch {epoch}"):
            table.append(epoch, staged_files(receipts))
            self._files.clear(epoch)

    def publish_again(self, epoch: int, receipts: list[bytes]) -> None:
        """Publish the mark that completed last, if its driver has not; see :meth:`publish`."""
        with self._files.refusing(f"{self!r}, epoch {epoch}"):
            there = self._bound().has(epoch) or any(
                self._files.exists(f"{STAGING}/{file.name}") for file in staged_files(receipts)
            )
        if there:
            self.publish(epoch, receipts)
            return
        _log.warning(
            "%r, epoch %d: neither the table nor the directory has it. Was it removed? It is not "
            "made again.",
            self,
            epoch,
        )

    def _bound(self) -> Commits:
        assert self._table is not None, "a sink is bound before anything is published"
        return self._table


def epoch_of(file: str) -> int:
    """Return the epoch by which a table got a file; -1 if it did not get it from here.

    >>> epoch_of("file:///t/data/part-7-00000-5f.parquet"), epoch_of("t/x.parquet")
    (7, -1)
    """
    named = _FILE.fullmatch(file.rpartition("/")[2])
    return -1 if named is None else int(named[1])
