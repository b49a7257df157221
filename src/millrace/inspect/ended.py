"""The end of an epoch log, read beside a run that goes on.

What the log says is read here and nowhere else of this package. A run collects entries that it does
not need any more, also while they are being read: then there are newer ones, and it is read again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

from msgspec.structs import replace

from millrace.compile.topology import injector_name
from millrace.model.errors import DamagedStore, NotKept
from millrace.model.time import MIN_TIMESTAMP
from millrace.store import EpochLog
from millrace.watermark.propagation import LowWatermarks
from millrace.windmill import epoch_log
from millrace.windmill.history import Moment
from millrace.windmill.manifest import Claim, Completion, Manifest
from millrace.windmill.renames import titled, titled_claim

T = TypeVar("T")

# Each round is another collection that came in between, so that one is unlucky once or twice.
_ROUNDS = 5


class Ended(NamedTuple):
    """What the log says.

    Attributes:
        claim: The last; None if no run has claimed the checkpoint yet.
        completion: Of the epoch; None if none has completed yet.
        unfinished: The manifest of an epoch that was begun since and is not completed.
    """

    claim: Claim | None
    completion: Completion | None
    unfinished: Manifest | None


def ended(log: EpochLog, epoch: int | None = None) -> Ended:
    """Return what a log says after an epoch; by default the last that has completed.

    Raises:
        NotKept: The log does not say it, or not any more.
        DamagedStore: An entry that is needed is gone or cannot be read.
    """
    found = Ended(*_steadily(log, lambda: epoch_log.latest(log)))
    if epoch is None or (found.completion is not None and found.completion.epoch == epoch):
        return found
    completion = _steadily(log, lambda: epoch_log.completion_of(log, epoch))
    if completion is None:
        kept = _steadily(log, lambda: list(epoch_log.completions(log)))
        there = f"{kept[0].epoch} to {kept[-1].epoch}" if kept else "none"
        raise NotKept(
            f"epoch {epoch} is not in the epoch log of this checkpoint; there are {there}. Open it "
            "without an epoch to have the last."
        )
    return Ended(found.claim, completion, None)


def fitted(found: Ended) -> Ended:
    """Return it with a low watermark for all that the claim has, also what is new since the epoch.

    Computations are called in it what their pipeline calls them. What is new stands before
    time until its first epoch.
    """
    claim, completion, unfinished = found
    if claim is not None:
        claim = titled_claim(claim)
    if completion is not None:
        completion = titled(completion, known_otherwise(found))
    if claim is None or completion is None:
        return Ended(claim, completion, unfinished)
    computations = claim.topology["computations"]
    injectors = map(injector_name, claim.topology["injected"])
    shown = [*computations, *injectors]

    def with_all(known: LowWatermarks) -> LowWatermarks:
        return LowWatermarks(
            dict.fromkeys(computations, MIN_TIMESTAMP) | known.inputs,
            dict.fromkeys(shown, MIN_TIMESTAMP) | known.outputs,
            {p: with_all(of) for p, of in known.percentiles.items()},
        )

    return Ended(claim, replace(completion, after=with_all(completion.after)), unfinished)


def moments(log: EpochLog) -> list[Moment]:
    """Return where the low watermarks stood after each epoch that a log still has."""
    called = known_otherwise(ended(log))
    return _steadily(log, lambda: [Moment.of(done, called) for done in epoch_log.completions(log)])


def known_otherwise(found: Ended) -> dict[str, str]:
    """Return computation, as the log knows it -> what its pipeline calls it, where they differ."""
    claim = found.claim
    return {} if claim is None else claim.registry.checked().called


def _steadily(log: EpochLog, read: Callable[[], T]) -> T:
    """Read, and again where entries were collected meanwhile."""
    for _ in range(_ROUNDS):
        before = log.first(), log.last()
        try:
            return read()
        except DamagedStore:
            if (log.first(), log.last()) == before:
                raise
    return read()
