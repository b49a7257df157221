"""Bugs planted into blocks of keys: schedules whose user code fails bring them out."""

from millrace.kernel.blocks import BlockMachine, KeyBlockMachine
from millrace.kernel.machine import CAUGHT
from millrace.runtime import commit_writer
from tests.kit.planted_bugs import PlantedBugs

BUGS = PlantedBugs()
found_by = BUGS.found_by


@found_by(25001, 25004)
def what_a_block_sent_before_it_failed_stays(patch):
    run = BlockMachine._run_together

    def untidy(self, bundle, parts, stored):
        if len(parts) == 1:
            run(self, bundle, parts, stored)
            return
        try:
            written = self._answer(bundle, parts, stored)
        except CAUGHT:
            half = len(parts) // 2
            untidy(self, bundle, parts[:half], stored[:half])
            untidy(self, bundle, parts[half:], stored[half:])
        else:
            self._rows.mutations.update(written)
            self._note_late_records(bundle, parts)

    patch.setattr(BlockMachine, "_run_together", untidy)


@found_by(25002, 25006)
def state_of_a_block_is_kept_before_all_of_it_is_sent(patch):
    send = KeyBlockMachine._send_block

    def early(self, block, parts):
        self._rows.mutations.update(self._changed(block, parts, [None] * len(parts)))
        send(self, block, parts)

    patch.setattr(KeyBlockMachine, "_send_block", early)


@found_by(25000, 25002)
def the_state_of_a_key_goes_to_its_neighbour(patch):
    changed = KeyBlockMachine._changed

    def crossed(self, block, parts, stored):
        return changed(self, block, [*parts[1:], parts[0]], [*stored[1:], stored[0]])

    patch.setattr(KeyBlockMachine, "_changed", crossed)


@found_by(25000, 25000)
def half_of_a_block_that_fails_is_lost(patch):
    run = BlockMachine._run_together

    def halved(self, bundle, parts, stored):
        if len(parts) > 1:
            try:
                self._answer(bundle, parts, stored)
            except CAUGHT:
                parts, stored = parts[: len(parts) // 2], stored[: len(parts) // 2]
            self._calls.productions.truncate(0)
        run(self, bundle, parts, stored)

    patch.setattr(BlockMachine, "_run_together", halved)


@found_by(25001, 25002)
def late_records_of_a_block_are_not_counted(patch):
    patch.setattr(BlockMachine, "_note_late_records", lambda *_: None)


@found_by(25002, None)
def what_blocks_produced_is_not_sent_again(patch):
    replay = commit_writer.replay

    def forgotten(*arguments):
        result, productions = replay(*arguments)
        if result.computation == "Draw":
            productions.truncate(0)
        return result, productions

    patch.setattr(commit_writer, "replay", forgotten)


@BUGS.on_each_plane
def test_a_schedule_finds(plant, plane, seed, monkeypatch, found):
    assert plane(seed).run().violation is None
    plant(monkeypatch)
    found(plant, seed, plane)
