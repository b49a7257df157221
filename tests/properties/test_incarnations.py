"""Incarnations on a disk that loses, tears and refuses, beside writers that were left behind."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.model.errors import CheckpointUnwritable, DamagedStore, StoreError
from millrace.store import Commit, CommitGroup, GrownSegment, LocalHardState, SegmentName
from millrace.store.segments import HEADER_BYTES
from simulation.disk import SimulatedDisk

ROOT = Path("/data/checkpoint")
LEVELS, TASKS = 2, 2
#: Of a task: its level and number.
Task = tuple[int, int]


class Killed(BaseException):
    """The end of a process between two system calls."""


@dataclass
class Kernel:
    """Lets a process be killed, refused, or overtaken by others before one of its next calls."""

    after: int = -1
    refuse: int = 0
    meanwhile: Callable[[], None] | None = None
    _within: bool = False

    def __call__(self, call: str, path: Path) -> int:
        if self._within:
            return 0
        if self.meanwhile is not None:
            self._within = True
            try:
                self.meanwhile()
            finally:
                self._within = False
        if self.after < 0 or call not in ("write", "fsync", "fsync names", "create", "link"):
            return 0
        self.after -= 1
        if self.after >= 0:
            return 0
        if self.refuse:
            return self.refuse
        raise Killed


@dataclass
class Writer:
    """A task of an incarnation, and what it knows of its segment."""

    state: LocalHardState
    incarnation: int
    task: Task
    segment: GrownSegment | None = None
    part: int = 0
    returned: list[CommitGroup] = field(default_factory=list)
    doubtful: CommitGroup | None = None
    dead: bool = False

    def begin_part(self) -> None:
        if not self.dead:
            self._or_die(self._create)

    def append(self, group: CommitGroup) -> bool:
        """Append a group; return whether that returned."""
        if self.dead:
            return False
        if self.segment is None:
            self.begin_part()
        if self.dead:
            return False
        self.doubtful = group
        self._or_die(lambda: self.segment.append(group.commits, group.note))  # type: ignore[union-attr]
        if self.dead:
            return False
        self.returned.append(group)
        self.doubtful = None
        return True

    def _create(self) -> None:
        self.segment = self.state.incarnations.grow(self.incarnation, *self.task, self.part + 1)
        self.part += 1

    def _or_die(self, call: Callable[[], object]) -> None:
        try:
            call()
        except (Killed, CheckpointUnwritable):
            self.dead = True


class World:
    """One disk, the writers of each incarnation, and what the seals said."""

    def __init__(self, seed: int) -> None:
        self.kernel = Kernel()
        self.disk = SimulatedDisk(Random(seed), self.kernel)
        LocalHardState.create_or_open(ROOT, pipeline="p", disk=self.disk)
        self.incarnation = 0
        self.sealed: dict[tuple[int, Task], list[CommitGroup]] = {}
        self.writers: dict[tuple[int, Task], Writer] = {}
        self.count = 0
        self.begin()

    def open(self) -> LocalHardState:
        return LocalHardState.open(ROOT, disk=self.disk)

    def group(self, size: int, task: Task) -> CommitGroup:
        """Return a group unlike any other; an incarnation goes on with its own numbers."""
        commits = []
        for _ in range(size):
            self.count += 1
            name = f"{self.incarnation}-{self.count}"
            commits.append(Commit(name, 0, 1, 1, 1, [(b"Sk", bytes(self.count % 50))]))
        return CommitGroup(commits, b"%d of %d-%d" % (self.count, *task))

    def begin(self) -> None:
        """Begin the next incarnation, by as many tries as it takes."""
        before = {key: list(writer.returned) for key, writer in self.writers.items()}
        while True:
            state = self.open()
            try:
                incarnation = state.incarnations.last() + 1
                if state.incarnations.seal(incarnation) is None:
                    continue
            except (Killed, CheckpointUnwritable):
                self.kernel.after = -1
                continue
            break
        self.incarnation = incarnation
        found = self.read()
        for key, writer in self.writers.items():
            if key in self.sealed:
                assert found.get(key, []) == self.sealed[key]
                continue
            groups = found.get(key, [])
            # All whose append returned before, maybe those that came meanwhile, maybe one more.
            possible = [*writer.returned, *([writer.doubtful] if writer.doubtful else [])]
            assert groups == possible[: len(groups)]
            assert len(groups) >= len(before[key])
            self.sealed[key] = groups
        for task in [(level, number) for level in range(1, LEVELS + 1) for number in range(TASKS)]:
            self.writers[incarnation, task] = Writer(self.open(), incarnation, task)

    def read(self) -> dict[tuple[int, Task], list[CommitGroup]]:
        incarnations = self.open().incarnations
        found: dict[tuple[int, Task], list[CommitGroup]] = {}
        for name in incarnations.names():
            found.setdefault((name.incarnation, (name.level, name.task)), []).extend(
                incarnations.groups(name)
            )
        return found

    def check(self) -> None:
        """What was sealed once is the same for ever."""
        assert self.read() == {key: groups for key, groups in self.sealed.items() if groups}


tasks = st.tuples(st.integers(1, LEVELS), st.integers(0, TASKS - 1))
steps = st.one_of(
    st.tuples(st.just("append"), st.integers(0, 1), tasks, st.integers(0, 3)),
    st.tuples(st.just("append"), st.just(0), tasks, st.integers(0, 3)),
    st.tuples(st.just("part"), st.integers(0, 1), tasks),
    st.tuples(st.just("fault"), st.integers(0, 3), st.sampled_from([0, errno.EIO, errno.ENOSPC])),
    st.tuples(st.just("power")),
    st.tuples(st.just("seal")),
)


@given(seed=st.integers(0, 1 << 16), script=st.lists(steps, max_size=25))
@settings(max_examples=300)
def test_a_seal_has_all_that_returned_and_maybe_one_more_and_never_changes(seed, script):
    world = World(seed)
    for what, *arguments in script:
        if what in ("append", "part"):
            age, task, *size = arguments
            writer = world.writers.get((world.incarnation - age, task))
            if writer is None:
                continue
            if what == "part":
                writer.begin_part()
            else:
                writer.append(world.group(*size, task))
        elif what == "fault":
            world.kernel.after, world.kernel.refuse = arguments
        elif what == "seal":
            world.begin()
        else:
            for writer in world.writers.values():
                writer.dead = True
            world.disk.cut_power()
            world.begin()
    world.kernel.after = -1
    world.begin()
    world.disk.cut_power()
    world.check()
    world.begin()
    world.check()


@given(
    seed=st.integers(0, 1 << 16),
    eagerness=st.sampled_from([0.05, 0.2, 0.5]),
    before=st.integers(0, 4),
)
@settings(max_examples=200)
def test_tasks_that_go_on_while_they_are_sealed(seed, eagerness, before):
    """What made a sealed commit is sealed; who was told that its incarnation goes on, is inside."""
    world, random = World(seed), Random(seed)
    ups, downs = ([world.writers[1, (level, number)] for number in (0, 1)] for level in (1, 2))
    made = [0, 0]
    promised: list[tuple[Writer, CommitGroup]] = []
    fence = world.open().incarnations

    def go_on() -> None:
        number = random.randrange(2)
        if random.random() < 0.3:
            random.choice((ups, downs))[number].begin_part()
        made[number] += 1
        caused = CommitGroup([], b"%d %d" % (number, made[number]))
        for writer in (ups[number], downs[random.randrange(2)]):
            if not writer.append(caused) or random.random() < 0.3:
                return  # it has not come further
            if not fence.superseded(1):
                promised.append((writer, caused))

    def meanwhile() -> None:
        if random.random() < eagerness:
            go_on()

    for _ in range(before):
        go_on()
    world.kernel.meanwhile = meanwhile
    world.open().incarnations.seal(2)
    world.kernel.meanwhile = None
    found = world.read()
    for number, level in ((number, level) for level in (1, 2) for number in (0, 1)):
        writer = world.writers[1, (level, number)]
        groups = found.get((1, (level, number)), [])
        assert groups == writer.returned[: len(groups)]
    causes = {group.note for key, groups in found.items() if key[1][0] == 1 for group in groups}
    effects = {group.note for key, groups in found.items() if key[1][0] == 2 for group in groups}
    assert effects <= causes
    for writer, group in promised:
        assert group in found[1, writer.task]


# -- any byte --------------------------------------------------------------------------------------


def written(groups: list[CommitGroup]) -> tuple[SimulatedDisk, SegmentName, list[int]]:
    """Return a disk with one segment of an incarnation, and where each group ends."""
    disk = SimulatedDisk(Random(0), Kernel())
    incarnations = LocalHardState.create_or_open(ROOT, pipeline="p", disk=disk).incarnations
    incarnations.seal(1)
    segment = incarnations.grow(1, 1, 0, 1)
    path = ROOT / "incarnations" / str(segment.name)
    ends = [HEADER_BYTES]
    for group in groups:
        segment.append(group.commits, group.note)
        ends.append(disk.stat(path).st_size)
    return disk, segment.name, ends


def replace(disk: SimulatedDisk, path: Path, data: bytes) -> None:
    if path.name not in disk.listdir(path.parent):
        disk.close(disk.open(path, os.O_WRONLY | os.O_CREAT))
    node = disk._node(path)
    node.data = node.durable = data  # type: ignore[union-attr]


GROUPS = [
    CommitGroup(
        [Commit("count", 0, 1, 1, 1, [(b"Sk", b"v")]), Commit("sum", 3, 1, 1, 1, [])], b"first"
    ),
    CommitGroup([], b"second"),
    CommitGroup([Commit("count", 0, 2, 1, 1, [(b"Sk", b"MRFR" * 9)])], b""),
]


@pytest.mark.parametrize("fill", [b"", b"\0"], ids=["cut", "zeros"])
def test_a_segment_torn_at_any_byte_has_the_groups_before(fill: bytes) -> None:
    disk, name, ends = written(GROUPS)
    path = ROOT / "incarnations" / str(name)
    whole = disk._node(path).data  # type: ignore[union-attr]
    for cut in range(len(whole) + 1):
        disk, _, _ = written([])
        torn = whole[:cut] + fill * (len(whole) - cut)
        replace(disk, path, torn)
        incarnations = LocalHardState.open(ROOT, disk=disk).incarnations
        assert incarnations.seal(2) is not None
        expected = GROUPS[: sum(torn[:end] == whole[:end] for end in ends[1:])]
        assert [
            group for found in incarnations.names() for group in incarnations.groups(found)
        ] == expected


def test_an_altered_bit_is_the_end_in_the_last_group_and_damage_before() -> None:
    disk, name, ends = written(GROUPS)
    path = ROOT / "incarnations" / str(name)
    whole = disk._node(path).data  # type: ignore[union-attr]
    for offset in range(len(whole)):
        disk, _, _ = written([])
        altered = bytearray(whole)
        altered[offset] ^= 1 << offset % 8
        replace(disk, path, bytes(altered))
        incarnations = LocalHardState.open(ROOT, disk=disk).incarnations
        if offset >= ends[-2]:
            assert incarnations.seal(2) is not None
            assert list(incarnations.groups(name)) == GROUPS[:-1]
        else:
            with pytest.raises(StoreError, match=f"segment {path}: "):
                incarnations.seal(2)


def test_an_altered_bit_of_a_sealed_segment_is_noticed_or_of_no_account() -> None:
    disk, name, ends = written(GROUPS)
    incarnations = LocalHardState.open(ROOT, disk=disk).incarnations
    seal = incarnations.seal(2)
    assert seal is not None
    assert seal.lengths == {str(name): ends[-2]}
    path = ROOT / "incarnations" / str(name)
    whole = disk._node(path).data  # type: ignore[union-attr]
    for offset in range(len(whole)):
        altered = bytearray(whole)
        altered[offset] ^= 1 << offset % 8
        replace(disk, path, bytes(altered))
        if offset >= ends[-2]:
            assert list(incarnations.groups(name)) == GROUPS
        else:
            with pytest.raises(StoreError):
                list(incarnations.groups(name))
    for cut in range(ends[-2]):
        replace(disk, path, whole[:cut])
        with pytest.raises(DamagedStore):
            list(incarnations.groups(name))
    seal = ROOT / "incarnations" / "00000002.seal"
    whole = disk._node(seal).data  # type: ignore[union-attr]
    for offset in range(len(whole)):
        altered = bytearray(whole)
        altered[offset] ^= 1 << offset % 8
        replace(disk, seal, bytes(altered))
        with pytest.raises(StoreError, match=r"00000002\.seal"):
            LocalHardState.open(ROOT, disk=disk).incarnations.names()


def test_a_finished_part_has_no_torn_end() -> None:
    disk, name, ends = written(GROUPS)
    incarnations = LocalHardState.open(ROOT, disk=disk).incarnations
    incarnations.grow(1, 1, 0, 2).append([], b"next part")
    path = ROOT / "incarnations" / str(name)
    replace(disk, path, disk._node(path).data[:-1])  # type: ignore[union-attr]
    with pytest.raises(DamagedStore, match=f"damaged at offset {ends[-2]}"):
        incarnations.seal(2)
