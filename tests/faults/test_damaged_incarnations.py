"""Incarnations of a killed run in real time are cut, emptied, removed, replaced or altered.

The next run gives the same results, or refuses the checkpoint by name; so does ``verify``, without
a run.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import millrace as mr
from millrace.cli.checkpoint import verify_checkpoint
from millrace.model.errors import DamagedStore
from millrace.store import LocalHardState, SegmentName
from millrace.store.segments import HEADER_BYTES, Segment
from tests.live import Feeds, Kept, Live

ROUNDS, TASKS = 8, 2


class Tagged(mr.Computation):
    """Says how many records of its key came before: what it sends depends on what it knows."""

    # Keys of one process each, so that records of a key come in one order.
    inputs = {"records": mr.by(lambda value: value["v"] % 4)}
    outputs = {"numbered": dict}
    n = mr.CombiningState(int)

    def process_record(self, record):
        self.n.add(1)
        self.produce("numbered", {"v": record.value["v"], "n": self.n.get()})


class Summed(mr.Computation):
    inputs = {"numbered": mr.by(lambda value: value["v"] % 3)}
    outputs = {"sums": list}
    total = mr.CombiningState(int)

    def process_record(self, record):
        self.total.add(record.value["v"])
        self.produce("sums", [record.value["v"], record.value["n"]])


def pipeline() -> tuple[mr.Pipeline, Kept]:
    p, kept = mr.Pipeline("incarnations"), Kept()
    feeds = {name: [(n, 10 * n) for n in range(at, 120, 2)] for at, name in enumerate("ab")}
    p.inject("records", Feeds("v long, at long", feeds), timestamp="at")
    p.add(Tagged)
    p.add(Summed)
    p.sink("sums", kept)
    return p, kept


def live_at(home: Path) -> tuple[Live, Kept]:
    p, kept = pipeline()
    state = LocalHardState.create_or_open(home, pipeline="incarnations")
    return Live(p, tasks=TASKS, state=state), kept  # type: ignore[arg-type]


def killed(home: Path, levels: int) -> dict[int, list[dict[str, Any]]]:
    """Run until a mark and well beyond it, then kill everything; return what was published.

    Args:
        home: Of the checkpoint.
        levels: How many levels have done what the last round has for them, the injectors' included.
    """
    live, kept = live_at(home)
    live.boot()
    for round_ in range(ROUNDS):
        live.feed(3 * (round_ + 1))
        if round_ == ROUNDS - 1:
            for level in range(levels):
                for task in range(TASKS):
                    live.plane.turn((level, task), live.clock_us)
        else:
            live.plane.settle(live.clock_us)
        if round_ == 2:
            live.plane.mark(live.clock_us)
        live.clock_us += 1000
    live.plane.crash()
    return kept.epochs


def finished(home: Path, before: dict[int, list[dict[str, Any]]]) -> list[Any]:
    """Go on with a killed run to its end; return all of what its sink has then."""
    live, kept = live_at(home)
    kept.epochs |= before
    live.boot()
    assert live.plane.running or live.coordinator.failed is None
    live.finish()
    if live.coordinator.failed is not None:
        raise live.coordinator.failed
    assert live.coordinator.ended
    return sorted(row["value"] for row in kept.rows)


def outcome(
    home: Path, before: dict[int, list[dict[str, Any]]]
) -> tuple[list[Any], DamagedStore | None]:
    """Go on with a killed run; return its results, or how the damage was refused."""
    try:
        return finished(home, before), None
    except DamagedStore as error:
        return [], error


def borders(path: Path) -> list[int]:
    """Where groups of a segment begin, its index, and its end."""
    data, name = path.read_bytes(), SegmentName.parse(path.name)
    assert name is not None
    segment = Segment(path.name, len(data), lambda start, stop: data[start:stop])
    frames = [*segment.frames()]
    return [*(frame.offset for frame in frames), *{frames[-1].end, len(data)}]


def damages(home: Path) -> Iterator[tuple[str, Callable[[Path], None]]]:
    """Yield each way to damage a segment of a checkpoint, with its name; it takes a copy's root."""
    for path in sorted((home / "incarnations").iterdir()):
        if SegmentName.parse(path.name) is None:
            continue
        inside = path.relative_to(home)
        at = borders(path)
        size = at[-1]

        def cut(root: Path, inside: Path = inside, to: int = 0) -> None:
            with (root / inside).open("r+b") as file:
                file.truncate(to)

        def flip(root: Path, inside: Path = inside, where: int = 0) -> None:
            data = bytearray((root / inside).read_bytes())
            data[where] ^= 0x10
            (root / inside).write_bytes(data)

        for to in {0, HEADER_BYTES - 3, *at[:-1], *(border + 9 for border in at[:-1]), size - 1}:
            yield f"{path.name} cut to {to}", lambda root, cut=cut, to=to: cut(root, to=to)
        for where in {5, *(min(border + 30, size - 1) for border in at[:-1]), size - 1}:
            yield (
                f"{path.name} bit flipped at {where}",
                lambda root, flip=flip, where=where: flip(root, where=where),
            )
        yield (
            f"{path.name} removed",
            lambda root, inside=inside: (root / inside).unlink(),
        )


@pytest.mark.parametrize("levels", [1, 2, 3])
def test_a_damaged_segment_is_the_same_results_or_an_error_never_silence(
    tmp_path: Path, levels: int
) -> None:
    home = tmp_path / "killed"
    before = killed(home, levels)
    assert verify_checkpoint(str(home)).findings == []
    expected = finished(Path(shutil.copytree(home, tmp_path / "whole")), before)
    assert len(expected) == 120
    silent, refused, same = [], 0, 0
    for name, damage in damages(home):
        copy = Path(shutil.copytree(home, tmp_path / "copy"))
        damage(copy)
        lost = any(finding.lost for finding in verify_checkpoint(str(copy)).findings)
        found, error = outcome(copy, before)
        if error is None:
            assert not lost, f"{name}: verify finds a loss, and the run goes on"
            same += found == expected
            if found != expected:
                silent.append(name)
        else:
            refused += 1
            assert "Restore" in str(error), name
            assert lost, f"{name}: verify says nothing of it"
        shutil.rmtree(copy)
    assert silent == []
    assert refused
    assert same
