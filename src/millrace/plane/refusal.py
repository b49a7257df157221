"""Refused records: a dead letter where a stream is declared for them, elsewhere an error."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from millrace.compile.topology import Topology
from millrace.injectors.origins import Origin
from millrace.injectors.refusals import Refusal
from millrace.model.errors import LETTER_MOST, RecordRejected, brief, brief_trace, cut, encodable
from millrace.model.record import DeadLetter
from millrace.model.time import (
    EARLIEST_RECORD,
    LATEST_RECORD,
    MAX_TIMESTAMP,
    MIN_TIMESTAMP,
    format_timestamp,
    in_microseconds,
    likelier_ranges,
    likelier_unit,
)
from millrace.plane.values import shown
from millrace.windmill.user_errors import Provenance


@dataclass(frozen=True)
class EventTimes:
    """Which event times of an injected stream are accepted in an epoch, and why others are not.

    Attributes:
        latest_us: The latest there may be.
        column: The source's column with them; None if they come from elsewhere.
        bare: Whether they are integers whose unit nobody said, taken for microseconds.
    """

    latest_us: int
    column: str | None = None
    bare: bool = False

    def refusal(self, at_us: int | None) -> str | None:
        """Return why a timestamp is refused, or None if it is not."""
        if at_us is None:
            where = "" if self.column is None else f" (column {self.column!r})"
            return f"the timestamp is null, or could not be parsed{where}"
        if at_us < EARLIEST_RECORD:
            return f"the timestamp {brief(at_us, 60)} us is before 1970"
        if at_us > LATEST_RECORD:
            return (
                f"the timestamp {brief(at_us, 60)} us is after 2262; is it in nanoseconds? Then "
                'say inject(..., unit="ns")'
            )
        if at_us > self.latest_us:
            return (
                f"the timestamp {format_timestamp(at_us)} is after "
                f"{format_timestamp(self.latest_us)}, too far past the wall clock; see "
                "inject(..., ahead=)"
            )
        unit = likelier_unit(at_us, self.latest_us) if self.bare else None
        if unit is None:
            return None
        return (
            f"the timestamp {at_us} (column {self.column!r}) is {format_timestamp(at_us)} in "
            f'microseconds, and {format_timestamp(in_microseconds(at_us, unit))} with unit="{unit}"'
            f'. Say which it is: inject(..., unit="{unit}"), or unit="us" if it is right'
        )

    def accepts_all(self, at_us: npt.NDArray[np.int64]) -> bool:
        """Return whether none of some timestamps, at least one, is refused."""
        within = at_us.min() >= EARLIEST_RECORD and at_us.max() <= LATEST_RECORD
        return bool(within and not self.refused(at_us).any())

    def refused(self, at_us: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return of each timestamp, none of them before 1970, whether it is refused."""
        found = at_us > self.latest_us
        if self.bare:
            for first, last in likelier_ranges(self.latest_us).values():
                found |= (at_us >= first) & (at_us <= last)
        return found


def refuse(
    topology: Topology,
    stream: str,
    computation: str,
    refusal: Refusal,
    value: Any,
    at_us: int | None,
    epoch: int,
    *,
    timely: bool,
    ids: tuple[int, int] | None = None,
    origin: Origin | None = None,
    cause: BaseException | None = None,
) -> DeadLetter:
    """Return the dead letter of a refused record.

    Args:
        topology: The pipeline.
        stream: It came by.
        computation: Whose key it has none for; empty if it is not about one.
        refusal: Why it is refused, and what is known of it if it has no value.
        value: Its value, as far as that could be read.
        at_us: Its event time, if it has one.
        epoch: Now.
        timely: Whether its event time is accepted; one that is not cannot be sent again.
        ids: Both halves of its id, where it has one already.
        origin: What it was in its source, where that is known.
        cause: What user code raised.

    Raises:
        RecordRejected: The pipeline declares no dead-letter stream.
    """
    said, provenance, encoded = refusal.value, Provenance(topology), b""
    if said is None:
        said = brief(value, LETTER_MOST)
        raw, raw_key = provenance.raw(value)
        if timely:
            encoded = provenance.encoded_row(stream, value)
    else:
        raw, raw_key = refusal.raw, refusal.raw_key
    place = refusal.place or provenance.place(value, ids)
    if origin is not None and _made(origin, value):
        place, raw, raw_key = origin.place, origin.raw, origin.raw_key
    if topology.dead_letters is None:
        consumer = f" for computation {computation!r}" if computation else ""
        raise RecordRejected(
            f"epoch {epoch}: a record of stream {stream!r} was refused{consumer}: "
            f"{refusal.reason}\n"
            f"  value {cut(said, 400)}, timestamp {brief(at_us, 60)}{place and f', {place}'}\n"
            "Nothing of this epoch was applied. Filter such records out of the source, or declare "
            'a dead-letter stream, p.dead_letter("rejects"), to set them aside and go on.'
        ) from cause
    return DeadLetter(
        stream=stream,
        computation=computation,
        reason=cut(encodable(refusal.reason), LETTER_MOST),
        error="" if cause is None else brief_trace(cause),
        key="",
        value=cut(said, LETTER_MOST),
        # Of one that no letter can hold, the reason tells.
        timestamp=at_us if at_us is None or MIN_TIMESTAMP <= at_us <= MAX_TIMESTAMP else None,
        refused_in=epoch,
        place=place,
        raw=raw,
        raw_key=raw_key,
        encoded=encoded,
    )


def _made(origin: Origin, value: Any) -> bool:
    """Return whether a value was made of what was read again, as far as its fields show."""
    if not isinstance(value, Mapping):
        return True
    names = [name for name in origin.row.schema.names if name in value]
    read = {name: shown(origin.row.column(name), 0) for name in names}
    was = {name: value[name] for name in names}
    return read == was or repr(read) == repr(was)  # NaN is no NaN, and yet the same


def refuse_again(
    letter: DeadLetter, reason: str, epoch: int, cause: BaseException | None
) -> DeadLetter:
    """Return the dead letter of one that was to be sent again, and cannot be.

    Args:
        letter: As it was sent.
        reason: Why it cannot be.
        epoch: Now.
        cause: What was raised.
    """
    return msgspec.structs.replace(
        letter,
        reason=cut(encodable(f"sent again: {reason}"), LETTER_MOST),
        error="" if cause is None else brief_trace(cause),
        refused_in=epoch,
    )
