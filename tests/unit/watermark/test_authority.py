"""The authority: minimum over senders, never moving back, across epochs and restarts."""

import pytest

import millrace as mr
from millrace.model.errors import ZombieWriter
from millrace.watermark.authority import Authority
from millrace.watermark.report import NOTHING_PENDING, Report


class Upper(mr.Computation):
    inputs = {"one": mr.by_key()}
    outputs = {"upper": int}

    def process_record(self, record):
        pass


class Lower(Upper):
    inputs = {"upper": mr.by_key(), "two": mr.by_key()}
    outputs = {}


@pytest.fixture
def topology():
    p = mr.Pipeline("p")
    p.inject("one")
    p.inject("two")
    p.add(Upper)
    p.add(Lower)
    return p.build()


@pytest.fixture
def authority(topology):
    made = Authority(topology)
    for name in ("Upper", "Lower"):
        made.cover(name, range(4))
        made.bulletins[name].restore(dict.fromkeys(range(4), NOTHING_PENDING))
    return made


def advance(authority, injectors, reports, sequencer=(1, 0)):
    return authority.advance(injectors, reports, sequencer)


def test_low_watermarks_start_before_time(authority):
    assert set(authority.low_watermarks.inputs.values()) == {mr.MIN_TIMESTAMP}
    assert set(authority.low_watermarks.outputs.values()) == {mr.MIN_TIMESTAMP}


def test_every_level_moves_at_once(authority):
    after = advance(authority, {"one": 50, "two": 80}, {})

    assert after.inputs == {"Upper": 50, "Lower": 50}


def test_an_injector_that_is_missing_holds_its_last_value(authority):
    advance(authority, {"one": 50, "two": 80}, {})

    assert advance(authority, {"one": 100}, {}).inputs == {"Upper": 100, "Lower": 80}


def test_an_injector_that_moves_back_is_held(authority):
    advance(authority, {"one": 50, "two": 80}, {})

    assert advance(authority, {"one": 10, "two": 80}, {}).inputs == {"Upper": 50, "Lower": 50}


def test_an_interval_that_did_not_report_keeps_its_last_report(authority):
    advance(authority, {"one": 50, "two": 80}, {"Upper": {0: Report(hold_us=20)}})
    after = advance(authority, {"one": 60, "two": 80}, {"Upper": {1: NOTHING_PENDING}})

    assert after.outputs["Upper"] == after.inputs["Lower"] == 20


def test_work_that_appears_below_an_output_does_not_take_it_back(authority):
    advance(authority, {"one": 50, "two": 80}, {})
    after = advance(authority, {"one": 50, "two": 80}, {"Upper": {0: Report(hold_us=20)}})

    assert after.outputs["Upper"] == 50


def test_the_next_wall_timer_is_the_earliest_of_all_intervals(authority):
    assert authority.next_wall_timer_us() == mr.MAX_TIMESTAMP

    advance(
        authority,
        {},
        {"Upper": {0: Report(wall_timer_us=30)}, "Lower": {3: Report(wall_timer_us=20)}},
    )
    assert authority.next_wall_timer_us() == 20


def test_a_restart_finds_what_was_known(authority, topology):
    advance(authority, {"one": 50, "two": 80}, {"Upper": {0: Report(hold_us=20)}})
    restarted = Authority(topology)
    restarted.cover("Upper", range(4))
    restarted.cover("Lower", range(4))
    restarted.restore(authority.low_watermarks, authority.reports, (1, 0))

    assert restarted.low_watermarks == authority.low_watermarks
    assert restarted.report("Upper", 0) == Report(hold_us=20)
    assert restarted.report("Upper", 1) == NOTHING_PENDING


def test_until_every_interval_has_reported_nothing_new_is_shown(topology):
    authority = Authority(topology)
    authority.cover("Upper", [0, 1])
    assert advance(authority, {"one": 50}, {"Upper": {0: NOTHING_PENDING}}).outputs["Upper"] == (
        mr.MIN_TIMESTAMP
    )
    assert authority.bulletins["Upper"].missing() == [1]

    assert advance(authority, {}, {"Upper": {1: Report(hold_us=40)}}).outputs["Upper"] == 40
    assert authority.bulletins["Upper"].missing() == []


def test_an_interval_that_was_split_off_pins_the_last_value_until_it_reports(authority):
    advance(authority, {"one": 50}, {})
    authority.cover("Upper", [0, 1, 2, 4, 5])  # 3 was split in two

    assert advance(authority, {"one": 60}, {"Upper": {4: NOTHING_PENDING}}).outputs["Upper"] == 50
    after = advance(authority, {}, {"Upper": {5: Report(hold_us=55)}})
    assert after.outputs["Upper"] == 55


def test_intervals_that_stay_in_the_map_keep_their_reports(authority):
    advance(authority, {"one": 90}, {"Upper": {2: Report(hold_us=20, wall_timer_us=7)}})
    authority.cover("Upper", [2])

    assert authority.bulletins["Upper"].oldest_work_us == 20
    assert authority.next_wall_timer_us() == 7


@pytest.mark.parametrize("older", [(1, 9), (2, 3)])
def test_a_zombies_report_is_refused_whole(authority, older):
    advance(authority, {"one": 50}, {"Upper": {1: Report(hold_us=30)}}, (2, 4))
    with pytest.raises(ZombieWriter, match=r"interval 1 of 'Upper', but generation 2, epoch 4"):
        advance(authority, {}, {"Upper": {0: Report(hold_us=1), 1: NOTHING_PENDING}}, older)

    assert authority.report("Upper", 0) == NOTHING_PENDING
    assert authority.report("Upper", 1) == Report(hold_us=30)


def test_an_owner_may_report_again(authority):
    advance(authority, {"one": 50}, {"Upper": {1: Report(hold_us=30)}}, (2, 4))

    assert advance(authority, {}, {"Upper": {1: Report()}}, (2, 4)).outputs["Upper"] == 50


def test_after_a_restart_a_report_from_before_it_is_refused(authority, topology):
    advance(authority, {"one": 50}, {"Upper": {1: Report(hold_us=30)}}, (2, 4))
    restarted = Authority(topology)
    restarted.cover("Upper", range(4))
    restarted.cover("Lower", range(4))
    restarted.restore(authority.low_watermarks, authority.reports, (2, 4))

    with pytest.raises(ZombieWriter):
        advance(restarted, {}, {"Upper": {1: NOTHING_PENDING}}, (2, 3))


def test_a_report_on_an_interval_that_is_gone_is_refused(authority):
    authority.cover("Upper", [4, 5])
    with pytest.raises(ZombieWriter, match="interval 0 of 'Upper', which the interval map no long"):
        advance(authority, {}, {"Upper": {0: NOTHING_PENDING}})
