"""Dead letters that are sent again: from where a sink has them into a checkpoint, each once.

Source: docs/design/2026-11-27-dead-letters-sent-again.md.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.dataset as ds

from millrace.connectors.lakes.delta_log import LOG, require_deltalake
from millrace.connectors.table_files import table_files
from millrace.epochlog.entries import Completion
from millrace.injectors.dead_letters import PROCESS, LetterLog, letters_read
from millrace.inspect.checkpoint import state_at
from millrace.inspect.overview import ended
from millrace.kernel.user_errors import reason_of
from millrace.model.declarations import AGAIN
from millrace.model.errors import InputLost, PipelineError
from millrace.model.record import DeadLetter
from millrace.store import HardState, is_object_store

Location = str | os.PathLike[str]

_ID: Final = "_id"
_TIMER: Final = "timers and migrated values, which came by no stream"
_NO_VALUE: Final = (
    "refused before there was a value, or for their time, or rows of side inputs: they come again "
    "from their source only"
)


class Sending(msgspec.Struct, frozen=True):
    """What came of sending dead letters again.

    Attributes:
        sent: How many were put into the checkpoint. Its run, or its next one, sends them.
        sent_before: How many were in it, and are not sent once more.
        refused: Why some cannot be sent -> how many.
        declared: Whether the checkpoint's pipeline declares ``p.dead_letter(..., again=True)``.
            Until it does, they wait.
    """

    sent: int
    sent_before: int
    refused: dict[str, int]
    declared: bool = True


class LetterCounts(NamedTuple):
    """How many dead letters of a checkpoint were sent again.

    Attributes:
        sent: All.
        waiting: Of those, the ones that no completed epoch has read.
    """

    sent: int
    waiting: int


def send_dead_letters(
    checkpoint: Location, letters: Any, *, reason: str | None = None, limit: int | None = None
) -> Sending:
    """Send dead letters again, each once, to the computation that failed on it.

    It may be done beside a run, or before the next one. The record is as it was, with its own
    timestamp: late, if its time has passed. What cannot be sent on, as the pipeline has changed,
    becomes a dead letter again.

    Args:
        checkpoint: A path or a URL, of a pipeline with ``p.dead_letter(..., again=True)``.
        letters: Where their sink has them: the path of a Parquet directory or a Delta table, or an
            Arrow table, dataset or reader, with the columns of :class:`~millrace.DeadLetter` and
            ``_id``.
        reason: Those of this reason: as ``millrace dead-letters`` lists it, or a part of its text;
            None: all.
        limit: So many, at the most.

    Raises:
        PipelineError: There are no dead letters, or they lack a column.
        InputLost: Dead letters that were sent before are gone from the checkpoint.
        CheckpointMismatch: There is no checkpoint.
    """
    if limit is not None and limit < 0:
        raise PipelineError(f"limit={limit}: expected how many dead letters to send at the most.")
    state = state_at(checkpoint)
    log, (claim, completion, _) = LetterLog(state.mailbox), ended(state.epochs)
    if (read := read_until(completion)) > log.last():
        raise InputLost(
            f"{os.fspath(checkpoint)}: {read} messages with dead letters were read, and the "
            f"mailbox has {log.last()}. Messages were lost: restore the checkpoint from a copy."
        )
    declared = claim is not None and AGAIN in claim.topology["injected"]
    return send(log, _letters(letters), reason=reason, limit=limit, declared=declared)


def send(
    log: LetterLog,
    letters: Iterable[tuple[bytes, DeadLetter]],
    *,
    reason: str | None = None,
    limit: int | None = None,
    declared: bool = True,
) -> Sending:
    """Put letters into a log; see :func:`send_dead_letters`."""
    refused: dict[str, int] = {}

    def chosen() -> Iterator[tuple[bytes, DeadLetter]]:
        for id, letter in letters:
            if reason is not None and reason not in letter.reason and reason != reason_of(letter):
                continue
            if letter.encoded and letter.timestamp is not None:
                yield id, letter
                continue
            why = _NO_VALUE if letter.stream else _TIMER
            refused[why] = refused.get(why, 0) + 1

    done = log.append(chosen(), limit)
    return Sending(done.new, done.known, refused, declared)


def letter_counts(state: HardState) -> LetterCounts:
    """Return how many dead letters of a checkpoint were sent again."""
    log, read = LetterLog(state.mailbox), read_until(ended(state.epochs).completion)
    return LetterCounts(len(log.ids()), len(log.ids(since=read)))


def copy_letters(source: HardState, target: HardState, completion: Completion) -> None:
    """Give a copy of a checkpoint the letters that were sent by the epoch that it is of.

    Those sent later are not of its history, and can be sent again to it.
    """
    if until := read_until(completion):
        LetterLog(source.mailbox).copy_to(LetterLog(target.mailbox), until)


def forget_letters(state: HardState, completion: Completion) -> None:
    """Let a checkpoint that goes back to an epoch forget the letters that were sent after it.

    What they were of may come again from its source; what is left of them in their sink then can
    be sent again.
    """
    LetterLog(state.mailbox).truncate(read_until(completion))


def read_until(completion: Completion | None) -> int:
    """Return the number of the last message of letters that a completed epoch has read."""
    if completion is None:
        return 0
    offsets = completion.source_offsets.get(AGAIN, {})
    return letters_read(offsets[PROCESS].offset) if PROCESS in offsets else 0


def _letters(given: Any) -> Iterator[tuple[bytes, DeadLetter]]:
    """Yield letters with their ids."""
    names = [_ID, *DeadLetter.__struct_fields__]
    for batch in _batches(given, names):
        for row in batch.to_pylist():
            id = row.pop(_ID)
            yield bytes(id), msgspec.convert(row, DeadLetter)


def _batches(given: Any, names: list[str]) -> Iterator[pa.RecordBatch]:
    if isinstance(given, str | os.PathLike):
        given = _dataset(os.fspath(given))
    schema = given.schema
    if missing := [name for name in names if name not in schema.names]:
        raise PipelineError(
            f"the dead letters have no columns {missing}; they have {schema.names}. Give what a "
            "sink of the dead-letter stream has written, with all its columns."
        )
    if isinstance(given, ds.Dataset):
        yield from given.to_batches(names)
        return
    for batch in given if isinstance(given, pa.RecordBatchReader) else given.to_batches():
        yield batch.select(names)


def _dataset(path: str) -> Any:
    """Return the letters that a sink has written to a path."""
    if is_object_store(path) or (Path(path) / LOG).is_dir():
        require_deltalake("send_dead_letters", "here")
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError

        files = table_files(path, "send_dead_letters")
        try:
            table = DeltaTable(files.location, storage_options=files.storage_options)
        except (DeltaError, OSError) as error:
            raise PipelineError(
                f"{path}: no dead letters can be read there: {files.words(error)}. Expected a "
                "Delta table on the dead-letter stream. A table of Iceberg is sent from Python: "
                "mr.ops.send_dead_letters(checkpoint, table.scan().to_arrow())."
            ) from None
        return table.to_pyarrow_dataset()
    if next((Path(path) / "metadata").glob("*.metadata.json"), None) is not None:
        raise PipelineError(
            f"{path} is an Iceberg table, whose catalog knows which of its files count. Send them "
            "from Python: mr.ops.send_dead_letters(checkpoint, "
            'load_catalog(...).load_table("...").scan().to_arrow()), of pyiceberg.catalog.'
        )
    try:
        return ds.dataset(path, format="parquet")
    except (OSError, pa.ArrowInvalid) as error:
        raise PipelineError(
            f"{path}: no dead letters can be read there: {error}. Expected the directory of a "
            "Parquet sink, or a Delta table, on the dead-letter stream."
        ) from None
