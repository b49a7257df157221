"""Bugs planted into joins without windows: their definition finds each of them, on both planes."""

from millrace.dataflow.joins.interval_join import JoinByKeyAndTime
from millrace.dataflow.joins.join_state import InMaps, InOneRow, Nearness
from millrace.model.time import SECOND
from tests.kit.planted_bugs import PlantedBugs

BUGS = PlantedBugs()
found_by = BUGS.found_by


@found_by(120, 35)
def a_pair_at_the_far_end_is_missed(patch):
    offsets = Nearness.offsets

    def less(self, side):
        first, end = offsets(self, side)
        return first, None if end is None else end - SECOND

    patch.setattr(Nearness, "offsets", less)


@found_by(20, 208)
def a_value_that_meets_one_after_all_is_not_taken_back(patch):
    send = JoinByKeyAndTime._send_alone

    def forget(self, side, value, at_us, *, retraction=False):
        if not retraction:
            send(self, side, value, at_us)

    patch.setattr(JoinByKeyAndTime, "_send_alone", forget)


@found_by(1237, 368)
def values_are_forgotten_too_soon(patch):
    wait_us = JoinByKeyAndTime._wait_us

    def soon(self, side):
        found = wait_us(self, side)
        return None if found is None else found // 2 - self.nearness.lateness_us

    patch.setattr(JoinByKeyAndTime, "_wait_us", soon)


@found_by(20, 28)
def values_of_one_time_replace_one_another(patch):
    for place in (InOneRow, InMaps):

        def alone(self, side, at_us, kept, add=place.add):
            if self.at(side, at_us):
                self.remove(side, at_us)
            add(self, side, at_us, kept)

        patch.setattr(place, "add", alone)


@found_by(20, 35)
def a_partner_that_was_met_is_said_to_be_alone(patch):
    add = JoinByKeyAndTime._add

    def uncounted(self, side, value, at_us):
        lonely, self._pairs_with_none = (
            self._pairs_with_none,
            tuple(each and which == side for which, each in enumerate(self._pairs_with_none)),
        )
        try:
            add(self, side, value, at_us)
        finally:
            self._pairs_with_none = lonely

    patch.setattr(JoinByKeyAndTime, "_add", uncounted)


@found_by(211, 20)
def what_goes_from_a_row_to_maps_is_not_awaited(patch):
    to_maps = JoinByKeyAndTime._to_maps

    def unheard(self, row):
        with patch.context() as unset:
            unset.setattr(self, "_await", lambda *_: None)
            to_maps(self, row)

    patch.setattr(JoinByKeyAndTime, "_to_maps", unheard)


@found_by(211, 20)
def a_key_of_maps_begins_a_row_beside_them(patch):
    kept = JoinByKeyAndTime._kept

    def beside(self):
        found = kept(self)
        return InOneRow({}, {}) if isinstance(found, InMaps) and self.row_weight else found

    patch.setattr(JoinByKeyAndTime, "_kept", beside)


@BUGS.on_each_plane
def test_the_definition_finds(plant, plane, seed, monkeypatch):
    assert plane(seed, calm=True).run().violation is None
    plant(monkeypatch)
    violation = plane(seed, calm=True).run().violation
    assert violation is not None, "nothing was noticed"
    assert violation.startswith("Wrong"), violation
