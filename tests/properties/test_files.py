"""Files by figure 10: of well-behaved writers no record is late, and every one counts once."""

import json
import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import millrace as mr
from millrace.injectors.offsets import advanced, pieces
from tests.kit.pieces import rows

GROWS_S = 10


class Check(mr.Computation):
    inputs = {"lines": mr.by(lambda value: value["n"] % 3)}
    outputs = {"seen": int, "late": bool}

    def process_record(self, record):
        self.produce("seen", record.value["n"])
        self.produce("late", record.late)


class Writers:
    """Write files, each for as long as it may grow; no record is older than its file."""

    def __init__(self, folder):
        self.folder = folder
        self.now_s = 1_000_000
        self.created = 100
        self.written = 0
        self.changed = {}

    def new(self, later):
        self.created += later
        name = f"{self.created:06}-{len(self.changed)}"
        self.changed[name] = self.now_s
        (self.folder / name).touch()
        self.append(name, 0)

    def append(self, name, after):
        if self.now_s - self.changed[name] >= GROWS_S:
            return
        line = json.dumps({"n": self.written, "at": int(name[:6]) + after})
        self.written += 1
        with (self.folder / name).open("a") as file:
            file.write(line + "\n")
        self.changed[name] = self.now_s
        os.utime(self.folder / name, (self.now_s, self.now_s))


actions = st.lists(
    st.one_of(
        st.tuples(st.just("new"), st.integers(0, 50)),
        st.tuples(st.just("append"), st.tuples(st.integers(0, 9), st.integers(0, 80))),
        st.tuples(st.just("wait"), st.integers(1, 15)),
        st.tuples(st.just("poll"), st.none()),
    ),
    max_size=25,
)


@given(actions, st.integers(1, 60))
def test_no_record_is_late_and_every_one_counts_once(script, room):
    with tempfile.TemporaryDirectory() as folder:
        writers = Writers(Path(folder))
        files = mr.sources.Files(
            folder,
            schema="n long, at long",
            created=lambda path: int(path.name[:6]),
            grows=f"{GROWS_S} s",
            bytes_per_epoch=room,
            clock=lambda: writers.now_s * mr.SECOND,
        )
        p = mr.Pipeline("files")
        p.inject("lines", files, timestamp="at")
        p.add(Check)
        with mr.testing.Harness(p, publish=True) as h:
            for action, what in [*script, ("new", 1), ("wait", GROWS_S)]:
                if action == "new":
                    writers.new(what)
                elif action == "append" and writers.changed:
                    name = sorted(writers.changed)[what[0] % len(writers.changed)]
                    writers.append(name, what[1])
                elif action == "wait":
                    writers.now_s += what
                elif action == "poll":
                    h.poll("lines")
            while h.poll("lines"):
                pass
            h.poll("lines")
            assert not any(out.value for out in h.outputs("late"))
            seen = sorted(out.value for out in h.outputs("seen"))
            assert seen == list(range(writers.written))
            assert h.low_watermark("Check") == writers.created


class Logger:
    """Writes lines into app.log and rotates it; old files keep three generations."""

    def __init__(self, folder):
        self.folder = folder
        self.now_s = 1_000_000
        self.written = 0

    def path(self, generation):
        return self.folder / ("app.log" if generation == 0 else f"app.log.{generation}")

    def append(self, path, count):
        with path.open("a") as file:
            for _ in range(count):
                file.write(json.dumps({"n": self.written, "at": self.written}) + "\n")
                self.written += 1
        os.utime(path, (self.now_s, self.now_s))

    def step(self, action, count):
        """Do one thing that loggers do; ``count`` is how many lines are written, or seconds."""
        if action == "write":
            self.append(self.path(0), count)
        elif action == "write late" and self.path(1).exists():
            self.append(self.path(1), count)  # by who had it open when it was renamed
        elif action == "rename" and self.path(0).exists():
            for generation in range(20, -1, -1):
                if self.path(generation).exists():
                    self.path(generation).rename(self.path(generation + 1))
        elif action == "copy" and self.path(0).exists() and self.path(0).stat().st_size:
            for generation in range(20, 0, -1):
                if self.path(generation).exists():
                    self.path(generation).rename(self.path(generation + 1))
            shutil.copyfile(self.path(0), self.path(1))
            os.utime(self.path(1), (self.now_s, self.now_s))
            os.truncate(self.path(0), 0)
            os.utime(self.path(0), (self.now_s, self.now_s))
        elif action == "wait":
            self.now_s += count


rotations = st.lists(
    st.tuples(
        st.sampled_from(["write", "write late", "rename", "copy", "wait", "poll", "restart"]),
        st.integers(1, 6),
    ),
    max_size=25,
)


@pytest.mark.parametrize("pattern", ["*", "*.log"])
@given(rotations, st.integers(20, 200))
def test_each_line_of_rotated_logs_is_read_once(pattern, script, room):
    """Also of one that came and was rotated, more than once, between two looks."""
    with tempfile.TemporaryDirectory() as folder:
        logger, offsets, seen = Logger(Path(folder)), {}, []

        def files():
            return mr.sources.Files(
                folder,
                schema="n long, at long",
                pattern=pattern,
                grows=f"{GROWS_S} s",
                rotated=True,
                bytes_per_epoch=room,
                clock=lambda: logger.now_s * mr.SECOND,
            )

        def poll(injector, offsets):
            after = json.loads(json.dumps(advanced("s", injector, offsets, ())))
            found = [
                row for piece in pieces(injector, offsets, after) for row in rows(injector, piece)
            ]
            seen.extend(row[0] for row in found if not row[-1])
            return after

        injector = files()
        for action, count in [*script, ("wait", GROWS_S)]:
            if action == "poll":
                offsets = poll(injector, offsets)
            elif action == "restart":
                injector = files()  # from the same offsets, in another process
            else:
                logger.step(action, count)
        for _ in range(2 * logger.written + 3):
            offsets = poll(injector, offsets)
        assert sorted(seen) == list(range(logger.written))
