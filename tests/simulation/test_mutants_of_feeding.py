"""Bugs planted into what feeds pipelines beside records with a time: faults bring them out."""

from millrace.compile.topology import ComputationSpec
from millrace.epochlog.run_log import RunLog
from millrace.injectors.signal_injector import SignalInjector, _name, calls_in
from millrace.injectors.watermark_policy import ArrivalTime
from millrace.runtime.realtime.source_progress import IngressTimes
from millrace.runtime.rows import Outbox
from tests.kit.planted_bugs import PlantedBugs

BUGS = PlantedBugs()
found_by = BUGS.found_by


# -- event time by ingress -------------------------------------------------------------------------


@found_by(None, 10099)
def when_records_came_is_not_written_down(patch):
    # A crash between reading and consuming, and a clock that has gone on: then who had consumed
    # them already and who had not do not agree on their time.
    stamp = IngressTimes.stamp

    def forget(self, *arguments):
        stamp(self, *arguments)
        return False

    patch.setattr(IngressTimes, "stamp", forget)


@found_by(None, 10030)
def what_is_read_again_holds_nothing_back(patch):
    patch.setattr(IngressTimes, "pending_us", lambda *_: 1 << 62)


@found_by(None, 10302)
def when_records_came_is_forgotten_before_the_mark_is_complete(patch):
    def passed(self, counts):
        self.stamps, self._counts = IngressTimes(self.stamps, counts).stamps, counts

    patch.setattr(IngressTimes, "passed", passed)


@found_by(10003, None)
def an_epoch_that_is_made_again_has_another_time(patch):
    begin = RunLog.planned

    def again(self, epoch, *, wall_time_us, **how):
        was = self.open
        manifest = begin(self, epoch, wall_time_us=wall_time_us, **how)
        if was is not None:
            manifest.wall_time_us = wall_time_us
        return manifest

    patch.setattr(RunLog, "planned", again)


@found_by(10002, 10002)
def the_low_watermark_is_ahead_of_the_clock(patch):
    published_us = ArrivalTime.published_us
    patch.setattr(
        ArrivalTime, "published_us", lambda self, *how: published_us(self, *how) + 600_000_000
    )


# -- calls and signals -----------------------------------------------------------------------------


@found_by(10014, 10042)
def a_call_is_removed_before_it_is_sure_to_be_read(patch):
    looked = SignalInjector._looked

    def hasty(self, offset):
        found = looked(self, offset)
        calls = {_name(self._stream, n): n for n in calls_in(self._mailbox, self._stream)}
        self._mailbox.remove([name for name, n in calls.items() if n <= found[0]])
        return found

    patch.setattr(SignalInjector, "_looked", hasty)


@found_by(10004, None)
def a_signal_for_every_key_comes_to_one_interval_only(patch):
    make = Outbox.__init__

    def less(self, *arguments, **how):
        make(self, *arguments, **how)
        self._everywhere = {edge: hashes[:1] for edge, hashes in self._everywhere.items()}

    patch.setattr(Outbox, "__init__", less)


# -- timers alone ----------------------------------------------------------------------------------


@found_by(10024, 10051)
def a_timer_does_not_hold_what_nothing_else_feeds(patch):
    patch.setattr(ComputationSpec, "fed_by_timers", property(lambda _: False))


@BUGS.on_each_plane
def test_a_schedule_finds(plant, plane, seed, monkeypatch, found):
    assert plane(seed).run().violation is None
    plant(monkeypatch)
    found(plant, seed, plane)
