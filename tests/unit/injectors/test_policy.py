"""Low-watermark policies: values, pure, and never ahead of what may still come."""

import datetime as dt
import pickle

import pytest

import millrace as mr
from millrace.injectors.watermark_policy import LowWatermarkPolicy
from millrace.watermark.report import ProcessState


def test_a_bounded_delay_publishes_the_newest_less_the_delay():
    assert mr.BoundedDelay("3 s").published_us(ProcessState(10 * mr.SECOND), 0) == 7 * mr.SECOND


def test_a_record_exactly_as_old_as_the_delay_allows_is_not_late():
    published = mr.BoundedDelay(10).published_us(ProcessState(100), 0)

    assert [at < published for at in (89, 90, 91)] == [True, False, False]


def test_nothing_read_publishes_nothing():
    assert mr.BoundedDelay("3 s").published_us(ProcessState(), 0) == mr.MIN_TIMESTAMP


@pytest.mark.parametrize("delay", ["5 s", 5_000_000, dt.timedelta(seconds=5)], ids=repr)
def test_a_delay_may_be_written_in_every_way(delay):
    policy = mr.BoundedDelay(delay)

    assert policy == mr.BoundedDelay("5 s")
    assert hash(policy) == hash(mr.BoundedDelay("5 s"))
    assert pickle.loads(pickle.dumps(policy)) == policy


def test_a_negative_delay_would_lead_the_input_and_is_refused():
    with pytest.raises(mr.MillraceError, match="is not a duration"):
        mr.BoundedDelay(-1)


def test_a_bounded_delay_is_a_policy():
    assert isinstance(mr.BoundedDelay(0), LowWatermarkPolicy)


def test_a_policy_reads_as_it_is_written() -> None:
    assert repr(mr.BoundedDelay("1 min")) == "BoundedDelay('1 min')"
    assert repr(mr.BoundedDelay(1_500)) == "BoundedDelay(1500)"
    assert repr(mr.ArrivalTime("2 s")) == "ArrivalTime('2 s', every='5 s')"
    assert eval(repr(mr.BoundedDelay("90 s")), vars(mr)) == mr.BoundedDelay("90 s")
