"""Bugs planted into the change of a pipeline that runs: a definition or the oracle finds each."""

import pytest
from msgspec.structs import replace

from millrace.compile.change import schemas
from millrace.compile.change.plan import PartChange
from millrace.kernel.migration import Reshaping
from millrace.watermark.authority import Authority
from simulation.changes import ChangingSimulation

#: Mutant -> where it was found last, and whether without any fault.
PLANTED = {}


def found_at(seed, *, calm):
    def note(plant):
        PLANTED[plant] = seed, calm
        return plant

    return note


@found_at(1, calm=True)
def a_migration_is_known_by_the_cells_name_only(patch):
    patch.setattr(schemas, "_done", lambda known, _: {*known.done})


@found_at(0, calm=True)
def values_that_nobody_asks_for_are_not_made_anew(patch):
    run = Reshaping.run

    def only_shown(self, work, view):
        return {}, run(self, work, view)[1]

    patch.setattr(Reshaping, "run", only_shown)


@found_at(1, calm=True)
def rows_are_taken_to_have_the_last_shape_after_a_start(patch):
    restore = Authority.restore

    def newest(self, low_watermarks, reports, sequencer):
        said = {
            name: {n: replace(one, version=99) for n, one in of.items()}
            for name, of in reports.items()
        }
        restore(self, low_watermarks, said, sequencer)

    patch.setattr(Authority, "restore", newest)


@found_at(0, calm=False)
def an_epoch_is_finished_by_another_version(patch):
    patch.setattr(PartChange, "while_unfinished", lambda self, _: self)


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_the_simulator_finds(plant, monkeypatch, found):
    first, calm = PLANTED[plant]
    assert ChangingSimulation(first, calm=True).run().violation is None
    plant(monkeypatch)
    assert (ChangingSimulation(first, calm=True).run().violation is not None) == calm
    found(plant, first, ChangingSimulation)
