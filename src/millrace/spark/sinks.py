"""Sinks: where records leave the pipeline. Any callable ``(DataFrame, epoch)`` is one.

A sink is called once for every epoch that has records for it, and again if that epoch is retried:
then it must replace what it wrote before, not add to it. The ones here do.

The DataFrame has the record format's fields as columns (or one column ``value``), and ``_key`` (the
producer's key as text), ``_timestamp`` and ``_id`` (16 bytes, unique, the same on every attempt).
"""

from __future__ import annotations

import errno
import re
import shutil
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millrace.model.errors import CheckpointMismatch, CheckpointUnwritable, PipelineError
from millrace.store import local_path

if TYPE_CHECKING:
    from millrace.spark.binding import Binding

#: Spark and its readers pass over names that begin with an underscore.
_STAGING = "_staging"
_ATTEMPT = re.compile(r"epoch=(\d+)")
_OWNER = "_millrace"


class Parquet:
    """One directory of Parquet files an epoch, which appears whole or not at all.

    ``spark.read.parquet(path)`` reads all epochs, with a column ``epoch``. An epoch without records
    leaves no directory. No field may be called ``epoch``, in whatever case. On a local path (or a
    mounted one) the directory is written aside and renamed into place; elsewhere (``s3a://``,
    ``hdfs://``, ...) Spark's committer writes it in place, and replaces it when the epoch is
    retried.

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
        owner = binding.owner
        mark = self._local / _OWNER
        try:
            self._local.mkdir(parents=True, exist_ok=True)
            if not mark.exists():
                mark.write_text(owner)
            found = mark.read_text()
        except OSError as error:
            raise CheckpointUnwritable(
                f"the sink {self!r} cannot be written: {error.strerror}. Make the directory "
                "writable, or choose another."
            ) from error
        if found != owner:
            raise CheckpointMismatch(
                f"the sink {self!r} holds the output of another checkpoint (id {found}; this one "
                f"is {owner}). Was the checkpoint deleted and its output kept, or is it that of an "
                "earlier batch? Write to another path, or delete this one."
            )
        return f"Parquet({str(self._local.absolute())!r})"

    def __call__(self, rows: Any, epoch: int) -> None:
        """Write the records of an epoch."""
        name = f"epoch={epoch}"
        local = self._local
        if local is None:
            rows.write.mode("overwrite").parquet(f"{self.path.rstrip('/')}/{name}")
            return
        # Every attempt has a directory of its own: a driver that was superseded in this epoch, and
        # woke up, may still be writing the same rows.
        staging = local / _STAGING
        staged, final = staging / f"{name}-{uuid.uuid4().hex}", local / name
        rows.write.mode("overwrite").parquet(str(staged.absolute()))
        if _has_rows(staged):
            _rename(staged, final)
        # What attempts at this epoch and earlier ones left; this one's outcome is decided.
        for left in staging.iterdir():
            found = _ATTEMPT.match(left.name)
            if found is not None and int(found[1]) <= epoch:
                shutil.rmtree(left, ignore_errors=True)

    def __repr__(self) -> str:
        return f"Parquet({self.path!r})"


class Memory:
    """A list of rows in the driver, for notebooks and tests. It starts empty with each process.

    >>> Memory().rows
    []
    """

    def __init__(self) -> None:
        self._epochs: dict[int, list[Any]] = {}

    def __call__(self, rows: Any, epoch: int) -> None:
        """Take the records of an epoch."""
        self._epochs[epoch] = rows.collect()

    @property
    def rows(self) -> list[Any]:
        """All rows so far, epoch by epoch, as ``pyspark.sql.Row``."""
        return [row for epoch in sorted(self._epochs) for row in self._epochs[epoch]]

    def __repr__(self) -> str:
        return "Memory()"


class Console:
    """Prints the records of each epoch that has any.

    Args:
        rows: How many rows to print at the most.
    """

    def __init__(self, rows: int = 20) -> None:
        self.most = rows

    def __call__(self, rows: Any, epoch: int) -> None:
        """Print the records of an epoch."""
        print(f"-- epoch {epoch}")  # noqa: T201  # printing is what it is for
        rows.show(self.most, truncate=False)

    def __repr__(self) -> str:
        return f"Console({self.most})"


def _rename(staged: Path, final: Path) -> None:
    """Give a directory its name, unless another attempt at the epoch has it: the same rows."""
    try:
        staged.rename(final)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise


def _has_rows(directory: Path) -> bool:
    import pyarrow.parquet as pq

    return any(pq.read_metadata(file).num_rows for file in directory.glob("*.parquet"))
