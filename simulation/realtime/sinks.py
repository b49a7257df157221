"""Sinks of live tasks, as simulated systems: one written by mark, one in every turn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy.typing as npt
import pyarrow as pa

from millrace.connectors.postgres.live_writer import senders_of
from millrace.model.errors import SinkError

if TYPE_CHECKING:
    from simulation.world import World


#: A row of a sink, as its columns.
SinkRow = dict[str, Any]


class Stand:
    """One sink. It survives everything.

    Args:
        world: The simulation.

    Attributes:
        published: Mark -> rows, of a sink written by mark.
        live: Id -> row, of a live one.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self.published: dict[int, list[SinkRow]] = {}
        self.live: dict[bytes, SinkRow] = {}
        self._staged: dict[int, list[SinkRow]] = {}

    def violated(self, what: str) -> None:
        """Note what must not be."""
        self._world.violated(what)

    # -- by mark -----------------------------------------------------------------------------------

    def begin(self, epoch: int, task: int) -> Lot:
        """Return what a task writes to until a mark."""
        return Lot(self)

    def publish(self, epoch: int, receipts: list[bytes]) -> None:
        """Make seen what tasks wrote, in place of what was published of that mark."""
        self.call("publish", epoch)
        self.published[epoch] = [row for one in receipts for row in self._staged[int(one)]]

    def publish_again(self, epoch: int, receipts: list[bytes]) -> None:
        """Make seen what is perhaps seen already."""
        self.publish(epoch, receipts)

    def stage(self, rows: list[SinkRow]) -> bytes:
        """Keep rows that are durable and unseen."""
        number = len(self._staged)
        self._staged[number] = rows
        return str(number).encode()

    # -- in every turn -----------------------------------------------------------------------------

    def upsert(self, rows: list[SinkRow]) -> None:
        """Take rows by their ids, whoever sends them."""
        self.call("sink", len(rows))
        for row in rows:
            earlier = self.live.setdefault(row["_id"], row)
            if earlier != row:
                self._world.violated(f"a sink got two rows of one id:\n  {earlier}\n  {row}")

    def call(self, what: str, where: object) -> None:
        """Be called, and maybe fail."""
        self._world.scheduler.step(what, where)
        if self._world.fate.refusal():
            raise SinkError("the simulation let the sink fail")


class Lot:
    """What a task writes until a mark."""

    def __init__(self, stand: Stand) -> None:
        self._stand = stand
        self._rows: list[SinkRow] = []

    def write(self, rows: pa.RecordBatch) -> None:
        """Take rows."""
        self._stand.call("sink", rows.num_rows)
        self._rows += rows.to_pylist()

    def close(self) -> bytes:
        """Make them durable; return a receipt."""
        self._stand.call("sink", "close")
        return self._stand.stage(self._rows)

    def abort(self) -> None:
        """Give up."""


class LiveStand:
    """What tasks know of a live sink."""

    def __init__(self, stand: Stand) -> None:
        self._stand = stand

    def begin(self, incarnation: int, generation: int, task: int) -> Writing:
        """Return what a task writes with."""
        return Writing(self._stand)


class Writing:
    """What a task writes with in every turn; rows are in the sink when it returns, or later."""

    def __init__(self, stand: Stand) -> None:
        self._stand = stand
        self._rows: list[SinkRow] = []
        self._last: dict[int, tuple[int, int]] = {}

    def write(
        self, rows: pa.RecordBatch, origins: npt.NDArray[Any], sequences: npt.NDArray[Any]
    ) -> None:
        """Take rows; those of a sender must be in order, as a sink may go by their numbers."""
        ids = zip(origins.tolist(), sequences.tolist(), strict=True)
        for sender, number in zip(senders_of(origins, sequences).tolist(), ids, strict=True):
            last = self._last.get(sender)
            if last is not None and number <= last:
                self._stand.violated(f"a live sink got {number} of a sender after its {last}")
            self._last[sender] = number
        self._rows += rows.to_pylist()
        if len(self._rows) > 1:
            self.flush()

    def flush(self) -> None:
        """Have them in the sink."""
        rows, self._rows = self._rows, []
        if rows:
            self._stand.upsert(rows)

    def close(self) -> None:
        """Lose what was not flushed."""
