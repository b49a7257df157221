"""Load of a run: what its computations cost, and the keys that most of their records are of."""

from __future__ import annotations

from typing import Any

import msgspec

from millrace.inspect.json_text import key_text, shortened
from millrace.model.keys import decode_key
from millrace.windmill.epochs import Epochs
from millrace.windmill.loads import Loads
from millrace.windmill.results import NO_TIMES, HookTimes


class KeyShare(msgspec.Struct, frozen=True):
    """A hot key.

    Attributes:
        key: As text; of one of more than 200 characters the beginning, its length and its hash.
        share: Of the computation's records, lately: between 0 and 1, and about.
    """

    key: str
    share: float


class ComputationLoad(msgspec.Struct, frozen=True, kw_only=True):
    """What one computation cost, as far as its run saw it.

    Attributes:
        seconds: Time in user code, and in what is done for it, since the run began.
        committed_bytes: What it committed since, before compression: changed rows, productions.
        state_rows: Rows of its state, in the key intervals that have worked since.
        state_bytes: About their size in a cache.
        busiest: Share of its busiest key interval in that time, lately; 0 if it cost none.
        intervals: Key interval -> its share in that time, lately, of the busiest 64.
        hottest: The keys with the most records, lately, the most first.
        cache_hits: Key intervals of an epoch, or mark, whose cache stood where they began, since.
        cache_misses: Those whose cache had to be brought there from the log first.
        times: How long calls of its hooks took since, a record or timer each; none of a grouping
            kept as columns, which makes no such calls.
    """

    seconds: float
    committed_bytes: int
    state_rows: int
    state_bytes: int
    busiest: float
    intervals: dict[int, float] = {}
    hottest: list[KeyShare]
    cache_hits: int = 0
    cache_misses: int = 0
    times: HookTimes = NO_TIMES


def load_of_run(epochs: Epochs) -> dict[str, ComputationLoad]:
    """Return computation -> its load. It may be asked for beside the run's own thread."""
    return {name: _load_of(loads) for name, loads in epochs.loads.items()}


def _load_of(loads: Loads) -> ComputationLoad:
    return ComputationLoad(
        seconds=loads.seconds,
        committed_bytes=loads.committed_bytes,
        state_rows=loads.rows,
        state_bytes=loads.state_bytes,
        busiest=loads.busiest(),
        intervals=loads.shares(),
        hottest=[KeyShare(_shown(decode_key(key)), share) for key, share in loads.hottest()],
        cache_hits=loads.cache_hits,
        cache_misses=loads.cache_misses,
        times=loads.times,
    )


def _shown(key: Any) -> str:
    return shortened(key_text(key), key)
