"""Parquet: a directory of files an epoch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from millrace.model.errors import PipelineError
from millrace.sinks.owner import claim_directory
from millrace.sinks.parquet_files import ParquetWriter, publish, publish_again
from millrace.store import local_path

if TYPE_CHECKING:
    from millrace.plane.binding import Binding


class Parquet:
    """One directory of Parquet files an epoch, which appears whole or not at all.

    ``spark.read.parquet(path)`` reads all epochs, with a column ``epoch``. An epoch without records
    leaves no directory. No field may be called ``epoch``, in whatever case. On a local path (or a
    mounted one) each task of the last level writes a file aside, in the job of the epoch, and the
    driver renames them into place; elsewhere (``s3a://``, ``hdfs://``, ...) Spark's committer
    writes the directory in place, and replaces it when the epoch is retried.

    Args:
        path: A local path or any URL that Spark can write to.
    """

    #: Tells the runner that this sink runs exactly one Spark job on its DataFrame.
    single_pass = True
    #: Columns that it makes beside those it is given; no field of a record may be called so.
    adds = ("epoch",)

    def __init__(self, path: str | Path) -> None:
        self.path = str(path)
        if not self.path:
            raise PipelineError("Parquet(''): expected a path to write to.")
        remote = "://" in self.path and not self.path.startswith("file://")
        self._local = None if remote else local_path(self.path)

    def bind(self, binding: Binding) -> str:
        """Claim the directory for a checkpoint, and return it; before a run writes anything.

        Epochs of two checkpoints in one directory would hide each other.

        Raises:
            CheckpointMismatch: Another checkpoint has written there.
            CheckpointUnwritable: The directory cannot be written.
        """
        if self._local is None:
            return repr(self)
        claim_directory(self._local, binding.owner, repr(self))
        return f"Parquet({str(self._local)!r})"

    def for_tasks(self) -> ParquetWriter | None:
        """Return what tasks write with; None where only Spark's file systems get."""
        return None if self._local is None else ParquetWriter(str(self._local), repr(self))

    def publish(self, epoch: int, receipts: list[bytes]) -> None:
        """Give the files of an epoch their directory, unless it is there: the same rows.

        Raises:
            SinkError: The disk refuses.
        """
        publish(*self._written(epoch, receipts))

    def publish_again(self, epoch: int, receipts: list[bytes]) -> None:
        """Publish the mark that completed last, if its driver has not; see :meth:`publish`."""
        publish_again(*self._written(epoch, receipts))

    def _written(self, epoch: int, receipts: list[bytes]) -> tuple[Path, int, list[str], str]:
        assert self._local is not None, "tasks write local paths only"
        names = [receipt.decode() for receipt in receipts]
        return self._local, epoch, names, f"{self!r}, epoch {epoch}"

    def __call__(self, rows: Any, epoch: int) -> None:
        """Write the records of an epoch with Spark, which knows more file systems."""
        rows.write.mode("overwrite").parquet(f"{self.path.rstrip('/')}/epoch={epoch}")

    def __repr__(self) -> str:
        return f"Parquet({self.path!r})"
