"""What a session begins with: where input is read on and by whom, and what tasks knew before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from millrace.compile.topology import Topology
from millrace.model.errors import CheckpointMismatch
from millrace.plane.realtime.messages import Start
from millrace.plane.realtime.note import (
    Numbers,
    TaskNote,
    decode_decided,
    decode_note,
    merged_notes,
    raise_clocks,
)
from millrace.plane.realtime.pacing import steps
from millrace.store import JournalName, Sealing
from millrace.windmill.manifest import LiveMark, Manifest
from millrace.windmill.place import Place
from millrace.windmill.source_stats import Sources, SourceStats

#: Level and number of a task.
Where = tuple[int, int]
#: Injected stream -> process -> where it is read on.
Places = dict[str, dict[str, Place]]
#: Injected stream -> names of processes.
Processes = Mapping[str, Sequence[str]]


def joined(known: Processes, now: Processes) -> str:
    """Return in words which processes nobody reads in a session; "" if all are read.

    Args:
        known: Those that the session's tasks read.
        now: Those that there are now.

    >>> joined({"bids": ["a"]}, {"bids": ["a", "b"]}), joined({"bids": ["a", "b"]}, {"bids": ["a"]})
    ("['b'] of stream 'bids'", '')
    """
    new = {stream: sorted(set(names) - set(known.get(stream, ()))) for stream, names in now.items()}
    return ", ".join(f"{names} of stream {stream!r}" for stream, names in new.items() if names)


def noted(lasts: Mapping[Where, bytes]) -> Numbers:
    """Return the numbers of processes that injector tasks have noted, by :func:`last_notes`."""
    found: Numbers = {}
    for (level, _), note in lasts.items():
        for stream, of in {} if level else decode_decided(note).numbers.items():
            found.setdefault(stream, {}).update(of)
    return found


def unmarked(
    known: Mapping[str, Mapping[str, Place]], *numbers: Mapping[str, Mapping[str, int]]
) -> Numbers:
    """Return those numbers that no complete mark has: of processes that are not known.

    >>> unmarked({"s": {"a": Place(0)}}, {"s": {"a": 0, "b": 1}}, {"s": {"c": 2, "gone": -1}})
    {'s': {'b': 1, 'c': 2}}
    """
    found: Numbers = {}
    for of in numbers:
        for stream, processes in of.items():
            for name, number in processes.items():
                if number >= 0 and name not in known.get(stream, ()):
                    found.setdefault(stream, {})[name] = number
    return found


def places_of(
    topology: Topology,
    known: Mapping[str, Mapping[str, Place]],
    now: Processes,
    numbers: Numbers,
) -> Places:
    """Return where each process is read on, those that are new included.

    One that is expected and not there yet, or that is gone, is read by nobody, and holds the low
    watermark where it is: its number is -1.

    Args:
        topology: The pipeline.
        known: As the last mark left them.
        now: Those that there are now.
        numbers: As :func:`noted` before: records have left with them.
    """
    found: Places = {}
    for stream, names in now.items():
        before = {name: Place(number) for name, number in numbers.get(stream, {}).items()}
        places = before | dict(known.get(stream, {}))
        following = 1 + max((one.number for one in places.values()), default=-1)
        for name in names:
            if name not in places:
                places[name], following = Place(following), following + 1
        injection = topology.streams[stream].injection
        waited = () if injection is None else injection.expected
        silent = [name for name in (*places, *waited) if name not in names]
        found[stream] = {name: places[name] for name in names} | dict.fromkeys(silent, Place(-1))
    return found


def input_of(
    topology: Topology,
    known: Mapping[str, Mapping[str, Place]],
    now: Processes,
    lasts: Mapping[Where, bytes],
) -> tuple[Places, Numbers]:
    """Return where each process is read on, and the numbers of those that no complete mark knows.

    Args:
        topology: The pipeline.
        known: As the last mark left them.
        now: Those that there are now.
        lasts: See :func:`last_notes`. A process that no mark knows has the number with which its
            records have left: another's would be taken for what was consumed of it.
    """
    numbers = noted(lasts)
    read = places_of(topology, known, now, numbers)
    given = {stream: {name: one.number for name, one in of.items()} for stream, of in read.items()}
    return read, unmarked(known, numbers, given)


def shared(places: Places, task: int, tasks: int) -> Places:
    """Return the processes that one task reads: every so many-th of a stream, by number.

    So one that comes or goes moves no other to another task, which would not know what was decided
    of it, and when its records came. Each stream begins with another task than the one before.

    >>> places = {"s": {"a": Place(0), "new": Place(2), "b": Place(1)}, "t": {"c": Place(0)}}
    >>> [{stream: [*of] for stream, of in shared(places, n, 2).items()} for n in range(2)]
    [{'s': ['a', 'new']}, {'s': ['b'], 't': ['c']}]
    """
    found: Places = {}
    for turn, (stream, processes) in enumerate(places.items()):
        if not processes and task == 0:
            found[stream] = {}  # somebody must hold the stream's low watermark
        for name, place in processes.items():
            if (turn + place.number) % tasks == task:
                found.setdefault(stream, {})[name] = place
    return found


def readers(topology: Topology, places: Places, tasks: int) -> dict[str, list[int]]:
    """Return injected stream -> tasks that read it, where they must know of one another."""
    shares = [shared(places, n, tasks) for n in range(tasks)]
    return {stream: [n for n in range(tasks) if stream in shares[n]] for stream in steps(topology)}


def share_input(start: Start, places: Places, task: int, tasks: int, sources: Sources) -> None:
    """Tell an injector task what it is to read, and what is known of that.

    What was counted of a stream is shared among the tasks that read it.
    """
    start.input = shared(places, task, tasks)
    for stream, of in start.input.items():
        stats = sources.get(stream) or SourceStats()
        start.processes[stream] = {n: stats.processes[n] for n in of if n in stats.processes}
        if stats.ahead is not None:
            among = [n for n in range(tasks) if stream in shared(places, n, tasks)]
            start.ahead[stream] = stats.ahead.shared(len(among))[among.index(task)]


def last_notes(sealing: Sealing, left: LiveMark | None) -> dict[Where, bytes]:
    """Return task -> the note of its last group.

    What injector tasks decided in a session before the one that completed the last mark is in that
    mark: they began that session with it. Such a note may be all that is left of a task: after a
    power cut, journals need not be gone in the order in which they were removed.

    Args:
        sealing: Where journals end.
        left: What live tasks left behind with the last mark, if they did.
    """
    since = 0 if left is None else left.session
    found: dict[Where, bytes] = {}
    for name in sorted(map(_named, sealing.lengths)):
        note = sealing.notes.get(str(name), b"")
        if note and (name.level or name.session >= since):
            found[name.level, name.task] = note
    return found


def known_to(
    topology: Topology, tasks: int, lasts: Mapping[Where, bytes], left: LiveMark | None
) -> dict[Where, TaskNote]:
    """Return what each level task is known to have known.

    A task that had no commit for long has not noted how far its low watermarks had come. But who
    reads from it has, and could not have come further than every task had shown.

    Args:
        topology: The pipeline.
        tasks: Tasks a level.
        lasts: Task -> the note of its last group.
        left: What live tasks left behind with the last mark, if they did.
    """
    found = {where: decode_note(note) for where, note in lasts.items() if where[0]}
    for name, note in ({} if left is None else left.notes).items():
        level, task = map(int, name.split("-"))
        said, where = decode_note(note), (level, task)
        found[where] = merged_notes(found[where], said) if where in found else said
    levels = {spec.name: spec.level for spec in topology.computations}
    for (level, n), known in list(found.items()):
        for name, clocks in known.inputs.items():
            if levels.get(name, level) != level:  # the pipeline has changed since
                here = found.setdefault((levels[name], n), TaskNote(0, {}, []))
                raise_clocks(here.inputs, name, clocks)
    least: dict[str, dict[int, int]] = {}
    for spec in sorted(topology.computations, key=lambda spec: -spec.level):
        for known in found.values():
            raise_clocks(least, spec.name, known.inputs.get(spec.name, {}))
            raise_clocks(least, spec.name, known.heard.get(spec.name, {}))
        for sender in spec.senders & levels.keys():
            for n in range(tasks):
                mine = found.setdefault((levels[sender], n), TaskNote(0, {}, []))
                raise_clocks(mine.heard, sender, least.get(spec.name, {}))
    return found


def _named(text: str) -> JournalName:
    found = JournalName.parse(text)
    assert found is not None, "seals name journals only"
    return found


def refuse_other_tasks(unfinished: Manifest | None, tasks: int) -> None:
    """Refuse another number of tasks where work has to be taken up task by task.

    Args:
        unfinished: The mark that a run before had begun; None if it was stopped.
        tasks: Tasks a level now.

    Raises:
        CheckpointMismatch: It had another number.
    """
    before = 0 if unfinished is None else unfinished.live
    if before in (0, tasks):
        return
    raise CheckpointMismatch(
        f"the checkpoint was left by a run with {before} tasks a level that was not stopped; this "
        f"one has {tasks}. Start it with tasks={before} and stop it; after that it may have any "
        "number."
    )
