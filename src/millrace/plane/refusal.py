"""Refused records: a dead letter where a stream is declared for them, elsewhere an error."""

from __future__ import annotations

import traceback
from typing import Any

from millrace.compile.topology import Topology
from millrace.model.errors import RecordRejected
from millrace.model.record import DeadLetter
from millrace.model.time import EARLIEST_RECORD, LATEST_RECORD, format_timestamp


def time_refusal(at_us: int | None, latest_us: int) -> str | None:
    """Return why a timestamp is refused, or None if it is not."""
    if at_us is None:
        return "the timestamp is null, or could not be parsed"
    if at_us < EARLIEST_RECORD:
        return f"the timestamp {at_us} us is before 1970"
    if at_us > LATEST_RECORD:
        return f"the timestamp {at_us} us is after 2262; is it in nanoseconds?"
    if at_us > latest_us:
        return (
            f"the timestamp {format_timestamp(at_us)} is after {format_timestamp(latest_us)}, too "
            "far past the wall clock; see inject(..., ahead=)"
        )
    return None


def refuse(
    topology: Topology,
    stream: str,
    computation: str,
    reason: str,
    value: Any,
    at_us: int | None,
    epoch: int,
    *,
    cause: Exception | None = None,
) -> DeadLetter:
    """Return the dead letter of a refused record.

    Raises:
        RecordRejected: The pipeline declares no dead-letter stream.
    """
    if topology.dead_letters is None:
        consumer = f" for computation {computation!r}" if computation else ""
        raise RecordRejected(
            f"epoch {epoch}: a record of stream {stream!r} was refused{consumer}: {reason}\n"
            f"  value {value!r}, timestamp {at_us}\n"
            "Nothing of this epoch was applied. Filter such records out of the source, or declare "
            'a dead-letter stream, p.dead_letter("rejects"), to set them aside and go on.'
        ) from cause
    trace = "".join(traceback.format_exception(cause)) if cause is not None else ""
    return DeadLetter(
        stream=stream,
        computation=computation,
        reason=reason,
        error=trace,
        key="",
        value=repr(value),
        timestamp=at_us,
        epoch=epoch,
    )
