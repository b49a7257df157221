"""Who waits: the processes of injectors that are held back, for they are too far ahead.

Source: docs/injectors.md, "Skew".
"""

from __future__ import annotations

import msgspec

from millrace.compile.topology import INJECTOR
from millrace.injectors.skew import too_far
from millrace.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP
from millrace.watermark.report import Process
from millrace.windmill.manifest import Claim, Completion
from millrace.windmill.source_stats import SourceStats


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """A process that is not read until others have come closer. All times in microseconds.

    Attributes:
        stream: The injected stream.
        process: Its name.
        ahead: How far its own low watermark is ahead of the one that all wait for.
        limit: How far it may be: ``inject(skew=)``.
    """

    stream: str
    process: str
    ahead: int
    limit: int


def held_back(claim: Claim, completion: Completion) -> list[Held]:
    """Return who is held back, as of a completed epoch."""
    found, shown = list[Held](), completion.after.outputs
    for stream, entry in sorted(claim.injectors.items()):
        if entry.skew_us is None:
            continue
        own = {
            name: _own_us(process, entry.behind_newest_us)
            for name, process in completion.sources.get(stream, SourceStats()).processes.items()
            if process.process_watermark_us < MAX_TIMESTAMP
        }
        low_watermark_us = min(shown[sender] for sender in _together(claim, INJECTOR + stream))
        for name in sorted(too_far(own, low_watermark_us, entry.skew_us)):
            ahead = own[name] - low_watermark_us
            found.append(Held(stream=stream, process=name, ahead=ahead, limit=entry.skew_us))
    return found


def _own_us(process: Process, delay_us: int | None) -> int:
    if delay_us is None:
        return process.process_watermark_us
    return process.newest_us if process.newest_us == MIN_TIMESTAMP else process.newest_us - delay_us


def _together(claim: Claim, injector: str) -> set[str]:
    """Return the injectors that feed a computation together with one."""
    found = {injector}
    for name in claim.senders:
        feeding = _feeding(claim, name)
        if injector in feeding:
            found |= feeding
    return found


def _feeding(claim: Claim, name: str) -> set[str]:
    if name.startswith(INJECTOR):
        return {name}
    return set[str]().union(*(_feeding(claim, sender) for sender in claim.senders.get(name, ())))
