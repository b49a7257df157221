"""Bugs planted into what keeps calls few: the simulator sees sources that read on, or never again.

Within an epoch the source waits by itself: there, no more calls than may be are in flight.
"""

from millrace.runtime.call_pool import CallPool
from millrace.runtime.calls import TaskCalls
from millrace.runtime.realtime.coordinator import Coordinator
from millrace.runtime.realtime.injector_task import InjectorTask
from tests.kit.planted_bugs import PlantedBugs

BUGS = PlantedBugs()
found_by = BUGS.found_by


@found_by(None, 30000)
def tasks_never_say_that_they_are_full(patch):
    patch.setattr(TaskCalls, "is_full", lambda *_: False)


@found_by(None, 30000)
def records_that_wait_for_others_of_their_key_do_not_count(patch):
    is_full = TaskCalls.is_full

    def without(self, was):
        kept, self.kept = self.kept, 0
        try:
            return is_full(self, was)
        finally:
            self.kept = kept

    patch.setattr(TaskCalls, "is_full", without)


@found_by(None, 30008)
def a_task_with_room_speaks_for_all_others(patch):
    pressed = Coordinator._pressed

    def alone(self, where, message):
        self._full.clear()
        return pressed(self, where, message)

    patch.setattr(Coordinator, "_pressed", alone)


@found_by(None, 30000)
def a_source_does_not_wait(patch):
    patch.setattr(InjectorTask, "_hold_back", lambda _: None)


@found_by(None, 30000)
def a_pause_never_ends(patch):
    is_full = TaskCalls.is_full
    patch.setattr(TaskCalls, "is_full", lambda self, was: was or is_full(self, was))


@found_by(30000, 30008)
def one_call_too_many_is_in_flight(patch):
    make = CallPool.__init__

    def generous(self, *arguments, **how):
        make(self, *arguments, **how)
        self._most += 1

    patch.setattr(CallPool, "__init__", generous)


@BUGS.on_each_plane
def test_a_schedule_finds(plant, plane, seed, monkeypatch, found):
    assert plane(seed).run().violation is None
    plant(monkeypatch)
    found(plant, seed, plane)
