"""Bugs planted into how an object store is used: the simulator finds each of them."""

import pytest
from msgspec import structs
from obstore import exceptions

from millrace.model.errors import CheckpointUnwritable
from millrace.store import ObjectBlobs
from millrace.store.object_segments import ObjectSegments, SegmentCommits
from millrace.windmill.epochs import Epochs
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


@mutant(1196)
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


@mutant(389)
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


@mutant(193)
def the_loser_of_a_segment_takes_itself_for_the_winner(patch):
    append = SegmentCommits.append
    patch.setattr(SegmentCommits, "append", lambda *a: [True] * len(append(*a)))


@mutant(22)
def an_epoch_is_tried_again_with_another_number_of_tasks(patch):
    begin = Epochs.begin

    def anew(self, epoch, **said):
        manifest = begin(self, epoch, **said)
        return manifest and structs.replace(manifest, tasks=said["tasks"])

    patch.setattr(Epochs, "begin", anew)


@mutant(5186)
def a_segment_goes_with_the_first_commit_that_may(patch):
    def remove_to(self, interval, number):
        self.refresh()
        line = self._lines.get(interval)
        gone = {*line.forget_to(number)} if line is not None else set()
        self._bucket.remove(self._segments[key].name for key in gone)
        self._forget(gone)

    patch.setattr(ObjectSegments, "remove_to", remove_to)


@pytest.mark.parametrize("plant", MUTANTS, ids=lambda plant: plant.__name__)
def test_the_simulator_finds(plant, monkeypatch, found):
    plant(monkeypatch)
    for seed in range(3):
        calm = Simulation(seed, calm=True).run().violation
        assert calm is None, "without faults it must do no harm"
    found(plant, MUTANTS[plant])
