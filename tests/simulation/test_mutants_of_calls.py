"""Bugs planted into calls: schedules whose calls return in any order bring them out."""

import pytest
from msgspec.structs import replace

from millrace.balance import transfer
from millrace.kernel import calls as kernel_calls
from millrace.kernel import row_codec, timer_families
from millrace.kernel.calls import CallHooks
from millrace.kernel.machine import Effects
from millrace.kernel.timers import KeyTimers
from millrace.model.time import MAX_TIMESTAMP
from millrace.runtime import level_task
from millrace.runtime.call_pool import CallPool
from millrace.runtime.calls import CallRounds, TaskCalls
from millrace.runtime.realtime.host import IncarnationHost
from millrace.runtime.retries import Retries
from simulation.realtime import RealtimeRemapping
from tests.kit.planted_bugs import PlantedBugs

BUGS = PlantedBugs()
found_by = BUGS.found_by


# -- pending records -------------------------------------------------------------------------------


@found_by(15000, 15002)
def an_outcome_is_applied_twice(patch):
    take = TaskCalls.take

    def twice(self, *arguments):
        outcomes, again = take(self, *arguments)
        return {interval: [*of, *of] for interval, of in outcomes.items()}, again

    pop, popped = CallHooks._pop, {}

    def still(self, name):
        at = self._rows.key_row, name
        found = pop(self, name)
        if found is None:
            return popped.get(at)
        popped[at] = found
        return found

    patch.setattr(TaskCalls, "take", twice)
    patch.setattr(CallHooks, "_pop", still)


@found_by(None, 15000)
def pending_calls_are_not_made_again_after_a_restart(patch):
    begin = level_task.calls_of

    def forgetful(*arguments):
        found = begin(*arguments)
        for calls in found.values():
            calls._again.clear()
        return found

    patch.setattr(level_task, "calls_of", forgetful)


@found_by(15000, 15003)
def an_outcome_is_given_to_another_record_of_its_key(patch):
    take = CallHooks._take

    def crossed(self, outcome):
        first = self._first()
        if first is not None:
            source = replace(outcome.call.source, name=first[0])
            outcome = replace(outcome, call=replace(outcome.call, source=source))
        take(self, outcome)

    patch.setattr(CallHooks, "_take", crossed)


@found_by(None, 15000)
def pending_calls_of_a_key_are_not_counted(patch):
    patch.setattr(timer_families, "count_calls", lambda _: {})


@found_by(None, 15002)
def the_low_watermark_is_not_held(patch):
    set_timer = KeyTimers.set

    def loose(self, tag, domain, setting):
        at_us, hold_us, percentile = setting
        if kernel_calls.timer_families.is_call(tag):
            hold_us = None
        set_timer(self, tag, domain, (at_us, hold_us, percentile))

    patch.setattr(KeyTimers, "set", loose)


@found_by(15000, 15000)
def the_next_of_a_key_is_asked_before_the_one_before_is_answered(patch):
    make = CallHooks.__init__

    def hasty(self, *arguments):
        make(self, *arguments)
        self._one_by_one = False

    patch.setattr(CallHooks, "__init__", hasty)


# -- within an epoch -------------------------------------------------------------------------------


@found_by(15000, None)
def a_response_does_not_see_what_the_one_before_wrote(patch):
    patch.setattr(Effects, "over", lambda _, view: view)


@found_by(15000, None)
def what_a_response_changes_is_left_out_of_the_commit(patch):
    patch.setattr(Effects, "then", lambda *_: None)


@found_by(15000, None)
def an_epoch_ends_before_its_calls_have_returned(patch):
    patch.setattr(CallRounds, "finish", lambda _: None)


# -- a drain ---------------------------------------------------------------------------------------


@found_by(None, 15002)
def a_drain_does_not_wait_for_calls(patch):
    patch.setattr(IncarnationHost, "_waits_for_calls", lambda _: False)


# -- attempts, where a pool as in production makes them --------------------------------------------


@found_by(20000, 20001)
def failures_that_the_breaker_meets_while_it_is_open_count_as_retries(patch):
    fails = Retries._fails

    def counted(self, *arguments):
        fails(self, *arguments)
        return False

    patch.setattr(Retries, "_fails", counted)


@found_by(20000, 20000)
def a_timeout_is_not_retried(patch):
    failed = Retries.failed

    def final(self, error, **how):
        again = failed(self, error, **how)
        return None if isinstance(error, TimeoutError) else again

    patch.setattr(Retries, "failed", final)


@found_by(20000, None)
def a_call_is_forgotten_in_its_pause(patch):
    patch.setattr(CallPool, "_returns", lambda *_: None)


@found_by(20000, 20000)
def a_retry_asks_for_another_record(patch):
    begin = CallPool._begin

    def crossed(self, calls, now_s):
        waiting = [one for one in self._unanswered if one not in calls]
        if calls[0].attempts and waiting:
            call, other = calls[0].call, waiting[0].call
            calls[0].call = replace(call, request=other.request)
        return begin(self, calls, now_s)

    patch.setattr(CallPool, "_begin", crossed)


# -- remaps, while calls are pending ---------------------------------------------------------------

REMAPS = {}


def remapped(seed):
    def note(plant):
        REMAPS[plant] = seed
        return plant

    return note


@remapped(15000)
def pending_calls_stay_behind_when_their_keys_move(patch):
    of_range = transfer.of_range
    pending = timer_families._CLOCKS[1] + row_codec.time8(MAX_TIMESTAMP)

    def without_calls(*of):
        return (pair for pair in of_range(*of) if not pair[0].startswith(pending))

    patch.setattr(transfer, "of_range", without_calls)


@pytest.mark.parametrize("plant", [pytest.param(p, id=p.__name__) for p in REMAPS])
def test_a_schedule_with_remaps_finds(plant, monkeypatch, found):
    assert RealtimeRemapping(REMAPS[plant]).run().violation is None
    plant(monkeypatch)
    found(plant, REMAPS[plant], RealtimeRemapping)


@BUGS.on_each_plane
def test_a_schedule_finds(plant, plane, seed, monkeypatch, found):
    assert plane(seed).run().violation is None
    plant(monkeypatch)
    found(plant, seed, plane)
