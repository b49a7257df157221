"""The events as files, made once and read by every contender."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import millrace as mr
from benchmarks.nexmark.job import ALL, SMALL
from millrace_examples.nexmark import files
from millrace_examples.nexmark.events import Auction, Bid, Event, Generator, Person
from millrace_examples.nexmark.joined import SIDE

#: Folders of an input: a file a core, batch and stream; a file a batch and stream; a file a core
#: and stream; and what ends the windows of those that cannot be told that their input is over.
BATCHES, ONE_BY_ONE, WHOLE, FLUSH = "batches", "one-by-one", "whole", "flush"
#: And query 13's table.
SIDE_TABLE = "side"
#: What an id is of what only ends windows.
NOBODY = -1
DISORDER_US = 200 * mr.MILLISECOND
RATE = 1_000
_SMALL = 20
_FLUSHES = (2 * mr.DAY, 2 * mr.DAY + mr.HOUR)


@dataclass(frozen=True)
class Workload:
    """So many events, in batches.

    Args:
        events: All of them.
        batch: Events a batch.
        readers: Files of a batch and stream.
        skew: Share of bids that go to the newest auction.
    """

    events: int
    batch: int
    readers: int
    skew: float

    @property
    def small(self) -> int:
        """How many events the first two runs have."""
        return self.events // _SMALL

    def make(self, cache: Path) -> Path:
        """Return a folder with ``small`` and ``all``, made once in ``cache``."""
        name = f"nexmark-{self.events}-batch-{self.batch}-{self.readers}-skew-{self.skew}"
        made = cache / name
        if not made.exists():
            making = cache / f"{name}.making"
            shutil.rmtree(making, ignore_errors=True)
            self._make(making / SMALL, self.small)
            self._make(making / ALL, self.events)
            making.rename(made)
        return made

    def _make(self, folder: Path, count: int) -> None:
        for name, readers in ((BATCHES, self.readers), (ONE_BY_ONE, 1)):
            generator = Generator(rate=RATE, skew=self.skew, disorder=DISORDER_US)
            made = generator.events(count)
            files.write(folder / name, made, batch=self.batch, readers=readers)
        for stream, schema in files.SCHEMAS.items():
            (folder / WHOLE / stream).mkdir(parents=True)
            for reader in range(self.readers):
                parts = sorted((folder / BATCHES / stream).glob(f"*-{reader}.parquet"))
                whole = pa.concat_tables(pq.read_table(part, schema=schema) for part in parts)
                pq.write_table(whole, folder / WHOLE / stream / f"{reader}.parquet")
        side = {"rest": pa.array(SIDE, pa.int64()), "value": list(SIDE.values())}
        (folder / SIDE_TABLE).mkdir()
        pq.write_table(pa.table(side), folder / SIDE_TABLE / "side.parquet")
        self._flush(folder, generator.start + count * mr.SECOND // RATE)

    def _flush(self, folder: Path, end_us: int) -> None:
        files.write(
            folder / FLUSH,
            itertools.chain.from_iterable(
                _nothing(end_us + after) for after in _FLUSHES for _ in range(self.readers)
            ),
            batch=self.readers * 3,
            readers=self.readers,
        )
        for stream in files.SCHEMAS:
            batches = sorted((folder / BATCHES / stream).iterdir())
            newest = batches[-1].stat().st_mtime
            for number, file in enumerate(sorted((folder / FLUSH / stream).iterdir()), 1):
                os.utime(file, (newest + number,) * 2)
            for file in batches:
                os.link(file, folder / FLUSH / stream / f"batch-{file.name}")


def _nothing(at: int) -> Iterator[tuple[str, Event]]:
    yield "persons", Person(NOBODY, "", "", "", at)
    yield "auctions", Auction(NOBODY, "", 0, at, NOBODY, NOBODY, at)
    yield "bids", Bid(NOBODY, NOBODY, NOBODY, "", "", "", at)
