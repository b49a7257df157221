"""The simulated disk: the calls are those of os, and a power cut takes what is not durable."""

import errno
import os
from pathlib import Path
from random import Random

import pytest
from logs import append

from millrace.store import Commit, LocalHardState
from simulation.disk import LOST_REPLY, SimulatedDisk

ROOT = Path("/data/checkpoint")
COMMIT = Commit("count", 0, 1, epoch=1, generation=1, mutations=[(b"Sk", b"1")])


class Asked:
    """Refuses the call that it is told to."""

    def __init__(self, call="", code=0):
        self.call, self.code = call, code
        self.calls = []
        self.then = None

    def __call__(self, call, path):
        self.calls.append(call)
        if self.then is not None and call == self.call:
            then, self.then = self.then, None
            then()
        return self.code if call == self.call else 0


def disk(ask=None, seed=0):
    return SimulatedDisk(Random(seed), ask or Asked())


def write(on, path, data, *, sync):
    fd = on.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    while data:
        data = data[on.write(fd, memoryview(data)) :]
    if sync:
        on.fsync(fd)
    on.close(fd)


def read(on, path):
    fd = on.open(path, os.O_RDONLY)
    return on.pread(fd, on.fstat(fd).st_size, 0)


def sync(on, directory):
    on.fsync(on.open(directory, os.O_RDONLY | os.O_DIRECTORY))


def after_a_cut(prepare, look):
    """What is seen over many power cuts."""
    seen = []
    for seed in range(60):
        one = disk(seed=seed)
        prepare(one)
        one.cut_power()
        seen.append(look(one))
    return seen


def test_a_name_that_is_not_synced_may_be_lost_and_a_synced_one_is_not():
    def prepare(on):
        write(on, Path("/kept"), b"1", sync=True)
        sync(on, Path("/"))
        write(on, Path("/maybe"), b"2", sync=True)

    seen = after_a_cut(prepare, lambda on: tuple(sorted(on.listdir(Path("/")))))
    assert set(seen) == {("kept",), ("kept", "maybe")}


def test_a_removed_name_may_come_back():
    def prepare(on):
        write(on, Path("/a"), b"1", sync=True)
        sync(on, Path("/"))
        on.unlink(Path("/a"))

    assert set(after_a_cut(prepare, lambda on: tuple(on.listdir(Path("/"))))) == {(), ("a",)}


def test_unsynced_bytes_may_be_torn_and_synced_ones_are_whole():
    def prepare(on):
        write(on, Path("/kept"), b"abcdef", sync=True)
        write(on, Path("/torn"), b"abcdef", sync=False)
        sync(on, Path("/"))

    seen = after_a_cut(prepare, lambda on: (read(on, Path("/kept")), read(on, Path("/torn"))))
    assert {kept for kept, _ in seen} == {b"abcdef"}
    torn = {found for _, found in seen}
    assert {b"abcdef", b"abc"} < torn
    assert any(b"\0" in found for found in torn)
    assert all(b"abcdef".startswith(found.rstrip(b"\0")) for found in torn)


def test_after_a_failed_fsync_a_second_one_makes_nothing_durable():
    def prepare(on):
        ask = on._ask
        fd = on.open(Path("/a"), os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        on.write(fd, memoryview(b"x"))
        ask.call, ask.code = "fsync", errno.EIO
        with pytest.raises(OSError, match="Input/output error"):
            on.fsync(fd)
        ask.code = 0
        on.fsync(fd)
        sync(on, Path("/"))

    assert b"" in after_a_cut(prepare, lambda on: read(on, Path("/a")))


def test_a_directory_is_lost_with_all_that_is_in_it():
    def prepare(on):
        on.mkdir(Path("/d"))
        write(on, Path("/d/a"), b"1", sync=True)
        sync(on, Path("/d"))

    assert set(after_a_cut(prepare, lambda on: tuple(on.listdir(Path("/"))))) == {(), ("d",)}


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (lambda on: on.open(Path("/none"), os.O_RDONLY), errno.ENOENT),
        (lambda on: on.unlink(Path("/none")), errno.ENOENT),
        (lambda on: on.listdir(Path("/file")), errno.ENOTDIR),
        (lambda on: on.stat(Path("/file/x")), errno.ENOTDIR),
        (lambda on: on.mkdir(Path("/file")), errno.EEXIST),
        (lambda on: on.link(Path("/file"), Path("/file")), errno.EEXIST),
        (lambda on: on.close(99) or on.fsync(99), errno.EBADF),
    ],
)
def test_errors_are_those_of_the_operating_system(call, code):
    on = disk()
    write(on, Path("/file"), b"1", sync=True)
    with pytest.raises(OSError) as raised:
        call(on)
    assert raised.value.errno == code


def test_a_lost_reply_of_link_is_known_for_a_success():
    ask = Asked("link", LOST_REPLY)
    state = LocalHardState.create_or_open(ROOT, pipeline="p", disk=disk(ask))
    assert append(state, [COMMIT]) == [True]
    assert append(state, [COMMIT]) == [False]


# -- found by the simulator ------------------------------------------------------------------------


def test_a_checkpoint_whose_path_another_driver_made_survives_a_power_cut():
    """Seeds 3 and 45 of its first day: mkdir, and its maker was killed before the fsync."""
    for seed in range(20):
        on = disk(seed=seed)
        on.mkdir(ROOT.parent)
        on.mkdir(ROOT)
        append(LocalHardState.create_or_open(ROOT, pipeline="p", disk=on), [COMMIT])
        on.cut_power()
        assert LocalHardState.open(ROOT, disk=on).commits.read("count", 0, 1) == COMMIT


def test_a_name_that_is_collected_while_it_is_compared_was_taken():
    """Seed 643: an attempt left behind was told that its checkpoint had been removed."""
    ask = Asked()
    state = LocalHardState.create_or_open(ROOT, pipeline="p", disk=disk(ask))
    assert append(state, [COMMIT]) == [True]
    ask.call, ask.then = "stat", lambda: state.commits.remove("count", 0, [1])
    assert append(state, [COMMIT]) == [False]


def test_two_drivers_make_a_checkpoint_at_once():
    """Seed 53 of its first day: the slower one took the other's new checkpoint for foreign."""
    ask = Asked("list")
    on = disk(ask)
    made = []
    ask.then = lambda: made.append(LocalHardState.create_or_open(ROOT, pipeline="p", disk=on))
    state = LocalHardState.create_or_open(ROOT, pipeline="p", disk=on)
    assert state.uuid == made[0].uuid
