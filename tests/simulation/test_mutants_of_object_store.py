"""Bugs planted into how an object store is used: the simulator finds each of them."""

import pytest
from obstore import exceptions

from millrace.model.errors import CheckpointUnwritable
from millrace.store import EpochLog, ObjectBlobs
from simulation import Simulation

#: Mutant -> the schedule that found it last, to look there first.
MUTANTS = {}


def mutant(first):
    def note(plant):
        MUTANTS[plant] = first
        return plant

    return note


def puts(patch, attempt):
    """Have a conditional put made by a function of bucket, name and data."""

    def put_if_absent(self, name, data):
        return self._tried("put", name, lambda: attempt(self, name, data), CheckpointUnwritable)

    patch.setattr(ObjectBlobs, "put_if_absent", put_if_absent)


@mutant(53)
def a_put_has_no_condition(patch):
    def attempt(self, name, data):
        self._store.put(name, data, use_multipart=False)
        return True

    puts(patch, attempt)


@mutant(375)
def a_name_that_is_taken_after_a_lost_answer_is_taken_for_its_own(patch):
    def put_if_absent(self, name, data):
        tries = []

        def attempt():
            tries.append(name)
            try:
                self._store.put(name, data, mode="create", use_multipart=False)
            except exceptions.AlreadyExistsError:
                return len(tries) > 1 or self._get(name) == data
            return True

        return self._tried("put", name, attempt, CheckpointUnwritable)

    patch.setattr(ObjectBlobs, "put_if_absent", put_if_absent)


@mutant(175)
def its_own_put_is_taken_for_another_s(patch):
    def attempt(self, name, data):
        try:
            self._store.put(name, data, mode="create", use_multipart=False)
        except exceptions.AlreadyExistsError:
            return False
        return True

    puts(patch, attempt)
    # By itself that is made good: who writes the epoch log knows an entry of its own.
    patch.setattr(EpochLog, "has", lambda *_: False)


@mutant(53)
def a_request_without_an_answer_is_taken_for_done(patch):
    def attempt(self, name, data):
        try:
            self._store.put(name, data, mode="create", use_multipart=False)
        except exceptions.AlreadyExistsError:
            return self._get(name) == data
        except exceptions.GenericError:
            return True
        return True

    puts(patch, attempt)


@mutant(472)
def a_failing_read_is_taken_for_nothing_there(patch):
    tried = ObjectBlobs._tried

    def give_up(self, verb, name, attempt, *kind):
        if verb != "get":
            return tried(self, verb, name, attempt, *kind)
        try:
            return attempt()
        except exceptions.BaseError:
            return None

    patch.setattr(ObjectBlobs, "_tried", give_up)


@pytest.mark.parametrize("plant", MUTANTS, ids=lambda plant: plant.__name__)
def test_the_simulator_finds(plant, monkeypatch, found):
    plant(monkeypatch)
    for seed in range(3):
        calm = Simulation(seed, calm=True).run().violation
        assert calm is None, "without faults it must do no harm"
    found(plant, MUTANTS[plant])
