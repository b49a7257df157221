"""Files by figure 10: of well-behaved writers no record is late, and every one counts once."""

import json
import os
import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

import millrace as mr

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
        files = mr.Files(
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
