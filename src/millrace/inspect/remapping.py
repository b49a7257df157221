"""Remapping: splitting and merging key intervals of a checkpoint that no run has.

Source: MillWheel, "Architecture" (7.1); docs/changing.md.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from msgspec.structs import replace

from millrace.inspect.location import state_at
from millrace.model.errors import CheckpointMismatch, PipelineError
from millrace.watermark.map_change import Merge, Split
from millrace.windmill.carrying import all_carried, check_between, ids_after, maps_after
from millrace.windmill.epoch_log import end_of
from millrace.windmill.fence import seal_left
from millrace.windmill.log_writer import LogWriter
from millrace.windmill.manifest import interval_map


def remap_checkpoint(
    checkpoint: str | os.PathLike[str], computation: str, remaps: Sequence[Split | Merge]
) -> int:
    """Split and merge key intervals of a computation; return how many it has then.

    For a checkpoint that no run has; one that goes on with it is superseded by this, and ends with
    an error. A crash leaves the intervals as they were, or as they are to be.

    Args:
        checkpoint: A path or a URL.
        computation: As the pipeline called it in its last run.
        remaps: No interval is in two of them.

    Raises:
        PipelineError: That cannot be; nothing was written.
        CheckpointMismatch: There is no checkpoint, or it is a copy that was cut off; or intervals
            that are to be one differ in what they keep for all keys.
        ZombieWriter: A run took the checkpoint meanwhile.
    """
    state = state_at(checkpoint)
    end = end_of(state.epochs)
    claim, completion = end.claim, end.completion
    if claim is None or claim.copying:
        raise CheckpointMismatch(f"{checkpoint}: no run has had it, so there is nothing to remap.")
    if completion is None:
        check_between(-1, end.manifest, None, drained=False)
        raise AssertionError("that no epoch has completed is refused")
    check_between(completion.epoch, end.manifest, completion.live, drained=completion.drained)
    known = claim.registry.checked().called
    name = next((name for name, title in known.items() if title == computation), computation)
    there = claim.topology["computations"]
    maps = {one: interval_map(of) for one, of in completion.intervals.items() if one in there}
    if name not in maps:
        raise PipelineError(f"no computation {computation!r}; there are {', '.join(maps)}.")
    made = maps_after(maps, claim.ids, {name: remaps})
    generation = claim.generation + 1
    log = LogWriter(state.epochs, end.last, generation)
    # First the claim: from here on no other driver writes an entry, or uses these ids.
    ids = ids_after(claim.ids, made)
    log.append(replace(claim, generation=generation, ids=ids), lambda: None)
    if completion.live is not None:
        seal_left(state.journals)
    whole = replace(completion, generation=generation, since=None)
    log.append(log.ours(lambda: all_carried(whole, made, state)), lambda: None)
    return len(made[name].intervals)
