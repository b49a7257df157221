"""Stuck code, written up by workers in the checkpoint, read by the driver."""

import logging
from pathlib import Path

import msgspec
import pytest

from millrace.runtime.stuck import Stuck
from millrace.spark.metrics.table import values
from millrace.spark.stuck_board import Board, Reporter
from millrace.store import LocalHardState, Mailbox, MemoryBlobs
from tests.unit.spark.test_status_text import IN_THE_MIDDLE, status


def stuck(seconds: float, key: str = "'ann'") -> Stuck:
    return Stuck("Counter", key, "record 01", "process 7 on host h", seconds, "  in wait\n")


@pytest.fixture
def mailbox(tmp_path: Path) -> Mailbox:
    return LocalHardState.create_or_open(tmp_path / "ckpt", pipeline="p").mailbox


def test_what_a_worker_says_is_known_to_the_driver_until_it_is_over(mailbox: Mailbox) -> None:
    now = [100.0]
    board, one, other = Board(mailbox, lambda: now[0]), Reporter(mailbox), Reporter(mailbox)
    Reporter(mailbox).tell(stuck(10, "'said to an earlier run'"))
    board.look(mailbox.names())
    one.tell(stuck(10))
    other.tell(stuck(20, "'bob'"))
    board.look(mailbox.names())
    now[0] = 105
    assert [(found.key, found.seconds) for found in board.now()] == [("'bob'", 25), ("'ann'", 15)]

    one.tell(stuck(15))
    other.over()
    board.look(mailbox.names())
    assert [(found.key, found.seconds) for found in board.now()] == [("'ann'", 15)]
    one.over()
    board.look(mailbox.names())
    assert board.now() == mailbox.names() == []


def test_what_a_dead_process_said_does_not_hold_for_ever(mailbox: Mailbox) -> None:
    now = [0.0]
    board = Board(mailbox, lambda: now[0])
    board.look([])
    Reporter(mailbox).tell(stuck(10))
    board.look(mailbox.names())
    now[0] = 44
    assert len(board.now()) == 1
    now[0] = 45
    board.look(mailbox.names())
    assert board.now() == []


def test_the_log_has_it_with_the_stack_each_time_that_it_took_twice_as_long(
    caplog: pytest.LogCaptureFixture,
) -> None:
    reporter = Reporter(Mailbox(MemoryBlobs()))
    with caplog.at_level(logging.WARNING):
        for seconds in (10, 15, 20, 25, 40):
            reporter.tell(stuck(seconds))
        reporter.over()

    said = [record.message for record in caplog.records]
    assert [line.split(" for ")[-1].split(" (")[0] for line in said[:-1]] == [
        "10 s",
        "20 s",
        "40 s",
    ]
    assert "in wait" in said[0]
    facts = caplog.records[0].__dict__["millrace"]
    assert facts == {"event": "stuck_call", **msgspec.structs.asdict(stuck(10))}
    assert said[-1] == "what took so long has returned"


def test_status_and_metrics_say_it() -> None:
    found = status(counters=IN_THE_MIDDLE.counters, stuck=[stuck(12.3)])

    assert "stuck          Counter, key 'ann', record 01: in user code for 12 s" in str(found)
    assert values(found)["stuck_calls"] == {"Counter": 1, "Alarm[bold]": 0}
