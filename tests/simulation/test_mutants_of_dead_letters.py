"""Bugs planted into dead letters that are sent again: one counts twice, or is lost.

The programs of the simulator have no sink that is read and sent from again, so these are found by
scripts of their own, :func:`dead_letters.play`: both planes, crashes, and senders that die.
"""

import dead_letters
import pytest
from msgspec.structs import replace

from millrace.epochlog.run_log import RunLog
from millrace.injectors.dead_letters import LetterLog, Letters
from millrace.kernel.router import Router
from millrace.kernel.user_errors import Provenance

#: Mutant -> a script that finds it.
SEEDS = {}


def found_by(seed):
    def note(plant):
        SEEDS[plant] = seed
        return plant

    return note


@found_by(0)
def nobody_knows_what_was_sent(patch):
    patch.setattr(LetterLog, "ids", lambda *_: set())


@found_by(0)
def the_last_message_is_read_again(patch):
    read = Letters.read
    patch.setattr(
        Letters,
        "read",
        lambda self, process, start, end: read(self, process, max(0, (start or 0) - 1), end),
    )


@found_by(0)
def the_last_of_several_messages_is_passed_over(patch):
    read = Letters.read
    patch.setattr(
        Letters,
        "read",
        lambda self, process, start, end: read(
            self, process, start, end - (end - (start or 0) > 1)
        ),
    )


@found_by(0)
def who_sends_remembers_the_last_message_only(patch):
    ids = LetterLog.ids
    patch.setattr(LetterLog, "ids", lambda self, since=0: ids(self, max(since, self.last() - 1)))


@found_by(0)
def all_consumers_get_a_letter(patch):
    send = Router.send_letter
    patch.setattr(
        Router,
        "send_letter",
        lambda self, productions, letter, at_us: send(
            self, productions, replace(letter, computation=""), at_us
        ),
    )


@found_by(0)
def an_epoch_forgets_which_letters_it_read(patch):
    complete = RunLog.complete

    def forgets(self, *given, source_offsets=None, **rest):
        source_offsets = dict(source_offsets or {})
        if dead_letters.AGAIN in source_offsets:
            source_offsets[dead_letters.AGAIN] = {
                name: replace(place, offset=0)
                for name, place in source_offsets[dead_letters.AGAIN].items()
            }
        return complete(self, *given, source_offsets=source_offsets, **rest)

    patch.setattr(RunLog, "complete", forgets)


@found_by(0)
def what_fails_again_is_no_letter_that_can_be_sent(patch):
    encoded = Provenance.encoded
    met = set()

    def once(self, stream, computation, value, key):
        found = encoded(self, stream, computation, value, key)
        if computation and found in met:
            return b""
        met.add(found)
        return found

    patch.setattr(Provenance, "encoded", once)


@pytest.mark.parametrize("plant", SEEDS, ids=lambda plant: plant.__name__)
def test_the_bug_is_found(plant, monkeypatch):
    plant(monkeypatch)

    with pytest.raises(AssertionError):
        dead_letters.play(SEEDS[plant])


@pytest.mark.parametrize("seed", sorted(set(SEEDS.values())))
def test_no_script_fails_without_a_bug(seed):
    dead_letters.play(seed)
