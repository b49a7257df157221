"""A batch that may end early: what a user asks for, checked, and what is said of what was left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import uuid4

from millrace.compile.topology import Topology
from millrace.injectors.offsets import Piece
from millrace.model.errors import PipelineError
from millrace.plane.stragglers import Enough, Left
from millrace.store import is_object_store, local_path

#: Pieces that are named in words; all of them are in the status.
_NAMED = 5


def early_end_of(
    topology: Topology,
    there: Mapping[str, Sequence[Piece]],
    percentile: int | None,
    scratch: str | None,
) -> Enough | None:
    """Return when a batch may end before it has read everything; None if it may not.

    Args:
        topology: The pipeline.
        there: Injected stream -> the pieces of its injector.
        percentile: As ``run_batch`` takes it.
        scratch: Likewise.

    Raises:
        PipelineError: They make no sense, or nothing waits for so small a share.
    """
    if percentile is None and scratch is None:
        return None
    asked = f"run_batch(percentile={percentile!r}, scratch={scratch!r})"
    if percentile is None or scratch is None:
        raise PipelineError(
            f"{asked}: where a batch may end before it has read everything, its tasks tell each "
            "other how far they are. Give both, the share that is enough and a directory that "
            'driver and workers reach: percentile=95, scratch="/shared/tmp".'
        )
    if type(percentile) is not int or not 1 <= percentile <= 99:
        raise PipelineError(f"{asked}: expected a whole number from 1 to 99.")
    pieces = {
        stream: sum(piece.between is not None for piece in all_of_it)
        for stream, all_of_it in there.items()
    }
    if not pieces:
        raise PipelineError(
            f"{asked}: pieces are what injectors have, and no stream of {topology.name!r} has one. "
            "Leave both out: Spark reads a DataFrame to its end."
        )
    if not any(each <= percentile for each in topology.percentiles):
        raise PipelineError(
            f"{asked}: no window or timer of {topology.name!r} waits for so small a share, so none "
            f"would fire. Those there are: {sorted(topology.percentiles)}. Give the groupings a "
            f"trigger such as mr.AtWatermark({percentile})."
        )
    location = scratch if is_object_store(scratch) else str(local_path(scratch))
    return Enough(location, f"batch{uuid4().hex}", percentile, pieces)


def said_of(left: Mapping[str, Sequence[Left]]) -> str:
    """Return what was left, in words."""
    said = []
    for stream, pieces in left.items():
        named = [
            f"{one.process} from {one.between[0]!r} to {one.between[1]!r} after {one.rows:,} rows"
            for one in pieces[:_NAMED]
        ]
        more = [f"{len(pieces) - _NAMED:,} more"] if len(pieces) > _NAMED else []
        said.append(f"{len(pieces):,} of stream {stream!r}: {'; '.join([*named, *more])}")
    return f"pieces left unread: {', '.join(said)}"
