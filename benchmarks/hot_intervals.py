"""Tasks' loads with and without the balancer: Zipf keys, a hot range that moves, one hot key.

Epochs of records go by task as on Spark, and what each interval reports (``kernel/results.py``,
sampled keys included) reaches the balancer as in a run (``balance/load.py``); its remaps take
effect between two epochs. Only user code and disks are left out: a record costs what another does,
so that an epoch lasts as long as its busiest task has records. What a remap itself costs is not in
it. The shape is that of MillWheel's figures 13 and 14: load by task over time.

Run it with ``python -m benchmarks.hot_intervals``; it needs no Spark and takes a minute.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table

from benchmarks.machine import describe
from benchmarks.owners import Move, OwnerBalance, balance, carried_out
from millrace.balance.load import Loads
from millrace.kernel.bundle import ReceivedRecords
from millrace.kernel.results import KeySampler, Load
from millrace.model.keys import encode_key, hash_key
from millrace.watermark.intervals import IntervalMap
from millrace.watermark.map_change import Merge, Split

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_KEYS, _TASKS, _INTERVALS = 20_000, 8, 64
_ENCODED = [encode_key(n) for n in range(_KEYS)]
_HASHES = np.array([hash_key(key) for key in _ENCODED], dtype=np.uint64)
#: Epochs of a second: a minute, and a round of the balancer.
_MINUTE, _EVERY = 60, 5
_SECONDS = 1e-5

Keys = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Case:
    """A law of keys, with or without the balancer.

    Attributes:
        law: Of keys.
        balanced: Whether the balancer was asked.
        most: Records of the busiest task in each epoch, in shares of a task.
        bound: What the most would be at best: a share, or the heaviest key alone.
        moves: Made, over all epochs.
        splits: Likewise.
        merges: Likewise.
        one_key: Intervals of one key that is more than a share, at the end.
    """

    law: str
    balanced: bool
    most: list[float]
    bound: float
    moves: int
    splits: int
    merges: int
    one_key: int

    @property
    def usual(self) -> float:
        """The median, after the first minute."""
        return statistics.median(self.most[_MINUTE:])


def zipf(exponent: float, records: int) -> Iterator[Keys]:
    """Yield epochs of keys by Zipf's law."""
    drawn = np.random.default_rng(1)
    law = np.arange(1, _KEYS + 1) ** -exponent
    while True:
        yield drawn.choice(_KEYS, records, p=law / law.sum())


def moving_range(records: int) -> Iterator[Keys]:
    """Yield epochs in which 60 % of the records have keys of 1/64 of the hashes, another a minute.

    A range so small that one interval has it, as it begins.
    """
    drawn = np.random.default_rng(1)
    by_hash = np.argsort(_HASHES)
    while True:
        first = int(drawn.integers(_KEYS - _KEYS // 64))
        inside = by_hash[first : first + _KEYS // 64]
        for _ in range(_MINUTE):
            hot = int(records * 0.6)
            yield np.concatenate(
                [drawn.choice(inside, hot), drawn.integers(0, _KEYS, records - hot)]
            )


def one_hot_key(records: int) -> Iterator[Keys]:
    """Yield epochs in which a key has 40 % of the records."""
    drawn = np.random.default_rng(1)
    while True:
        hot = int(records * 0.4)
        yield np.concatenate([np.zeros(hot, np.int64), drawn.integers(1, _KEYS, records - hot)])


def run(law: str, epochs: Iterator[Keys], *, balanced: bool) -> Case:
    """Return what became of some epochs."""
    intervals = IntervalMap.uniform(_INTERVALS)
    owners = {n: n * _TASKS // _INTERVALS for n in range(_INTERVALS)}
    loads, sampler, how = Loads(), KeySampler(), OwnerBalance(intervals=_INTERVALS)
    most, kinds, one_key = list[float](), {Move: 0, Split: 0, Merge: 0}, 0
    bounds, next_id = list[float](), _INTERVALS
    for n, keys in enumerate(epochs):
        by_task = [0] * _TASKS
        found = {}
        for interval, records in _arrived(keys).by_interval(intervals):
            count = records.count()
            by_task[owners[interval.id]] += count
            found[interval.id] = Load(
                count, 0, count * _SECONDS, hottest=sampler.hottest(records, count)
            )
        loads.add(found)
        share = len(keys) / _TASKS
        most.append(max(by_task) / share)
        bounds.append(max(1.0, np.bincount(keys).max() / share))
        if balanced and n % _EVERY == _EVERY - 1:
            asked = balance(intervals, owners, loads.weights(intervals), range(_TASKS), how)
            made, owners = carried_out(intervals, owners, asked.remaps, first_id=next_id)
            loads.remap(made)
            intervals = made.intervals
            next_id += len(made.parents)
            one_key = len(asked.one_key)
            for remap in asked.remaps:
                kinds[type(remap)] += 1
    return Case(
        law, balanced, most, statistics.median(bounds), kinds[Move], kinds[Split], kinds[Merge],
        one_key,
    )  # fmt: skip


def _arrived(keys: Keys) -> ReceivedRecords:
    numbers = np.arange(len(keys), dtype=np.int64)
    encoded = [_ENCODED[n] for n in keys.tolist()]
    return ReceivedRecords(
        _HASHES[keys], encoded, range(len(keys)), numbers, "events", numbers, numbers
    )


def main() -> None:
    """Run each law twice, print a table, write results and a picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=4 * _MINUTE)
    parser.add_argument("--records", type=int, default=5_000, help="an epoch")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    machine, records = describe(), arguments.records
    laws = {
        "Zipf 1.1": lambda: zipf(1.1, records),
        "Zipf 1.5": lambda: zipf(1.5, records),
        "a range that moves": lambda: moving_range(records),
        "one key with 40 %": lambda: one_hot_key(records),
    }
    cases = [
        run(law, islice(epochs(), arguments.epochs), balanced=balanced)
        for law, epochs in laws.items()
        for balanced in (False, True)
    ]
    table = Table(
        "keys", "balancer", "busiest task", "at best", "moves", "splits", "merges", "one key"
    )
    for one in cases:
        table.add_row(
            one.law, "yes" if one.balanced else "no", f"{one.usual:.2f}", f"{one.bound:.2f}",
            f"{one.moves}", f"{one.splits}", f"{one.merges}", f"{one.one_key}",
        )  # fmt: skip
    Console(width=120).print(table)
    started = dt.datetime.fromisoformat(machine["at"])
    named = Path(__file__).parent / "results" / f"hot-intervals-{started:%Y-%m-%d-%H%M}.json"
    results: dict[str, Any] = {"benchmark": "hot_intervals", "machine": machine}
    results["cases"] = [asdict(one) | {"usual": one.usual} for one in cases]
    out = arguments.out or named
    out.write_text(json.dumps(results, indent=1) + "\n")
    _picture(cases).savefig(out.with_suffix(".png"), dpi=110)


def _picture(cases: Sequence[Case]) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 6), layout="constrained")
    laws = list(dict.fromkeys(one.law for one in cases))
    drawn = figure.subplots(2, 2, sharex=True).flatten()
    for axes, law in zip(drawn, laws, strict=True):
        for one in cases:
            if one.law == law:
                label = "with the balancer" if one.balanced else "without"
                axes.plot(one.most, label=label, linewidth=1)
                axes.axhline(one.bound, color="grey", linewidth=0.8, linestyle=":")
        axes.set_title(law)
        axes.set_ylim(bottom=0)
    drawn[0].legend(loc="lower right")
    figure.supylabel("records of the busiest task, in shares; dotted: at best")
    figure.supxlabel("epochs")
    return figure


if __name__ == "__main__":
    main()
