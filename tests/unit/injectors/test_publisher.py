"""The publisher: the minimum over expected processes, idleness, and what is logged."""

import logging

import pytest

import millrace as mr
from millrace.injectors.watermark_publisher import (
    PROCESSES_MAX,
    WatermarkAggregate,
    WatermarkPublisher,
)
from millrace.watermark.report import ONLY, ProcessState

NEVER = mr.MIN_TIMESTAMP


class Epochs:
    """What the driver does: epochs on a clock, with what they saw."""

    def __init__(self, injector):
        self.publisher = WatermarkPublisher({"s": injector})
        self.known = {}
        self.published = NEVER
        self.last_epoch = 0

    def epoch(self, at, **seen):
        """Run an epoch that saw processes -> (newest, claim); return what is published next."""
        told = {
            name: ProcessState(*(NEVER if us is None else us for us in pair))
            for name, pair in seen.items()
        }
        heard = self.publisher.process_states({"s": told}, {"s": self.known}, at)
        for name, process in heard["s"].items():
            self.known[name] = self.known.get(name, ProcessState()).merged(process)
        self.last_epoch = at
        return self.at(at)

    def at(self, wall):
        self.published = self.publisher.published(
            {"s": self.known},
            wall_time_us=wall,
            before={"s": self.published},
            last_epoch_us=self.last_epoch,
        )["s"]
        return self.published


def delayed(delay, *expected, idle=None):
    return Epochs(WatermarkAggregate(mr.BoundedDelay(delay), expected, idle))


def test_the_slowest_process_says_it():
    epochs = delayed(10)

    assert epochs.epoch(0, a=(100, None), b=(50, None)) == 40
    assert epochs.epoch(1, a=(300, None)) == 40
    assert epochs.epoch(2, b=(310, None)) == 290


def test_an_expected_process_that_was_not_heard_of_holds_everything():
    epochs = delayed(0, "a", "b")

    assert epochs.epoch(0, a=(100, None)) == NEVER
    assert epochs.publisher.missing() == {"s": ["b"]}
    assert epochs.epoch(1, b=(90, None)) == 90
    assert epochs.publisher.missing() == {}


def test_a_process_that_died_holds_its_last_value():
    epochs = delayed(0, "a", "b")
    epochs.epoch(0, a=(100, None), b=(100, None))

    assert [epochs.epoch(at, a=(at, None)) for at in (200, 10**12)] == [100, 100]


def test_an_unexpected_process_joins_and_nothing_moves_back():
    epochs = delayed(0, "a")
    epochs.epoch(0, a=(100, None))

    assert epochs.epoch(1, new=(50, None)) == 100
    assert epochs.epoch(2, a=(200, None)) == 100  # the new one is at 50, and holds it
    assert epochs.epoch(3, new=(150, None)) == 150


def test_what_an_epoch_has_read_counts_before_its_processes_are_idle():
    """An epoch that takes longer than the time-out: all of them seem silent when it is over."""
    epochs = delayed(0, idle=10)
    epochs.epoch(1000, a=(100, None), b=(50, None))

    assert epochs.at(1151) == 50
    assert (epochs.publisher.idle(), epochs.publisher.silent()) == ({}, set())
    assert epochs.epoch(1151) == 50
    assert epochs.publisher.idle() == {"s": ["a", "b"]}
    assert epochs.publisher.silent() == {"s"}


def test_a_process_that_long_epochs_hear_holds_the_low_watermark_against_those_ahead():
    epochs = delayed(0, idle=10)
    epochs.epoch(1000, slow=(5, None), fast=(900, None))
    assert epochs.at(1100) == 5
    epochs.epoch(1100, slow=(6, None))  # fast is idle from here on, and slow is not
    assert epochs.at(1200) == 6
    assert epochs.publisher.idle() == {"s": ["fast"]}


def test_another_epoch_is_due_at_once_where_only_the_last_one_keeps_a_process_from_being_idle():
    epochs = delayed(0, idle=10)
    epochs.epoch(1000, a=(5, None))
    epochs.at(1151)
    assert epochs.publisher.changes_us() == 1010
    epochs.epoch(1151)
    assert epochs.publisher.changes_us() == mr.MAX_TIMESTAMP


@pytest.mark.parametrize(("silence", "published"), [(9, 5), (10, 100), (11, 100)])
def test_a_silent_process_is_left_out_exactly_at_its_time_out(silence, published):
    epochs = delayed(0, "a", "b", idle=10)
    epochs.epoch(1000, a=(5, None), b=(5, None))
    epochs.epoch(1000 + silence, a=(100, None))

    assert epochs.at(1000 + silence) == published


def test_somebody_says_when_idleness_will_take_effect():
    epochs = delayed(0, "a", "b", idle=10)
    epochs.epoch(1000, a=(5, None), b=(5, None))
    epochs.epoch(1003, a=(6, None))

    assert epochs.publisher.changes_us() == 1010
    epochs.epoch(1010)
    assert epochs.publisher.changes_us() == 1013
    epochs.at(1013)
    assert epochs.publisher.changes_us() == mr.MAX_TIMESTAMP


def test_an_expected_process_that_never_comes_is_waited_for_as_long():
    epochs = delayed(0, "a", "b", idle=10)
    epochs.epoch(1000, a=(5, None))

    assert epochs.epoch(1009, a=(6, None)) == NEVER
    assert epochs.epoch(1010, a=(7, None)) == 7


def test_when_all_are_idle_the_low_watermark_stays():
    epochs = delayed(0, "a", "b", idle=10)
    epochs.epoch(0, a=(70, None), b=(80, None))

    assert epochs.epoch(100) == 70
    assert epochs.publisher.idle() == {"s": ["a", "b"]}


def test_when_all_but_those_that_have_ended_are_idle_the_low_watermark_stays():
    epochs = Epochs(WatermarkAggregate(mr.WatermarkColumn("until"), ("a", "b"), 10))
    epochs.epoch(0, a=(70, 70), b=(80, 80))

    assert epochs.epoch(5, a=(75, mr.MAX_TIMESTAMP)) == 80
    assert epochs.epoch(12) == 80
    assert epochs.publisher.silent() == {"s"}
    assert epochs.epoch(13, b=(90, 90)) == 90
    assert epochs.epoch(14, b=(95, mr.MAX_TIMESTAMP)) == mr.MAX_TIMESTAMP


def test_without_a_time_out_nobody_is_idle():
    epochs = delayed(0, "a", "b")
    epochs.epoch(0, a=(70, None), b=(80, None))

    assert epochs.epoch(10**15, a=(90, None)) == 80


def test_idleness_and_its_end_are_logged(caplog):
    epochs = delayed(0, "a", "b", idle="5 s")
    epochs = Epochs(WatermarkAggregate(mr.BoundedDelay(0), ("a", "b"), 5 * mr.SECOND))
    epochs.epoch(0, a=(70, None), b=(80, None))
    epochs.epoch(5 * mr.SECOND, a=(90, None))
    epochs.epoch(6 * mr.SECOND, a=(90, None))

    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "stream 's': process 'b' has been silent for 5 s" in record.getMessage()
    epochs.epoch(7 * mr.SECOND, b=(85, None))
    assert "process 'b' is not idle any more" in caplog.records[-1].getMessage()
    assert len(caplog.records) == 2


def test_a_clock_that_jumps_back_moves_nothing_back():
    epochs = delayed(0, "a", "b", idle=10)
    epochs.epoch(1000, a=(5, None), b=(5, None))
    assert epochs.epoch(1010, a=(100, None)) == 100
    assert epochs.epoch(500, a=(120, None)) == 100  # b is heard of in what is now the future
    assert epochs.epoch(1011, a=(130, None)) == 130


def test_a_clock_that_jumps_forward_makes_all_idle_and_moves_nothing():
    epochs = delayed(0, "a", "b", idle=10)
    epochs.epoch(1000, a=(50, None), b=(5, None))
    assert epochs.at(10**15) == 5
    assert epochs.epoch(10**15 + 1, b=(60, None)) == 60  # a is left out until it is heard of again


def test_a_missing_process_is_named_once(caplog):
    epochs = delayed(0, "a", "b")
    epochs.epoch(0, a=(70, None))
    epochs.at(59 * mr.SECOND)
    assert not caplog.records
    epochs.at(60 * mr.SECOND)
    epochs.at(61 * mr.SECOND)

    (record,) = caplog.records
    assert "expected process 'b' has not been heard of since 1970-01-01" in record.getMessage()


def test_a_claim_that_moves_back_does_not_count():
    epochs = Epochs(WatermarkAggregate(mr.WatermarkColumn("w"), ("a",)))

    assert epochs.epoch(0, a=(None, 50)) == 50
    assert epochs.epoch(1, a=(None, 30)) == 50
    assert epochs.epoch(2, a=(None, 60)) == 60


def test_a_process_that_ended_holds_nothing():
    epochs = Epochs(WatermarkAggregate(mr.WatermarkColumn("w"), ("a", "b")))
    epochs.epoch(0, a=(None, mr.MAX_TIMESTAMP), b=(None, 50))
    assert epochs.published == 50
    assert epochs.epoch(1, b=(None, mr.MAX_TIMESTAMP)) == mr.MAX_TIMESTAMP


def test_arrival_time_follows_the_clock_of_the_epoch_before_the_last():
    epochs = Epochs(WatermarkAggregate(mr.ArrivalTime(10, every=1), (ONLY,)))

    assert epochs.epoch(1000) == NEVER  # who knows what arrived while this epoch ran
    assert epochs.epoch(1100) == 990
    assert epochs.epoch(1200) == 1090


def test_arrival_time_moves_in_steps():
    policy = mr.ArrivalTime("1 s", every="10 s")

    assert policy.published_us(ProcessState(), 29 * mr.SECOND) == 19 * mr.SECOND
    assert policy.changes_us(ProcessState(), 29 * mr.SECOND) == 30 * mr.SECOND
    with pytest.raises(mr.MillraceError, match="each move is an epoch"):
        mr.ArrivalTime("1 s", every=0)


def test_too_many_processes_are_refused_by_name():
    epochs = delayed(0)

    with pytest.raises(mr.MillraceError, match=r"more than 10,000 processes .*'user-9999'.* a key"):
        epochs.epoch(0, **{f"user-{n}": (1, None) for n in range(PROCESSES_MAX + 1)})


def test_expected_processes_need_a_column_that_names_them():
    with pytest.raises(mr.MillraceError, match='Name it: process="partition"'):
        mr.Pipeline("p").inject("s", expected=["a"])
