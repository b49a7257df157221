"""Change: what becomes of one part of a checkpoint with another pipeline, why, and the way out.

All of them together are the plan that ``p.plan(checkpoint)`` returns, and the text with which a
start is refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

REFUSED: Final = "refused"
DROPPED: Final = "dropped"
MIGRATED: Final = "migrated"
RENAMED: Final = "renamed"
ADDED: Final = "added"
CHANGED: Final = "changed"
KEPT: Final = "kept"

#: In the order in which a plan tells them: what needs a decision comes first.
KINDS: Final = (REFUSED, DROPPED, MIGRATED, RENAMED, ADDED, CHANGED, KEPT)


class Change(msgspec.Struct, frozen=True):
    """What becomes of one part of a checkpoint, or of a pipeline.

    Attributes:
        kind: ``refused``, ``dropped``, ``migrated``, ``renamed``, ``added``, ``changed``
            (and nothing is lost) or ``kept``.
        where: Which part, as a path that a person can follow.
        why: What the difference is, or what it means.
        way: Of what is refused: what to do instead.
        between: Whether it may happen only where no epoch is unfinished.
    """

    kind: str
    where: str
    why: str
    way: str = ""
    between: bool = False

    def __str__(self) -> str:
        return f"{self.where}: {self.why}"

    def while_unfinished(self, epoch: int) -> Change:
        """Return what becomes of it while an epoch is unfinished."""
        if not self.between:
            return self
        return Change(
            REFUSED,
            self.where,
            f"{self.why}; and epoch {epoch} of this checkpoint is unfinished",
            "finish that epoch first: start the pipeline as it was, and end it with run.stop()",
        )


class ChangePlan(msgspec.Struct, frozen=True):
    """What a start of a pipeline would do with a checkpoint. ``print`` it.

    Attributes:
        pipeline: Name of the pipeline.
        epoch: The last epoch of the checkpoint that has completed; -1 if none has.
        changes: Part by part; what is refused comes first, what is kept last.
        under_way: An epoch that was begun after it and has not completed; None if there is none.
            The plan is of the checkpoint as ``epoch`` left it, and is the same once that epoch
            has completed.
        waiting: What a start would be refused for only until that epoch has completed.

    >>> plan = ChangePlan("shop", 4, (Change("added", "computation 'Ranks'", "begins empty"),))
    >>> print(plan)
    pipeline 'shop' on its checkpoint after epoch 4:
      added     computation 'Ranks': begins empty
    1 added. Nothing was written.
    """

    pipeline: str
    epoch: int
    changes: tuple[Change, ...]
    under_way: int | None = None
    waiting: tuple[Change, ...] = ()

    @property
    def refused(self) -> tuple[Change, ...]:
        """What a start would be refused for; empty if it would go on."""
        return self.of(REFUSED)

    def of(self, kind: str) -> tuple[Change, ...]:
        """Return the changes of a kind, in order."""
        return tuple(change for change in self.changes if change.kind == kind)

    def __str__(self) -> str:
        after = f"after epoch {self.epoch}" if self.epoch >= 0 else "before its first epoch"
        lines = [f"pipeline {self.pipeline!r} on its checkpoint {after}:"]
        for change in self.changes:
            lines.append(f"  {change.kind:<9} {change}")
            if change.way:
                lines.append(f"  {'':<9} -> {change.way}")
        counted = ((len(self.of(kind)), kind) for kind in KINDS)
        told = ", ".join(f"{n} {kind}" for n, kind in counted if n) or "no part is known to it"
        if self.under_way is not None:
            lines.append(self._under_way())
        return "\n".join([*lines, f"{told}. Nothing was written."])

    def _under_way(self) -> str:
        said = f"Epoch {self.under_way} is under way, and the plan is of what came before it."
        if not self.waiting:
            return said
        parts = ", ".join(change.where for change in self.waiting)
        return (
            f"{said} A start waits for it, because of {parts}: stop the run with `millrace stop`, "
            "which completes it; if no run is there, start the pipeline as it was, and stop that."
        )


def planned(pipeline: str, epoch: int, changes: Iterable[Change]) -> ChangePlan:
    """Return a plan of changes, in the order in which it tells them."""
    ordered = sorted(changes, key=lambda change: KINDS.index(change.kind))
    return ChangePlan(pipeline, epoch, tuple(ordered))
