"""Who may claim a checkpoint after whom, when a changed pipeline did not start."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import millrace as mr
from millrace.epochlog.reader import end_of
from millrace.model.errors import CheckpointUnwritable, ZombieWriter
from millrace.spark.start import _Opening
from millrace.store import HardState, open_location


class Counted(mr.Computation):
    inputs = {"in": mr.by(str)}

    def process_record(self, record: mr.Record) -> None: ...


class AnswerLost:
    """The epoch log of a store that writes an entry, and says that it could not."""

    def __init__(self, log: Any) -> None:
        self._log = log

    def append(self, number: int, data: bytes) -> bool:
        self._log.append(number, data)
        raise CheckpointUnwritable("full")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)


def state_at(root: Path) -> HardState:
    return open_location(str(root / "checkpoint"), pipeline="p")


def opening(root: Path, owner: str, *, follows: bool = True, lossy: bool = False) -> Any:
    """Return one that is prepared, of a pipeline without sinks."""
    p = mr.Pipeline("p")
    p.inject("in", format=str)
    p.add(Counted, name="counted")
    state: Any = state_at(root)
    if lossy:
        state.epochs = AnswerLost(state.epochs)
    made: Any = object.__new__(_Opening)
    made.follows, made._owner, made._topology = follows, owner, p.build()
    made._intervals, made._tasks, made._scratch = 1, 1, root / "scratch"
    made._before = made._lease = None
    made._state = lambda: state
    made.close = lambda: None
    made._setup = SimpleNamespace(check_left=lambda *_: None)
    return made


def claims(root: Path) -> tuple[int, str]:
    claim = end_of(state_at(root).epochs).claim
    assert claim is not None
    return claim.generation, claim.owner


def test_a_claim_whose_write_was_said_to_have_failed_is_followed_by_its_owner(
    tmp_path: Path,
) -> None:
    opening(tmp_path, "ours", follows=False).claim()
    with pytest.raises(CheckpointUnwritable):
        opening(tmp_path, "ours", lossy=True).claim()
    assert claims(tmp_path) == (2, "ours")
    with pytest.raises(ZombieWriter, match="a newer run has claimed"):
        opening(tmp_path, "theirs").claim()
    opening(tmp_path, "ours").claim()
    assert claims(tmp_path) == (3, "ours")


def test_a_claim_of_another_program_is_not(tmp_path: Path) -> None:
    opening(tmp_path, "ours", follows=False).claim()
    opening(tmp_path, "theirs", follows=False).claim()
    with pytest.raises(ZombieWriter, match="a newer run has claimed"):
        opening(tmp_path, "ours").claim()
    assert claims(tmp_path) == (2, "theirs")
