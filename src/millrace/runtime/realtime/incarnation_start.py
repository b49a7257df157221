"""The start of an incarnation: where input is read on and by whom, and what tasks knew before.

A task writes a note with each group of its segment: what it knew when it committed. The last notes
are what the next incarnation begins with.

A checkpoint is handed over from live tasks to tasks that end with their epoch, and back, where
nothing is under way: where the last epoch that was begun is complete. There live tasks also hand
over to others, of other key intervals.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from millrace.balance import transfer
from millrace.balance.transfer import Grouping, Ready, same
from millrace.compile.topology import Topology
from millrace.epochlog.entries import LiveMark, Manifest, Sources, SourceStats
from millrace.epochlog.fence import seal_left
from millrace.epochlog.run_log import RunLog
from millrace.injectors.advance import along, is_within
from millrace.injectors.offsets import SourceOffset
from millrace.model.errors import CheckpointMismatch
from millrace.runtime.realtime.messages import StartTask
from millrace.runtime.realtime.source_progress import Stamps, steps
from millrace.runtime.sink_contract import TaskSink
from millrace.store import Seal, SegmentName
from millrace.watermark.map_change import Remap, Remapped

#: Injected stream -> process -> its number.
Numbers = dict[str, dict[str, int]]


class TaskNote(msgspec.Struct, array_like=True):
    """What a task takes up again after a failure, besides its intervals.

    Attributes:
        wall_time_us: Its clock.
        inputs: Computation of its level -> percentile -> low watermark of its input: never worked
            below again.
        consumed: (injected stream, process) by number -> last record of it that was consumed.
        published: As ``inputs``, as far as those know of it who read from the task.
    """

    wall_time_us: int
    inputs: dict[str, dict[int, int]]
    consumed: list[tuple[int, int, int]]
    published: dict[str, dict[int, int]] = {}

    def floor(self, weak: Container[str]) -> dict[str, dict[int, int]]:
        """Return computation -> percentile -> low watermark of its input that it begins at.

        What a weak computation showed after its last commit is taken back with its state: records
        that were in time come again, and must not be late.
        """
        floor = {name: dict(clocks) for name, clocks in self.inputs.items()}
        for name, clocks in self.published.items():
            if name not in weak:
                raise_clocks(floor, name, clocks)
        return floor


class Decided(msgspec.Struct, array_like=True):
    """The note of an injector task: what it decided to read, before it read it.

    Attributes:
        steps: Epoch -> injected stream -> process -> what was decided after the mark before. Of the
            open epoch and, until the mark between them is complete, the one that follows.
        stamps: When records came, of streams with event time by ingress.
        numbers: Injected stream -> process -> its number, of those that no complete mark knows.
    """

    steps: dict[int, dict[str, dict[str, list[Any]]]]
    stamps: Stamps = {}
    numbers: Numbers = {}

    def since(self, epoch: int) -> tuple[dict[int, dict[str, dict[str, list[Any]]]], bool]:
        """Return what was decided since the last complete mark, as of the epoch that is open now.

        And whether some of it came after a mark that is not complete, and is to be made again.
        """
        together: dict[str, dict[str, list[Any]]] = {}
        for number in sorted(self.steps):
            if number < epoch:
                continue
            for stream, processes in self.steps[number].items():
                for process, decided in processes.items():
                    together.setdefault(stream, {}).setdefault(process, []).extend(decided)
        return {epoch: together}, any(number > epoch for number in self.steps)


encode_note = msgspec.msgpack.Encoder().encode
decode_note = msgspec.msgpack.Decoder(TaskNote).decode
decode_decided = msgspec.msgpack.Decoder(Decided).decode


def merged_notes(one: TaskNote, other: TaskNote) -> TaskNote:
    """Return what both say: nothing in a note ever goes back.

    >>> both = merged_notes(
    ...     TaskNote(5, {"c": {100: 1}}, [(1, 0, 7)]), TaskNote(3, {"c": {100: 2}}, [(1, 0, 5)])
    ... )
    >>> both.wall_time_us, both.inputs, both.consumed
    (5, {'c': {100: 2}}, [(1, 0, 7)])
    """
    inputs = {name: dict(clocks) for name, clocks in one.inputs.items()}
    for name, clocks in other.inputs.items():
        raise_clocks(inputs, name, clocks)
    wall_us = max(one.wall_time_us, other.wall_time_us)
    return TaskNote(wall_us, inputs, consumed_by_any([one, other]))


def raise_clocks(
    inputs: dict[str, dict[int, int]], computation: str, clocks: Mapping[int, int]
) -> None:
    """Let a computation's low watermarks be no lower than some others."""
    known = inputs.setdefault(computation, {})
    for percentile, us in clocks.items():
        known[percentile] = max(known.get(percentile, us), us)


def consumed_by_any(notes: Iterable[TaskNote]) -> list[tuple[int, int, int]]:
    """Return how far any task has consumed the input.

    >>> consumed_by_any([TaskNote(0, {}, [(1, 0, 7)]), TaskNote(0, {}, [(1, 0, 5), (1, 1, 2)])])
    [(1, 0, 7), (1, 1, 2)]
    """
    last: dict[tuple[int, int], int] = {}
    for note in notes:
        for stream, process, number in note.consumed:
            at = stream, process
            last[at] = max(last.get(at, number), number)
    return [(*at, number) for at, number in sorted(last.items())]


#: Level and number of a task.
TaskKey = tuple[int, int]
#: Injected stream -> process -> where it is read on.
InputOffsets = dict[str, dict[str, SourceOffset]]
#: Injected stream -> names of processes.
Processes = Mapping[str, Sequence[str]]


def joined(known: Processes, now: Processes) -> str:
    """Return in words which processes nobody reads in an incarnation; "" if all are read.

    Args:
        known: Those that the incarnation's tasks read.
        now: Those that there are now.

    >>> joined({"bids": ["a"]}, {"bids": ["a", "b"]}), joined({"bids": ["a", "b"]}, {"bids": ["a"]})
    ("['b'] of stream 'bids'", '')
    """
    new = {stream: sorted(set(names) - set(known.get(stream, ()))) for stream, names in now.items()}
    return ", ".join(f"{names} of stream {stream!r}" for stream, names in new.items() if names)


def noted(lasts: Mapping[TaskKey, bytes]) -> Numbers:
    """Return the numbers of processes that injector tasks have noted, by :func:`last_notes`."""
    noted_numbers: Numbers = {}
    for (level, _), note in lasts.items():
        for stream, processes in {} if level else decode_decided(note).numbers.items():
            noted_numbers.setdefault(stream, {}).update(processes)
    return noted_numbers


def unmarked(
    known: Mapping[str, Mapping[str, SourceOffset]], *numbers: Mapping[str, Mapping[str, int]]
) -> Numbers:
    """Return those numbers that no complete mark has: of processes that are not known.

    >>> unmarked(
    ...     {"s": {"a": SourceOffset(0)}}, {"s": {"a": 0, "b": 1}}, {"s": {"c": 2, "gone": -1}}
    ... )
    {'s': {'b': 1, 'c': 2}}
    """
    missing: Numbers = {}
    for noted_numbers in numbers:
        for stream, processes in noted_numbers.items():
            for name, number in processes.items():
                if number >= 0 and name not in known.get(stream, ()):
                    missing.setdefault(stream, {})[name] = number
    return missing


def input_offsets(
    topology: Topology,
    known: Mapping[str, Mapping[str, SourceOffset]],
    now: Processes,
    numbers: Numbers,
) -> InputOffsets:
    """Return where each process is read on, those that are new included.

    One that is expected and not there yet, or that is gone, is read by nobody, and holds the low
    watermark where it is: its number is -1.

    Args:
        topology: The pipeline.
        known: As the last mark left them.
        now: Those that there are now.
        numbers: As :func:`noted` before: records have left with them.
    """
    offsets_by_stream: InputOffsets = {}
    for stream, names in now.items():
        before = {name: SourceOffset(number) for name, number in numbers.get(stream, {}).items()}
        offsets = before | dict(known.get(stream, {}))
        following = 1 + max((offset.number for offset in offsets.values()), default=-1)
        for name in names:
            if name not in offsets:
                offsets[name], following = SourceOffset(following), following + 1
        injection = topology.streams[stream].injection
        waited = () if injection is None else injection.expected
        silent = [name for name in (*offsets, *waited) if name not in names]
        offsets_by_stream[stream] = {name: offsets[name] for name in names} | dict.fromkeys(
            silent, SourceOffset(-1)
        )
    return offsets_by_stream


def input_of(
    topology: Topology,
    known: Mapping[str, Mapping[str, SourceOffset]],
    now: Processes,
    lasts: Mapping[TaskKey, bytes],
) -> tuple[InputOffsets, Numbers]:
    """Return where each process is read on, and the numbers of those that no complete mark knows.

    Args:
        topology: The pipeline.
        known: As the last mark left them.
        now: Those that there are now.
        lasts: See :func:`last_notes`. A process that no mark knows has the number with which its
            records have left: another's would be taken for what was consumed of it.
    """
    numbers: Numbers = {}
    for stream, processes in noted(lasts).items():
        last = max((offset.number for offset in known.get(stream, {}).values()), default=-1)
        # A note may be older than the mark: the others were marked, and perhaps have ended since.
        numbers[stream] = {name: number for name, number in processes.items() if number > last}
    read = input_offsets(topology, known, now, numbers)
    numbers_by_stream = {
        stream: {name: one.number for name, one in offsets.items()}
        for stream, offsets in read.items()
    }
    return read, unmarked(known, numbers, numbers_by_stream)


def offsets_of_gone(
    known: Mapping[str, Mapping[str, SourceOffset]],
    numbers: Numbers,
    read: InputOffsets,
    lasts: Mapping[TaskKey, bytes],
    epoch: int,
) -> InputOffsets:
    """Return where processes stand that nobody reads now, with what was decided of them.

    No task says it with a mark, and what was decided before one is not known after it.

    Args:
        known: As the last mark left them.
        numbers: Of those that no complete mark knows.
        read: See :func:`input_offsets`.
        lasts: See :func:`last_notes`.
        epoch: That is open.
    """
    gone: InputOffsets = {}
    for (level, _), note in lasts.items():
        decided = {} if level else decode_decided(note).since(epoch)[0][epoch]
        for stream, processes in decided.items():
            for name, decisions in processes.items():
                source_offset = read.get(stream, {}).get(name)
                if source_offset is None or source_offset.number >= 0:
                    continue
                before = known.get(stream, {}).get(name)
                if before is None:
                    before = SourceOffset(numbers[stream][name])
                offset = along(before.offset, decisions)
                gone.setdefault(stream, {})[name] = replace(before, offset=offset)
    return gone


def known_parts(
    topology: Topology, known: Mapping[str, Mapping[str, SourceOffset]], numbers: Numbers
) -> dict[int, list[int]]:
    """Return number of an injected stream -> those of its processes that are not forgotten.

    Args:
        topology: The pipeline.
        known: As the last mark left them.
        numbers: Of those that no complete mark knows.
    """
    return {
        topology.streams[stream].number: sorted(
            {offset.number for offset in known.get(stream, {}).values()}
            | set(numbers.get(stream, {}).values())
        )
        for stream in (known.keys() | numbers.keys()) & topology.streams.keys()
    }


def shared(offsets: InputOffsets, task: int, tasks: int) -> InputOffsets:
    """Return the processes that one task reads: every so many-th of a stream, by number.

    So one that comes or goes moves no other to another task, which would not know what was decided
    of it, and when its records came. Each stream begins with another task than the one before.

    >>> places = {
    ...     "s": {"a": SourceOffset(0), "new": SourceOffset(2), "b": SourceOffset(1)},
    ...     "t": {"c": SourceOffset(0)},
    ... }
    >>> [{stream: [*of] for stream, of in shared(places, n, 2).items()} for n in range(2)]
    [{'s': ['a', 'new']}, {'s': ['b'], 't': ['c']}]
    """
    share: InputOffsets = {}
    for turn, (stream, processes) in enumerate(offsets.items()):
        if not processes and task == 0:
            share[stream] = {}  # somebody must hold the stream's low watermark
        for name, place in processes.items():
            if (turn + place.number) % tasks == task:
                share.setdefault(stream, {})[name] = place
    return share


def readers(topology: Topology, offsets: InputOffsets, tasks: int) -> dict[str, list[int]]:
    """Return injected stream -> tasks that read it, where they must know of one another."""
    shares = [shared(offsets, n, tasks) for n in range(tasks)]
    return {stream: [n for n in range(tasks) if stream in shares[n]] for stream in steps(topology)}


def share_input(
    start: StartTask, offsets: InputOffsets, task: int, tasks: int, sources: Sources
) -> None:
    """Tell an injector task what it is to read, and what is known of that.

    What was counted of a stream is shared among the tasks that read it.
    """
    start.input = shared(offsets, task, tasks)
    for stream, processes in start.input.items():
        stats = sources.get(stream) or SourceStats()
        start.processes[stream] = {n: stats.processes[n] for n in processes if n in stats.processes}
        if stats.ahead is not None:
            among = [n for n in range(tasks) if stream in shared(offsets, n, tasks)]
            start.ahead[stream] = stats.ahead.shared(len(among))[among.index(task)]


def last_notes(seal: Seal, left: LiveMark | None) -> dict[TaskKey, bytes]:
    """Return task -> the note of its last group.

    What injector tasks decided in an incarnation before the one that completed the last mark is in
    that mark: they began that incarnation with it. Such a note may be all that is left of a task:
    after a power cut, segments need not be gone in the order in which they were removed.

    Args:
        seal: Where segments end.
        left: What live tasks left behind with the last mark, if they did.
    """
    since = 0 if left is None else left.incarnation
    notes: dict[TaskKey, bytes] = {}
    for name in sorted(map(_named, seal.lengths)):
        note = seal.notes.get(str(name), b"")
        if note and (name.level or name.incarnation >= since):
            notes[name.level, name.task] = note
    return notes


def known_to(
    topology: Topology,
    tasks: int,
    lasts: Mapping[TaskKey, bytes],
    left: LiveMark | None,
    parts: Mapping[int, Sequence[int]],
) -> dict[TaskKey, TaskNote]:
    """Return what each level task is known to have known, without processes that are forgotten.

    A task that had no commit for long has not noted how far its low watermarks had come. But who
    reads from it has, and could not have come further than every task had shown.

    Args:
        topology: The pipeline.
        tasks: Tasks a level.
        lasts: Task -> the note of its last group.
        left: What live tasks left behind with the last mark, if they did.
        parts: See :func:`known_parts`.
    """
    task_notes = {where: decode_note(note) for where, note in lasts.items() if where[0]}
    for name, note in ({} if left is None else left.notes).items():
        level, task = map(int, name.split("-"))
        task_note, where = decode_note(note), (level, task)
        task_notes[where] = (
            merged_notes(task_notes[where], task_note) if where in task_notes else task_note
        )
    levels = {spec.name: spec.level for spec in topology.computations}
    for (level, n), known in list(task_notes.items()):
        for name, clocks in known.inputs.items():
            if levels.get(name, level) != level:  # the pipeline has changed since
                here = task_notes.setdefault((levels[name], n), TaskNote(0, {}, []))
                raise_clocks(here.inputs, name, clocks)
    least: dict[str, dict[int, int]] = {}
    for spec in sorted(topology.computations, key=lambda spec: -spec.level):
        for known in task_notes.values():
            raise_clocks(least, spec.name, known.inputs.get(spec.name, {}))
            raise_clocks(least, spec.name, known.published.get(spec.name, {}))
        for sender in spec.senders & levels.keys():
            for n in range(tasks):
                mine = task_notes.setdefault((levels[sender], n), TaskNote(0, {}, []))
                raise_clocks(mine.published, sender, least.get(spec.name, {}))
    for known in task_notes.values():
        known.consumed = [
            (stream, part, number)
            for stream, part, number in known.consumed
            if part in parts.get(stream, ())
        ]
    return task_notes


def _named(text: str) -> SegmentName:
    segment = SegmentName.parse(text)
    assert segment is not None, "seals name segments only"
    return segment


def refuse_other_tasks(unfinished: Manifest | None, tasks: int) -> None:
    """Refuse another number of tasks where work has to be taken up task by task.

    Args:
        unfinished: The manifest of the epoch that is open; None if none is.
        tasks: Tasks a level now.

    Raises:
        CheckpointMismatch: It is another number.
    """
    before = 0 if unfinished is None else unfinished.live
    if before in (0, tasks):
        return
    raise CheckpointMismatch(
        f"the checkpoint was left by a run with {before} tasks a level that was not stopped; this "
        f"one has {tasks}. Start it with tasks={before} and stop it; after that it may have any "
        "number."
    )


def from_live_tasks(run_log: RunLog, sinks: Mapping[int, Any]) -> None:
    """Take a checkpoint over that live tasks may have left; it is claimed already.

    Args:
        run_log: Of the run that takes it over, whose tasks end with their epochs.
        sinks: Edge to a sink -> the sink.

    Raises:
        CheckpointMismatch: They were not stopped, and left something under way.
        ZombieWriter: Another run takes it over.
    """
    if run_log.open is not None and run_log.open.live:
        raise CheckpointMismatch(
            f"epoch {run_log.open.epoch} of this checkpoint was begun in real time, and is "
            "unfinished: that run failed, or was killed. Start it with realtime=True again, and "
            "stop it with run.stop(); after that either plane can go on."
        )
    incarnations = run_log.state.incarnations
    if run_log.live is None:
        run_log.incarnation = incarnations.last()
        return
    if under_way := _read_in_part(run_log, run_log.live):
        raise CheckpointMismatch(
            f"{under_way} was gone when the run in real time was stopped, and part of it had been "
            "read beyond what is in the checkpoint. It would be read twice. Start it with "
            "realtime=True again, with the process there, and stop it with run.stop(); after that "
            "either plane can go on."
        )
    run_log.incarnation = seal_left(incarnations)
    publish_again(run_log, sinks)


def _read_in_part(run_log: RunLog, left: LiveMark) -> str:
    """Return in words a process of which more was worked on than the last mark has; "" if none."""
    notes = map(decode_note, left.notes.values())
    last = {(stream, part): number for stream, part, number in consumed_by_any(notes)}
    for stream, offsets in run_log.source_offsets.items():
        if stream not in run_log.topology.streams:
            continue  # the pipeline has changed since
        stream_number = run_log.topology.streams[stream].number
        for name, offset in offsets.items():
            consumed = last.get((stream_number, offset.number), -1)
            if is_within(offset.offset) or consumed >= offset.count:
                return f"process {name!r} of stream {stream!r}"
    return ""


def to_live_tasks(run_log: RunLog) -> None:
    """Refuse a checkpoint that live tasks cannot take over.

    Raises:
        CheckpointMismatch: An epoch is under way, or nobody knows how far the input was read.
    """
    if run_log.open is not None and not run_log.open.live:
        raise CheckpointMismatch(
            f"epoch {run_log.open.epoch} of this checkpoint is unfinished: its run failed, or was "
            "killed. Start it without realtime=True again, and stop it with run.stop(); after that "
            "either plane can go on."
        )
    read = {stream for stream, stats in run_log.sources.items() if stats.records}
    if unknown := sorted(read - run_log.source_offsets.keys()):
        raise CheckpointMismatch(
            f"streams {unknown} were read by Spark's own sources, so that how far they were read "
            "is not in this checkpoint, and realtime=True cannot go on from there. Start with a "
            "new checkpoint."
        )


def to_other_intervals(
    run_log: RunLog,
    remaps: Mapping[str, Iterable[Remap]],
    *,
    ready: Ready | None = None,
    grouped: Grouping = same,
) -> dict[str, Remapped]:
    """Split and merge key intervals while all tasks have stopped at a mark; return the maps.

    Args:
        run_log: Of the run, which goes on.
        remaps: Computation -> what changes.
        grouped: How intervals are grouped into tasks then.
        ready: What was read before: see :mod:`millrace.balance.preparation`.

    Raises:
        PipelineError: That cannot be, or not now; nothing was written.
        CheckpointMismatch: Intervals that are to be one differ in what is of all keys.
        ZombieWriter: Another run takes the checkpoint over.
    """
    if (superseded := run_log.superseded()) is not None:
        raise superseded
    seal_left(run_log.state.incarnations)
    return transfer.remap(run_log, remaps, grouped=grouped, ready=ready)


def lasting(
    receipts: Mapping[int, list[bytes]], sinks: Mapping[int, TaskSink]
) -> dict[int, list[bytes]]:
    """Return the receipts that belong into a completion: for output that outlives the driver.

    What of it is seen must be what the completion says, and of no mark that was given up. So it is
    published after that, and again by who finds a completion whose driver has perhaps not.
    """
    return {
        edge: receipts_of
        for edge, receipts_of in receipts.items()
        if hasattr(sinks[edge], "publish_again")
    }


def publish_again(run_log: RunLog, sinks: Mapping[int, Any]) -> None:
    """Publish what the receipts of the last mark say: its driver has perhaps not come to it.

    What went to a sink that the pipeline has no more stays as it is.
    """
    for edge, receipts in ({} if run_log.live is None else run_log.live.receipts).items():
        if edge in sinks:
            sinks[edge].publish_again(run_log.completed, receipts)
