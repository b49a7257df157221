"""Owner: the one checkpoint whose output a directory holds."""

from __future__ import annotations

from pathlib import Path

from millrace.model.errors import CheckpointMismatch, CheckpointUnwritable

#: Spark and its readers pass over names that begin with an underscore; so do those of Delta.
_OWNER = "_millrace"


def claim_directory(directory: Path, owner: str, sink: str) -> None:
    """Make a directory, and write down in it whose output it holds.

    Args:
        directory: The sink's.
        owner: Id of the checkpoint, or of the batch.
        sink: The sink, for messages.

    Raises:
        CheckpointMismatch: Another checkpoint has written there.
        CheckpointUnwritable: The directory cannot be written.
    """
    mark = directory / _OWNER
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if not mark.exists():
            mark.write_text(owner)
        known = mark.read_text()
    except OSError as error:
        raise CheckpointUnwritable(
            f"the sink {sink} cannot be written: {error.strerror}. Make the directory writable, "
            "or choose another."
        ) from error
    if known != owner:
        raise CheckpointMismatch(
            f"the sink {sink} holds the output of another checkpoint (id {known}; this one is "
            f"{owner}). Was the checkpoint deleted and its output kept, or is it that of an "
            "earlier batch? Write to another path, or delete this one."
        )
