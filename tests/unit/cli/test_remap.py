"""``millrace remap``: a run is asked, or, where none has the checkpoint, it is done here."""

from typing import Any

import msgspec
import pytest

from millrace.epochlog.reader import end_of
from millrace.inspect import open_checkpoint, state_at
from millrace.model.errors import ZombieWriter
from millrace.model.keys import encode_key, hash_key
from millrace.spark.asks import Listener, RemapAsked

NAME = "Counter[bold]"


def intervals(checkpoint: Any) -> list[tuple[int, int]]:
    return [(one.id, one.start) for one in open_checkpoint(checkpoint.path)[NAME].intervals]


def test_a_stopped_checkpoint_is_remapped_and_keeps_what_it_had(
    millrace: Any, checkpoint: Any
) -> None:
    pages = [f"page {n}" for n in range(9)]
    checkpoint.epoch(*pages, low_watermark=0)
    at = hash_key(encode_key("page 3"))
    where = 0 if at < 1 << 63 else 1
    path = str(checkpoint.path)

    owners = {"", end_of(state_at(path).epochs).claim.owner}

    done = millrace("remap", path, NAME, "--stopped", "--split", str(where), "--at", str(at))
    assert done.output == f"{NAME} has 3 key intervals\n"
    assert (3, at) in intervals(checkpoint)
    other = str(1 - where)
    done = millrace("remap", path, NAME, "--stopped", "--merge", "2", "3", "--split", other)
    assert done.exit_code == 0
    assert {one for one, _ in intervals(checkpoint)} == {4, 5, 6}
    found = open_checkpoint(checkpoint.path)[NAME]
    assert {state.key: state.cells["count"] for state in found.scan()} == dict.fromkeys(pages, 1)
    assert sum(1 for _ in found.timers()) == 2 * len(pages)
    listed = millrace("remap", path, NAME).output.splitlines()
    assert [int(line.split()[0]) for line in listed] == [one for one, _ in intervals(checkpoint)]

    # Whoever started the run that had it does not take this for a claim of its own.
    assert end_of(state_at(path).epochs).claim.owner not in owners
    # The run that had it is superseded.
    with pytest.raises(ZombieWriter):
        checkpoint.epoch("home", low_watermark=0)


def test_what_cannot_be_is_said(millrace: Any, checkpoint: Any) -> None:
    checkpoint.epoch("home", low_watermark=0)
    path = str(checkpoint.path)

    def said(*options: str, name: str = NAME) -> str:
        shown = millrace("remap", path, name, "--stopped", *options)
        assert shown.exit_code != 0
        return " ".join(shown.output.split())

    assert "interval 7 is not there" in said("--split", "7")
    assert "no computation 'Nobody'; there are Counter[bold]" in said("--split", "0", name="Nobody")
    assert "--at is of one --split" in said("--at", "5")
    assert len(intervals(checkpoint)) == 2


def test_a_run_is_asked(millrace: Any, checkpoint: Any) -> None:
    checkpoint.epoch("home", low_watermark=0)
    asked = []

    def remap(about: str) -> str:
        asked.append(msgspec.json.decode(about, type=RemapAsked))
        return f"{NAME} has 3 key intervals"

    mailbox = state_at(checkpoint.path).mailbox
    acts = {"remap": remap}
    by = Listener(mailbox, 1, acts, ended=str, epoch=lambda: 7, every_s=0.01)
    by.start()
    done = millrace("remap", str(checkpoint.path), NAME, "--split", "1", "--merge", "3", "4")
    by.close()
    assert done.output == f"{NAME} has 3 key intervals\n"
    assert [one.remaps() for one in asked] == [RemapAsked(NAME, [(1, None)], [(3, 4)]).remaps()]
