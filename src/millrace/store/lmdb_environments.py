"""The LMDB environments that this process has open: one registry, whatever opened them.

Rules of LMDB that the registry keeps: an environment is open once in a process; it does not cross
``fork``; it is not opened while somebody replaces its files.

* Idle environments are closed before a fork and opened again on both sides when next used. One in
  use during a fork (a view is open) stays with the parent; the child builds one of its own.
* More than ``OPEN_MAX`` idle ones are not kept, as each holds two file descriptors and 256 is a
  common limit.
* Pages that LMDB has written stay in its memory for the next write, until it is closed. Where those
  of all environments come to more than ``WRITTEN_MAX``, one that is not in use is closed.
* Opening, and moving a damaged environment out of the way, happen under a ``flock`` shared by all
  processes. A process that still has the old files open goes on with them undisturbed: they are
  a cache like any other, nobody finds them any more, and they vanish when it closes them.
* LMDB lets writers wait for each other for ever, also for one whose process is stopped, as that of
  a driver that has been superseded may be. So writers take a ``flock`` first, and what is not free
  within ``PATIENCE_S`` is left to who has it: a new one is made in its place.

The pages of a cache that is larger than memory are read by several threads at once. LMDB reads a
row by touching a page of a mapped file. One that is not in memory stops its thread until the disk
has it, and rows of a bundle lie on a page each, so they would be waited for one after the other.
Threads wait side by side: LMDB touches pages without holding Python's lock. They take CPU time of
their own, so they only run where the bundle before has waited.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import shutil
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import lmdb

#: Threads of a process; a disk or volume answers as many reads at once, and more.
THREADS = 16
#: A bundle of fewer rows is read as it is.
_FEW_ROWS = 256
#: Of so many rows one had to be read from the disk, or more of them, where it is worth it.
_ROWS_A_WAIT = 16


class Paging:
    """Reads rows of one environment.

    Args:
        env: The environment.

    Attributes:
        waits: Whether rows lay on the disk when some were last read.
    """

    def __init__(self, env: lmdb.Environment) -> None:
        self._env = env
        self.waits = False

    def get_many(self, txn: lmdb.Transaction[bytes], rows: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of rows, as a transaction sees them; None for those not there."""
        waited = 0
        if self.waits and len(rows) >= _FEW_ROWS:
            step = -(-len(rows) // THREADS)
            parts = [rows[start : start + step] for start in range(0, len(rows), step)]
            waited = sum(_threads().map(self._touch, parts))
        before = _waited()
        # Faster than Cursor.getmulti, which copies every key.
        values = list(map(txn.get, rows))
        waited += _waited() - before
        self.waits = waited * _ROWS_A_WAIT > len(rows)
        return values

    def _touch(self, rows: Sequence[bytes]) -> int:
        """Have the pages of rows in memory; return how often the disk was waited for."""
        before = _waited()
        # Who reads the rows then is told what is wrong.
        with contextlib.suppress(lmdb.Error), self._env.begin() as txn:
            for row in rows:
                txn.get(row)
        return _waited() - before


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(THREADS, "millrace-paging")


def _waited() -> int:
    """Return how often this thread has waited for a page of the disk."""
    return resource.getrusage(_OF_A_THREAD).ru_majflt


# Threads do not cross a fork.
os.register_at_fork(after_in_child=_threads.cache_clear)

# Systems other than Linux do not count by thread.
_OF_A_THREAD = getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)

# Three descriptors each leave a quarter of a 256 descriptor limit to Spark's worker.
OPEN_MAX = 64

# Bytes of pages that LMDB keeps in this process, about. Writes of few rows are not looked at: what
# all environments can keep of those is as much again.
WRITTEN_MAX = 64 << 20


# A write takes milliseconds, and seconds where a cache is built again from many commits.
PATIENCE_S = 10.0

# One slot for each open view of any process on the host; 64 bytes each.
_READERS_MAX = 512


class Damaged(Exception):
    """An environment's files are not what a process of this boot wrote."""


class Environment:
    """One open LMDB environment.

    Attributes:
        paging: Reads many rows of it.
        users: How many have acquired it.
        retired: Whether it is closed by the last of them.
        written_bytes: What the pages come to that LMDB keeps of its largest write.
    """

    def __init__(self, path: str, env: lmdb.Environment, inode: int, turn_fd: int) -> None:
        self.path = path
        self.env = env
        self.paging = Paging(env)
        self.inode = inode
        self.pid = os.getpid()
        self.users = 0
        self.retired = False
        self.written_bytes = 0
        self._turn = threading.Lock()
        self._turn_fd = turn_fd

    @contextlib.contextmanager
    def writing(self) -> Iterator[lmdb.Transaction[bytes]]:
        """Write in a transaction, which is aborted by whatever is raised.

        Raises:
            Damaged: Another process has been writing for ``PATIENCE_S``.
            lmdb.Error: LMDB cannot begin, or commit.
        """
        with self._turn:
            if not _locked_in_time(self._turn_fd):
                raise Damaged(f"{self.path}: another process has been writing for {PATIENCE_S:g} s")
            try:
                with self.env.begin(write=True) as txn:
                    yield txn
            finally:
                fcntl.flock(self._turn_fd, fcntl.LOCK_UN)

    def wrote(self, txn: lmdb.Transaction[bytes], rows: int) -> None:
        """Take it that a transaction has written so many rows, each to a page of its own."""
        if rows > _FEW_ROWS:
            stat = txn.stat()
            pages = min(rows, stat["leaf_pages"] + stat["branch_pages"])
            self.written_bytes = max(self.written_bytes, pages * stat["psize"])

    def close(self) -> None:
        """Close it; nobody may use it any more."""
        self.env.close()
        self.disown()

    def disown(self) -> None:
        """Leave it to the process that opened it: to close it here would disturb its readers."""
        os.close(self._turn_fd)


_lock = threading.Lock()
_open: OrderedDict[str, Environment] = OrderedDict()
_kept_by_parent: list[Environment] = []


def acquire(
    path: str, map_size_bytes: int, sync: bool, check: Callable[[lmdb.Environment], None]
) -> Environment:
    """Return the open environment at ``path``, opening it if need be; :func:`release` it soon.

    Args:
        path: Directory of the environment; made when missing.
        map_size_bytes: Largest size of its file.
        sync: Whether LMDB has to fsync.
        check: Called with an environment just opened; raises Damaged to refuse it.

    Raises:
        Damaged: the files are truncated, or refused by ``check``.
        lmdb.Error: LMDB cannot open it.
        OSError: the directory cannot be made.
    """
    with _lock:
        opened = _open.get(path)
        if opened is None:
            opened = _open[path] = _opened(path, map_size_bytes, sync, check)
            opened.users += 1
            _close_idle(OPEN_MAX)
        else:
            _open.move_to_end(path)
            opened.users += 1
        return opened


def release(opened: Environment) -> None:
    """Say that ``opened`` is not in use any more; called once for each :func:`acquire`."""
    with _lock:
        opened.users -= 1
        if opened.users or opened.pid != os.getpid():
            return
        if opened.retired:
            opened.close()
        elif opened.written_bytes and _written_bytes() > WRITTEN_MAX:
            del _open[opened.path]
            opened.close()


def retire(path: str, inode: int | None) -> None:
    """Stop using the environment at ``path`` and remove its files, unless another process has.

    Args:
        path: Directory of the environment.
        inode: Which directory to remove: the one somebody found damaged. None for any.
    """
    with _lock:
        opened = _open.get(path)
        if opened is not None and inode in (None, opened.inode):
            del _open[path]
            opened.retired = True
            if not opened.users:
                opened.close()
    # Gone already, or not ours to move: whoever opens it next says what is wrong.
    with contextlib.suppress(OSError), _guarded(path):
        if inode in (None, os.stat(path).st_ino):
            os.rename(path, f"{path}.{uuid.uuid4().hex}.trash")
    # Without the guard, since it may take long; also what a killed process left of its own.
    for trash in Path(path).parent.glob(f"{Path(path).name}.*.trash"):
        shutil.rmtree(trash, ignore_errors=True)


def open_aside(path: str, map_size_bytes: int, sync: bool) -> lmdb.Environment:
    """Open an environment outside the registry; the caller closes it, and nobody else has it."""
    return lmdb.open(
        path,
        map_size=map_size_bytes,
        sync=sync,
        metasync=sync,
        readahead=False,  # Rows of a bundle lie all over the file.
        meminit=False,
        max_readers=_READERS_MAX,
        max_spare_txns=2,
    )


@contextlib.contextmanager
def aside(path: str) -> Iterator[str]:
    """Make a directory beside ``path`` for an environment to :func:`install`, and remove it after.

    Those that killed processes left are removed; one in use is told by a lock on it.
    """
    for left in Path(path).parent.glob(f"{Path(path).name}.*.aside"):
        with contextlib.suppress(OSError), _locked(left, fcntl.LOCK_EX | fcntl.LOCK_NB):
            shutil.rmtree(left, ignore_errors=True)
    directory = Path(f"{path}.{uuid.uuid4().hex}.aside")
    os.makedirs(directory)
    try:
        with _locked(directory, fcntl.LOCK_EX):
            yield str(directory)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def install(path: str, directory: str) -> None:
    """Replace the environment at ``path`` by the closed one at ``directory``.

    A process that has the old one open goes on with it undisturbed, see above.
    """
    with _lock:
        opened = _open.pop(path, None)
        if opened is not None:
            opened.retired = True
            if not opened.users:
                opened.close()
    trash = f"{path}.{uuid.uuid4().hex}.trash"
    with _guarded(path):
        with contextlib.suppress(FileNotFoundError):
            os.rename(path, trash)
        os.rename(directory, path)
    shutil.rmtree(trash, ignore_errors=True)


def close_removed() -> None:
    """Close idle environments whose files another process has removed: they take space till then.

    Cost: one stat for each that is open.
    """
    with _lock:
        for path, opened in list(_open.items()):
            if not opened.users and not _is_there(opened):
                _open.pop(path).close()


def _is_there(opened: Environment) -> bool:
    try:
        return os.stat(opened.path).st_ino == opened.inode
    except FileNotFoundError:
        return False


def close_all() -> None:
    """Close every idle environment of this process, for tests and for an orderly exit."""
    with _lock:
        _close_idle(0)


def _written_bytes() -> int:
    return sum(opened.written_bytes for opened in _open.values())


def _close_idle(keep: int) -> None:
    for path in [path for path, opened in _open.items() if not opened.users]:
        if len(_open) <= keep:
            break
        _open.pop(path).close()


def _opened(
    path: str, map_size_bytes: int, sync: bool, check: Callable[[lmdb.Environment], None]
) -> Environment:
    os.makedirs(path, exist_ok=True)
    with _guarded(path):
        os.makedirs(path, exist_ok=True)  # It may have been moved away before we had the guard.
        inode = os.stat(path).st_ino
        if any(
            (environment.path, environment.inode) == (path, inode)
            for environment in _kept_by_parent
        ):
            raise Damaged(f"{path}: in use by the parent process since before the fork")
        env = open_aside(path, map_size_bytes, sync)
        try:
            needed = (env.info()["last_pgno"] + 1) * env.stat()["psize"]
            size = (Path(path) / "data.mdb").stat().st_size
            # Touching a page that is not there would kill the process with SIGBUS. A new
            # environment has its two meta pages in memory only until the first commit.
            if size < needed and size:
                raise Damaged(f"{path}: {size} bytes, expected {needed} or more")
            env.reader_check()  # Views of killed processes would keep their pages for ever.
            check(env)
            turn_fd = os.open(Path(path) / "writer", os.O_RDWR | os.O_CREAT, 0o666)
        except BaseException:
            env.close()
            raise
        return Environment(path, env, inode, turn_fd)


@contextlib.contextmanager
def _guarded(path: str) -> Iterator[None]:
    guard = f"{path}.guard"
    while True:
        fd = os.open(guard, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            in_time = _locked_in_time(fd)
            if not _leads_to(guard, fd):
                continue  # Somebody was tired of waiting.
            if in_time:
                yield
                return
            with contextlib.suppress(FileNotFoundError):
                os.unlink(guard)
        finally:
            os.close(fd)


def _leads_to(path: str, fd: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(fd))
    except FileNotFoundError:
        return False


def _locked_in_time(fd: int) -> bool:
    """Lock a file; return False if it is not free in time."""
    pause_s, until = 0.0005, time.monotonic() + PATIENCE_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until:
                return False
            time.sleep(pause_s)
            pause_s = min(0.05, 2 * pause_s)
        else:
            return True


@contextlib.contextmanager
def _locked(path: str | Path, how: int) -> Iterator[None]:
    fd = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(fd, how)
        yield
    finally:
        os.close(fd)


def _before_fork() -> None:
    _lock.acquire()
    _close_idle(0)


def _after_fork_in_parent() -> None:
    _lock.release()


def _after_fork_in_child() -> None:
    # Closing or freeing an inherited environment would disturb the parent's readers.
    for opened in _open.values():
        opened.disown()
    _kept_by_parent.extend(_open.values())
    _open.clear()
    _lock.release()


os.register_at_fork(
    before=_before_fork,
    after_in_parent=_after_fork_in_parent,
    after_in_child=_after_fork_in_child,
)
