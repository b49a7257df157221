"""The level task: the computations of one level, for the key intervals that one task owns.

It is given rows that arrived, and returns what may leave. Each computation's records and due timers
are a bundle for each interval that has something to do. All bundles of a turn are run before what
came of them is committed together.

A host stands around it and knows how rows come and go: that of an epoch gives it one turn
(``epoch/host.py``), that of an incarnation turn after turn (``realtime/host.py``). In what the
planes must differ, they differ behind two seams: an *admission* says which of the rows are news to
an interval, a *commit writer* makes durable what came of them.

Source: MillWheel 6.1 and 4.5; Streaming Engine, GetWork, GetData and CommitWork;
docs/design/2026-11-27-one-level-task.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from millrace.compile.topology import ComputationSpec
from millrace.epochlog.positions import Positions
from millrace.kernel.bundle import Attempt, KeyedRecords
from millrace.kernel.execution import Attempted
from millrace.kernel.results import Produced
from millrace.runtime.admission import Admission, Through
from millrace.runtime.calls import NO_CALLS, NO_OUTCOMES, CallPools, TaskCalls, calls_of
from millrace.runtime.commit_writer import CommitWriter
from millrace.runtime.inbox import Inbox
from millrace.runtime.rows import Rows


class LevelTask:
    """Computations of one level, for the intervals that one task owns.

    Args:
        number: Of the task.
        tasks: How many the level has.
        positions: Where intervals stand. They stay there: what a turn moves, its host moves.
        writer: Runs bundles, and makes durable what came of them.
        admissions: Of each computation, in the order of their work.
        attempt: Returns at what a computation's bundles are run now: time and low watermarks.

    Attributes:
        owned: Computation -> places in its interval map of the intervals that the task owns.
        calls: Computation -> its calls, of those that make some; none before they are begun.
        records: Rows that were run as records.
        keys: Keys that they were of, counted in each bundle.
    """

    def __init__(
        self,
        number: int,
        tasks: int,
        positions: Positions,
        writer: CommitWriter,
        admissions: Sequence[Admission],
        attempt: Callable[[ComputationSpec], Attempt],
    ) -> None:
        self.calls: Mapping[str, TaskCalls] = NO_CALLS
        self.owned = {
            admission.spec.name: admission.intervals.owned(number, tasks)
            for admission in admissions
        }
        self.records = self.keys = 0
        self._positions = positions
        self._writer = writer
        self._admissions = admissions
        self._attempt = attempt

    def begin_calls(self, pools: CallPools) -> None:
        """Begin to make calls, with those that are pending; the positions are those of now."""
        specs = [admission.spec for admission in self._admissions if admission.spec.makes_calls]
        if not specs:
            return
        self.calls = self._writer.calls = calls_of(specs, pools, self._positions, self.owned)

    def turn(
        self, arrived: Rows, through: Through, inbox: Inbox | None, received: dict[str, int]
    ) -> list[Produced]:
        """Run what arrived and what is due; return what may leave, by interval.

        An interval without records and without a due timer is as it was: it has no commit. Nor does
        it cost anything.

        Args:
            arrived: Rows on edges to the level's computations.
            through: Edge -> sender -> how far it has come in the partials on that edge.
            inbox: Of the turn, which reads rows that are many; None if they are few.
            received: Takes how many bytes there are in values that are few, by computation.
        """
        attempted: list[Attempted] = []
        for admission in self._admissions:
            records = admission.records(arrived, through, inbox, received)
            attempted += self._run(admission, records)
        return self._writer.commit(attempted) if attempted else []

    def _run(self, admission: Admission, records: Mapping[int, KeyedRecords]) -> list[Attempted]:
        """Run one computation's bundles."""
        spec = admission.spec
        outcomes, again = NO_OUTCOMES
        if self.calls and (calls := self.calls.get(spec.name)) is not None:
            outcomes, again = calls.take()
        bundles = self._positions.bundles(
            spec, admission.intervals, self.owned[spec.name], records, self._attempt(spec),
            outcomes, again,
        )  # fmt: skip
        if not bundles:
            return []
        for bundle in bundles:
            cuts = bundle.records.cuts
            self.records += cuts[-1] - cuts[0]
            self.keys += len(bundle.records.keys)
        return self._writer.run(spec, bundles, admission.consumed(bundles))
