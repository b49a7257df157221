"""Bugs planted into operations beside windows: their definitions find each, on both planes."""

from millrace.dataflow.aggregations.several import Several
from millrace.dataflow.element_types import Picks
from millrace.dataflow.joins.table_join import EnrichByKey, Lookup
from millrace.kernel.cells import BoundMap, CellExpiry, ExpiringMap
from millrace.kernel.side_tables import BoundSide
from millrace.kernel.timers import KeyTimers
from millrace.model.stream import OfRecord
from millrace.runtime.rows import Outbox
from tests.kit.planted_bugs import PlantedBugs

BUGS = PlantedBugs()
found_by = BUGS.found_by


# -- a table that changes --------------------------------------------------------------------------


@found_by(5042, None)
def a_row_goes_that_a_value_waits_for(patch):
    # As it was, until the simulator found it.
    patch.setattr(EnrichByKey, "_asked_us", lambda self: self.low_watermark - self.lateness_us)


@found_by(5001, 5007)
def a_value_that_waited_gets_the_newest_row(patch):
    answer = EnrichByKey._answer

    def newest(self, value, at_us, row_us, **how):
        answer(self, value, at_us, self._row_at(None), **how)

    patch.setattr(EnrichByKey, "_answer", newest)


@found_by(5015, 5015)
def a_row_stands_though_it_expired(patch):
    answer = EnrichByKey._answer

    def stands(self, value, at_us, row_us, **how):
        expires_us, self.expires_us = self.expires_us, None
        try:
            answer(self, value, at_us, row_us, **how)
        finally:
            self.expires_us = expires_us

    patch.setattr(EnrichByKey, "_answer", stands)


# -- a table that does not -------------------------------------------------------------------------


@found_by(5034, 5047)
def a_value_without_a_row_is_paired_whatever_was_said(patch):
    look = Lookup.__call__
    patch.setattr(Lookup, "__call__", lambda self, value: look(self, value) or [(value, None)])


@found_by(5121, None)
def a_row_is_remembered_for_the_next_value(patch):
    look = Lookup.__call__

    def remember(self, value):
        found = look(self, value)
        if found and found[0][1] is None:
            found = [(value, getattr(self, "_last", None))]
        elif found:
            self._last = found[0][1]
        return found

    patch.setattr(Lookup, "__call__", remember)


# -- several aggregates ----------------------------------------------------------------------------


@found_by(5002, 5001)
def what_one_filter_lets_pass_counts_for_all(patch):
    pick = Picks.__call__

    def lax(self, element):
        picked = pick(self, element)
        count = len(self.wheres)
        return picked[:-count] + (any(picked[-count:]),) * count if count else picked

    patch.setattr(Picks, "__call__", lax)


@found_by(5017, 5008)
def what_comes_to_one_that_had_nothing_is_lost(patch):
    merge = Several.merge

    def lose(self, accumulator, other):
        merged = merge(self, accumulator, other)
        return [
            None if one is None else both for one, both in zip(accumulator, merged, strict=True)
        ]

    patch.setattr(Several, "merge", lose)


# -- keys after a grouping -------------------------------------------------------------------------


@found_by(5019, None)
def a_step_is_not_asked_about_what_takes_back(patch):
    call = OfRecord.__call__
    last = {}

    def stale(self, element):
        if element.pane is not None and element.pane.retraction:
            return last.get(self.function, call(self, element))
        last[self.function] = found = call(self, element)
        return found

    patch.setattr(OfRecord, "__call__", stale)


# -- what cells keep -------------------------------------------------------------------------------


@found_by(5021, None)
def a_later_write_moves_expiry_back(patch):
    prolong = KeyTimers.set

    def back(self, tag, domain, at_us):
        prolong(self, tag, domain, (at_us, None, 100))

    patch.setattr(KeyTimers, "prolong", back)


@found_by(5043, None)
def an_entry_that_expired_is_seen(patch):
    patch.setattr(ExpiringMap, "expire", lambda *_: None)


@found_by(5144, None)
def what_was_cleared_expires_as_if_it_had_not_been(patch):
    patch.setattr(CellExpiry, "gone", lambda *_: None)


@found_by(5009, 5019)
def a_range_ends_with_what_comes_after_it(patch):
    between = BoundMap.between

    def beyond(self, start=None, stop=None):
        return between(self, start, stop if stop is None else stop + 3_000_000)

    patch.setattr(BoundMap, "between", beyond)


# -- side inputs -----------------------------------------------------------------------------------


@found_by(5010, 5002)
def a_row_of_a_table_comes_to_one_interval_only(patch):
    make = Outbox.__init__

    def less(self, *arguments, **how):
        make(self, *arguments, **how)
        self._everywhere = {edge: hashes[:1] for edge, hashes in self._everywhere.items()}

    patch.setattr(Outbox, "__init__", less)


@found_by(5000, 5002)
def a_record_sees_rows_of_later_times(patch):
    visible_row = BoundSide._visible_row

    def seen(self, entry):
        as_of = self.as_of
        self.as_of = lambda: as_of() + 5_000_000
        try:
            return visible_row(self, entry)
        finally:
            self.as_of = as_of

    patch.setattr(BoundSide, "_visible_row", seen)


@found_by(5000, 5002)
def rows_of_a_table_go_too_early(patch):
    patch.setattr(BoundSide, "_wanted", lambda _, history: history[-1:])


@BUGS.on_each_plane
def test_the_definition_finds(plant, plane, seed, monkeypatch):
    assert plane(seed, calm=True).run().violation is None
    plant(monkeypatch)
    violation = plane(seed, calm=True).run().violation
    assert violation is not None, "nothing was noticed"
    # What comes to one interval too few is seen on the way in real time, before what comes of it.
    assert violation.startswith(("Wrong", "Difference")), violation
