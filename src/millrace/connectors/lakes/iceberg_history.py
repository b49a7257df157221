"""The history of an Iceberg table: which snapshots came after a place, and which files they added.

A place is a snapshot and how many of its files were read. Where expiry took away what is to be
read, it is said.

Source: the Iceberg table specification, "Snapshots" and "Manifests".
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final, NamedTuple

from millrace.connectors.lakes.appends import CommitFiles, File
from millrace.model.errors import InputLost, PipelineError
from millrace.model.time import format_timestamp

#: What compaction does: files are replaced, and rows are not.
_SAME_ROWS: Final = "replace"
#: Sequence number of a table's first commit. Before version 2 of the format it is 0 of all.
_FIRST: Final = 1


class IcebergOffset(NamedTuple):
    """How far a table was read; as JSON a list.

    Attributes:
        table: UUID of the table: sequence numbers of another one say nothing of this one's.
        snapshot: Id of a snapshot.
        sequence: Its sequence number, one more with each commit: whether another one was in between
            can be told by it when the snapshot is expired.
        files: How many of its files were read; None: all that there are.
        whole: Whether its files are all that the table has at it, and not only those it added.
    """

    table: str
    snapshot: int
    sequence: int
    files: int | None = None
    whole: bool = False


class IcebergHistory:
    """The snapshots of a table at one moment.

    Args:
        table: A ``pyiceberg.table.Table``.
        skip: Ids of snapshots that may delete or overwrite; what they do is left out.
        who: The injector, for messages.
    """

    def __init__(self, table: Any, skip: Collection[int], who: str) -> None:
        self._table = table
        self._skip = skip
        self._who = who
        self._kept: Mapping[int, Any] = {s.snapshot_id: s for s in table.metadata.snapshots}

    @property
    def current(self) -> int | None:
        """Id of the newest snapshot; None of a table without any."""
        newest = self._table.metadata.current_snapshot_id
        return None if newest is None else int(newest)

    def beginning(self, since_us: int | None) -> IcebergOffset | None:
        """Return the place before everything, or before what was committed at an instant or later.

        None: there is no snapshot yet.

        Raises:
            InputLost: Snapshots that may be of that instant or later are not kept.
        """
        if self.current is None:
            return None
        chain = [self._kept[self.current]]
        while (parent := chain[-1].parent_snapshot_id) in self._kept:
            chain.append(self._kept[parent])
        chain.reverse()
        if since_us is None:
            return self._at(chain[0], 0, whole=True)
        first = next(
            (n for n, snapshot in enumerate(chain) if committed_us(snapshot) >= since_us), None
        )
        if first != 0:
            return self._at(chain[-1 if first is None else first - 1])
        if is_first(chain[0]):
            return self._at(chain[0], 0, whole=True)
        raise InputLost(
            f"{self._who}: snapshots before {_named(chain[0])} are expired, and some of them may "
            f"be of {format_timestamp(since_us)}, since when it is to be read, or later. Name a "
            "later instant; or none, to read the table as it is in the oldest snapshot that is "
            "kept, and then what was appended to it."
        )

    def place(self, offset: Any) -> IcebergOffset:
        """Return the place that an offset stands for.

        Raises:
            InputLost: It is of another table.
        """
        place, table = IcebergOffset(*offset), str(self._table.metadata.table_uuid)
        if place.table != table:
            raise InputLost(
                f"{self._who}: the table was made again: its id is {table}, and that of the one "
                f"that was read is {place.table}. Start with a new checkpoint, which reads all "
                "that it has now."
            )
        return place

    def _at(self, snapshot: Any, files: int | None = None, *, whole: bool = False) -> IcebergOffset:
        table = str(self._table.metadata.table_uuid)
        return IcebergOffset(table, snapshot.snapshot_id, snapshot.sequence_number, files, whole)

    def after(
        self, place: IcebergOffset, until: IcebergOffset | None = None
    ) -> Iterator[CommitFiles]:
        """Yield the files after a place, snapshot by snapshot in order, up to one of them.

        Args:
            place: Where reading goes on.
            until: Of the last snapshot; by default the newest.

        Raises:
            InputLost: What follows the place is not kept, or the table was set back.
            PipelineError: A snapshot deletes or overwrites.
        """
        if place.files is not None:
            begun = self._snapshot(place.snapshot)
            yield CommitFiles(
                place._replace(files=0), committed_us(begun), place.files, self.files(place)
            )
            if until is not None and begun.snapshot_id == until.snapshot:
                return
        for snapshot in self.later(place, until):
            added = self._added(snapshot) if self._adds(snapshot) else []
            yield CommitFiles(self._at(snapshot, 0), committed_us(snapshot), 0, added)

    def waiting(self, place: IcebergOffset) -> int | None:
        """Return how many rows there are after a place; None if a snapshot does not say."""
        rows = 0
        if place.files is not None:
            rows += sum(file.rows for file in self.files(place)[place.files :])
        for snapshot in self.later(place):
            added = self._rows_of(snapshot)
            if added is None:
                return None
            rows += added
        return rows

    def later(self, place: IcebergOffset, until: IcebergOffset | None = None) -> list[Any]:
        """Return the snapshots after that of a place, the oldest first.

        Raises:
            InputLost: As of :meth:`after`.
        """
        snapshots, at = list[Any](), self.current if until is None else until.snapshot
        while at != place.snapshot:
            if at is None:
                self._follows(snapshots[-1] if snapshots else None, place)
                break
            snapshots.append(self._snapshot(at, place))
            at = snapshots[-1].parent_snapshot_id
        return snapshots[::-1]

    def _follows(self, oldest: Any, place: IcebergOffset) -> None:
        """Refuse what leads to the newest snapshot, and not from a place, unless it comes next.

        PyIceberg, unlike Spark, lets a snapshot that it expires be nobody's parent any more.
        """
        if place.snapshot in self._kept or oldest is None:
            raise InputLost(
                f"{self._who}: snapshot {place.snapshot} was read last, and does not lead to the "
                f"newest, {self.current}. The table was set back or made again, or snapshots "
                "between the two were expired before they were read. Set it to a "
                "snapshot that follows; or start with a new checkpoint."
            )
        if oldest.sequence_number != place.sequence + 1:
            raise self._expired(f"snapshots between {place.snapshot} and {oldest.snapshot_id}")

    def files(self, place: IcebergOffset) -> list[File]:
        """Return the files of a place's snapshot, in order of their paths: scan tasks of PyIceberg.

        Raises:
            InputLost: The snapshot is not kept.
            PipelineError: PyIceberg cannot read it.
        """
        snapshot = self._snapshot(place.snapshot)
        if not place.whole:
            return self._added(snapshot)
        try:
            return _ordered(self._table.scan(snapshot_id=snapshot.snapshot_id).plan_files())
        except (ValueError, NotImplementedError) as refused:  # as of equality deletes
            raise PipelineError(
                f"{self._who}: PyIceberg cannot read {_named(snapshot)}: {refused}. Have the files "
                "rewritten and that snapshot expired; or begin after it with since=."
            ) from refused

    def _rows_of(self, snapshot: Any) -> int | None:
        if not self._adds(snapshot):
            return 0
        said = snapshot.summary["added-records"]
        return None if said is None else int(said)

    def _added(self, snapshot: Any) -> list[File]:
        scan = self._table.incremental_append_scan(
            from_snapshot_id_exclusive=snapshot.parent_snapshot_id,
            to_snapshot_id_inclusive=snapshot.snapshot_id,
        )
        return _ordered(scan.plan_files())

    def _adds(self, snapshot: Any) -> bool:
        """Return whether a snapshot adds rows; no other may do more than move them."""
        does = "" if snapshot.summary is None else snapshot.summary.operation.value
        if does == "append":
            return True
        if does == _SAME_ROWS or snapshot.snapshot_id in self._skip:
            return False
        raise PipelineError(
            f"{self._who}: {_named(snapshot)} is {does or 'of no known kind'!r}, and only what is "
            "appended can be read as a stream: rows that were given out cannot be taken back. "
            f"Look at what it changes. To leave that out, what it adds too, and go on after it: "
            f"skip=[{snapshot.snapshot_id}]. Or begin after it with since= and a new checkpoint."
        )

    def _snapshot(self, snapshot_id: int, place: IcebergOffset | None = None) -> Any:
        snapshot = self._kept.get(snapshot_id)
        if snapshot is None:
            after = "" if place is None else f", after {place.snapshot}, which was read last"
            raise self._expired(f"snapshot {snapshot_id}{after}")
        return snapshot

    def _expired(self, what: str) -> InputLost:
        return InputLost(
            f"{self._who}: not kept any more: {what}. Expired before it was read: was the run "
            "stopped for longer than snapshots are kept? Start with a new checkpoint, which reads "
            "the table as it is in the oldest snapshot that is kept, and then what was appended "
            "to it; and keep snapshots for longer."
        )


def is_first(snapshot: Any) -> bool:
    """Return whether a snapshot is the first that a table has had."""
    # PyIceberg, unlike Spark, lets what it expires be no parent any more.
    return snapshot.parent_snapshot_id is None and snapshot.sequence_number == _FIRST


def committed_us(snapshot: Any) -> int:
    """Return when a snapshot was committed, by the clock of who did it."""
    return int(snapshot.timestamp_ms) * 1000


def _named(snapshot: Any) -> str:
    return f"snapshot {snapshot.snapshot_id} of {format_timestamp(committed_us(snapshot))}"


def _ordered(tasks: Any) -> list[File]:
    return [
        File(task.file.record_count, task.file.file_size_in_bytes, task)
        for task in sorted(tasks, key=lambda task: task.file.file_path)
    ]
