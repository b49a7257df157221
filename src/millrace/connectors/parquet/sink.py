"""Parquet: a directory of files an epoch, or a table by key that each epoch replaces."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millrace.connectors.latest import check_key
from millrace.connectors.ownership import claim_directory
from millrace.connectors.parquet import objects
from millrace.connectors.parquet.files import (
    FILE_LIMITS,
    ParquetWriter,
    are_staged,
    check_kind,
    check_types,
    has_version,
    make_empty_epoch,
    make_empty_version,
    publish,
    publish_again,
    publish_version,
    refusing,
    say_gone,
    take_back,
)
from millrace.connectors.table_files import BucketFiles, BucketWriter, bucket_files
from millrace.model.declarations import names
from millrace.model.errors import PipelineError
from millrace.model.time import MINUTE, Duration, duration_us
from millrace.store import local_path

if TYPE_CHECKING:
    import pyarrow as pa

    from millrace.runtime.sink_contract import Binding


class Parquet:
    """One directory of Parquet files an epoch, or a table of the latest rows by key.

    ``spark.read.parquet(path)`` reads all epochs, with a column ``epoch``. An epoch without records
    leaves no directory; ``epoch=-1`` has the columns, and no rows, before there is any other. No
    field may be called ``epoch``, in whatever case. Each task of the last level writes a file
    aside, in the job of the epoch. On a local path (or a mounted one) the driver renames them into
    place: an epoch's directory appears whole or not at all. In a bucket (``s3://``, ``az://``) it
    copies them, one after the other; which of them count is decided first, and once. Elsewhere
    (``s3a://``, ``hdfs://``, ...) Spark's committer writes the directory in place, and replaces it
    when the epoch is retried; there is no ``epoch=-1``.

    With a key the driver makes the whole table anew in each epoch that has records. Then it points
    ``<path>/latest`` at it: ``spark.read.parquet(f"{path}/latest")`` reads the row of each key, of
    one epoch. A record replaces the row of its key; a retraction deletes it. Of several in one
    epoch the one that was produced last counts. The table has to fit into the driver's memory; for
    a larger one there are :class:`~millrace.sinks.Delta` and :class:`~millrace.sinks.PostgreSQL`.

    Args:
        path: A local path or, without a key, ``s3://bucket/prefix`` or ``az://container/prefix``
            with the credentials of the environment, or any URL that Spark can write to.
        key: Columns that identify a row, such as ``"_key"`` or ``("_key", "_window_start")``.
        keep: With a key: how long a table that was replaced stays, for readers that have begun.

    Raises:
        PipelineError: An argument is wrong.
    """

    #: Tells the runner that this sink runs exactly one Spark job on its DataFrame.
    single_pass = True
    limits = FILE_LIMITS
    #: Columns that it makes beside those it is given; no field of a record may be called so.
    adds = ("epoch",)

    def __init__(
        self, path: str | Path, *, key: str | Sequence[str] = (), keep: Duration = MINUTE
    ) -> None:
        self.path = str(path)
        self.key = names(key, "Parquet(key")
        self._keep_us = duration_us(keep, "Parquet(keep)")
        if not self.path:
            raise PipelineError("Parquet(''): expected a path to write to.")
        remote = "://" in self.path and not self.path.startswith("file://")
        if remote and self.key:
            raise PipelineError(
                f"Parquet({self.path!r}, key={self.key!r}): a table by key needs a local or "
                "mounted path. Write to PostgreSQL by key, or with a callable (DataFrame, epoch) "
                "that merges."
            )
        self._columns: pa.StructType
        self._local = None if remote else local_path(self.path)
        self._bucket: BucketFiles | None = None
        if self.path.startswith(("s3://", "az://")):
            self._bucket = bucket_files(self.path)

    @property
    def takes_back(self) -> bool:
        """Whether a checkpoint may go back to a savepoint, and this sink with it."""
        return self._local is not None or self._bucket is not None

    def take_back(self, after: int, until: int) -> None:
        """Remove the directories of epochs; a table by key goes on as it is.

        Args:
            after: The epoch before the first of them.
            until: The last.

        Raises:
            SinkError: The disk refuses.
        """
        if self._bucket is not None:
            with self._bucket.refusing(repr(self)):
                objects.take_back(self._bucket, after, until)
        elif self._local is not None and not self.key:
            take_back(self._local, after, until, repr(self))

    def bind(self, binding: Binding) -> str:
        """Claim the directory for a checkpoint, and return it; before a run writes anything.

        Epochs of two checkpoints in one directory would hide each other.

        Raises:
            CheckpointMismatch: Another checkpoint has written there.
            CheckpointUnwritable: The directory cannot be written.
            PipelineError: Rows cannot have the key, or the directory has output of the other kind,
                or with columns of other types.
        """
        check_key(self.key, binding.columns.arrow, repr(self))
        self._columns = binding.columns.arrow
        if self._bucket is not None:
            return self._bucket.claim(binding.owner, repr(self))
        if self._local is None:
            return repr(self)
        check_kind(self._local, by_key=bool(self.key), sink=repr(self))
        if self.key:
            check_types(self._local, self._columns, repr(self))
        return claim_directory(self._local, binding.owner, repr(self))

    def claim(self, generation: int, completed: int) -> None:
        """Let the path be read before there are records: as a table without rows.

        Args:
            generation: Of the run.
            completed: Its last completed epoch.

        Raises:
            SinkError: The disk refuses.
        """
        if self._bucket is not None:
            with self._bucket.refusing(repr(self)):
                objects.make_empty(self._bucket, self._columns)
        if self._local is None:
            return
        with refusing(repr(self)):
            if self.key:
                make_empty_version(self._local, self._columns)
            else:
                make_empty_epoch(self._local, self._columns)

    def for_tasks(self) -> ParquetWriter | BucketWriter | None:
        """Return what tasks write with; None where only Spark's file systems get."""
        if self._bucket is not None:
            return self._bucket.writer(repr(self))
        return None if self._local is None else ParquetWriter(str(self._local), repr(self))

    def publish(self, epoch: int, receipts: list[bytes]) -> None:
        """Give the files of an epoch their directory, unless it is there; or make the next table.

        Raises:
            SinkError: The disk refuses, or a record has no key.
        """
        if self._bucket is not None:
            with self._bucket.refusing(f"{self!r}, epoch {epoch}"):
                objects.publish(self._bucket, epoch, [receipt.decode() for receipt in receipts])
            return
        root, epoch, names, where = self._written(epoch, receipts)
        if self.key:
            publish_version(root, epoch, names, self.key, self._keep_us, where)
        else:
            publish(root, epoch, names, where)

    def publish_again(self, epoch: int, receipts: list[bytes]) -> None:
        """Publish the mark that completed last, if its driver has not; see :meth:`publish`."""
        if self._bucket is not None:
            where = f"{self!r}, epoch {epoch}"
            with self._bucket.refusing(where):
                names = [receipt.decode() for receipt in receipts]
                known = objects.is_published(self._bucket, epoch, names)
            if known:
                self.publish(epoch, receipts)
            else:
                say_gone(where)
            return
        root, epoch, names, where = self._written(epoch, receipts)
        if not self.key:
            publish_again(root, epoch, names, where)
        elif has_version(root, epoch) or are_staged(root, names):
            self.publish(epoch, receipts)
        else:
            say_gone(where)

    def _written(self, epoch: int, receipts: list[bytes]) -> tuple[Path, int, list[str], str]:
        assert self._local is not None, "tasks write local paths only"
        names = [receipt.decode() for receipt in receipts]
        return self._local, epoch, names, f"{self!r}, epoch {epoch}"

    def __call__(self, rows: Any, epoch: int) -> None:
        """Write the records of an epoch with Spark, which knows more file systems."""
        rows.write.mode("overwrite").parquet(f"{self.path.rstrip('/')}/epoch={epoch}")

    def __repr__(self) -> str:
        return f"Parquet({self.path!r})"
