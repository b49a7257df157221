from __future__ import annotations

import errno
import fcntl
import json
import os
import pickle
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import lmdb
import pytest

from millrace.model.errors import DamagedCache, DamagedStore, InvariantViolation, StoreError
from millrace.store import Commit, LmdbCache, LmdbCaches, cache_directories, lmdb_environments

Make = Callable[..., Commit]
Python = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "cache"
    lmdb_environments.close_all()


@pytest.fixture
def cache(directory: Path, commit: Make) -> LmdbCache:
    """At commit 3; the row ``Sn`` says so, and 1,000 rows fill some pages."""
    cache = LmdbCache(directory, "count", 0, "uuid")
    cache.apply(commit(1, *[(b"S%04d" % n, bytes(100)) for n in range(1000)]))
    cache.apply(commit(2, (b"Sn", b"2")))
    cache.apply(commit(3, (b"Sn", b"3")))
    return cache


def data_file(directory: Path) -> Path:
    (path,) = directory.rglob("data.mdb")
    return path


def test_it_lasts(cache: LmdbCache, directory: Path) -> None:
    lmdb_environments.close_all()
    again = LmdbCache(directory, "count", 0, "uuid")
    assert again.position == 3
    assert again.wiped == 0


def test_handles_of_one_process_share_an_environment(cache: LmdbCache, directory: Path) -> None:
    other = LmdbCaches(directory, "uuid").open("count", 0)
    with cache.view() as one, other.view() as two:
        assert one.get(b"Sn") == two.get(b"Sn") == b"3"


def test_making_the_objects_touches_no_file(directory: Path) -> None:
    LmdbCaches(directory, "uuid").open("count", 0)
    assert not directory.exists()


def test_caches_are_pickled_as_their_arguments(cache: LmdbCache, directory: Path) -> None:
    caches = LmdbCaches(directory, "uuid", map_size_bytes=1 << 30)
    assert caches.open("count", 0).position == 3
    assert pickle.loads(pickle.dumps(caches)).open("count", 0).position == 3
    assert len(pickle.dumps(caches)) < 500


def test_the_file_is_as_large_as_its_rows(cache: LmdbCache, directory: Path) -> None:
    assert data_file(directory).stat().st_size < 1_000_000


def test_another_uuid_sees_nothing_of_it(cache: LmdbCache, directory: Path) -> None:
    assert LmdbCache(directory, "count", 0, "other").position == 0
    assert cache.position == 3


def test_an_environment_under_another_uuids_path_is_wiped(
    cache: LmdbCache, directory: Path
) -> None:
    lmdb_environments.close_all()
    (directory / "uuid").rename(directory / "other")
    moved = LmdbCache(directory, "count", 0, "other")
    assert moved.position == 0
    assert moved.wiped == 1


def test_after_a_reboot_it_is_not_opened_but_removed(
    cache: LmdbCache, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lmdb_environments.close_all()
    old = data_file(directory)
    boot = cache_directories.boot_id()
    monkeypatch.setattr(cache_directories, "boot_id", lambda: boot[::-1])
    again = LmdbCache(directory, "count", 0, "uuid")
    assert again.position == 0
    assert not old.exists()


def test_what_another_host_cached_is_left_alone(directory: Path) -> None:
    other = directory / "uuid" / "1-otherhost-boot" / "x"
    other.mkdir(parents=True)
    assert LmdbCache(directory, "count", 0, "uuid").position == 0
    assert other.exists()


def test_where_boots_cannot_be_told_apart_it_is_synced(
    directory: Path, commit: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_directories, "boot_id", lambda: "unknown")
    opened: list[dict[str, object]] = []
    real = lmdb.open

    def recorded(path: str, **options: object) -> lmdb.Environment:
        opened.append(options)
        return real(path, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(lmdb, "open", recorded)
    LmdbCache(directory, "count", 0, "uuid").apply(commit(1))
    assert opened[0]["sync"] is True
    monkeypatch.undo()
    LmdbCache(directory, "count", 0, "uuid").apply(commit(1))


@pytest.mark.parametrize("length", [0, 1, 4096, 8192, 40_000])
def test_a_truncated_file_is_wiped_and_counted(
    cache: LmdbCache, directory: Path, commit: Make, length: int
) -> None:
    lmdb_environments.close_all()
    os.truncate(data_file(directory), length)
    again = LmdbCache(directory, "count", 0, "uuid")
    assert again.position == 0
    assert again.wiped == (length > 0)
    again.apply(commit(1, (b"Sn", b"1")))
    with again.view(at=1) as view:
        assert list(view.scan(b"A", b"z")) == [(b"Sn", b"1")]


@pytest.mark.parametrize("data", [b"garbage", b"\xff" * 100_000, bytes(100_000)])
def test_garbage_is_wiped_and_counted(cache: LmdbCache, directory: Path, data: bytes) -> None:
    lmdb_environments.close_all()
    data_file(directory).write_bytes(data)
    again = LmdbCache(directory, "count", 0, "uuid")
    assert again.position == 0
    assert again.wiped == 1


def test_a_lost_position_is_noticed(cache: LmdbCache, directory: Path) -> None:
    lmdb_environments.close_all()
    with lmdb.open(str(data_file(directory).parent)) as env, env.begin(write=True) as txn:
        txn.delete(b"\x00")
    again = LmdbCache(directory, "count", 0, "uuid")
    assert again.position == 0
    assert again.wiped == 1


@pytest.mark.parametrize("meta", [b"", b"\xc1", b"\x93\x02\xa4uuid\x03", b"\x93\x01\xa1x\x03"])
def test_an_unreadable_or_foreign_position_is_wiped(
    cache: LmdbCache, directory: Path, meta: bytes
) -> None:
    lmdb_environments.close_all()
    with lmdb.open(str(data_file(directory).parent)) as env, env.begin(write=True) as txn:
        txn.put(b"\x00", meta)
    again = LmdbCache(directory, "count", 0, "uuid")
    assert again.position == 0
    assert again.wiped == 1


class Failing:
    """An LMDB environment whose transactions fail in one way."""

    def __init__(self, error: lmdb.Error) -> None:
        self.error = error

    def begin(self, **_: object) -> None:
        raise self.error

    def open_db(self) -> None:
        raise self.error

    def close(self) -> None:
        pass


def break_environment(error: lmdb.Error) -> None:
    for opened in lmdb_environments._open.values():
        opened.env.close()
        opened.env = Failing(error)  # type: ignore[assignment]


def test_damage_found_in_use_is_removed_and_the_task_tries_again(
    cache: LmdbCache, commit: Make
) -> None:
    break_environment(lmdb.CorruptedError("mdb_get"))
    with pytest.raises(DamagedStore, match="Nothing is lost: it has been removed"), cache.view():
        pass
    assert cache.position == 0
    cache.apply(commit(1))
    break_environment(lmdb.CorruptedError("mdb_put"))
    with pytest.raises(DamagedStore):
        cache.apply(commit(2))
    cache.apply(commit(1))
    break_environment(lmdb.CorruptedError("mdb_drop"))
    cache.clear()
    cache.apply(commit(1))
    break_environment(lmdb.PageNotFoundError("mdb_get"))
    assert cache.position == 0
    assert cache.wiped == 4


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (lmdb.MapFullError("mdb_put"), "Raise map_size_bytes of LmdbCaches"),
        (lmdb.MapResizedError("mdb_txn_begin"), "Raise map_size_bytes of LmdbCaches"),
        (lmdb.ReadersFullError("mdb_txn_begin"), "Fewer tasks can read"),
        (lmdb.MemoryError(f"open: {os.strerror(errno.ENOMEM)}"), "lower map_size_bytes"),
        (lmdb.DiskError(f"commit: {os.strerror(errno.ENOSPC)}"), "Free room for the cache"),
        (lmdb.Error(f"open: {os.strerror(errno.EMFILE)}"), "raise the limit, see `ulimit -n`"),
    ],
)
def test_what_wiping_cannot_help_is_an_error(
    cache: LmdbCache, commit: Make, error: lmdb.Error, remedy: str
) -> None:
    break_environment(error)
    with pytest.raises(StoreError, match=remedy):
        cache.apply(commit(4))
    with pytest.raises(StoreError, match=remedy):
        _ = cache.position
    with pytest.raises(StoreError, match=remedy), cache.view():
        pass
    assert cache.wiped == 0


def test_a_full_map_says_which_option_to_raise(directory: Path, commit: Make) -> None:
    cache = LmdbCache(directory, "count", 0, "uuid", map_size_bytes=1 << 16)
    cache.apply(commit(1, (b"Sa", b"1")))
    with pytest.raises(StoreError, match="Raise map_size_bytes of LmdbCaches, which is 65536"):
        cache.apply(commit(2, (b"Sa", b"2"), (b"Sb", bytes(1 << 17))))
    with cache.view(at=1) as view:
        assert list(view.scan(b"A", b"z")) == [(b"Sa", b"1")]


def test_no_address_space(directory: Path) -> None:
    cache = LmdbCache(directory, "count", 0, "uuid", map_size_bytes=1 << 62)
    with pytest.raises(StoreError, match="lower map_size_bytes"):
        _ = cache.position


def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="Choose another cache directory"):
        _ = LmdbCache(tmp_path / "file", "count", 0, "uuid").position


def test_a_cache_directory_deleted_between_uses(cache: LmdbCache, directory: Path) -> None:
    """It may be deleted when no run uses it; if one does, its open files go on working."""
    shutil.rmtree(directory)
    assert cache.position == 3
    lmdb_environments.close_all()
    assert cache.position == 0


def test_a_view_is_not_read_after_it_is_closed(cache: LmdbCache) -> None:
    with cache.view() as view:
        scan = view.scan(b"A", b"z")
        next(scan)
    for read in (lambda: view.get(b"Sn"), lambda: view.get_many([b"Sn"]), lambda: next(scan)):
        with pytest.raises(InvariantViolation, match="after its `with` block"):
            read()
    assert cache.wiped == 0


STOPPED = """
import os, signal, sys
from millrace.store import Commit, LmdbCache, lmdb_cache

def stop(*arguments, **options):
    print("writing", flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)
    return following(*arguments, **options)

following, lmdb_cache.following = lmdb_cache.following, stop
cache = LmdbCache(sys.argv[1], "count", 0, "uuid")
cache.apply(Commit("count", 0, 4, epoch=4, generation=1, mutations=[(b"Sn", b"zombie")]))
print(cache.position)
"""


def test_a_writer_that_is_stopped_holds_nobody_up(
    cache: LmdbCache,
    directory: Path,
    commit: Make,
    python: Python,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """LMDB would wait for it for ever: the paused process of a driver that has been superseded."""
    monkeypatch.setattr(lmdb_environments, "PATIENCE_S", 0.1)
    zombie = python(STOPPED, directory)
    assert zombie.stdout is not None
    assert zombie.stdout.readline() == "writing\n"
    os.waitid(os.P_PID, zombie.pid, os.WSTOPPED | os.WNOWAIT)
    with pytest.raises(DamagedCache, match=r"another process has been writing for 0\.1 s"):
        cache.apply(commit(4, (b"Sn", b"4")))
    assert cache.position == 0
    cache.apply(*(commit(n, (b"Sn", b"%d" % n)) for n in range(1, 5)))

    zombie.send_signal(signal.SIGCONT)
    assert zombie.wait(30) == 0
    with cache.view(at=4) as view:
        assert view.get(b"Sn") == b"4"
    lmdb_environments.close_all()
    with cache.view(at=4) as view:
        assert view.get(b"Sn") == b"4"


def test_an_opener_that_is_stopped_holds_nobody_up(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lmdb_environments, "PATIENCE_S", 0.1)
    guard_file = Path(f"{LmdbCache(directory, 'count', 0, 'uuid')._path}.guard")
    guard_file.parent.mkdir(parents=True)
    with guard_file.open("w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        assert LmdbCache(directory, "count", 0, "uuid").position == 0


def test_an_impossible_key_is_not_taken_for_damage(cache: LmdbCache) -> None:
    with pytest.raises(InvariantViolation, match="impossible key"), cache.view() as view:
        view.get(b"")
    assert cache.wiped == 0


def test_more_intervals_than_environments_are_kept_open(directory: Path) -> None:
    caches = LmdbCaches(directory, "uuid")
    count = lmdb_environments.OPEN_MAX + 10
    for interval in range(count):
        caches.open("count", interval).apply(Commit("count", interval, 1, 1, 1, []))
    assert len(lmdb_environments._open) == lmdb_environments.OPEN_MAX
    assert [caches.open("count", interval).position for interval in range(count)] == [1] * count


def test_an_environment_in_use_is_not_closed_for_others(cache: LmdbCache, directory: Path) -> None:
    caches = LmdbCaches(directory, "uuid")
    with cache.view() as view:
        for interval in range(1, lmdb_environments.OPEN_MAX + 10):
            assert caches.open("count", interval).position == 0
        assert view.get(b"Sn") == b"3"


def in_a_child(work: Callable[[], object]) -> object:
    """Run ``work`` in a forked process and return what it returned there."""
    out, into = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(into, json.dumps(work()).encode())
        finally:
            os._exit(0)
    os.close(into)
    with os.fdopen(out) as answer:
        text = answer.read()
    os.waitpid(pid, 0)
    return json.loads(text)


def test_a_child_goes_on_with_a_cache_that_was_open(cache: LmdbCache, commit: Make) -> None:
    def work() -> object:
        cache.apply(commit(4, (b"Sn", b"4")))
        return [cache.position, cache.wiped]

    assert in_a_child(work) == [4, 0]
    assert cache.position == 4
    cache.apply(commit(5, (b"Sn", b"5")))
    assert in_a_child(lambda: cache.position) == 5


def test_a_fork_with_a_view_open_leaves_both_sides_working(cache: LmdbCache, commit: Make) -> None:
    def work() -> object:
        cache.apply(commit(1, (b"Sn", b"mine")))
        return [cache.position, cache.wiped]

    with cache.view() as view:
        assert in_a_child(work) == [1, 1]
        assert view.get(b"Sn") == b"3"
        assert cache.position == 3


APPLY = """
import sys
from millrace.store import Commit, LmdbCache
directory, count = sys.argv[1], int(sys.argv[2])
cache = LmdbCache(directory, "count", 0, "uuid")
print("ready", flush=True)
sys.stdin.readline()
for number in range(1, count + 1):
    rows = [(b"Sn", b"%d" % number), (b"S%d" % number, b"")]
    cache.apply(Commit("count", 0, number, 1, 1, rows))
    with cache.view() as view:
        position = view.position
        assert position >= number
        assert view.get(b"Sn") == b"%d" % position
        assert len(list(view.scan(b"S0", b"Sa"))) == position
print("done")
"""


def test_several_processes_apply_the_same_commits_to_one_cache(
    directory: Path, python: Python
) -> None:
    processes = [python(APPLY, directory, 300) for _ in range(3)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    assert [process.communicate("go\n")[0] for process in processes] == ["done\n"] * 3
    assert LmdbCache(directory, "count", 0, "uuid").position == 300


def test_a_wiped_environment_goes_on_for_those_who_have_it_open(
    cache: LmdbCache, directory: Path, python: Python, commit: Make
) -> None:
    """Processes that meet after a wipe hold different files, each a whole cache of its own."""
    script = """
import sys
from millrace.store import Commit, LmdbCache
cache = LmdbCache(sys.argv[1], "count", 0, "uuid")
with cache.view() as view:
    print(view.get(b"Sn"), flush=True)
    sys.stdin.readline()
    print(view.get(b"Sn"))
cache.apply(Commit("count", 0, 4, 1, 1, [(b"Sn", b"4")]))
print(cache.position)
"""
    process = python(script, directory)
    assert process.stdout is not None
    assert process.stdout.readline() == "b'3'\n"
    break_environment(lmdb.CorruptedError("mdb_get"))
    assert cache.position == 0
    cache.apply(commit(1, (b"Sn", b"1")))
    assert process.communicate("go\n")[0] == "b'3'\n4\n"
    assert cache.position == 1


def test_a_computation_that_was_dropped_leaves_no_file(
    cache: LmdbCache, directory: Path, commit: Make
) -> None:
    caches = LmdbCaches(directory, "uuid")
    with cache.view() as seen:  # by a process that was left behind
        caches.forget("count")
        assert seen.get(b"Sn") == b"3"
    assert not list(directory.rglob("data.mdb"))
    caches.forget("never heard of")


def test_what_lmdb_keeps_of_large_writes_is_bounded(
    directory: Path, commit: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages that were written stay in an environment's memory until it is closed."""
    monkeypatch.setattr(lmdb_environments, "WRITTEN_MAX", 2 << 20)
    rows = [(b"S%04d" % n, bytes(1000)) for n in range(500)]
    caches = [LmdbCache(directory, "count", interval, "uuid") for interval in range(8)]
    for interval, cache in enumerate(caches):
        cache.apply(commit(1, *rows, interval=interval))
        kept = [opened.written_bytes for opened in lmdb_environments._open.values()]
        assert sum(kept) <= 2 << 20
        assert len(kept) == min(interval + 1, 3), "168 pages each"
    for cache in caches:
        with cache.view(at=1) as view:
            assert view.get_many([b"S0000", b"S0499"]) == [bytes(1000)] * 2


def test_an_environment_in_use_is_not_closed_for_what_it_keeps(
    directory: Path, commit: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lmdb_environments, "WRITTEN_MAX", 1)
    cache = LmdbCache(directory, "count", 0, "uuid")
    cache.apply(commit(1, (b"Sa", b"1")))
    with cache.view(at=1) as view:
        cache.apply(commit(2, *[(b"S%04d" % n, bytes(100)) for n in range(500)]))
        assert view.get(b"Sa") == b"1"
        assert len(lmdb_environments._open) == 1
    assert not lmdb_environments._open
    assert cache.position == 2
