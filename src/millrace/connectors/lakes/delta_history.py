"""The history of a Delta table: which versions came after a place, and which files they added.

Source: the Delta transaction protocol, "Action Reconciliation" and "Add File and Remove File".
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

from millrace.connectors.lakes.appends import CommitFiles, File
from millrace.connectors.lakes.delta_log import Log, Version
from millrace.model.errors import InputLost, PipelineError
from millrace.model.time import format_timestamp


class DeltaOffset(NamedTuple):
    """How far a table was read; as JSON a list.

    Attributes:
        table: Id of the table.
        version: A version.
        files: How many of its files were read; None: all that there are.
        whole: Whether its files are all that the table has at it, and not only those it added.
    """

    table: str
    version: int
    files: int | None = None
    whole: bool = False


class DeltaHistory:
    """The versions of a table up to the newest.

    Args:
        log: Of the table, as it is now.
        skip: Versions that may take rows away; what they do is left out.
        who: The injector, for messages.
    """

    def __init__(self, log: Log, skip: Collection[int], who: str) -> None:
        self._log = log
        self._skip = skip
        self._who = who

    def beginning(
        self, since_us: int | None, first: int | None, before_us: int | None
    ) -> DeltaOffset | None:
        """Return the place where to begin.

        Args:
            since_us: To read what versions of this instant or later add.
            first: To read what this version and later ones add. With neither, all that the table
                has, and what is added from then on.
            before_us: To read only what is of versions before this instant: all that it had then.

        Returns:
            The place; None if there was no table before the instant.

        Raises:
            InputLost: Versions that may be of the instant are not kept.
            PipelineError: There is no such version yet.
        """
        table, newest = self._log.table, self._log.newest
        if first is not None:
            if first > newest + 1:
                raise PipelineError(
                    f"{self._who}: version={first}: the table is at version {newest}. Expected one "
                    "that exists, or the next."
                )
            return DeltaOffset(table, first - 1)
        if since_us is not None:
            return DeltaOffset(table, self._since(since_us) - 1)
        at = newest if before_us is None else self._since(before_us) - 1
        return None if at < 0 else DeltaOffset(table, at, 0, whole=True)

    def place(self, offset: Any) -> DeltaOffset:
        """Return the place that an offset stands for.

        Raises:
            InputLost: It is of another table, or of none of the versions that there are.
        """
        place = DeltaOffset(*offset)
        again = "Start with a new checkpoint, which reads all that it has now."
        if place.table != self._log.table:
            raise InputLost(
                f"{self._who}: the table was made again: its id is {self._log.table}, and that of "
                f"the one that was read is {place.table}. {again}"
            )
        if place.version > self._log.newest:
            raise InputLost(
                f"{self._who}: version {place.version} was read last, and the newest is "
                f"{self._log.newest}: its log was set back. {again}"
            )
        return place

    def after(self, place: DeltaOffset, until: DeltaOffset | None = None) -> Iterator[CommitFiles]:
        """Yield the files after a place, version by version, up to that of another place.

        Raises:
            InputLost: A version is not kept.
            PipelineError: A version takes rows away.
        """
        last = self._log.newest if until is None else until.version
        if place.files is not None:
            yield self._begun(place)
        for number in range(place.version + 1, last + 1):
            version = self._kept(number)
            yield CommitFiles(
                DeltaOffset(place.table, number, 0),
                version.committed_us,
                0,
                self._added(number, version),
            )

    def waiting(self, place: DeltaOffset) -> int:
        """Return how many rows there are after a place."""
        return sum(file.rows for files in self.after(place) for file in files.files[files.begun :])

    def _begun(self, place: DeltaOffset) -> CommitFiles:
        begun, start = place.files or 0, place._replace(files=0)
        if place.whole:
            # What the table had where reading begins is before any instant up to which it goes.
            return CommitFiles(start, 0, begun, self._log.files_at(place.version))
        version = self._kept(place.version)
        return CommitFiles(start, version.committed_us, begun, self._added(place.version, version))

    def _kept(self, number: int) -> Version:
        version = self._log.version(number)
        if version is None:
            raise InputLost(
                f"{self._who}: version {number} is not in the log any more, and was not read: was "
                "the run stopped for longer than the log is kept (delta.logRetentionDuration)? "
                "Start with a new checkpoint, which reads all that the table has now; and keep the "
                "log for longer."
            )
        return version

    def _added(self, number: int, version: Version) -> list[File]:
        """Return the files that a version adds; refuse one that takes rows away."""
        if number in self._skip:
            return []
        if version.takes:
            raise PipelineError(
                f"{self._who}: version {number} of {format_timestamp(version.committed_us)}, "
                f"{version.operation}, takes rows away, and only what is appended can be read as a "
                "stream: rows that were given out cannot be taken back. Look at what it changes. "
                "To leave that out, what it adds too, and go on after it: "
                f"skip=[{number}]. Or begin after it with a new checkpoint."
            )
        if version.shadowed is not None:
            raise self._log.has_vector(number, version.shadowed)
        return [self._log.file(added) for added in version.added]

    def _since(self, line_us: int) -> int:
        """Return the first version of an instant or later; the next one if there is none."""
        first = oldest = self._log.newest + 1
        for oldest in self._log.kept():
            version = self._log.version(oldest)
            if version is not None and version.committed_us >= line_us:
                first = oldest
        if first == oldest and oldest > 0:
            raise InputLost(
                f"{self._who}: versions before {oldest} are not in the log any more, and some of "
                f"them may be of {format_timestamp(line_us)} or later. Name a later instant; or "
                "none, to read all that the table has now."
            )
        return first
