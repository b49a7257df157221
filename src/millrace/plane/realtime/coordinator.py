"""The coordinator: sessions of live tasks, and the marks that they pass. It lives in the driver.

A mark is an epoch of the same epoch log: its manifest is written when the mark before it is
complete, its completion when every task has passed it. What is between two marks is, after a
failure, sent again and dropped where it is known.

It is driven by who hosts it: messages of tasks, the clock, and what was lost come in; messages for
tasks come out.

Source: MillWheel 6.2 and 7.2; docs/design/2026-11-22-the-real-time-plane.md.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec
from msgspec.structs import replace

from millrace.compile.topology import Topology
from millrace.model.errors import CheckpointMismatch, ZombieWriter
from millrace.plane.outcome import Outcome
from millrace.plane.realtime import note as notes
from millrace.plane.realtime.handover import Publishing, publish, to_live_tasks
from millrace.plane.realtime.messages import (
    FromTask,
    Halt,
    Hello,
    Mark,
    Over,
    Passed,
    Start,
    Told,
    ToTask,
)
from millrace.plane.task_sinks import Receipt
from millrace.store import Collectable, HardState, JournalName, Sealing
from millrace.windmill.epochs import Epochs
from millrace.windmill.manifest import Completion, LiveMark, Manifest, encode_entry
from millrace.windmill.place import Place

#: Level and number of a task.
Where = tuple[int, int]
#: What is to be sent to whom.
Orders = list[tuple[Where, ToTask]]


class Sources(Protocol):
    """What the coordinator must know of the injectors."""

    def processes(self) -> Mapping[str, Sequence[str]]:
        """Return injected stream -> names of the processes that there are now."""
        ...


@dataclass
class _Session:
    """One life of all tasks.

    Attributes:
        number: Of the session.
        begun_us: When it began.
        passed: Task -> what it said when it passed the mark under way.
        over: Tasks that have ended.
        mark: The mark under way; None if none is.
    """

    number: int
    begun_us: int
    passed: dict[Where, Passed] = field(default_factory=dict)
    over: set[Where] = field(default_factory=set)
    mark: Mark | None = None


@dataclass(frozen=True)
class Marked:
    """A mark that is complete."""

    manifest: Manifest
    outcome: Outcome
    completion: Completion


class Coordinator:
    """Begins sessions and completes marks.

    Args:
        epochs: Of the run; it holds the checkpoint.
        tasks: Tasks a level.
        sources: Of the injectors.
        sinks: Edge to a sink -> what publishes what tasks have written to it, by mark.
        mark_every_us: How often a mark is made.
        completed: Called with each mark that is complete.

    Raises:
        CheckpointMismatch: Live tasks cannot take the checkpoint over.

    Attributes:
        session: Number of the session that runs; None between two.
        failed: Why the last session ended, if not by itself.
        ended: Whether the last mark is complete: nothing is to be started again.
        told: Task -> how it is doing.
    """

    def __init__(
        self,
        epochs: Epochs,
        *,
        tasks: int,
        sources: Sources,
        sinks: Mapping[int, Publishing],
        mark_every_us: int,
        completed: Callable[[Marked], None] = lambda _marked: None,
    ) -> None:
        to_live_tasks(epochs)
        self._epochs = epochs
        self._topology: Topology = epochs.topology
        self._state: HardState = epochs.state
        self._tasks = tasks
        self._sources = sources
        self._sinks = sinks
        self._every_us = mark_every_us
        self._completed = completed
        self._where = [
            (level, n) for level in range(self._topology.depth + 1) for n in range(tasks)
        ]
        self._hello: set[Where] = set()
        self._session: _Session | None = None
        self._next_us = 0
        self._soon = False
        self._ending: Mark | None = None
        # Finished parts of journals, each with a complete mark, and the session of the last one.
        self._parts: dict[str, dict[str, dict[int, int]]] = {}
        self._marked_in = 0
        # A mark whose receipts are perhaps not published: that of the run before, at first.
        self._due: tuple[int, LiveMark] | None = (
            None if epochs.live is None else (epochs.completed, epochs.live)
        )
        self.failed: BaseException | None = None
        self.ended = epochs.drained
        self.told: dict[Where, Told] = {}

    @property
    def session(self) -> int | None:
        """Number of the session that runs; None between two."""
        return None if self._session is None else self._session.number

    # -- what comes in -----------------------------------------------------------------------------

    def heard(self, message: FromTask, wall_us: int) -> Orders:
        """Take a message of a task."""
        where = message.level, message.task
        if isinstance(message, Hello):
            self._hello.add(where)
            if len(self._hello) == len(self._where) and not self.ended:
                self._hello.clear()
                return self._begin(wall_us)
            return []
        if isinstance(message, Told):
            self.told[where] = message
            return []
        if isinstance(message, Over):
            error = pickle.loads(message.error) if message.error else None
            return self.lost(*where, error)
        session = self._session
        if session is None or session.mark is None or message.mark != session.mark.number:
            return []
        session.passed[where] = message
        if len(session.passed) < len(self._where):
            return []
        return self._complete(session, wall_us)

    def tick(self, wall_us: int) -> Orders:
        """Look at the clock."""
        session = self._session
        if session is None or session.mark is not None or self.ended:
            return []
        if not self._soon and self._ending is None and wall_us < self._next_us:
            return []
        self._soon = False
        ending = self._ending
        session.mark = Mark(
            self._open.epoch,
            last=ending is not None and ending.last,
            draining=ending is not None and ending.draining,
        )
        session.passed.clear()
        return [((0, n), session.mark) for n in range(self._tasks)]

    def lost(self, level: int, task: int, error: BaseException | None) -> Orders:
        """Take it that a task has ended, or that nothing is known of it any more.

        Args:
            level: Its level.
            task: Its number.
            error: Why; None if its input ended.
        """
        self._hello.discard((level, task))
        session = self._session
        if session is None:
            return []
        if error is not None:
            self.failed = self.failed or error
            self._session = None
            return [(where, Halt()) for where in self._where if where != (level, task)]
        session.over.add((level, task))
        if len(session.over) == len(self._where):
            self._session = None
        return []

    # -- what is wanted ----------------------------------------------------------------------------

    def mark_soon(self) -> None:
        """Have a mark made without waiting for its time."""
        self._soon = True

    def end(self, *, draining: bool = False) -> None:
        """Have a last mark made: after it nothing is read, and the run is over.

        Args:
            draining: Whether the input ends for good: all low watermarks go to the end of time.
        """
        self._ending = Mark(0, last=True, draining=draining)

    # -- sessions ----------------------------------------------------------------------------------

    @property
    def _open(self) -> Manifest:
        assert self._epochs.open is not None, "a manifest is written before its mark"
        return self._epochs.open

    def _begin(self, wall_us: int) -> Orders:
        """Seal what the session before left, and start all tasks."""
        epochs, journals = self._epochs, self._state.journals
        superseded = epochs.superseded()
        if superseded is not None:
            raise superseded
        number = journals.last() + 1
        sealing = journals.seal(number)
        if sealing is None:
            raise ZombieWriter(
                f"zombie writer: session {number} has been begun by another run, which goes on "
                "with this checkpoint. This one must stop. Nothing was lost."
            )
        self._check_tasks()
        self._publish_due()
        if epochs.open is None:
            self._open_epoch(wall_us)
        self._session = _Session(number, wall_us)
        self.failed = None
        self._next_us = wall_us + self._every_us
        self._parts = {}
        lasts = _last_notes(sealing)
        known = self._notes(lasts)
        consumed = notes.together(known.values())
        places = self._places()
        manifest = encode_entry(self._open)
        return [
            (
                (level, n),
                Start(
                    number,
                    manifest,
                    _shared(places, n, self._tasks) if level == 0 else {},
                    consumed if level == 0 else [],
                    self._note_for((level, n), lasts, known),
                ),
            )
            for level, n in self._where
        ]

    def _check_tasks(self) -> None:
        """Refuse another number of tasks where work has to be taken up task by task."""
        before = 0 if self._epochs.open is None else self._epochs.open.live
        if before in (0, self._tasks):
            return
        raise CheckpointMismatch(
            f"the checkpoint was left by a run with {before} tasks a level that was not stopped; "
            f"this one has {self._tasks}. Start it with tasks={before} and stop it; after that it "
            "may have any number."
        )

    def _notes(self, lasts: Mapping[Where, bytes]) -> dict[Where, notes.Note]:
        """Return what each level task is known to have known, by its journals and the last mark."""
        found = {where: notes.decode(note) for where, note in lasts.items() if where[0]}
        left = self._epochs.live
        for name, note in ({} if left is None else left.notes).items():
            level, task = map(int, name.split("-"))
            said = notes.decode(note)
            where = level, task
            found[where] = notes.merged(found[where], said) if where in found else said
        return found

    def _note_for(
        self, where: Where, lasts: Mapping[Where, bytes], known: Mapping[Where, notes.Note]
    ) -> bytes:
        if where[0] == 0:
            return lasts.get(where, b"")
        # Of other intervals nothing is to be taken over; after a stop all tasks know the same.
        same = self._open.live == self._tasks
        return notes.encode(known[where]) if same and where in known else b""

    def _places(self) -> dict[str, dict[str, Place]]:
        """Return where each process is read on, those that are new included."""
        known = self._epochs.places
        found: dict[str, dict[str, Place]] = {}
        for stream, names in self._sources.processes().items():
            places = dict(known.get(stream, {}))
            following = 1 + max((one.number for one in places.values()), default=-1)
            for name in names:
                if name not in places:
                    places[name] = Place(following)
                    following += 1
            found[stream] = {name: places[name] for name in names}
            injection = self._topology.streams[stream].injection
            for name in () if injection is None else injection.expected:
                # Not there yet, and waited for: it is read by nobody, and holds the low watermark.
                found[stream].setdefault(name, Place(-1))
        return found

    def _open_epoch(self, wall_us: int) -> None:
        """Write the manifest of the next mark."""
        epochs = self._epochs
        epochs.begin(epochs.completed + 1, wall_time_us=wall_us, injectors={}, live=self._tasks)

    # -- marks -------------------------------------------------------------------------------------

    def _complete(self, session: _Session, wall_us: int) -> Orders:
        """Every task has passed the mark: write the completion, and publish what sinks got.

        In this order: should the mark be tried again, it would stand elsewhere, and what sinks got
        before it would be something else.
        """
        mark, passed = session.mark, session.passed
        assert mark is not None, "completed once"
        epochs, manifest = self._epochs, self._open
        outcome = Outcome.of(one.report for one in passed.values())
        reading = [one for (level, _), one in passed.items() if level == 0]
        published = _published(reading)
        said = replace(
            manifest,
            injectors=published.get(100, manifest.injectors),
            percentiles={p: us for p, us in published.items() if p != 100},
            draining=mark.draining,
            wall_time_us=max(manifest.wall_time_us, wall_us),
        )
        places: dict[str, dict[str, Place]] = {}
        for part in reading:
            for stream, of in part.input.items():
                places.setdefault(stream, {}).update(of)
        left = LiveMark(
            tasks=self._tasks,
            notes={f"{level}-{n}": one.note for (level, n), one in passed.items() if level},
            receipts=_receipts(passed.values()),
        )
        completion = epochs.complete(
            said, outcome.results, outcome.observed, places=places, live=left
        )
        self._due = completion.epoch, left
        self._publish_due()
        for one in passed.values():
            if one.journal:
                self._parts[one.journal] = one.covered
        self._marked_in = session.number
        session.mark = None
        session.passed.clear()
        self._next_us = wall_us + self._every_us
        self._completed(Marked(said, outcome, completion))
        if mark.last:
            self.ended = True
            self._session = None
            return [(where, Halt()) for where in self._where]
        self._open_epoch(wall_us)
        return []

    def _publish_due(self) -> None:
        """Publish what the last complete mark's receipts say, unless that is done."""
        if self._due is None:
            return
        epoch, left = self._due
        publish(epoch, left, self._sinks)
        self._due = None

    def collectable(self) -> Collectable:
        """Return what lies behind the last complete mark, for collection."""
        return replace(
            self._epochs.collectable(),
            session=self._marked_in,
            parts=dict(self._parts),
            forget=self._forget,
        )

    def _forget(self, names: Iterable[str]) -> None:
        for name in names:
            self._parts.pop(name, None)


def named(text: str) -> JournalName:
    """Return a journal's name."""
    found = JournalName.parse(text)
    assert found is not None, "seals name journals only"
    return found


def _published(reading: Sequence[Passed]) -> dict[int, dict[str, int]]:
    """Return percentile -> injected stream -> the least that any injector task published."""
    found: dict[int, dict[str, int]] = {}
    for part in reading:
        for percentile, streams in part.published.items():
            known = found.setdefault(percentile, {})
            for stream, us in streams.items():
                known[stream] = min(known.get(stream, us), us)
    return found


def _shared(
    places: Mapping[str, Mapping[str, Place]], task: int, tasks: int
) -> dict[str, dict[str, Place]]:
    """Return the processes that one task reads: every so many-th, streams one after another."""
    found: dict[str, dict[str, Place]] = {}
    turn = 0
    for stream, processes in places.items():
        if not processes and task == 0:
            found[stream] = {}  # somebody must hold the stream's low watermark
        for name, place in processes.items():
            if turn % tasks == task:
                found.setdefault(stream, {})[name] = place
            turn += 1
    return found


def _receipts(passed: Iterable[Passed]) -> dict[int, list[bytes]]:
    """Return edge to a sink -> what tasks say of what they wrote to it."""
    found: dict[int, list[bytes]] = {}
    for one in passed:
        for edge, receipt in one.receipts.items():
            found.setdefault(edge, []).append(_decode_receipt(receipt).of)
    return found


def _last_notes(sealing: Sealing) -> dict[Where, bytes]:
    """Return task -> the note of its last group."""
    found: dict[Where, bytes] = {}
    for name in sorted(sealing.lengths, key=named):
        parsed = named(name)
        note = sealing.notes.get(name, b"")
        if note:
            found[parsed.level, parsed.task] = note
    return found


_decode_receipt = msgspec.msgpack.Decoder(Receipt).decode
